"""Figures that are measured one after another, and the names that they share with comparisons."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from bench.figure import FIGURES, Figure, measure_each
from bench.measure import NOT_MEASURED, Bench, Measure, Outcome
from bench.processes import LoadFailedError


class By(Figure):
    """A figure whose setting `does` measures it."""

    def measure(self) -> Measure:
        measured: Measure = self.settings["does"]
        return measured


def figure(name: str, does: Callable[[Bench], Any]) -> Figure:
    return By(
        name=name,
        unit="times",
        goal=">= 1",
        bounds=(">= 1",),
        by="",
        seconds=10,
        settings={"does": does},
    )


def measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: list[Figure], *names: str
) -> list[str]:
    try:
        measure_each(names, ["--data-root", str(tmp_path)], table)
    finally:
        printed = capsys.readouterr().out
    return [json.loads(line)["name"] for line in printed.splitlines()]


def value(_: Bench) -> Outcome:
    return Outcome(values={"times": 1})


def other(_: Bench) -> Outcome:
    return Outcome(values={"times": 2})


def both(_: Bench) -> dict[str, Outcome]:
    return {"a": Outcome(values={"times": 1}), "b": Outcome(values={"times": 2})}


def test_several_figures_are_measured_in_the_order_of_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [figure("a", value), figure("b", other)]
    assert measured(tmp_path, capsys, table, "b", "a") == ["b", "a"]


def test_figures_of_one_measurement_are_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [figure("a", both), figure("b", both), figure("c", value)]
    assert measured(tmp_path, capsys, table, "a", "c", "b") == ["b", "a", "c"]


def test_a_figure_that_cannot_be_measured_does_not_keep_the_others_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Bench) -> Outcome:
        raise LoadFailedError("no Java")

    table = [figure("a", fail), figure("b", value)]
    with pytest.raises(SystemExit) as ended:
        measure_each(["a", "b"], ["--data-root", str(tmp_path)], table)
    assert ended.value.code == NOT_MEASURED
    assert json.loads(capsys.readouterr().out)["name"] == "b"


@pytest.mark.parametrize("names", [[], ["a", "z"]])
def test_nothing_is_measured_where_a_name_is_unknown(
    names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        measure_each(names, [], [figure("a", value)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("of these:\n  a\n")


def test_the_comparison_of_single_sends_gives_every_figure_that_names_it() -> None:
    produce = pytest.importorskip(
        "bench.comparisons.produce", reason="sh requirements/install.sh bench"
    )
    by_it = {figure.name for figure in FIGURES if figure.by.endswith(":compare_single_sends")}
    ways = [named for named, _ in produce.SINGLE_SENDS.values()]
    assert {f"send_{way}{size}" for way, size in product(ways, produce.SIZES.values())} == by_it
