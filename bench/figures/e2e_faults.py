"""Number of faults that a real Kubernetes survived under load from pods, with nothing lost,
duplicated or reordered.

A fault counts when its effect was seen. Every pass applies a new Cluster and does each fault of
`e2e.faults` once; the checkers judge everything that the clients saw. Two passes reach the goal,
and take about an hour: `--rounds` has no effect.
"""

from bench.measure import Bench, Outcome
from bench.processes import summed_up

PASSES = 2


def measure(bench: Bench) -> Outcome:
    """Run the passes one after another, each with its own dice."""
    options = ("--count", str(PASSES), "--folder", str(bench.directory))
    found = summed_up("e2e.faults", *options)
    scenarios = found["scenarios"].values()
    return Outcome(
        values={
            "faults seen": found["seen"],
            "values lost or doubled": sum(
                scenario["lost"] + scenario["doubled"] for scenario in scenarios
            ),
            "passes that were not good": found["rounds"] - found["good"],
        },
        detail=found,
    )
