"""Number of real faults that a cluster of three survived under load, with nothing lost, duplicated
or reordered.

A fault counts when its effect was seen: a changed epoch or ISR, a refusal, a recovery. Every pass
starts a new cluster and does each fault of `tests.faults` once; the checkers judge everything that
the clients saw, and the replicas' files. A round has so many passes that five rounds reach the
goal. Faults that this machine cannot inject are in `detail`.

All passes take two hours. So the results of each one, good or not, are kept in the cache, and a
measurement that was stopped goes on after them: while the committed code is the same.
"""

import hashlib
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

from bench.directories import CHECKOUT, cache_directory
from bench.measure import Bench, Outcome, say
from bench.processes import summed_up

PASSES_A_ROUND: Final = 2
TIMES_MIN: Final = 10
JUDGED: Final = (
    *("broker", "cli", "client", "core", "proto", "runtime"),
    *("requirements", "tests/checkers", "tests/faults"),
)
"""What a pass depends on, in the checkout."""


def measure(bench: Bench) -> Outcome:
    """Run the passes one after another, each with its own dice."""
    passes: list[dict[str, Any]] = []
    version = committed_version()
    for number in range(bench.rounds * PASSES_A_ROUND):
        kept = cache_directory() / "faults" / f"{version}-{number + 1}.json" if version else None
        if kept is not None and kept.exists():
            its = json.loads(kept.read_text())
        else:
            options = ("--seed", str(number + 1), "--folder", str(bench.directory))
            its = summed_up("tests.faults", *options)
            if kept is not None and committed_version() == version:
                kept.parent.mkdir(exist_ok=True)
                kept.write_text(json.dumps(its))
        passes.append(its)
        bad = [*its["failures"], *its["anomalies"]]
        say(
            f"pass {number + 1}/{bench.rounds * PASSES_A_ROUND}: {its['seen']} faults, "
            f"{its['acknowledged']} values, bad: {bad or 'nothing'}"
        )
    good = [found for found in passes if found["good"]]
    counts: Counter[str] = Counter()
    for passed in good:
        counts.update({name: found["seen"] for name, found in passed["faults"].items()})
    often = sum(count >= TIMES_MIN for count in counts.values())
    return Outcome(
        values={
            "faults seen in good passes": counts.total(),
            f"ids seen {TIMES_MIN} times": often,
            "passes that were not good": len(passes) - len(good),
        },
        detail={
            "faults": dict(sorted(counts.items())),
            "acknowledged_values": sum(found["acknowledged"] for found in passes),
            "not_seen": dict(sum((Counter(found["not_seen"]) for found in passes), Counter())),
            "not_exercised": passes[0]["not_exercised"],
            "anomalies": dict(sum((Counter(found["anomalies"]) for found in passes), Counter())),
            "failures": [failure for found in passes for failure in found["failures"]],
        },
    )


def committed_version(checkout: Path = CHECKOUT) -> str:
    """Return what tells the code of one commit from another's; empty: some is not committed."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words, "--", *JUDGED],
            cwd=checkout,
            check=False,
            capture_output=True,
            text=True,
        )
        return done.stdout if done.returncode == 0 else ""

    trees = git("ls-tree", "HEAD")
    if not trees or git("status", "--porcelain"):
        return ""
    return hashlib.sha256(trees.encode()).hexdigest()[:16]
