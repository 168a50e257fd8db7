"""Which tests show that a client can do something here: the table of `docs/coming-from-kafka.md`.

`features.toml` names the tests. Invariant: each name matches a test that passes against Apache
Kafka and is not left out here, so that `python -m tests.suites run` fails where it does not pass
here, or one of our own integration tests.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.suites.known import known, left_out

HERE = Path(__file__).parent
FILE = HERE / "features.toml"
OWN = HERE.parent / "integration" / "kafka"
REQUIREMENTS = HERE.parents[1] / "requirements" / "bench.txt"
FEATURES = {
    "produce": "produce, consume",
    "idempotent": "idempotent",
    "transactions": "transactions, committed reads",
    "groups": "classic groups",
    "kip_848": "KIP-848 groups",
    "admin": "administration",
    "tls": "TLS",
    "plain": "PLAIN",
    "scram": "SCRAM",
    "oauth": "OAUTHBEARER",
}
"""Columns of the table."""
LACKS = "–"


@dataclass(frozen=True, kw_only=True)
class Client:
    """A row of the table.

    Attributes:
        suite: its own suite; empty: our integration tests alone use it.
        shown: of each feature that was tried, the names of tests, which may have `*`.
        lacks: features that it does not have.
    """

    name: str
    version: str
    suite: str
    shown: Mapping[str, Sequence[str]]
    lacks: Sequence[str]

    def cell(self, feature: str) -> str:
        """Return what the table says: how many tests show it."""
        if feature in self.lacks:
            return LACKS
        found = [test for name in self.shown.get(feature, ()) for test in matching(name)]
        if not found:
            return ""
        return f"{len(set(found))}" + ("*" if any(_is_ours(name) for name in found) else "")


def clients() -> list[Client]:
    """Return all rows."""
    return [_client(entry) for entry in tomllib.loads(FILE.read_text())["clients"]]


def _client(entry: Mapping[str, str | list[str]]) -> Client:
    known_keys = {"client", "suite", "package", "lacks", *FEATURES}
    if unknown := set(entry) - known_keys:
        raise ValueError(f"{FILE.name}: {entry['client']}: no such feature: {unknown}")
    suite = str(entry.get("suite", ""))
    return Client(
        name=str(entry["client"]),
        version=known(suite).version if suite else _pinned(str(entry["package"])),
        suite=suite,
        shown={name: entry[name] for name in FEATURES if name in entry},
        lacks=entry.get("lacks", ()),
    )


def _pinned(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", REQUIREMENTS.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{package} is not in {REQUIREMENTS.name}")
    return found[1]


def matching(name: str) -> list[str]:
    """Return the tests that a name means, of those that must pass."""
    if _is_ours(name):
        return [name] if _is_there(name) else []
    suite, _, test = name.partition(":")
    leaving_out = left_out(suite)
    return [
        f"{suite}:{passing}"
        for passing in known(suite).passes
        if fnmatchcase(passing, test) and not any(entry.matches(passing) for entry in leaving_out)
    ]


def _is_ours(name: str) -> bool:
    return name.partition(":")[2].startswith(":")


def _is_there(name: str) -> bool:
    file, _, test = name.partition("::")
    path = OWN / file
    return path.exists() and f"def {test}(" in path.read_text()


def without_a_test() -> Iterator[str]:
    """Yield what no test shows, in words."""
    for client in clients():
        for feature, names in client.shown.items():
            for name in names:
                if not matching(name):
                    yield f"{client.name}: {feature}: {name}"


def markdown_table() -> str:
    """Return the table."""
    header = ["client", *FEATURES.values(), "suite"]
    rows = [header, ["---"] * len(header)]
    for client in clients():
        name = f"{client.name} {client.version.partition('-')[0]}"
        suite = f"`{client.suite}`" if client.suite else ""
        rows.append([name, *(client.cell(feature) for feature in FEATURES), suite])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
