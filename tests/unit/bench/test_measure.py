"""The frame of all figures: turns, bounds, and the line that is printed."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bench import measure
from bench.loads.spec import Moved
from bench.measure import (
    SECONDS_MIN,
    Bench,
    Measure,
    Named,
    Outcome,
    Run,
    cpu_seconds_per_gb,
    figures,
    summary,
)
from bench.peers.maven import PeerMissingError
from bench.processes import LoadFailedError, Usage

UNUSED = Usage(cpu_seconds=1.0, peak_rss_bytes=1_000_000)
HOLDING = Outcome(values={"times": 3.14159265})


@pytest.fixture(autouse=True)
def _without_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "settle", lambda: None)
    monkeypatch.setattr(measure, "RENAMED_S", 0)


def run_of(records: int, seconds: float) -> Run:
    moved = Moved(records=records, bytes=records * 100, seconds=seconds)
    return Run(moved=moved, client=UNUSED, broker=UNUSED)


def measured(
    tmp_path: Path,
    measure: Measure,
    *arguments: str,
    names: str = "a",
    bounds: Sequence[str] = (">= 3",),
) -> None:
    named = [Named(name=name, unit="times", goal=">= 3", bounds=bounds) for name in names]
    options = ["--data-root", str(tmp_path), *arguments]
    figures(named, wanted="a", measure=measure, seconds=SECONDS_MIN, options=options)


def printed_by(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    measure: Measure,
    *arguments: str,
    bounds: Sequence[str] = (">= 3",),
) -> list[str]:
    measured(tmp_path, measure, *arguments, bounds=bounds)
    return capsys.readouterr().out.splitlines()


def test_sides_run_in_turn_and_the_order_turns_from_round_to_round(tmp_path: Path) -> None:
    order: list[tuple[str, float]] = []

    def side(name: str) -> Callable[[float], Run]:
        def run(seconds: float) -> Run:
            order.append((name, seconds))
            return run_of(100, seconds)

        return run

    bench = Bench(rounds=2, seconds=10, directory=tmp_path)
    runs = bench.interleave({"ours": side("ours"), "theirs": side("theirs")})

    assert order == [
        ("ours", 5), ("theirs", 5), ("theirs", 10), ("ours", 10), ("ours", 10), ("theirs", 10),
    ]  # fmt: skip
    assert [len(of_side) for of_side in runs.values()] == [2, 2]


def test_a_run_that_is_too_short_does_not_count(tmp_path: Path) -> None:
    bench = Bench(rounds=1, seconds=10, directory=tmp_path)
    with pytest.raises(LoadFailedError, match=r"ours ran 9\.00 s only"):
        bench.interleave({"ours": lambda seconds: run_of(100, seconds - 1)})


def test_the_last_line_is_the_figure_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = printed_by(capsys, tmp_path, lambda _: HOLDING)
    answer = json.loads(lines[-1])
    assert list(answer) == ["name", "value", "goal", "unit", "ok", "rounds", "detail"]
    assert (answer["value"], answer["ok"], answer["rounds"]) == (3.142, True, 5)


@pytest.mark.parametrize(
    ("bound", "value", "is_ok"),
    [(">= 1", 1, True), (">= 1", 0.9, False), ("<= 5,000", 5000, True), ("<= 0", 0.1, False)],
)
def test_a_figure_is_ok_when_all_of_its_bounds_hold(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bound: str, value: float, is_ok: bool
) -> None:
    outcome = Outcome(values={**HOLDING.values, "over Java": value})
    (line,) = printed_by(capsys, tmp_path, lambda _: outcome, bounds=(">= 3", bound))
    assert json.loads(line)["ok"] is is_ok


def test_figures_of_one_measurement_have_a_line_each_and_the_wanted_one_is_the_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failing = Outcome(values={"times": 2})
    measured(tmp_path, lambda _: {"a": failing, "b": HOLDING}, names="ab")
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(answer["name"], answer["ok"]) for answer in answers] == [("b", True), ("a", False)]


@pytest.mark.parametrize("arguments", [("--rounds", "4"), ("--seconds", "9")])
def test_a_quick_look_is_never_ok(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, str],
) -> None:
    (line,) = printed_by(capsys, tmp_path, lambda _: HOLDING, *arguments)
    assert json.loads(line)["ok"] is False


@pytest.mark.parametrize("error", [PeerMissingError("no Java"), LoadFailedError("no Java")])
def test_a_figure_that_cannot_be_measured_ends_non_zero_and_without_a_value(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    error: Exception,
) -> None:
    def fail(_: Bench) -> Outcome:
        raise error

    with pytest.raises(SystemExit) as ended:
        measured(tmp_path, fail)
    assert ended.value.code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "a was not measured: no Java" in shown.err


def test_the_data_directory_goes_away_with_the_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen: list[Path] = []

    def look(bench: Bench) -> Outcome:
        seen.append(bench.directory)
        (bench.directory / "log").write_text("data")
        return HOLDING

    printed_by(capsys, tmp_path, look)
    assert seen[0].parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_cpu_seconds_of_a_gb_leave_out_the_start_of_a_client_that_says_so() -> None:
    client = Usage(cpu_seconds=5, peak_rss_bytes=0)
    said = Moved(records=1, bytes=2_000_000_000, seconds=10, detail={"cpu_seconds": 3})
    assert cpu_seconds_per_gb(Run(moved=said, client=client, broker=UNUSED)) == (3 + 1) / 2
    silent = Moved(records=1, bytes=2_000_000_000, seconds=10)
    assert cpu_seconds_per_gb(Run(moved=silent, client=client, broker=UNUSED)) == (5 + 1) / 2


def test_each_set_of_connections_that_a_side_had_is_told_once() -> None:
    by_drpc, by_both = {"gRPC": 0, "DRPC": 2}, {"gRPC": 1, "DRPC": 1}
    runs = [
        replace(run_of(1, 10), connections=connections)
        for connections in (by_drpc, by_both, by_drpc)
    ]
    assert summary(runs)["client_connections"] == [by_drpc, by_both]


def test_a_run_begins_when_the_files_of_deleted_topics_are_gone(tmp_path: Path) -> None:
    trash = [tmp_path / "millrace" / "log" / "a-0.1.deleted", tmp_path / "kafka" / "b-0.1-delete"]
    for folder in trash:
        folder.mkdir(parents=True)
    seen: list[bool] = []

    def remove_them() -> None:
        time.sleep(0.2)
        for folder in trash:
            folder.rmdir()

    def side(seconds: float) -> Run:
        seen.append(any(folder.exists() for folder in trash))
        return run_of(1, seconds)

    removing = threading.Thread(target=remove_them)
    removing.start()
    Bench(rounds=1, seconds=1, directory=tmp_path).interleave({"a": side})
    removing.join()
    assert seen == [False, False]
