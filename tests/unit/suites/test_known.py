"""What a run of a suite is judged by: what is known of it, and which tests are left out."""

from dataclasses import replace

import pytest
from tests.suites.catalogue import SUITES
from tests.suites.known import KNOWN as KEPT
from tests.suites.known import Known, LeftOut, judged, known, left_out, outdated, short, wanted
from tests.suites.outcome import Outcome, Reason, Result, leaves

KNOWN = Known(
    suite="some",
    version="1",
    kafka="4",
    passes=["TestA", "TestB/one", "TestB/two"],
    fails={"TestC": "failed: no"},
)
AT_TOP = ["TestA", "TestB", "TestC"]
WITHOUT_TWO = LeftOut(suite="some", test="TestB/two", reason=Reason.HOOKS, why="its files")


def passed(test: str) -> Result:
    return Result(test=test, outcome=Outcome.PASSED)


def outcomes(results: list[Result]) -> dict[str, Outcome]:
    return {result.test: result.outcome for result in results}


def test_a_test_that_fails_against_kafka_is_left_out() -> None:
    found = [passed("TestA"), passed("TestB/one"), passed("TestB/two"), passed("TestC")]
    results = judged(found, KNOWN, [], AT_TOP)
    assert outcomes(results) == {
        "TestA": Outcome.PASSED,
        "TestB/one": Outcome.PASSED,
        "TestB/two": Outcome.PASSED,
        "TestC": Outcome.LEFT_OUT,
    }
    assert results[-1].said.startswith(Reason.FAILS_AT_KAFKA)


def test_a_test_that_a_run_did_not_come_to_has_failed() -> None:
    crashed = Result(test="TestB/one", outcome=Outcome.FAILED, said="panic")
    assert outcomes(judged([passed("TestA"), crashed], KNOWN, [], AT_TOP)) == {
        "TestA": Outcome.PASSED,
        "TestB/one": Outcome.FAILED,
        "TestB/two": Outcome.FAILED,
        "TestC": Outcome.LEFT_OUT,
    }


def test_a_test_that_leaves_itself_out_here_alone_has_failed() -> None:
    skipped = Result(test="TestA", outcome=Outcome.LEFT_OUT, said="no transactions")
    (result,) = judged([skipped], KNOWN, [], ["TestA"])
    assert result.outcome is Outcome.FAILED
    assert "no transactions" in result.said


def test_a_test_that_is_left_out_does_not_count_whatever_became_of_it() -> None:
    failed = Result(test="TestB/two", outcome=Outcome.FAILED)
    results = judged([passed("TestB/one"), failed], KNOWN, [WITHOUT_TWO], ["TestB"])
    assert outcomes(results) == {"TestB/one": Outcome.PASSED, "TestB/two": Outcome.LEFT_OUT}


def test_a_test_is_not_run_where_all_of_it_is_left_out() -> None:
    assert wanted(AT_TOP, [WITHOUT_TWO]) == AT_TOP
    assert wanted(AT_TOP, [replace(WITHOUT_TWO, test="Test[AB]")]) == ["TestC"]


def test_a_new_test_counts_although_nothing_is_known_of_it() -> None:
    results = judged([passed("TestB/three")], KNOWN, [], ["TestB"])
    assert outcomes(results)["TestB/three"] is Outcome.PASSED


@pytest.mark.parametrize(
    ("of", "entry", "tests", "problem"),
    [
        (KNOWN, WITHOUT_TWO, AT_TOP, ""),
        (replace(KNOWN, version="2"), WITHOUT_TWO, AT_TOP, "known of 2, and the suite is 1"),
        (KNOWN, replace(WITHOUT_TWO, test="TestB/four"), AT_TOP, "TestB/four is left out"),
        (KNOWN, WITHOUT_TWO, AT_TOP[:2], "TestC is known, and not in the suite"),
        (KNOWN, WITHOUT_TWO, [*AT_TOP, "TestD"], "TestD has not been run against Kafka"),
    ],
)
def test_what_no_longer_fits_a_suite_is_told(
    of: Known, entry: LeftOut, tests: list[str], problem: str
) -> None:
    problems = outdated(of, "1", [entry], tests)
    if not problem:
        assert not problems
        return
    (told,) = problems
    assert problem in told


@pytest.mark.parametrize("suite", sorted(path.stem for path in KEPT.glob("*.json")))
def test_every_entry_of_every_suite_is_of_a_test_that_is_known(suite: str) -> None:
    of = known(suite)
    at_top = {test.partition("/")[0] for test in (*of.passes, *of.fails)}
    assert not outdated(of, SUITES[suite].version, left_out(suite), sorted(at_top))
    assert set(short(suite)) <= at_top


def test_the_tests_within_a_test_count_and_not_the_one_around_them() -> None:
    # A slash in a name is no depth: Go's tests have some.
    within = [(4, passed("TestA/one")), (4, passed("TestA/one/two"))]
    alone = passed("TestB")
    assert leaves([(0, passed("TestA")), *within, (0, alone)]) == [
        *(result for _, result in within),
        alone,
    ]


def test_a_test_that_broke_outside_of_those_within_it_has_failed() -> None:
    failed = Result(test="TestA", outcome=Outcome.FAILED)
    within = passed("TestA/one")
    assert leaves([(0, failed), (4, within)]) == [failed, within]
    inner = Result(test="TestA/one", outcome=Outcome.FAILED)
    assert leaves([(0, failed), (4, inner)]) == [inner]
