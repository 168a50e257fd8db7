"""What is known of each suite: what its tests come to against Apache Kafka, and which are left out.

`known/SUITE.json` is made by running the suite against Apache Kafka: what passes there must pass
here. `left_out.toml` names tests that are left out here, each with one of the reasons of
`outcome.Reason`, and why. A test that fails against Kafka, too, needs no entry there.

Invariants: each entry still matches a test; a test that passes against Kafka and is not left out
counts, also when a run did not come to it: then it has failed.
"""

import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.suites.outcome import Outcome, Reason, Result

HERE = Path(__file__).parent
KNOWN = HERE / "known"
LEFT_OUT = HERE / "left_out.toml"
SHORT = HERE / "short.toml"


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """An entry of the list.

    Attributes:
        test: its name, or a pattern of names with `*`.
        why: in words.
    """

    suite: str
    test: str
    reason: Reason
    why: str

    def matches(self, test: str) -> bool:
        """Whether it means a test, or one that this is part of."""
        parts = test.split("/")
        return any(
            fnmatchcase("/".join(parts[:length]), self.test) for length in range(1, len(parts) + 1)
        )


@dataclass(frozen=True, kw_only=True)
class Known:
    """A suite against Apache Kafka.

    Attributes:
        version: of the suite.
        kafka: the version of Kafka.
        passes: the tests that pass.
        fails: those that do not, or that leave themselves out, with what was said.
    """

    suite: str
    version: str
    kafka: str
    passes: Sequence[str]
    fails: dict[str, str]

    def write(self) -> None:
        """Keep it."""
        KNOWN.mkdir(exist_ok=True)
        content = {
            "suite": self.suite,
            "version": self.version,
            "kafka": self.kafka,
            "passes": sorted(self.passes),
            "fails": dict(sorted(self.fails.items())),
        }
        path = KNOWN / f"{self.suite}.json"
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def known(suite: str) -> Known:
    """Return what is known of a suite."""
    return Known(**json.loads((KNOWN / f"{suite}.json").read_text()))


def left_out(suite: str) -> list[LeftOut]:
    """Return the entries of a suite."""
    entries = tomllib.loads(LEFT_OUT.read_text()).get(suite, [])
    return [
        LeftOut(suite=suite, test=entry["test"], reason=Reason(entry["reason"]), why=entry["why"])
        for entry in entries
    ]


def short(suite: str) -> list[str]:
    """Return the tests of the short set, which the integration tests run by day."""
    names: list[str] = tomllib.loads(SHORT.read_text()).get(suite, [])
    return names


def wanted(tests: Iterable[str], leaving_out: Sequence[LeftOut]) -> list[str]:
    """Return the tests that are run: those that are left out as a whole are not."""
    return [test for test in tests if not any(entry.matches(test) for entry in leaving_out)]


def judged(
    found: Iterable[Result], of: Known, leaving_out: Sequence[LeftOut], tests: Sequence[str]
) -> list[Result]:
    """Return a result for every test that is known, and for those that are new.

    Args:
        tests: those at the top that were asked for; the known ones of others are not looked at.
    """
    results = {result.test: result for result in found}
    answers = []
    for test in sorted({*of.passes, *of.fails, *results}):
        if not any(test == asked or test.startswith(f"{asked}/") for asked in tests):
            continue
        entry = next((entry for entry in leaving_out if entry.matches(test)), None)
        if entry is not None:
            said = f"{entry.reason}: {entry.why}"
            answers.append(Result(test=test, outcome=Outcome.LEFT_OUT, said=said))
        elif test in of.fails:
            said = f"{Reason.FAILS_AT_KAFKA}: {of.fails[test]}"
            answers.append(Result(test=test, outcome=Outcome.LEFT_OUT, said=said))
        elif test not in results:
            said = "the run did not come to it"
            answers.append(Result(test=test, outcome=Outcome.FAILED, said=said))
        elif results[test].outcome is Outcome.LEFT_OUT:
            said = f"it passes against Kafka, and left itself out here: {results[test].said}"
            answers.append(Result(test=test, outcome=Outcome.FAILED, said=said))
        else:
            answers.append(results[test])
    return answers


def outdated(
    of: Known, version: str, leaving_out: Sequence[LeftOut], tests: Sequence[str]
) -> list[str]:
    """Return what no longer fits a suite, in words; nothing when all does."""
    problems = []
    if version != of.version:
        problems.append(f"{of.suite}: known of {of.version}, and the suite is {version}")
    names = [*of.passes, *of.fails]
    for test in names:
        if not any(test == at_top or test.startswith(f"{at_top}/") for at_top in tests):
            problems.append(f"{of.suite}: {test} is known, and not in the suite")
    for at_top in tests:
        if not any(test == at_top or test.startswith(f"{at_top}/") for test in names):
            problems.append(f"{of.suite}: {at_top} has not been run against Kafka")
    for entry in leaving_out:
        if not any(entry.matches(test) for test in names):
            problems.append(f"{of.suite}: {entry.test} is left out, and not in the suite")
    return problems
