"""What is released: it is installed into an empty environment, where README's five minutes pass."""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from demo.spark_program import missing
from tests.arch.repository import ROOT, files
from tests.integration.running_broker import STOP_SECONDS_MAX

INSTALL: Final = "pip install ."
SPARK_INSTALL: Final = "pip install '.[spark]'"
START: Final = "millrace up"
DEFAULT_ADDRESS: Final = "localhost:7092"
NOT_IN_SOURCES: Final = ("docs", "bench")


@dataclass(frozen=True)
class Distributions:
    """What `make dist` has built."""

    wheel: Path
    sources: Path

    def installed(self, *groups: str) -> list[str]:
        """Return how the wheel is installed, and what it needs, in the versions that are locked."""
        locked = " ".join(f"-r '{ROOT / 'requirements' / f'{group}.txt'}'" for group in groups)
        return [
            f"pip install --require-hashes {locked}",
            f"pip install '{self.wheel}'",
            "pip check",
        ]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(["make", "--no-print-directory", "dist", f"DIST={folder}"], cwd=ROOT, check=True)
    (wheel,), (sources,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Distributions(wheel, sources)


def test_the_sources_hold_the_project_and_build_the_same_wheel(
    built: Distributions, tmp_path: Path
) -> None:
    folder = tmp_path / built.sources.name.removesuffix(".tar.gz")
    with tarfile.open(built.sources) as packed:
        names = {Path(name).relative_to(folder.name) for name in packed.getnames()}
        packed.extraction_filter = lambda member, _: member  # They are our own.
        packed.extractall(tmp_path)
    assert {path for path in files() if path.parts[:2] != NOT_IN_SOURCES} <= names
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.read_bytes() == built.wheel.read_bytes()


class Reader:
    """Types what README says, in a folder of its own; its ports are chosen by the system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **{name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PIP_NO_COMPILE": "1",  # Most of it is never imported here.
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def types(self, *lines: str, program: str = "") -> str:
        """Run lines in a shell; return what they print."""
        done = subprocess.run(
            ["sh", "-e", "-c", "\n".join(lines)],
            cwd=self._folder,
            env=self._environment,
            input=program,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{lines}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def leaves_running(self, line: str) -> Iterator[list[str]]:
        """Start brokers; yield their addresses, which later commands know; then press Ctrl-C."""
        assert line.startswith(START), line
        process = subprocess.Popen(
            ["sh", "-c", f". venv/bin/activate && exec {line} --port 0 --output json"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            said: Any = json.loads(process.stdout.readline())
            addresses = [broker["address"] for broker in said.get("brokers", [said])]
            self._environment["MILLRACE_BOOTSTRAP"] = ",".join(addresses)
            yield addresses
            process.send_signal(signal.SIGINT)
            assert process.wait(STOP_SECONDS_MAX) == 0
        finally:
            process.kill()
            process.communicate()


def blocks(section: str) -> list[list[str]]:
    """Return the lines of each block of commands."""
    found = re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE)
    return [[line[4:] for line in block.splitlines()] for block in found]


def replaced(lines: Sequence[str], line: str, *others: str) -> list[str]:
    """Return the lines with others in the place of one."""
    at = lines.index(line)
    return [*lines[:at], *others, *lines[at + 1 :]]


@pytest.mark.timeout(300)
def test_the_five_minutes_of_the_readme_pass_with_the_wheel_in_an_empty_environment(
    built: Distributions, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (minutes,) = re.findall(r"^## Five minutes\n(.*?)^## ", readme, re.MULTILINE | re.DOTALL)
    first, cluster, *_ = re.split(r"^### .*\n", minutes, flags=re.MULTILINE)
    commands, program, _ = re.split(r"^```(?:python)?\n", first, flags=re.MULTILINE)
    [*install, up], commands_beside_it = blocks(commands)
    [up_three], cluster_commands = blocks(cluster)
    reader = Reader(tmp_path)

    reader.types(*replaced(install, INSTALL, *built.installed("runtime")))
    version = built.wheel.name.split("-")[1]
    activate = ". venv/bin/activate"
    assert reader.types(activate, "millrace --version") == f"millrace, version {version}\n"
    with reader.leaves_running(up) as (address,):
        said = reader.types(*commands_beside_it)
        assert all(value in said for value in ("apple", "pear", "plum")), said
        assert DEFAULT_ADDRESS in program
        program = program.replace(DEFAULT_ADDRESS, address)
        assert re.match(r"\d+ offset: ", reader.types(activate, "python", program=program))
    with reader.leaves_running(up_three) as addresses:
        assert len(addresses) == 3
        assert "orders" in reader.types(activate, *cluster_commands)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_lines_of_spark_md_pass_with_the_wheel_in_an_empty_environment(
    built: Distributions, tmp_path: Path
) -> None:
    """It takes half a gigabyte. The lines that write are run again, and write nothing then."""
    if lacks := missing():
        pytest.skip(lacks)
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    (begin,) = re.findall(r"^## From nothing.*?^```python\n", page, re.MULTILINE | re.DOTALL)
    [install, commands] = blocks(begin)
    reads, *others = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (writes,) = (block for block in others if '"checkpoints/pages"' in block)
    reader = Reader(tmp_path)

    export = install.pop()
    assert export.startswith("export PYSPARK_PYTHON=")
    reader.types(*replaced(install, SPARK_INSTALL, *built.installed("runtime", "spark")))
    activate = ". venv/bin/activate"
    with reader.leaves_running(START) as (address,):
        reader.types(activate, *commands, "millrace topic create pages")
        reads, writes = (text.replace(DEFAULT_ADDRESS, address) for text in (reads, writes))
        said = reader.types(activate, export, "python", program=reads)
        assert re.search(r"home\| +2\|", said), said
        assert re.search(r"cart\| +1\|", said), said
        as_stream = reads.partition("clicks.selectExpr")[0].replace(
            "spark.read.", "spark.readStream."
        )
        as_stream = as_stream.replace(".load()", '.option("startingOffsets", "earliest").load()')
        for _ in range(2):
            reader.types(activate, export, "python", program=as_stream + writes)
        written = reader.types(activate, "millrace consume pages")
        assert sorted(re.findall("HOME|CART", written)) == ["CART", "HOME", "HOME"], written
