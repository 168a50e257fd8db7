"""All figures, one program after another."""

import inspect
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from bench import run_figures
from bench.figure import FIGURES
from bench.run_figures import NAMES, measured, merged


def line(name: str) -> str:
    return json.dumps({"name": name, "value": 1, "ok": True})


def program(printed: dict[str, list[str]], ran: list[str]) -> run_figures.Run:
    def run(name: str, options: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        ran.append(name)
        code = 0 if printed[name] else 3
        return subprocess.CompletedProcess([], code, "\n".join(printed[name]), "why\nno Java\n")

    return run


def test_figures_of_one_measurement_are_measured_once() -> None:
    ran: list[str] = []
    run = program({"a": [line("b"), line("a")], "c": [line("c")]}, ran)
    answers = list(measured(["a", "b", "c"], [], run))
    assert [[answer["name"] for answer in found] for found in answers] == [["b", "a"], ["c"]]
    assert ran == ["a", "c"]


def test_a_figure_that_was_measured_by_the_way_is_told_of() -> None:
    run = program({"a": [line("a"), line("b")]}, [])
    (found,) = measured(["a"], [], run)
    assert [answer["name"] for answer in found] == ["a", "b"]


def test_a_figure_that_cannot_be_measured_has_a_reason_and_no_value() -> None:
    assert list(measured(["a"], [], program({"a": []}, []))) == [
        [{"name": "a", "ok": False, "error": "no Java"}]
    ]


def test_the_reason_is_the_line_that_names_it_whatever_is_printed_after_it() -> None:
    def run(name: str, options: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        said = "round 1\na was not measured: memory grew\nstatistics: 198\n"
        return subprocess.CompletedProcess([], 3, "", said)

    assert list(measured(["a"], [], run)) == [[{"name": "a", "ok": False, "error": "memory grew"}]]


def test_a_figure_that_another_program_fails_to_give_is_measured_by_its_own() -> None:
    ran: list[str] = []
    answers = list(measured(["a", "b"], [], program({"a": [], "b": [line("a"), line("b")]}, ran)))
    assert ran == ["a", "b"]
    assert [[answer.get("value") for answer in found] for found in answers] == [[None], [1, 1]]


def test_what_is_known_is_written_although_the_next_figure_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = NAMES[:2]

    def run(name: str, options: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        if name == second:
            raise KeyboardInterrupt
        answer = {"value": 1, "goal": ">= 1", "unit": "s", "rounds": 5, "detail": {"bounds": []}}
        return subprocess.CompletedProcess([], 0, json.dumps({"name": name, "ok": True} | answer))

    monkeypatch.setattr(sys, "argv", ["run_figures", "--output", str(tmp_path), first, second])
    monkeypatch.setattr(run_figures, "_run", run)
    with pytest.raises(KeyboardInterrupt):
        run_figures.main()
    (written,) = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert written["name"] == first
    assert f"| `{first}` |" in (tmp_path / "figures.md").read_text()


def test_figures_that_are_measured_anew_leave_the_others_as_they_are() -> None:
    first, second, third = NAMES[:3]
    before = [{"name": second, "value": 1}, {"name": third, "value": 1}]
    assert merged(before, [{"name": third, "value": 2}, {"name": first, "value": 2}]) == [
        {"name": first, "value": 2},
        {"name": second, "value": 1},
        {"name": third, "value": 2},
    ]


def test_a_figure_that_cannot_be_measured_keeps_its_earlier_value() -> None:
    name = NAMES[0]
    failed = [{"name": name, "ok": False, "error": "no Java"}]
    assert merged([{"name": name, "value": 1}], failed) == [{"name": name, "value": 1}]
    assert merged([], failed) == failed
    assert merged([{"name": name, "error": "no disk"}], failed) == failed


def test_the_table_has_each_module_of_a_figure_and_each_figure_can_be_measured() -> None:
    modules = (Path(run_figures.__file__).parent / "figures").glob("[a-z]*.py")
    assert {module.stem for module in modules} == {
        figure.name for figure in FIGURES if figure.by == f"figures.{figure.name}:measure"
    }
    pytest.importorskip("confluent_kafka", reason="sh requirements/install.sh bench")
    for figure in FIGURES:
        inspect.signature(figure.measure()).bind("a bench")
