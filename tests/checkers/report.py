"""The result of a check: anomalies, allowed ones, and whether the run proves anything.

A run is good if its mode allows every anomaly found, and everything expected has happened. A run
without sends, faults or leader changes proves nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

ANOMALIES: Final[Mapping[str, tuple[str, str]]] = {
    "inconsistent-offset": ("C1", "one offset held two values"),
    "duplicate": ("C2", "one value stands at two offsets"),
    "phantom": ("C3", "a value was read that nobody sent to that key"),
    "aborted-read": ("C4", "a value was read whose send certainly failed"),
    "lost-write": ("C5", "an acknowledged value is missing among those that were read"),
    "unseen": ("C6", "an acknowledged value was not there in the final polls"),
    "int-poll-skip": ("C9", "a poll jumped over a record within one operation"),
    "int-nonmonotonic-poll": ("C9", "a poll went back within one operation"),
    "poll-skip": ("C10", "a client's next poll jumped over a record"),
    "nonmonotonic-poll": ("C10", "a client's next poll went back"),
    "int-nonmonotonic-send": ("C11", "sends of one operation are not in their order"),
    "nonmonotonic-send": ("C11", "a client's next send has a smaller offset"),
    "realtime-inversion": ("C15", "a send that began after another's end has a smaller offset"),
    "stale-end-offset": ("C16", "an end offset is below what was acknowledged before it was asked"),
    "end-offset-regression": ("C16", "a client saw an end offset go back"),
    "commit-regression": (
        "C17",
        "a position went back to before what a later owner of the partition had committed",
    ),
    "late-commit": ("C17", "a commit counted that a former owner began"),
    "two-owners": ("C18", "a member got a partition while another one's session lived"),
    "read-by-former-owner": ("C18", "a member read a partition that another one had"),
    "group-skip": ("C19", "the members of a group left a record out"),
    "commit-ahead": ("C19", "a position was stored beyond what was handed out"),
    "replica-divergence": (
        "C23",
        "two replicas hold other bytes or epochs below what is committed",
    ),
    "metadata-fork": ("C24", "one partition epoch stands for two states"),
    "metadata-repeat": ("C24", "the store showed a partition epoch again"),
    "metadata-regression": ("C24", "an epoch went back"),
    "two-leaders": ("C24", "one leader epoch had two leaders"),
    "isr-outside-replicas": ("C24", "leader, in-sync replicas and replicas do not fit"),
    "unavailable": ("C25", "writes waited for longer than the goal while all should be well"),
    "realtime-lag": ("C26", "a poll saw a log that was older than the goal"),
    "dishonest-error": ("C27", "a value whose send certainly failed is on a disk"),
    "precommitted-read": (
        "C30",
        "a reader of committed records saw one before its commit was asked for",
    ),
    "torn-transaction": ("C30", "a reader saw a part of a transaction, and passed the rest by"),
    "overlapping-transactions": ("C30", "transactions of one id are not one after the other"),
    "circular-reads": ("C30", "transactions were decided before each other"),
    "copied-twice": ("C31", "a record of the original stands twice in the copy"),
    "not-copied": ("C31", "a record of the original is left out in the copy"),
    "copied-late": ("C31", "records of a copy are in another order than in the original"),
    "copied-nothing": ("C31", "the copy has what committed readers of the original never saw"),
    "slow-transaction": ("C32", "a transaction took longer than the goal while all should be well"),
    "lost-transaction": (
        "C32",
        "a transaction whose commit was asked for was not committed while all should be well",
    ),
    "resource-growth": ("C29", "a process ended with more of something than it may"),
}

# A client that has a partition to itself sees each record once and in order. A group may rebalance
# between two operations; then records come again, or go to another member.
ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "assign": frozenset(),
    "subscribe": frozenset({"poll-skip", "nonmonotonic-poll"}),
    # A member of Kafka's classic protocol that stood still hands out what it has fetched before it
    # hears that its session has ended.
    "classic-group": frozenset({"read-by-former-owner"}),
    # Writes that only the leader acknowledged may be lost with it.
    "acks-1": frozenset({"lost-write", "unseen", "realtime-inversion", "stale-end-offset",
                         "end-offset-regression", "nonmonotonic-send"}),
    # The same; no send returns its offset, and `unreplicated` judges lost writes.
    "unreplicated": frozenset({"unseen"}),
    "not-idempotent": frozenset({"duplicate", "nonmonotonic-send", "int-nonmonotonic-send"}),
    # An operator gave up a part of the log. Clients got errors, and offsets are used again. An
    # operation with several sends may have begun before.
    "unclean-election": frozenset({"inconsistent-offset", "duplicate", "lost-write", "unseen",
                                   "nonmonotonic-send", "int-nonmonotonic-send",
                                   "nonmonotonic-poll", "realtime-inversion", "stale-end-offset",
                                   "end-offset-regression", "torn-transaction",
                                   "overlapping-transactions", "circular-reads"}),
    # Likewise where the topic is compacted: such an offset may hold a record that the history does
    # not have, as a later one replaces it.
    "compacted-unclean-election": frozenset({"poll-skip", "int-poll-skip"}),
}  # fmt: skip

EXAMPLES_MAX: Final = 10


class Anomaly(NamedTuple):
    """One broken promise.

    kind: one of `ANOMALIES`.
        kind: of `ANOMALIES`.
        what: the observation.
        ops: the numbers of the operations that show it.
    """

    kind: str
    what: str
    ops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What must have happened for a run to count.

    Attributes:
        ok_shares: least share of completed operations that were `ok`, by function; more than none.
        faults: least number of each fault whose effect was seen.
        leader_changes: least number of changes of a partition's leader.
        isr_changes: least number of changes of a partition's in-sync replicas.
        final_polls: whether every key with an acknowledged write must be read to its end last.
    """

    ok_shares: Mapping[str, float] = field(default_factory=lambda: {"send": 0.5, "poll": 0.5})
    faults: Mapping[str, int] = field(default_factory=dict)
    leader_changes: int = 0
    isr_changes: int = 0
    final_polls: bool = True


@dataclass(slots=True)
class Report:
    """What a checker found in one run.

    Attributes:
        allowed: kinds that the run's mode allows.
        counts: anomalies by kind.
        examples: the first anomalies of each kind.
        measures: other measurements, by name.
        missing: expectations that were not met, as sentences.
    """

    allowed: frozenset[str] = frozenset()
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Anomaly]] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, anomalies: Iterable[Anomaly]) -> None:
        for anomaly in anomalies:
            assert anomaly.kind in ANOMALIES
            self.counts[anomaly.kind] += 1
            examples = self.examples.setdefault(anomaly.kind, [])
            if len(examples) < EXAMPLES_MAX:
                examples.append(anomaly)

    @property
    def failures(self) -> list[str]:
        """Kinds that were found and are not allowed."""
        return sorted(self.counts.keys() - self.allowed)

    @property
    def is_good(self) -> bool:
        return not self.failures and not self.missing

    def text(self) -> str:
        """Return the report as text."""
        lines = []
        for kind in sorted(self.counts):
            check, sentence = ANOMALIES[kind]
            allowed = " (allowed)" if kind in self.allowed else ""
            lines.append(f"{check} {kind} x {self.counts[kind]}{allowed}: {sentence}")
            lines += [
                f"    {example.what} (operations {', '.join(map(str, example.ops))})"
                for example in self.examples[kind]
            ]
        lines += [f"expected, but did not happen: {sentence}" for sentence in self.missing]
        lines += [f"{name} {amount:g}" for name, amount in sorted(self.measures.items())]
        return "\n".join(lines)
