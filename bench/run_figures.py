"""Measures all or the named figures, and writes docs/bench/figures.json and figures.md.

All figures take hours. So each row has its own time and commit, and is written as soon as it is
known; measuring some figures again keeps the rows of the others.

Each figure runs as its own program with the same options. A program that measures several figures
at once prints all of them, and runs once. A failed figure gets a row with the reason and without a
value, and makes this program end non-zero.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.directories import CHECKOUT
from bench.figure import FIGURES
from bench.measure import BECAUSE
from bench.processes import environment, unwind_on_terminate

DOCUMENTS = CHECKOUT / "docs" / "bench"
NAMES = [figure.name for figure in FIGURES]
Run = Callable[[str, Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs the program of the figure with this name, with these options."""


def main() -> None:
    """Run the figures that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures (default: all)")
    parser.add_argument("--data-root", type=Path, help="where data directories are made")
    parser.add_argument("--output", type=Path, default=DOCUMENTS, help="where the files go")
    known, options = parser.parse_known_args()
    unknown = set(known.names) - set(NAMES)
    if unknown:
        parser.error(f"no such figure: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if known.data_root:
        options += ["--data-root", str(known.data_root)]
    unwind_on_terminate()
    answers: list[dict[str, Any]] = []
    for found in measured([name for name in NAMES if name in (known.names or NAMES)], options):
        answers = _write(known.output, found, machine.describe(known.data_root))
    print((known.output / "figures.md").read_text())
    raise SystemExit(any("value" not in answer for answer in answers))


def _write(
    output: Path, found: list[dict[str, Any]], described: dict[str, Any]
) -> list[dict[str, Any]]:
    """Add answers to the files; return all that are in them now."""
    for answer in found:
        answer["measured"] = {"date": described["date"], "commit": described["commit"]}
    output.mkdir(parents=True, exist_ok=True)
    file = output / "figures.json"
    answers = merged(json.loads(file.read_text())["figures"] if file.exists() else [], found)
    file.write_text(json.dumps({"machine": described, "figures": answers}, indent=2) + "\n")
    (output / "figures.md").write_text(_table(answers, machine.sentence(described)))
    return answers


def measured(
    names: Sequence[str],
    options: Sequence[str],
    run: Run | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the answers of each program of these figures; some measure other figures, too.

    Args:
        options: of every program.
        run: runs a figure's program; None: as a child process.
    """
    told: set[str] = set()
    for name in names:
        if name in told:
            continue  # Another figure's measurement included it.
        done = (run or _run)(name, options)
        if done.returncode:
            found: list[dict[str, Any]] = [
                {"name": name, "ok": False, "error": _reason(done.stderr)}
            ]
        else:
            lines = done.stdout.splitlines()
            found = [json.loads(line) for line in lines if line.startswith('{"name"')]
        told.update(answer["name"] for answer in found)
        yield found


def merged(
    before: Sequence[dict[str, Any]], answers: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the answers, and the earlier ones of figures that have no answer with a value."""
    by_name = {answer["name"]: answer for answer in before}
    for answer in answers:
        if "value" in answer or "value" not in by_name.get(answer["name"], {}):
            by_name[answer["name"]] = answer
    return [by_name[name] for name in NAMES if name in by_name]


def _reason(said: str) -> str:
    """Return the line that says why a program has no figure, of all that it said."""
    lines = said.strip().splitlines() or ["no reason given"]
    reasons = [line.partition(BECAUSE)[2] for line in lines if BECAUSE in line]
    return (reasons or lines)[-1]


def _run(name: str, options: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a figure's program, and show its progress."""
    print(f"== {name}", file=sys.stderr, flush=True)
    told = []
    with (
        tempfile.TemporaryFile("w+") as printed,
        subprocess.Popen(
            [sys.executable, "-m", "bench.figure", name, *options],
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            env=environment(),
        ) as program,
    ):
        assert program.stderr is not None
        try:
            for line in program.stderr:
                print(line, end="", file=sys.stderr, flush=True)
                told.append(line)
            program.wait()
        except BaseException:
            program.terminate()  # So that it ends its brokers.
            raise
        printed.seek(0)
        return subprocess.CompletedProcess(
            program.args, program.returncode, printed.read(), "".join(told)
        )


def _table(answers: list[dict[str, Any]], machine_sentence: str) -> str:
    lines = [
        "# Figures",
        "",
        f"Measured by `make figures`; last on {machine_sentence}",
        "",
        "Ratios are medians over rounds in which both sides ran one after the other; "
        "`figures.json` has every round and the settings. A goal is the one of the day of the "
        "measurement. A figure without a row has not been measured yet.",
        "",
        "| figure | value | goal | unit | ok | rounds | bounds | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for answer in answers:
        when = f"{answer['measured']['date']}, {answer['measured']['commit']}"
        if "value" not in answer:
            lines.append(
                f"| `{answer['name']}` | not measured: {answer['error']} | | | no | | | {when} |"
            )
            continue
        bounds = "; ".join(
            f"{bound['what']} {bound['value']:g}" for bound in answer["detail"]["bounds"]
        )
        lines.append(
            f"| `{answer['name']}` | {answer['value']:g} | {answer['goal']} | {answer['unit']} |"
            f" {'yes' if answer['ok'] else 'no'} | {answer['rounds']} | {bounds} |"
            f" {when} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
