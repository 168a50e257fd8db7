"""aiokafka, by what its documentation shows: its source distribution has no tests.

The checks are ours (`inside/aiokafka_checks.py`); they run in a virtual environment of their own,
whose packages `aiokafka.txt` pins with their hashes.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.suites.kept import built
from tests.suites.outcome import Result
from tests.suites.suite import SuiteMissingError, Target
from tests.suites.told import checks_of, told_by

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "aiokafka.txt"
VERSION = "0.14.0"
PROGRAM = HERE / "inside" / "aiokafka_checks.py"
TEST_TIMEOUT_S = 60
VARIABLES = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
"""Of the environment of programs in `inside`."""


class Aiokafka:
    """The suite."""

    name = "aiokafka"
    version = VERSION
    about = "aiokafka: producers, transactions, groups that rebalance, positions, administration"
    brokers = 1
    creates_topics = False

    def build(self) -> None:
        """Make the virtual environment."""
        try:
            _environment()
        except subprocess.CalledProcessError as error:
            raise SuiteMissingError(f"{self.name} could not be installed: {error}") from error

    def tests(self) -> Sequence[str]:
        """Return the tests."""
        return checks_of(PROGRAM)

    def run(self, target: Target, tests: Sequence[str]) -> Iterator[Result]:
        """Run some of them."""
        yield from told_by(
            [self.python(), "-m", "tests.suites.inside.aiokafka_checks"],
            tests,
            target,
            folder=target.folder / self.name,
            test_timeout_s=TEST_TIMEOUT_S,
            variables=VARIABLES,
        )

    def python(self) -> Path:
        """Return the Python that has aiokafka."""
        return _environment() / "bin" / "python"


def _environment() -> Path:
    def build(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        pip = (folder / "venv" / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
        hashed = ("--require-hashes", "--no-deps", "-r", REQUIREMENTS)
        subprocess.run([*pip, "--quiet", "install", *hashed], check=True)

    return built("kafka-suites-aiokafka", [REQUIREMENTS.read_bytes()], build) / "venv"


AIOKAFKA = Aiokafka()
