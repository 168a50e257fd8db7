"""`python -m tests.suites`: suites of Kafka's clients, against any cluster that speaks Kafka.

    python -m tests.suites run franz-go kcat --bootstrap 127.0.0.1:9092
    python -m tests.suites run --tests TestGroupETL franz-go      starts `millrace up --kafka`
    python -m tests.suites know franz-go                          against Apache Kafka, and keeps it
    python -m tests.suites check                                  whether what is kept still fits
    python -m tests.suites list

A line for each test; the last line of `run` is a JSON object. Exit code 1: a test failed.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.peers.maven import KAFKA_VERSION
from bench.processes import unwind_on_terminate
from tests.suites import targets
from tests.suites.catalogue import SUITES
from tests.suites.known import Known, judged, known, left_out, outdated, short, wanted
from tests.suites.outcome import Outcome, Result
from tests.suites.suite import Suite, Target


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("build", "run", "know", "check", "list"))
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="default: all")
    parser.add_argument("--bootstrap", help="host:port of brokers that run already")
    parser.add_argument("--replication", type=int, help="of topics (default: the brokers')")
    parser.add_argument("--brokers", type=int, help="how many to start (default: the suite's)")
    parser.add_argument("--tests", help="tests at the top, with commas between them")
    parser.add_argument("--short", action="store_true", help="the short set")
    parser.add_argument("--records", type=int, help="of tests that move many")
    parser.add_argument("--table", type=Path, help="file for what became of each test, with tabs")
    parser.add_argument("--folder", type=Path, help="where a folder with all logs is made")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.suites if name not in SUITES]:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}")
    unwind_on_terminate()
    suites = [SUITES[name] for name in chosen.suites or SUITES]
    if chosen.what == "list":
        for suite in suites:
            print(f"{suite.name:24} {suite.version:10.10} {suite.about}")
        return 0
    for suite in suites:
        suite.build()
    if chosen.what == "build":
        return 0
    if chosen.what == "check":
        return _check(suites)
    folder = Path(tempfile.mkdtemp(prefix="suites-", dir=chosen.folder))
    code = (_know if chosen.what == "know" else _run)(suites, chosen, folder)
    if code:
        _say(f"the logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return code


def _check(suites: Sequence[Suite]) -> int:
    problems = [
        problem
        for suite in suites
        for problem in outdated(
            known(suite.name), suite.version, left_out(suite.name), suite.tests()
        )
    ]
    for problem in problems:
        _say(problem)
    return 1 if problems else 0


def _asked(suite: Suite, chosen: argparse.Namespace) -> list[str]:
    tests = list(suite.tests())
    if chosen.short:
        tests = [test for test in tests if test in short(suite.name)]
    if chosen.tests:
        tests = [test for test in tests if test in chosen.tests.split(",")]
    return tests


def _know(suites: Sequence[Suite], chosen: argparse.Namespace, folder: Path) -> int:
    """Run suites against Apache Kafka, and keep what becomes of their tests."""
    for suite in suites:
        asked = _asked(suite, chosen)
        with _target("kafka", suite, chosen, folder / suite.name) as target:
            found = list(_told(suite, suite.run(target, asked)))
        passes = [result.test for result in found if result.outcome is Outcome.PASSED]
        fails = {
            result.test: f"{result.outcome}: {result.said}"
            for result in found
            if result.outcome is not Outcome.PASSED
        }
        if len(asked) < len(suite.tests()):  # Of the others stays what is known.
            before = known(suite.name)
            again = {result.test.partition("/")[0] for result in found}
            passes += [test for test in before.passes if test.partition("/")[0] not in again]
            fails |= {
                test: said
                for test, said in before.fails.items()
                if test.partition("/")[0] not in again
            }
        Known(
            suite=suite.name,
            version=suite.version,
            kafka=KAFKA_VERSION,
            passes=passes,
            fails=fails,
        ).write()
    return 0


def _run(suites: Sequence[Suite], chosen: argparse.Namespace, folder: Path) -> int:
    """Run suites, and print what became of their tests."""
    summary: dict[str, Any] = {}
    table = ["suite\ttest\toutcome\tsaid"]
    for suite in suites:
        asked, leaving_out = _asked(suite, chosen), left_out(suite.name)
        if not asked:
            continue
        with _target("millrace", suite, chosen, folder / suite.name) as target:
            found = list(_told(suite, suite.run(target, wanted(asked, leaving_out))))
        results = judged(found, known(suite.name), leaving_out, asked)
        table += [
            f"{suite.name}\t{result.test}\t{result.outcome}\t{result.said}" for result in results
        ]
        if chosen.table:
            chosen.table.write_text("\n".join(table) + "\n")
        summary[suite.name] = {
            str(outcome): sum(result.outcome is outcome for result in results)
            for outcome in Outcome
        } | {
            "failures": {
                result.test: result.said for result in results if result.outcome is Outcome.FAILED
            }
        }
        for test, said in summary[suite.name]["failures"].items():
            _say(f"FAILED {suite.name} {test}: {said}")
    print(json.dumps(_shares(summary)))
    return 1 if any(of_suite["failures"] for of_suite in summary.values()) else 0


def _shares(summary: dict[str, Any]) -> dict[str, Any]:
    passed = sum(of_suite["passed"] for of_suite in summary.values())
    failed = sum(of_suite["failed"] for of_suite in summary.values())
    run = passed + failed
    return {"share": passed / run if run else 0.0, "run": run, "suites": summary}


@contextmanager
def _target(kind: str, suite: Suite, chosen: argparse.Namespace, folder: Path) -> Iterator[Target]:
    """Yield the cluster that is given, or else one that is started."""
    folder.mkdir(parents=True, exist_ok=True)
    more = {} if chosen.records is None else {"records": chosen.records}
    if chosen.bootstrap:
        replication = chosen.replication or 1
        yield Target(bootstrap=chosen.bootstrap, folder=folder, replication=replication, **more)
        return
    brokers = chosen.brokers or suite.brokers
    starting = targets.kafka if kind == "kafka" else targets.millrace
    with starting(folder, nodes=brokers, creates=suite.creates_topics) as started:
        yield replace(started, folder=folder, replication=chosen.replication or brokers, **more)


def _told(suite: Suite, results: Iterator[Result]) -> Iterator[Result]:
    for result in results:
        said = f" {result.said}" if result.said else ""
        _say(f"{suite.name:14} {result.outcome:8} {result.seconds:6.1f} s {result.test}{said}")
        yield result


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
