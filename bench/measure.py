"""The measurement of every figure: rounds, sides in turn, medians, bounds, one final JSON line.

A ratio compares neighbours: in each round every side runs once for the same time, the order rotates
from round to round, and the value is the median of the rounds' ratios. So other load on the machine
affects all sides alike. Before each run the page cache of the previous run is written out.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.directories import run_directory
from bench.loads.spec import Moved
from bench.peers.maven import PeerMissingError
from bench.processes import LoadFailedError, Usage, until, unwind_on_terminate

ROUNDS_MIN = 5
SECONDS_MIN = 10.0
WARM_UP_SECONDS_MAX = 5.0
DELETED = (".deleted", "-delete")
"""Ends of the names of Millrace's and Kafka's folders with the files of deleted topics."""
RENAMED_S = 1
GONE_S = 60
NOT_MEASURED = 3
"""Exit code of a figure's program where the figure could not be measured."""
BECAUSE = "was not measured: "
"""Stands between the figure and the reason in what such a program says."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one side: the records moved, and the resources of client and broker."""

    moved: Moved
    client: Usage
    broker: Usage
    connections: Mapping[str, float] = field(default_factory=dict)
    """How many the client had at its end, by protocol; empty: not known."""

    @property
    def records_per_second(self) -> float:
        """Records over the time from the first to the last."""
        return self.moved.records / self.moved.seconds

    @property
    def bytes_per_second(self) -> float:
        """Bytes of keys and values over the same time."""
        return self.moved.bytes / self.moved.seconds


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A measured value and its bound."""

    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value is within the bound."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a figure: by name, the values that have bounds. The first is the figure's."""

    values: Mapping[str, float]
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The frame of one measurement: number of rounds, length of runs, place of the data."""

    rounds: int
    seconds: float
    directory: Path

    @property
    def is_full(self) -> bool:
        """Whether there are enough rounds of enough seconds for a figure to count."""
        return self.rounds >= ROUNDS_MIN and self.seconds >= SECONDS_MIN

    @property
    def warm_up_seconds(self) -> float:
        """How long each side runs before the first round."""
        return min(self.seconds, WARM_UP_SECONDS_MAX)

    def interleave(self, sides: Mapping[str, Callable[[float], Run]]) -> dict[str, list[Run]]:
        """Run all sides in turn, once to warm up and then once a round.

        Args:
            sides: by name; each runs for at least the seconds it is given.

        Returns:
            The runs of each side, one a round.
        """
        runs: dict[str, list[Run]] = {name: [] for name in sides}
        for number in range(self.rounds + 1):
            names = list(sides)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                until_files_are_gone(self.directory)
                settle()
                if number == 0:
                    sides[name](self.warm_up_seconds)
                    continue
                run = sides[name](self.seconds)
                if run.moved.seconds < self.seconds * 0.999:
                    raise LoadFailedError(f"{name} ran {run.moved.seconds:.2f} s only")
                runs[name].append(run)
                say(
                    f"round {number}/{self.rounds} {name:12}"
                    f" {run.records_per_second:12,.0f} records/s"
                    f" {run.bytes_per_second / 1e6:9,.1f} MB/s"
                )
        return runs


@dataclass(frozen=True, kw_only=True)
class Named:
    """A figure's name, unit and goal, and the bounds of its values, such as `<= 1`."""

    name: str
    unit: str
    goal: str
    bounds: Sequence[str]


Measure = Callable[[Bench], Outcome | Mapping[str, Outcome]]


def figures(
    named: Sequence[Named],
    *,
    wanted: str,
    measure: Measure,
    seconds: float,
    options: Sequence[str],
) -> None:
    """Measure figures that share one measurement, and print a line of JSON for each.

    A side that is missing or fails ends the program with a message, a non-zero exit code and no
    value. A value outside its bound is a value like any other, with `ok` false.

    Args:
        named: all of them.
        wanted: the one whose line comes last.
        measure: returns the outcomes by name, or the outcome of the only one.
        seconds: how long each run takes where the options do not say.
        options: of the command line.
    """
    in_order = sorted(named, key=lambda figure: figure.name == wanted)
    last = in_order[-1]
    description = f"Measure the figure {last.name}: {last.goal} ({last.unit})."
    chosen = _parse(description, seconds, options)
    unwind_on_terminate()
    started = time.monotonic()
    try:
        with run_directory(chosen.data_root) as directory:
            bench = Bench(rounds=chosen.rounds, seconds=chosen.seconds, directory=directory)
            outcomes = measure(bench)
    except (PeerMissingError, LoadFailedError) as error:
        print(f"{last.name} {BECAUSE}{error}", file=sys.stderr)
        raise SystemExit(NOT_MEASURED) from error
    if isinstance(outcomes, Outcome):
        outcomes = {wanted: outcomes}
    minutes = round((time.monotonic() - started) / 60, 1)
    for figure in in_order:
        print(json.dumps(_answer(figure, bench, outcomes[figure.name], minutes)), flush=True)


def _answer(named: Named, bench: Bench, outcome: Outcome, minutes: float) -> dict[str, Any]:
    bounds = [
        _bound(what, value, text)
        for (what, value), text in zip(outcome.values.items(), named.bounds, strict=True)
    ]
    detail = {
        "bounds": [{**asdict(bound), "holds": bound.holds} for bound in bounds],
        "seconds_per_run": bench.seconds,
        "minutes": minutes,
        **outcome.detail,
    }
    return {
        "name": named.name,
        "value": rounded(bounds[0].value),
        "goal": named.goal,
        "unit": named.unit,
        "ok": bench.is_full and all(bound.holds for bound in bounds),
        "rounds": bench.rounds,
        "detail": rounded(detail),
    }


def _bound(what: str, value: float, text: str) -> Bound:
    side, _, number = text.partition(" ")
    limit = json.loads(number.replace(",", ""))
    if side == ">=":
        return Bound(what=what, value=value, at_least=limit)
    assert side == "<=", text
    return Bound(what=what, value=value, at_most=limit)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours over theirs, round by round."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def details(runs: Sequence[Run], what: str) -> list[float]:
    """Return what each run's load says of something in its details."""
    return [run.moved.detail[what] for run in runs]


def median_ratio(ours: Sequence[Run], theirs: Sequence[Run]) -> float:
    """Return the median over the rounds of our records per second over theirs."""
    return median(
        ratios([run.records_per_second for run in ours], [run.records_per_second for run in theirs])
    )


def cpu_seconds_per_gb(run: Run) -> float:
    """Return the CPU seconds of client and broker for each GB of keys and values.

    Those of the client are without its start where its load says them.
    """
    client: float = run.moved.detail.get("cpu_seconds", run.client.cpu_seconds)
    return (client + run.broker.cpu_seconds) / run.moved.bytes * 1e9


def summaries(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Return each side's rates, CPU seconds per million records and peak memory."""
    return {name: summary(side) for name, side in runs.items()}


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the medians over one side's runs, the rate of each round, and its connections."""

    def per_million(cpu_seconds: float, run: Run) -> float:
        return cpu_seconds / run.moved.records * 1e6

    return {
        "records_per_second": median(run.records_per_second for run in runs),
        "mb_per_second": median(run.bytes_per_second for run in runs) / 1e6,
        "rounds": [run.records_per_second for run in runs],
        "client_cpu_seconds_per_million": median(
            per_million(run.client.cpu_seconds, run) for run in runs
        ),
        "broker_cpu_seconds_per_million": median(
            per_million(run.broker.cpu_seconds, run) for run in runs
        ),
        "client_peak_mb": max(run.client.peak_rss_bytes for run in runs) / 1e6,
        "broker_peak_mb": max(run.broker.peak_rss_bytes for run in runs) / 1e6,
        "client_connections": connections_of(runs),
    }


def connections_of(runs: Sequence[Run]) -> list[dict[str, float]]:
    """Return the different sets of connections that one side's client had, by protocol."""
    seen = [dict(run.connections) for run in runs if run.connections]
    return [each for at, each in enumerate(seen) if each not in seen[:at]]


def rounded(value: Any) -> Any:
    """Return a JSON value with four significant digits in its numbers."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value


def say(line: str) -> None:
    """Report progress on standard error; standard output is only for the figure."""
    print(line, file=sys.stderr, flush=True)


def until_files_are_gone(directory: Path) -> None:
    """Wait until brokers with their data below `directory` have removed deleted topics' files.

    They rename the folders, and remove them a second later. To free some gigabytes takes a disk a
    second, for which the next run would wait: always the same side, that after the fastest one.

    Raises:
        LoadFailedError: they are still there.
    """

    def are_gone() -> bool | None:
        # `os.walk`: the brokers remove folders meanwhile.
        folders = (name for _, names, _ in os.walk(directory) for name in names)
        return not any(name.endswith(DELETED) for name in folders) or None

    time.sleep(RENAMED_S)
    until(are_gone, "the end of deleted topics' files", GONE_S)


def settle() -> None:
    """Write out what earlier runs left in the page cache."""
    os.sync()


def _parse(description: str, seconds: float, options: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN, help="rounds (default: 5)")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"seconds of each run (default: {seconds:g})"
    )
    parser.add_argument(
        "--data-root",
        type=Path,
        help="where data directories are made (default: the user's cache directory); "
        f"{tempfile.gettempdir()} is memory on some systems",
    )
    chosen = parser.parse_args(options)
    if chosen.rounds < 1 or chosen.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    return chosen
