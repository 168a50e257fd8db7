"""The replicas of a broker whose logs are not open.

An earlier life has left one behind, and no image has assigned it yet; or its log is being opened;
or it is offline: its log is damaged, on a directory that failed, or cannot be opened yet, perhaps
because the disk is full (P64). A replica whose log is damaged starts over if others have its
records (`renewals`); one whose log directory failed does not, nor the only one left.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from millrace.core.errors import CorruptLogError, MillraceError
from millrace.core.ids import MonotonicMs, TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife
from millrace.core.replica.replication.effects import Effect, OpenLog, ProposeRenewals, SetAside
from millrace.core.replica.replication.renewals import Renewals
from millrace.core.replica.replication.rules import ReplicationConfig

_RENEWALS_AT_ONCE: Final = 100
"""Damaged replicas in one request: each is fetched whole, so they need not begin together."""


class UnopenedReplicas:
    """The phase of each such replica, and its error.

    Args:
        broker: this broker's life.
        config: the broker's settings.
        left_behind: partitions on disk of its earlier lives.

    Attributes:
        image: the newest metadata.
        errors: why replicas are offline.
    """

    def __init__(
        self, broker: BrokerLife, config: ReplicationConfig, left_behind: Iterable[TopicPartition]
    ) -> None:
        self.image: MetadataImage | None = None
        self.errors: dict[TopicPartition, MillraceError] = {}
        self._broker = broker
        self._left_behind = set(left_behind)
        self._opening: set[TopicPartition] = set()
        self._renewals = Renewals(
            broker.broker_id, retry_ms=config.isr_retry_ms, requests_max=_RENEWALS_AT_ONCE
        )

    def configure(self, *, request_partitions_max: int) -> None:
        """Follow the cluster's settings from now on."""
        self._renewals.requests_max = min(_RENEWALS_AT_ONCE, request_partitions_max)

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica is being opened, or is offline."""
        return topic_partition in self._opening or topic_partition in self.errors

    def offline(self) -> list[TopicPartition]:
        """Return the damaged or lost replicas that the metadata counts on (P65).

        Partitions without other replicas are left out: no broker could take over.
        """
        found = []
        for topic_partition in self.errors:
            state = None if self.image is None else self.image.partition(topic_partition)
            if (
                state is not None
                and self._broker in (*state.isr, *state.elr)
                and len(state.replicas) > 1
            ):
                found.append(topic_partition)
        return found

    @property
    def leaderships_failed(self) -> int:
        """How many partitions this broker should lead, and cannot: the log is damaged or gone.

        They can neither be read nor written, although the metadata names a leader: no other replica
        could lead, or the controller does not know yet.
        """
        states = [] if self.image is None else map(self.image.partition, self.errors)
        return sum(state is not None and state.leader == self._broker.broker_id for state in states)

    # --- Events ------------------------------------------------------------------------------

    def take_left_behind(self, topic_partition: TopicPartition) -> bool:
        """An image assigns a partition; return whether an earlier life has left it behind."""
        was_left = topic_partition in self._left_behind
        self._left_behind.discard(topic_partition)
        return was_left

    def open(self, topic_partition: TopicPartition, *, is_first: bool = False) -> OpenLog:
        """Begin to open a log that the image names."""
        assert self.image is not None
        self._opening.add(topic_partition)
        topic = self.image.topics_by_id[topic_partition.topic_id]
        return OpenLog(topic_partition, topic, is_first=is_first)

    def on_opened(self, topic_partition: TopicPartition) -> bool:
        """A log is open; return whether that is still wanted."""
        is_wanted = topic_partition in self._opening
        self._opening.discard(topic_partition)
        if is_wanted and self.errors.pop(topic_partition, None) is not None:
            self._renewals.begin_keeping(topic_partition)  # Its opening was refused before.
        return is_wanted

    def on_refused(self, topic_partition: TopicPartition, error: MillraceError) -> None:
        """A log cannot be opened now, and is tried again: until then another one should lead."""
        if topic_partition in self._opening:
            self.errors[topic_partition] = error

    def on_failed(self, topic_partition: TopicPartition, error: MillraceError) -> None:
        """A log cannot be opened, or is damaged, or its directory failed (P63, P65)."""
        self.errors[topic_partition] = error
        if isinstance(error, CorruptLogError):
            self._renewals.begin(topic_partition)

    def give_up(self, topic_partition: TopicPartition) -> None:
        """A replica is not this broker's any more, or another failure follows."""
        self._opening.discard(topic_partition)
        self.errors.pop(topic_partition, None)
        self._renewals.end(topic_partition)

    # --- Starting over -----------------------------------------------------------------------

    def renew(self, now: MonotonicMs) -> list[Effect]:
        """Let damaged replicas start over, if they may now (P65)."""
        if self.image is None or not self._renewals:
            return []
        effects: list[Effect] = [SetAside(granted) for granted in self._renewals.to_set_aside(now)]
        if renewals := self._renewals.to_ask(self.image, now):
            effects.append(ProposeRenewals(renewals))
        return effects

    def on_answers(
        self, answers: Sequence[MillraceError | None] | MillraceError, now: MonotonicMs
    ) -> list[Effect]:
        """Take the controller's answers to `ProposeRenewals`, in its order.

        The metadata that a yes (None) rests on has arrived before.
        """
        self._renewals.on_answers(answers, now)
        return self.renew(now)

    def on_set_aside(self, topic_partition: TopicPartition) -> list[Effect]:
        """A damaged log was renamed: begin an empty one, and fetch it from the leader."""
        if topic_partition not in self._renewals:
            return []  # It was given up meanwhile.
        self.give_up(topic_partition)
        return [self.open(topic_partition)]

    def on_set_aside_failed(
        self, topic_partition: TopicPartition, error: MillraceError, now: MonotonicMs
    ) -> None:
        """A damaged log keeps its name: the disk refused, or enough were set aside already."""
        if topic_partition in self._renewals:
            self.errors[topic_partition] = error
            self._renewals.on_set_aside_failed(topic_partition, now)
