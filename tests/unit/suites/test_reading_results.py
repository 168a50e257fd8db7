"""What suites print, as results; and programs that hang, as failures."""

import sys
from pathlib import Path

from tests.integration.running_broker import wait_until
from tests.suites.go_tests import results_of as of_go
from tests.suites.librdkafka import results_of as of_librdkafka
from tests.suites.outcome import Outcome, Result
from tests.suites.programs import Ended, run, shortened

GO = """\
=== RUN   TestA
=== RUN   TestA/one
    a_test.go:12: expected 3, got 4
--- FAIL: TestA (1.50s)
    --- FAIL: TestA/one (1.25s)
    --- PASS: TestA/two (0.25s)
    --- SKIP: TestA/three (0.00s)
        a_test.go:15: no such request
FAIL
"""

LIBRDKAFKA = """\
\x1b[36m[0081_admin /  0.000s] ================= Running test 0081_admin ====\x1b[0m
\x1b[36m[0081_admin /  0.100s] \x1b[35m[ do_test_create:120: queue, opts ]
\x1b[36m[0081_admin /  0.300s] \x1b[32m[ do_test_create:120: queue, opts: PASS (0.20s) ]
\x1b[36m[0081_admin /  0.300s] \x1b[35m[ do_test_create:120: queue, opts ]
\x1b[36m[0081_admin /  0.400s] \x1b[32m[ do_test_create:120: queue, opts: PASS (0.10s) ]
\x1b[36m[0081_admin /  0.400s] \x1b[35m[ do_test_acls:99 ]
\x1b[36m[0081_admin /  0.400s] \x1b[33m[ do_test_acls:99: SKIP: no authorizer ]
\x1b[36m[0081_admin /  0.500s] \x1b[35m[ do_test_a:300: x/y ]
|\x1b[31m 0081_admin | FAILED | 0.900s \x1b[0m|\x1b[31m expected 1\x1b[0m
"""


def ended(said: str, code: int | None = 1) -> Ended:
    return Ended(code=code, said=said, seconds=3)


def test_tests_in_go_have_their_outcomes_and_words() -> None:
    assert [result for _, result in of_go("TestA", ended(GO))] == [
        Result(test="TestA", outcome=Outcome.FAILED, seconds=1.5, said="expected 3, got 4"),
        Result(test="TestA/one", outcome=Outcome.FAILED, seconds=1.25),
        Result(test="TestA/two", outcome=Outcome.PASSED, seconds=0.25),
        Result(test="TestA/three", outcome=Outcome.LEFT_OUT, said="no such request"),
    ]


def test_a_test_in_go_that_does_not_end_has_failed() -> None:
    ((_, result),) = of_go("TestA", ended("=== RUN   TestA\npanic: no\n", code=None))
    assert (result.outcome, result.said) == (Outcome.FAILED, "took too long: panic: no")


def test_a_test_of_librdkafka_is_counted_by_those_within_it() -> None:
    results = list(of_librdkafka("0081_admin", ended(LIBRDKAFKA)))
    assert [(result.test, result.outcome) for result in results] == [
        ("0081_admin/do_test_create: queue, opts", Outcome.PASSED),
        ("0081_admin/do_test_create: queue, opts #2", Outcome.PASSED),
        ("0081_admin/do_test_acls", Outcome.LEFT_OUT),
        ("0081_admin/do_test_a: x|y", Outcome.FAILED),
    ]
    assert results[-1].said == "expected 1"


def test_a_test_of_librdkafka_that_crashes_has_failed() -> None:
    (result,) = of_librdkafka("0001_multiobj", ended("Segmentation fault", code=-11))
    assert (result.outcome, result.said) == (Outcome.FAILED, "crashed: Segmentation fault")


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    child = "import os, time\nif os.fork() == 0: time.sleep(60)\nprint(os.getpid(), flush=True)\n"
    done = run([sys.executable, "-c", f"{child}time.sleep(60)"], tmp_path / "log", 1)
    assert done.code is None
    assert done.seconds < 30
    (group,) = {line for line in done.said.splitlines() if line}

    def running() -> list[str]:
        return [
            state
            for path in Path("/proc").glob("[0-9]*/stat")
            if path.exists()
            for state, _, of_group in [path.read_text().rpartition(")")[2].split()[:3]]
            if of_group == group and state != "Z"  # That has ended, and nobody has asked how.
        ]

    wait_until(lambda: not running(), "its child is gone")


def test_a_failure_is_one_line_without_the_folders_of_this_machine() -> None:
    assert shortened("no\n  file /srv/some-1/a.py:12") == "no file a.py:12"
    assert len(shortened("word " * 1000)) == 400
