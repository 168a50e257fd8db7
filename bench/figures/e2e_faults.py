"""Number of faults that a real Kubernetes survived under load from pods, with nothing lost,
duplicated or reordered.

A fault counts when its effect was seen. Every pass applies a new Cluster and does each fault of
`e2e.faults` once; the checkers judge everything that the clients saw. Two passes reach the goal,
and take about an hour: `--rounds` has no effect.
"""

import json
import subprocess
import sys
from typing import Any

from bench.directories import CHECKOUT
from bench.measure import Bench, Outcome
from bench.processes import LoadFailedError

PASSES = 2


def measure(bench: Bench) -> Outcome:
    """Run the passes one after another, each with its own dice."""
    command = [
        *(sys.executable, "-m", "e2e.faults", "--count", str(PASSES)),
        *("--folder", str(bench.directory)),
    ]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise LoadFailedError(f"{' '.join(command)} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    scenarios = found["scenarios"].values()
    return Outcome(
        values={
            "faults seen": found["seen"],
            "values lost or doubled": sum(each["lost"] + each["doubled"] for each in scenarios),
            "passes that were not good": found["rounds"] - found["good"],
        },
        detail=found,
    )
