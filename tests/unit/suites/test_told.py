"""Checks that are programs of their own: their names, and what becomes of silent ones."""

import sys
from pathlib import Path

from tests.suites.outcome import Outcome
from tests.suites.suite import Target
from tests.suites.told import checks_of, told_by

PROGRAM = """\
from tests.suites.inside.checks import expect, main, named

def check_right(bench):
    expect(bench.topic.startswith("suite-"), True)

async def check_of_asyncio(bench):
    pass

def check_wrong(bench):
    expect([1], [2])

def check_ends(bench):
    raise SystemExit(7)

if __name__ == "__main__":
    main(named(globals()))
"""

JAVA = """\
final class SomeChecks {
    static void wordCount(Checks.Bench bench) throws Exception {
    private static void counted(Checks.Bench bench, String guarantee) throws Exception {
    static void joins(Checks.Bench bench) {
"""


def test_checks_have_names(tmp_path: Path) -> None:
    for name, text in (("some_checks.py", PROGRAM), ("SomeChecks.java", JAVA)):
        (tmp_path / name).write_text(text)
    assert checks_of(tmp_path / "some_checks.py") == ["right", "of_asyncio", "wrong", "ends"]
    assert checks_of(tmp_path / "SomeChecks.java") == ["wordCount", "joins"]


def test_a_check_that_tells_nothing_has_failed(tmp_path: Path) -> None:
    program = tmp_path / "some_checks.py"
    program.write_text(PROGRAM)
    target = Target(bootstrap="127.0.0.1:1", folder=tmp_path)
    results = list(
        told_by(
            [sys.executable, program],
            ["right", "wrong", "ends", "after"],
            target,
            folder=tmp_path / "run",
            test_timeout_s=20,
            variables={"PYTHONPATH": str(Path(__file__).parents[3])},
        )
    )
    assert [result.outcome for result in results] == [Outcome.PASSED, *[Outcome.FAILED] * 3]
    assert results[1].said == "AssertionError: [1], and not [2]"
    assert results[2].said.startswith("it ended: 7: ")
