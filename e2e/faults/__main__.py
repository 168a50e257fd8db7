"""`python -m e2e.faults`: faults on a real Kubernetes under load, judged by the checkers.

It uses the native cluster that runs, or starts one, installs the operator, and plays rounds. Each
round has its own Cluster and does every fault once, in an order that the seed gives, or the named
faults in their order. The last line is a JSON object with the results. Exit code 1: records were
lost, duplicated or reordered, or a fault did not heal.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

from e2e.cluster import providers
from e2e.cluster.images import VERSION
from e2e.cluster.native import NativeCluster
from e2e.faults import (  # noqa: F401  # They add their faults.
    api_server,
    changes,
    nodes,
    operators,
    pods,
)
from e2e.faults.fault import FAULTS
from e2e.faults.round import NAMESPACE_DELETED, Done, Outcome, Wish, play
from e2e.installed import install_operator
from tests.checkers.history import to_json
from tests.faults.catalogue import totals

_RELEASES: Final = (f"{VERSION}.post1", f"{VERSION}.post2")
_AFTER: Final = {
    "scale-down": "scale-up",
    "operator-killed-in-scale-down": "operator-killed-in-scale-up",
}
"""Faults that undo another fault, and follow it."""


def main() -> int:
    """Play the rounds."""
    arguments = _parse()
    kubernetes = providers.choose()
    if not isinstance(kubernetes, NativeCluster):
        _say("it breaks machines, which the native provider alone makes: MILLRACE_PROVIDER=native")
        return 2
    with providers.running(kubernetes, _say):
        for release in _RELEASES:
            kubernetes.load_release(release)
        install_operator(kubernetes)
        outcomes = _rounds(kubernetes, arguments)
    print(json.dumps(_summary(outcomes)), flush=True)
    return 0 if outcomes and all(outcome.is_good for outcome in outcomes) else 1


def _rounds(kubernetes: NativeCluster, arguments: argparse.Namespace) -> list[Outcome]:
    deadline = time.monotonic() + arguments.seconds
    outcomes: list[Outcome] = []
    for number in range(arguments.count):
        if time.monotonic() > deadline:
            break
        seed = arguments.seed + number
        _say(f"round of seed {seed}")
        plan = arguments.faults or _plan(seed)
        wish = Wish(
            plan=plan, seed=seed, releases=_RELEASES, deadline=deadline, keeps=arguments.keep
        )
        outcome = play(kubernetes, wish, _say)
        outcomes.append(outcome)
        _tell(outcome, seed, arguments.folder)
    return outcomes


def _parse() -> argparse.Namespace:
    parser = FAULTS.parser("python -m e2e.faults", __doc__)
    parser.add_argument(
        "--keep", action="store_true", help="leave the namespace of a round that failed"
    )
    return parser.parse_args()


def _plan(seed: int) -> list[str]:
    """Return all faults in an order by the seed."""
    order = sorted(FAULTS.keys() - _AFTER.keys())
    random.Random(seed).shuffle(order)
    follows = {first: second for second, first in _AFTER.items()}
    return [fault for name in order for fault in (name, follows.get(name)) if fault is not None]


def _tell(outcome: Outcome, seed: int, folder: Path | None) -> None:
    for line in outcome.lines():
        _say(line)
    _say(f"round of seed {seed} was {'good' if outcome.is_good else 'NOT GOOD'}")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{to_json(op)}\n" for op in outcome.history)
        (folder / f"history-{seed}.jsonl").write_text(lines)


def _summary(outcomes: list[Outcome]) -> dict[str, Any]:
    done = [fault for outcome in outcomes for fault in outcome.done]
    return {
        **totals(outcomes),
        "scenarios": {
            name: _scenario([fault for fault in done if fault.name == name])
            for name in sorted({fault.name for fault in done})
        },
    }


def _scenario(done: list[Done]) -> dict[str, Any]:
    name = done[0].name
    counted = [fault for fault in done if fault.counts]
    return {
        "what": FAULTS[name].what if name in FAULTS else "the namespace is deleted in the end",
        "seen": len(counted),
        "last_seen": counted[-1].seen if counted else "",
        "acknowledged": sum(fault.acknowledged for fault in done),
        "failed": sum(fault.failed for fault in done),
        "lost": sum(fault.lost for fault in done),
        "doubled": sum(fault.doubled for fault in done),
        "longest_stall_s": None
        if name == NAMESPACE_DELETED
        else round(max(fault.longest_stall_s for fault in done), 2),
        "longest_s": round(max(fault.seconds for fault in done), 1),
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
