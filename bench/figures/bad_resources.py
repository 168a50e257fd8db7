"""The share of invalid resources that the API server refuses, or that a condition explains, each
with the field and the remedy.

The table is that of `tests/bad_resources`: a real API server, the operator's process, and one good
Cluster with a real broker. A round applies the whole table to a new setup; the worst round counts.
The operator must run on without an error, and do what the good Cluster and Topic ask for.
"""

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from tests.api_server import binaries
from tests.bad_resources.cases import CASES
from tests.bad_resources.world import World


def measure(bench: Bench) -> Outcome:
    """Apply the table, once a round."""
    binaries.PROGRAMS.build()
    shares: list[float] = []
    wrong: dict[str, str] = {}
    problems: list[str] = []
    for number in range(bench.rounds):
        folder = bench.directory / f"round-{number}"
        folder.mkdir()
        world = World(folder)
        try:
            world.start()
            outcomes = {case.name: world.outcome(case) for case in CASES}
            problems += world.problems()
        except RuntimeError as error:
            raise LoadFailedError(str(error)) from error
        finally:
            world.stop()
        bad = {name: outcome.message for name, outcome in outcomes.items() if outcome.missing}
        shares.append(1 - len(bad) / len(outcomes))
        wrong |= bad
        say(f"round {number + 1}/{bench.rounds}: {len(bad)} of {len(outcomes)} not explained")
    return Outcome(
        values={
            "share refused or explained": min(shares),
            "bad resources": len(CASES),
            "crashes and troubles of others": len(problems),
        },
        detail={
            "refused": sum(not case.reason for case in CASES),
            "explained": sum(bool(case.reason) for case in CASES),
            "wrong": wrong,
            "problems": problems,
        },
    )
