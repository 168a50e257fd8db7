"""The process of one attack: `python -m tests.abuse.attacker NAME SECONDS TARGET`.

It yields to the broker and to its honest clients: the processors that attackers use are not the
broker's, where they are on machines of their own. It prints a line when it begins, and at its end
how many connections it has made.
"""

import os
import resource
import sys
from pathlib import Path
from typing import Final

import uvloop
from tests.abuse.attack import Target, carry_out
from tests.abuse.catalogue import ATTACKS

NICENESS: Final = 19


def main() -> None:
    name, seconds, target = sys.argv[1:]
    os.nice(NICENESS)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack, at = ATTACKS[name], Target.read(Path(target))
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    sys.stdout.write(f"{uvloop.run(carry_out(attack, at, float(seconds)))}\n")


if __name__ == "__main__":
    main()
