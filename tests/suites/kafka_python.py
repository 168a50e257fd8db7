"""kafka-python's integration tests, out of its source distribution.

They were made for a broker that runs already, too (KAFKA_URI). They run in a virtual environment of
their own, whose packages `kafka_python.txt` pins with their hashes: the client that they test is
the one that they came with. A module that the distribution lacks is in `inside/service.py`.
"""

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.suites.kept import built
from tests.suites.outcome import Outcome, Result
from tests.suites.programs import Ended, run, shortened
from tests.suites.suite import SuiteMissingError, Target

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "kafka_python.txt"
VERSION = "3.0.12"
KAFKA_VERSION = "4.1.1"
"""What the tests take the broker for: they leave out what that Kafka did not have yet."""

TESTS = "test/integration"
"""The folder of the tests, in the source distribution."""
TEST_TIMEOUT_S = 45
ALL_TIMEOUT_S = 900
"""Of all tests, which one process runs."""

_LINES = "said.jsonl"
_OUTCOMES = {"passed": Outcome.PASSED, "failed": Outcome.FAILED, "skipped": Outcome.LEFT_OUT}


class KafkaPythonTests:
    """The suite."""

    name = "kafka-python"
    version = VERSION
    about = "kafka-python's integration tests: administration, consumers, groups, producers"
    brokers = 1
    creates_topics = True

    def build(self) -> None:
        """Make the virtual environment, and unpack the tests."""
        try:
            self._folder()
        except subprocess.CalledProcessError as error:
            raise SuiteMissingError(f"{self.name} could not be built: {error}") from error

    def tests(self) -> Sequence[str]:
        """Return all tests: pytest collects them."""
        return (self._folder() / "tests.txt").read_text().splitlines()

    def run(self, target: Target, tests: Sequence[str]) -> Iterator[Result]:
        """Run tests, in one process."""
        folder = target.folder / self.name
        folder.mkdir(parents=True, exist_ok=True)
        lines = folder / _LINES
        lines.unlink(missing_ok=True)
        ended = _pytest(
            self._folder(),
            folder / "pytest.log",
            ALL_TIMEOUT_S,
            [
                *(f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=signal"),
                *(f"{TESTS}/{test}" for test in tests),
            ],
            {
                "KAFKA_URI": f"kafka://{target.bootstrap.split(',')[0]}",
                "KAFKA_VERSION": target.version,
                "SAID_BY_PYTEST": str(lines),
            },
            "-p",
            "said_by_pytest",
        )
        told = dict(_results(lines))
        for test in tests:
            if test in told:
                yield told[test]
                continue
            what = "the run took too long" if ended.code is None else f"pytest ended: {ended.code}"
            said = shortened(f"{what}: {ended.said[-500:]}")
            yield Result(test=test, outcome=Outcome.FAILED, said=said)

    def _folder(self) -> Path:
        made_of = [REQUIREMENTS.read_bytes(), (HERE / "inside" / "service.py").read_bytes()]
        return built("kafka-suites-kafka-python", made_of, _build)


def _build(folder: Path) -> None:
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip: tuple[str | Path, ...] = (
        environment / "bin" / "python",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
    )
    hashed = ("--require-hashes", "--no-deps", "-r")
    subprocess.run([*pip, "install", *hashed, REQUIREMENTS], check=True)
    pinned = REQUIREMENTS.read_text().split("\nkafka-python==", 1)[1].split("\n")
    ours = [f"kafka-python=={pinned[0]}", *(line for line in _hashes(pinned[1:]))]
    (folder / "source.txt").write_text("\n".join(ours) + "\n")
    source = ("--no-binary=:all:", "--no-build-isolation", "--dest", folder)
    subprocess.run([*pip, "download", *source, *hashed, folder / "source.txt"], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder)
    (unpacked,) = folder.glob("kafka_python-*/")
    unpacked.rename(folder / "source")
    # The client is that of the virtual environment.
    (folder / "source" / "kafka").rename(folder / "client")
    shutil.copy(HERE / "inside" / "service.py", folder / "source" / "test" / "service.py")
    (folder / "source" / "test" / "__init__.py").touch()  # Else Python's own `test` is found.
    (folder / "scripts").mkdir()
    ended = _pytest(
        folder, folder / "collected.log", 120, ["--collect-only", "-q"], {"KAFKA_URI": "kafka://-"}
    )
    tests = [
        line.removeprefix(f"{TESTS}/")
        for line in ended.said.splitlines()
        if "::" in line and " " not in line
    ]
    if ended.code or not tests:
        raise SuiteMissingError(f"kafka-python's tests were not collected: {ended.said[-2000:]}")
    (folder / "tests.txt").write_text("\n".join(tests) + "\n")


def _hashes(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("    --hash"):
            return
        yield line


def _pytest(
    folder: Path,
    log: Path,
    timeout_s: float,
    arguments: Sequence[str],
    variables: dict[str, str],
    *plugins: str,
) -> Ended:
    named = [argument for argument in arguments if "::" in argument]
    return run(
        [
            *(folder / "venv" / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider"),
            *("-o", "addopts=", "-o", "log_level=INFO", *plugins, *arguments),
            *([] if named else [TESTS]),
        ],
        log,
        timeout_s,
        variables={
            "KAFKA_VERSION": KAFKA_VERSION,
            "KAFKA_ROOT": str(folder / "scripts"),
            "PYTHONPATH": str(HERE / "inside"),
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        },
        folder=folder / "source",
    )


def _results(lines: Path) -> Iterator[tuple[str, Result]]:
    """Yield what became of each test: of its phases, the first one that went wrong counts."""
    phases: dict[str, list[dict[str, str | float]]] = {}
    if lines.exists():
        for line in lines.read_text().splitlines():
            told = json.loads(line)
            phases.setdefault(told["test"].removeprefix(f"{TESTS}/"), []).append(told)
    for test, of_test in phases.items():
        if of_test[-1]["phase"] != "teardown":
            continue  # It was ended in the middle.
        deciding = next((told for told in of_test if told["outcome"] != "passed"), of_test[0])
        yield (
            test,
            Result(
                test=test,
                outcome=_OUTCOMES[str(deciding["outcome"])],
                seconds=sum(float(told["seconds"]) for told in of_test),
                said=shortened(str(deciding["said"])),
            ),
        )


KAFKA_PYTHON_TESTS = KafkaPythonTests()
