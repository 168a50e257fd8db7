"""The tests of franz-go, a client in Go: those of its package kgo that need a broker, and kfake's
ports of Kafka's own client tests.

Both come by Go's module proxy and are built as they are. kgo's take the addresses of brokers from
KGO_SEEDS. kfake's were made for a fake cluster: `go/` has what stands in for it, a proxy before the
real one. Each test is a process of its own, so that one that hangs or panics takes no other along.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.go_programs import GoPrograms, asked_of_go, run_go
from tests.suites.outcome import Outcome, Result, leaves
from tests.suites.programs import Ended, run, shortened
from tests.suites.suite import SuiteMissingError, Target

SOURCE = Path(__file__).with_name("go")
FRANZ_GO = "github.com/twmb/franz-go"
FRANZ_GO_VERSION = "v1.22.3"
"""That of `go/go.mod`, whose go.sum has its hash."""
KFAKE_VERSION = "v0.0.0-20260918054303-01f206a7e32c"
KFAKE_HASH = "h1:+VhoCwJ6sXP2wjfeoVlPkj68NQ4rzdcqH6pXlr+FY5E="

_TEST = re.compile(r"^func (Test\w+)\(t \*testing\.T\) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
_TALKS = re.compile(r"\b(newTestClient|testClientOpts|tmpTopic\w*|getSeedBrokers|adm)\(")
"""What a test of kgo that needs a broker calls; the others are about the client alone."""
_ENDED = re.compile(r"^(\s*)--- (PASS|FAIL|SKIP): (\S+) \((\d+\.\d+)s\)$")
_SAYS = re.compile(r"^\s+\w+\.go:\d+: (.*)$")
_OUTCOMES = {"PASS": Outcome.PASSED, "FAIL": Outcome.FAILED, "SKIP": Outcome.LEFT_OUT}

GRACE_S = 10
"""How much longer than Go's own bound a test may take to print where it hangs."""


def _build(go: str, scratch: Path, destination: Path) -> None:
    module = scratch / "module"
    shutil.copytree(SOURCE, module)
    run_go(go, "vet", "./...", folder=module)
    kgo = Path(asked_of_go(go, "list", "-f", "{{.Dir}}", f"{FRANZ_GO}/pkg/kgo", folder=module))
    run_go(go, "test", "-c", "-o", f"{destination}/kgo", f"{FRANZ_GO}/pkg/kgo", folder=module)
    fetched = json.loads(
        asked_of_go(
            go, "mod", "download", "-json", f"{FRANZ_GO}/pkg/kfake@{KFAKE_VERSION}", folder=scratch
        )
    )
    if fetched["Sum"] != KFAKE_HASH:
        raise SuiteMissingError(f"kfake {KFAKE_VERSION} is {fetched['Sum']}, not {KFAKE_HASH}")
    tests = Path(fetched["Dir"], "kafka_tests")
    shutil.copytree(tests, module / "kafka_tests", copy_function=shutil.copyfile)
    run_go(go, "test", "-c", "-o", f"{destination}/kfake", "./kafka_tests", folder=module)
    names = {"kgo": _names(kgo, _TALKS), "kfake": _names(tests, re.compile(""))}
    (destination / "tests.json").write_text(json.dumps(names))


def _names(folder: Path, talks: re.Pattern[str]) -> list[str]:
    return sorted(
        name
        for path in folder.glob("*_test.go")
        for name, body in _TEST.findall(path.read_text())
        if talks.search(body)
    )


PROGRAMS = GoPrograms(
    name="kafka-suites-go",
    about="franz-go's tests (a minute or two)",
    source=SOURCE,
    names=("kgo", "kfake", "tests.json"),
    build_in=_build,
    made_with=f"{FRANZ_GO_VERSION} {KFAKE_VERSION} {_TALKS.pattern}",
)


@dataclass(frozen=True, kw_only=True)
class GoTests:
    """One of the two programs of tests.

    Attributes:
        program: its name among those that are built.
        timeout_s: of one test.
        long: tests with another time.
        chosen: the tests at the top; none: all that there are.
        variables: more of the tests' environment.
    """

    name: str
    version: str
    about: str
    program: str
    timeout_s: int
    long: Mapping[str, int] = field(default_factory=dict)
    chosen: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    brokers: int = 1
    creates_topics: bool = False

    def build(self) -> None:
        """Build both programs."""
        try:
            PROGRAMS.build()
        except subprocess.CalledProcessError as error:
            raise SuiteMissingError(f"{self.name} could not be built: {error}") from error

    def tests(self) -> Sequence[str]:
        """Return the tests at the top."""
        names: dict[str, list[str]] = json.loads((PROGRAMS.folder() / "tests.json").read_text())
        return self.chosen or names[self.program]

    def run(self, target: Target, tests: Sequence[str]) -> Iterator[Result]:
        """Run tests, a process each."""
        for test in tests:
            seconds = self.long.get(test, self.timeout_s)
            ended = run(
                [
                    *(PROGRAMS.folder() / self.program, f"-test.run=^{test}$", "-test.v"),
                    # Its parts have topics and groups of one name each.
                    *(f"-test.timeout={seconds}s", "-test.parallel=1"),
                ],
                target.folder / self.name / f"{test}.log",
                seconds + GRACE_S,
                variables={
                    "KGO_SEEDS": target.bootstrap,
                    "KGO_TEST_RF": str(target.replication),
                    "KGO_TEST_RECORDS": str(target.records),
                    "KGO_TEST_MAX_TOPIC_PARTS": "7",
                    "KGO_LOG_LEVEL": "none",
                    **self.variables,
                },
            )
            yield from leaves(list(results_of(test, ended)))


def results_of(test: str, ended: Ended) -> Iterator[tuple[int, Result]]:
    """Yield what Go says of a test and of those within it, each with its depth.

    Names do not tell the depth: they may have slashes.
    """
    lines = ended.said.splitlines()
    told = False
    for at, line in enumerate(lines):
        found = _ENDED.match(line)
        if found is None:
            continue
        indent, word, name, seconds = found.groups()
        told = told or name == test
        outcome = _OUTCOMES[word]
        said = "" if outcome is Outcome.PASSED else _said(lines, at)
        yield len(indent), Result(test=name, outcome=outcome, seconds=float(seconds), said=said)
    if not told:
        what = "took too long" if ended.code is None else f"ended with {ended.code}"
        panic = next((line for line in lines if line.startswith("panic:")), "")
        said = shortened(f"{what}: {panic or ' '.join(lines[-5:])}")
        yield 0, Result(test=test, outcome=Outcome.FAILED, seconds=ended.seconds, said=said)


def _said(lines: Sequence[str], at: int) -> str:
    """Return what was said of a test whose end is in a line: before or after it."""
    before: list[str] = []
    for line in reversed(lines[:at]):
        found = _SAYS.match(line)
        if found is None or len(before) == 3:
            break
        before.insert(0, found[1])
    after: list[str] = []
    for line in lines[at + 1 :]:
        found = _SAYS.match(line)
        if found is None or len(after) == 3:
            break
        after.append(found[1])
    return shortened("; ".join(before + after))


_CHAINS = ("TestGroupETL", "TestTxnEtl")

FRANZ_GO_TESTS = GoTests(
    name="franz-go",
    version=FRANZ_GO_VERSION,
    about="franz-go's package kgo: producers, consumers, groups, transactions",
    program="kgo",
    timeout_s=120,
    long=dict.fromkeys(_CHAINS, 420),
)
FRANZ_GO_CHAOS_TESTS = GoTests(
    name="franz-go-chaos",
    version=FRANZ_GO_VERSION,
    about="its chains of groups and of transactions, with connections that die all the time",
    program="kgo",
    timeout_s=900,
    chosen=_CHAINS,
    variables={"KGO_TEST_CHAOS": "1"},
    brokers=3,
)
KFAKE_TESTS = GoTests(
    name="kfake",
    version=KFAKE_VERSION,
    about="kfake's ports of Kafka's own client tests",
    program="kfake",
    timeout_s=60,
)
