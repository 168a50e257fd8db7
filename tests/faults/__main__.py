"""`python -m tests.faults`: real faults on real brokers, judged by the simulator's checkers.

Each round starts a cluster of three and does every fault once, in an order that the seed gives, or
the named faults in the order of their names on the command line.
Faults that this machine cannot produce are listed with the reason. The last line is a JSON object
with the results. Exit code 1: records were lost, duplicated or reordered, or a fault did not heal.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from tests.faults import (  # noqa: F401  # They add their faults.
    administration,
    clocks,
    compaction,
    damage,
    disks,
    groups,
    links,
    power,
    processes,
    put_back,
    transactions,
)
from tests.faults.catalogue import Done, Outcome, totals
from tests.faults.fault import FAULTS, UPGRADE
from tests.faults.machine import Need, missing
from tests.faults.preload import compile_library
from tests.faults.round import play

_INSIDE: Final = "FAULTS_INSIDE"
NEVER_HERE: Final = {
    "F18": "delayed and repeated calls need the simulator, where messages are objects",
    "F32": "a write to a wrong place needs the simulated disk",
    "F34": "a follower that is always just behind needs the simulator",
    "F35": "is tested in tests/integration/test_hostile_clients.py",
    "F42": "is tested in tests/integration/kubernetes/test_faults.py",
    "F43": "is tested in tests/integration/kubernetes/test_faults.py",
    "F44": "is tested in tests/integration/kubernetes/test_faults.py",
    "F48": "the simulator drains brokers, and `make e2e-faults` drains nodes",
    "F52": "is tested in tests/unit/runtime/transport/test_credentials.py",
    "F53": "`make e2e-faults` has names and addresses that change",
    "F57": "is tested in tests/integration/test_hostile_clients.py",
    "F58": "is tested in tests/integration/test_hostile_clients.py",
    "F69": "the simulator judges it; F76 to F78 are much the same",
    "F73": "loses what was acknowledged, as it says; the simulator judges it",
    "F74": "the simulator judges it, and tests/integration/test_undelete.py with real brokers",
    "F75": "needs two media, which the simulator has",
    "F80": "a cut at a byte needs the simulator, and tests/unit/runtime/transport/test_drpc.py",
    "F81": "pieces of bytes need the simulator; F16 is near to it",
    "F82": "one end alone needs the simulator; F11 to F15 are near to it",
}


def main() -> int:
    arguments = FAULTS.parser("python -m tests.faults", __doc__).parse_args()
    reasons = missing()
    if Need.NAMESPACES not in reasons and _INSIDE not in os.environ:
        _go_into_namespaces()
    signal.signal(signal.SIGTERM, _stop)
    chosen = arguments.faults or sorted(FAULTS)
    absent = {
        fault_id: "; ".join(reasons[need] for need in FAULTS[fault_id].needs if need in reasons)
        for fault_id in chosen
        if any(need in reasons for need in FAULTS[fault_id].needs)
    }
    for fault_id, reason in absent.items():
        _say(f"{fault_id} is NOT EXERCISED: {reason}")
    plan = [fault_id for fault_id in chosen if fault_id not in absent]
    deadline = time.monotonic() + arguments.seconds
    outcomes: list[Outcome[Done]] = []
    for number in range(arguments.count):
        if time.monotonic() > deadline:
            break
        seed = arguments.seed + number
        outcomes.append(_round(plan, seed, arguments, set(Need) - reasons.keys(), deadline))
    print(json.dumps(_summary(outcomes, absent)), flush=True)
    return 0 if outcomes and all(outcome.is_good for outcome in outcomes) else 1


def _go_into_namespaces() -> NoReturn:
    """Run this program again in new namespaces, which disappear with it."""
    command = [
        *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
        *(sys.executable, "-m", "tests.faults", *sys.argv[1:]),
    ]
    os.execvpe(command[0], command, os.environ | {_INSIDE: "1"})


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind, to leave nothing behind; the first process of a namespace gets no other signal."""
    raise SystemExit(128 + number)


def _round(
    plan: list[str],
    seed: int,
    arguments: argparse.Namespace,
    able: set[Need],
    deadline: float,
) -> Outcome[Done]:
    order = list(plan)
    if not arguments.faults:
        random.Random(seed).shuffle(order)
        order.sort(key=lambda fault_id: fault_id != UPGRADE)
    folder = Path(tempfile.mkdtemp(prefix=f"faults-{seed}-", dir=arguments.folder))
    _say(f"round of seed {seed} in {folder}")
    library = compile_library(folder) if Need.PRELOAD in able else None
    outcome = play(
        order, seed=seed, folder=folder, able=able, library=library, say=_say, deadline=deadline
    )
    for line in outcome.lines():
        _say(line)
    if outcome.is_good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        _say(f"NOT GOOD; again: python -m tests.faults --seed {seed} --faults {','.join(order)}")
    return outcome


def _summary(outcomes: list[Outcome[Done]], absent: dict[str, str]) -> dict[str, Any]:
    done = [fault for outcome in outcomes for fault in outcome.done]
    counts = Counter(fault.name for fault in done if fault.counts)
    return {
        **totals(outcomes),
        "injected": len(done),
        "faults": {
            name: {"what": FAULTS[name].what, "seen": counts[name]} for name in sorted(counts)
        },
        "not_exercised": absent | NEVER_HERE,
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
