"""`python -m tests.checkers FILE`: judge a history that a run has left; see `history`."""

import argparse
import sys
from pathlib import Path

from tests.checkers.check import check
from tests.checkers.history import read
from tests.checkers.report import ALLOWED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkers", description=__doc__)
    parser.add_argument("file", type=Path, help="lines of JSON")
    parser.add_argument("--mode", action="append", choices=ALLOWED, help="what it may find")
    arguments = parser.parse_args()
    with arguments.file.open() as lines:
        report = check(list(read(lines)), modes=arguments.mode or ["assign"])
    print(report.text())
    print("good" if report.is_good else f"NOT GOOD: {', '.join(report.failures) or 'see above'}")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
