"""The share of the tests of suites that nobody here wrote that pass against `millrace up --kafka`.

Those that are left out with a reason do not count (`tests/suites`). The first round is all tests,
and each further one the short set: tests that pass now and then only are found by that.
"""

from bench.measure import Bench, Outcome, say
from bench.processes import summed_up


def measure(bench: Bench) -> Outcome:
    """Run all tests, and then the short set."""
    rounds = []
    for number in range(1, bench.rounds + 1):
        which = ("--short",) if number > 1 else ()
        found = summed_up("tests.suites", "run", "--folder", str(bench.directory), *which)
        rounds.append(found)
        say(f"round {number}/{bench.rounds}: {found['share']:.3f} of {found['run']}")
    return Outcome(
        values={
            "share that passes": min(found["share"] for found in rounds),
            "tests that are run": rounds[0]["run"],
        },
        detail={
            "suites": {
                name: {what: count for what, count in of_suite.items() if what != "failures"}
                for name, of_suite in rounds[0]["suites"].items()
            },
            "failures": [
                {name: of_suite["failures"] for name, of_suite in found["suites"].items()}
                for found in rounds
            ],
        },
    )
