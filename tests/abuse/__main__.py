"""`python -m tests.abuse`: attacks on a real broker, one after another, and what they do to others.

A line for each attack; the last line is a JSON object. Exit code 1: an attack did harm.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.abuse.catalogue import ATTACKS
from tests.abuse.trial import HEADING, SECONDS, Verdict, judged
from tests.abuse.world import World


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.abuse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--attacks", help="names with commas between them; all without it")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each attack")
    parser.add_argument("--folder", type=Path, help="where a folder with everything is made")
    parser.add_argument("--list", action="store_true", help="list the attacks, and do nothing")
    arguments = parser.parse_args()
    if arguments.list:
        for attack in ATTACKS.values():
            print(f"{attack.name:22} {attack.what} ({attack.port}, {attack.peers} at a time)")
        return 0
    chosen = arguments.attacks.split(",") if arguments.attacks else list(ATTACKS)
    if unknown := [name for name in chosen if name not in ATTACKS]:
        parser.error(f"no such attack: {', '.join(unknown)}; see --list")
    folder = Path(tempfile.mkdtemp(prefix="abuse-", dir=arguments.folder))
    verdicts = _verdicts(chosen, folder, arguments.seconds)
    held = [verdict for verdict in verdicts if not verdict.problems]
    if len(held) == len(verdicts):
        shutil.rmtree(folder)
    else:
        _say(f"the broker's log is in {folder}")
    print(json.dumps(_summary(verdicts, len(held))))
    return 0 if len(held) == len(verdicts) else 1


def _verdicts(chosen: list[str], folder: Path, seconds: float) -> list[Verdict]:
    """Attack one broker in all chosen ways; another one if it is gone."""
    verdicts: list[Verdict] = []
    _say(HEADING)
    number = 0
    while len(verdicts) < len(chosen):
        number += 1
        with World(folder / f"world-{number}") as world:
            time.sleep(1)  # The first records bring code and caches into memory.
            for name in chosen[len(verdicts) :]:
                verdicts.append(judged(world, ATTACKS[name], seconds))
                _say(verdicts[-1].line())
                if world.trouble():
                    break
    return verdicts


def _summary(verdicts: list[Verdict], held: int) -> dict[str, Any]:
    return {
        "share": held / len(verdicts),
        "attacks": len(verdicts),
        "harm": {verdict.attack.name: verdict.problems for verdict in verdicts if verdict.problems},
        "times": {verdict.attack.name: round(verdict.times, 2) for verdict in verdicts},
        "grown_mib": {verdict.attack.name: round(verdict.grown_mib) for verdict in verdicts},
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
