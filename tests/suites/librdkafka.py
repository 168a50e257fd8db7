"""librdkafka's own tests of a broker, out of the crate that ships its whole source.

The crate is `rdkafka-sys`; cargo fetches it. CMake builds the library and its test program. Each
test is a process of its own; a test that has tests within it is counted by those. Tests that need
no broker are not asked for, nor those that emulate bad sockets. Some tests call Kafka's scripts:
`kafka_jars` has them.
"""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bench.peers.maven import PeerMissingError
from tests.suites.kafka_jars import scripts
from tests.suites.kept import built
from tests.suites.outcome import Outcome, Result
from tests.suites.programs import Ended, run, shortened
from tests.suites.suite import SuiteMissingError, Target

CRATE = "rdkafka-sys"
CRATE_VERSION = "4.10.0"
CRATE_HASH = "e234cf318915c1059d4921ef7f75616b5219b10b46e9f3a511a15eb4b56a3f77"
VERSION = "2.12.1"
BROKER_VERSION = "4.1.1"

TEST_TIMEOUT_S = 150
BUILD_TIMEOUT_S = 1800

MANIFEST = f"""\
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[lib]
path = "none.rs"
[dependencies]
{CRATE} = "={CRATE_VERSION}"
"""

CMAKE_OPTIONS = {
    "RDKAFKA_BUILD_TESTS": "ON",
    "RDKAFKA_BUILD_EXAMPLES": "OFF",
    "RDKAFKA_BUILD_STATIC": "ON",
    "WITH_SASL": "OFF",  # Kerberos; the other mechanisms are there.
    "WITH_CURL": "OFF",  # OIDC, which asks a server on the network.
    "CMAKE_BUILD_TYPE": "Release",
}

CMAKE_FLAGS = "-I{headers} -fmacro-prefix-map={tests}/="

CONFIGURATION = """\
bootstrap.servers={bootstrap}
test.topic.prefix=rdkafkatest
test.topic.random=true
"""

SPLIT = ("0081_admin",)
"""Tests of which each test within is a run of its own: one that fails ends the others, too."""

_DECLARED = re.compile(r"^ {4}_TEST\((\d{4}_\w+),\s*([^,)]+)(.*?)\),$", re.MULTILINE | re.DOTALL)
_WITHIN = re.compile(r"^\s+(do_test_\w+)\(", re.MULTILINE)
_SCENARIO = re.compile(r'\.scenario = "([^"]+)"')
_NOT_ASKED = re.compile("TEST_F_(LOCAL|SOCKEM|MANUAL)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"^\[(\w+)\s*/\s*[\d.]+s\] (.*)$")
_BEGUN = re.compile(r"^\[ (\w+:\d+.*) \]$")
_PASSED = re.compile(r"^\[ (\w+:\d+.*): PASS \(([\d.]+)s\) \]$")
_SKIPPED = re.compile(r"^\[ (\w+:\d+.*): SKIP: (.*) \]$")
_SUMMARY = re.compile(r"^\| *(\d{4}_\w+) *\| *(\w+) *\| *([\d.]+)s *\| *(.*)$", re.MULTILINE)
_AT = re.compile(r"^(\w+):\d+")


@dataclass(frozen=True, kw_only=True)
class LibrdkafkaTests:
    """The tests of one scenario.

    Attributes:
        scenario: the kind of cluster: `default` creates topics that are written to.
        protocol: of groups: `classic` or `consumer`.
    """

    name: str
    about: str
    scenario: str
    protocol: str = "classic"
    version: str = VERSION
    brokers: int = 3

    @property
    def creates_topics(self) -> bool:
        """Whether the cluster should create topics that are looked up."""
        return self.scenario == "default"

    def build(self) -> None:
        """Build the library and its test program."""
        try:
            _folder()
            scripts()
        except (subprocess.CalledProcessError, PeerMissingError) as error:
            raise SuiteMissingError(f"librdkafka's tests could not be built: {error}") from error

    def tests(self) -> Sequence[str]:
        """Return the tests of this scenario that need a broker."""
        return declared_in(_folder() / "tests").get(self.scenario, [])

    def run(self, target: Target, tests: Sequence[str]) -> Iterator[Result]:
        """Run tests, a process for each number or part that is split off."""
        folder = target.folder / self.name
        folder.mkdir(parents=True, exist_ok=True)
        configuration = folder / "test.conf"
        configuration.write_text(CONFIGURATION.format(bootstrap=target.bootstrap))
        # The program knows tests by their numbers, which several tests may have.
        for run_as, of_run in groupby(
            sorted(tests), key=lambda test: test if ":" in test else test[:4]
        ):
            number, _, within = run_as.partition(":")
            ended = run(
                [
                    *(_folder() / "test-runner", "-p1", "-Q", "-E", "-K", "-L"),
                    *("-s", self.scenario, "-V", BROKER_VERSION),
                ],
                folder / run_as / "test.log",
                TEST_TIMEOUT_S,
                variables={
                    "RDKAFKA_TEST_CONF": str(configuration),
                    "TESTS": number[:4],
                    "TEST_CONSUMER_GROUP_PROTOCOL": self.protocol,
                    "KAFKA_PATH": str(scripts()),
                    "BROKERS": target.bootstrap,
                    **({"SUBTESTS": within} if within else {}),
                },
            )
            for test in of_run:
                yield from results_of(test, ended)


def _folder() -> Path:
    return built(
        "kafka-suites-librdkafka", [CRATE_HASH, CMAKE_FLAGS, *CMAKE_OPTIONS.values()], _build
    )


def _build(folder: Path) -> None:
    missing = [program for program in ("cargo", "cmake", "cc", "c++") if not shutil.which(program)]
    if missing:
        raise SuiteMissingError(f"librdkafka's tests take {', '.join(missing)}: not here")
    fetch = folder / "fetch"
    fetch.mkdir()
    (fetch / "Cargo.toml").write_text(MANIFEST)
    (fetch / "none.rs").touch()
    vendored = folder / "crates"
    subprocess.run(
        ["cargo", "vendor", "--quiet", "--versioned-dirs", vendored],
        cwd=fetch, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (crate,) = vendored.glob(f"{CRATE}-*")
    fetched = json.loads((crate / ".cargo-checksum.json").read_text())["package"]
    if fetched != CRATE_HASH:
        raise SuiteMissingError(f"{CRATE} {CRATE_VERSION} is {fetched}, not {CRATE_HASH}")
    source, out = crate / "librdkafka", folder / "out"
    # Without curl its header is included all the same, and nothing of it used.
    (folder / "headers" / "curl").mkdir(parents=True)
    (folder / "headers" / "curl" / "curl.h").touch()
    # Some tests name topics after their files.
    flags = CMAKE_FLAGS.format(headers=folder / "headers", tests=source / "tests")
    options = CMAKE_OPTIONS | {"CMAKE_C_FLAGS": flags, "CMAKE_CXX_FLAGS": flags}
    chosen = [f"-D{name}={value}" for name, value in options.items()]
    cmake: list[str | Path] = ["cmake", "-S", source, "-B", out, *chosen]
    jobs = str(os.cpu_count() or 1)
    make: list[str | Path] = ["cmake", "--build", out, "--parallel", jobs]
    for command in (cmake, make):
        ended = run(command, folder / "build.log", BUILD_TIMEOUT_S)
        if ended.code != 0:
            raise SuiteMissingError(f"librdkafka's tests were not built: {ended.said[-2000:]}")
    (out / "tests" / "test-runner").rename(folder / "test-runner")
    (folder / "tests").mkdir()
    for name in ("test", *(test.replace("_", "-") for test in SPLIT)):
        shutil.copy(source / "tests" / f"{name}.c", folder / "tests")
    for left in (vendored, out, fetch):
        shutil.rmtree(left)


def declared_in(folder: Path) -> dict[str, list[str]]:
    """Return the names of the tests that need a broker, by scenario."""
    found: dict[str, list[str]] = {}
    for name, flags, rest in _DECLARED.findall((folder / "test.c").read_text()):
        if _NOT_ASKED.search(flags) or name.endswith("_mock"):
            continue  # It needs no broker, or the client makes up one.
        names = [name]
        if name in SPLIT:
            source = (folder / f"{name.replace('_', '-')}.c").read_text()
            names = [f"{name}:{within}" for within in dict.fromkeys(_WITHIN.findall(source))]
        scenario = _SCENARIO.search(rest)
        for each in scenario[1].split(",") if scenario else ["default"]:
            found.setdefault(each, []).extend(names)
    return found


def results_of(test: str, ended: Ended) -> Iterator[Result]:
    """Yield what is said of a test: of those within it, if there are any."""
    at_top, _, only = test.partition(":")
    said = _COLOUR.sub("", ended.said)
    summary = next((found for found in _SUMMARY.finditer(said) if found[1] == at_top), None)
    state = summary[2] if summary else "took too long" if ended.code is None else "crashed"
    reason = shortened(summary[4] if summary else f"{state}: {said[-500:]}")
    seconds = float(summary[3]) if summary else ended.seconds
    if state == "SKIPPED":
        yield Result(test=test, outcome=Outcome.LEFT_OUT, said=reason)
        return
    seen: Counter[str] = Counter()
    open_one, failed = "", state != "PASSED"

    def named(within: str) -> str:
        name = _AT.sub(r"\1", within).replace("/", "|")
        seen[name] += 1
        return f"{test}/{name}" if seen[name] == 1 else f"{test}/{name} #{seen[name]}"

    for line in map(_LINE.match, said.splitlines()):
        if line is None or line[1] != at_top:
            continue
        words = line[2]
        if only and not words.startswith(f"[ {only}:"):
            continue  # Its name begins with that of the one that was asked for.
        if passed := _PASSED.match(words):
            yield Result(test=named(passed[1]), outcome=Outcome.PASSED, seconds=float(passed[2]))
            open_one = ""
        elif skipped := _SKIPPED.match(words):
            yield Result(test=named(skipped[1]), outcome=Outcome.LEFT_OUT, said=skipped[2])
            open_one = ""
        elif begun := _BEGUN.match(words):
            open_one = begun[1]
    if failed and open_one:
        yield Result(test=named(open_one), outcome=Outcome.FAILED, seconds=seconds, said=reason)
    elif only:  # Whether others failed, whose names begin with that of this one, is theirs.
        if not seen:
            yield Result(test=test, outcome=Outcome.LEFT_OUT, said="not part of this run")
    elif failed or not seen:
        outcome = Outcome.FAILED if failed else Outcome.PASSED
        yield Result(test=test, outcome=outcome, seconds=seconds, said=reason if failed else "")


LIBRDKAFKA_TESTS = LibrdkafkaTests(
    name="librdkafka",
    about="librdkafka's tests against a cluster that creates topics by itself",
    scenario="default",
)
LIBRDKAFKA_FIXED_TESTS = LibrdkafkaTests(
    name="librdkafka-noautocreate",
    about="librdkafka's tests against a cluster that does not",
    scenario="noautocreate",
)
