"""Damaged replicas of a broker on their way to a new, empty log (P65).

| phase    | what is waited for                                                                  |
|----------|-------------------------------------------------------------------------------------|
| WAITING  | that another replica leads, and the metadata counts on this one no more             |
| ASKED    | the controller's answer: the old log no longer counts for anything                  |
| GRANTED  | the shell, which gives the old log another name; then the replica is opened as new  |

A replica that is the only one left stays in the first phase: it may be the only copy there is.
One request is in flight at a time. A refused or failed one is tried again after a pause.

A replica whose log could not be opened for a while goes the same way, and keeps its log: it was
reported offline, and stays so for the controller until it starts over. Then its later reports
count, as those of any added replica.

Why this order is safe: see `core/controller/partitions/renewal.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from millrace.core.errors import MillraceError
from millrace.core.ids import NO_BROKER, BrokerId, MonotonicMs, TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import PartitionState
from millrace.core.metadata.requests import ReplicaRenewal

_AT_ONCE: Final = MonotonicMs(-1)


class RenewalPhase(Enum):
    """What a renewal waits for."""

    WAITING = 1
    ASKED = 2
    GRANTED = 3


@dataclass(slots=True)
class _Damaged:
    phase: RenewalPhase = RenewalPhase.WAITING
    not_before: MonotonicMs = _AT_ONCE
    keeps_log: bool = False
    """Its log could not be opened before, and is open now."""
    is_performed: bool = False
    """The shell is renaming it."""


class Renewals:
    """The renewals of one broker. Iterates over the damaged replicas.

    Args:
        broker_id: this broker.
        retry_ms: pause after a refusal.
        requests_max: renewals in one request; may be replaced at any time.
    """

    def __init__(self, broker_id: BrokerId, *, retry_ms: int, requests_max: int) -> None:
        self._broker_id = broker_id
        self._retry_ms = retry_ms
        self.requests_max = requests_max
        self._damaged: dict[TopicPartition, _Damaged] = {}
        self._asked: list[TopicPartition] = []

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._damaged)

    def __len__(self) -> int:
        return len(self._damaged)

    def begin(self, topic_partition: TopicPartition) -> None:
        """A log is damaged; it is no longer served."""
        known = self._damaged.get(topic_partition)
        if known is None or known.keeps_log:  # An earlier grant is not for this one.
            self._damaged[topic_partition] = _Damaged()

    def begin_keeping(self, topic_partition: TopicPartition) -> None:
        """A log that was offline is open: it shall count again."""
        self._damaged.setdefault(topic_partition, _Damaged(keeps_log=True))

    def end(self, topic_partition: TopicPartition) -> None:
        """A replica has started over, or is gone."""
        self._damaged.pop(topic_partition, None)

    def phase(self, topic_partition: TopicPartition) -> RenewalPhase | None:
        """Return the phase of a replica; None if it is not damaged."""
        found = self._damaged.get(topic_partition)
        return None if found is None else found.phase

    def to_ask(self, image: MetadataImage, now: MonotonicMs) -> list[ReplicaRenewal]:
        """Return the renewals to ask the controller for; `on_answers` must follow if there is
        any."""
        if self._asked:
            return []
        renewals: list[ReplicaRenewal] = []
        for topic_partition, damaged in self._damaged.items():
            if len(renewals) >= self.requests_max:
                break
            if damaged.phase is RenewalPhase.WAITING and now >= damaged.not_before:
                state = image.partition(topic_partition)
                if state is not None and self._is_dispensable(state):
                    damaged.phase = RenewalPhase.ASKED
                    self._asked.append(topic_partition)
                    renewals.append(ReplicaRenewal(topic_partition, state.partition_epoch))
        return renewals

    def _is_dispensable(self, state: PartitionState) -> bool:
        """Whether another replica leads, and the metadata does not count on the one here."""
        counted = {life.broker_id for life in (*state.isr, *state.elr)}
        return state.leader != NO_BROKER and self._broker_id not in counted

    def on_answers(
        self, answers: Sequence[MillraceError | None] | MillraceError, now: MonotonicMs
    ) -> None:
        """Take the controller's answers in the order of the requests; None is a yes.

        The outcome of a lost answer is unknown. The renewal is requested again, on the state at
        that time.
        """
        asked, self._asked = self._asked, []
        if isinstance(answers, MillraceError):
            answers = [answers] * len(asked)
        for topic_partition, answer in zip(asked, answers, strict=True):
            damaged = self._damaged.get(topic_partition)
            if damaged is None or damaged.phase is not RenewalPhase.ASKED:
                continue  # It is no replica of this broker any more.
            if answer is None and damaged.keeps_log:
                self.end(topic_partition)
            elif answer is None:
                damaged.phase = RenewalPhase.GRANTED
                damaged.not_before = _AT_ONCE
            else:
                damaged.phase = RenewalPhase.WAITING
                damaged.not_before = MonotonicMs(now + self._retry_ms)

    def to_set_aside(self, now: MonotonicMs) -> list[TopicPartition]:
        """Return the replicas whose logs to rename now; each until that is done or has failed."""
        due = [
            topic_partition
            for topic_partition, damaged in self._damaged.items()
            if damaged.phase is RenewalPhase.GRANTED
            and not damaged.is_performed
            and now >= damaged.not_before
        ]
        for topic_partition in due:
            self._damaged[topic_partition].is_performed = True
        return due

    def on_set_aside_failed(self, topic_partition: TopicPartition, now: MonotonicMs) -> None:
        """The disk refused: try again later. The metadata does not count on the replica
        meanwhile."""
        damaged = self._damaged.get(topic_partition)
        if damaged is not None:
            damaged.is_performed = False
            damaged.not_before = MonotonicMs(now + self._retry_ms)
