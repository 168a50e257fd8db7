"""Members of one consumer group on a topic, which come, go and die, and what they must not do.

Each member is a shipped consumer. What all of them are told is kept in one `Ownership`:

- A partition that another member has been given is read by the former owner no more (P61).
- A new owner begins no later than where the group has handed out everything: nothing is left out,
  as long as members commit only what they have handed out (P62). Records may come twice.
- It begins no earlier than where a commit was acknowledged: nothing has taken that back, neither a
  former owner nor an attempt that comes late (P58, P60, P62).
- In quiet every partition has an owner, and the group reads on.
"""

from collections.abc import Callable
from typing import Final

from tests.sim.clients import Client, Site
from tests.sim.machine import ClientMachine
from tests.sim.world import SECOND, Violation

from millrace.client import Consumer, Record
from millrace.core.errors import (
    FencedMemberEpochError,
    LogTruncatedError,
    MillraceError,
    OffsetOutOfRangeError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from millrace.core.topics import PartitionName

_POLL_MS: Final = 400
_POLLS_OF_EACH: Final = 60
"""Polls after which a member leaves, on average."""
_COMMITS: Final = 0.5
"""The share of members that commit by themselves, after each poll."""
_DIES: Final = 0.3
"""The share of members that die instead of leaving."""


class Ownership:
    """See the module.

    Attributes:
        owners: the member that was last given each partition, until it gave it up.
        next_offsets: up to where the group has handed out all records of each partition.
        committed: the largest offset of each partition whose commit was acknowledged.
    """

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.next_offsets: dict[int, int] = {}
        self.committed: dict[int, int] = {}


class GroupMember(Client):
    """A process with one consumer of the group after the other."""

    def __init__(
        self,
        name: str,
        site: Site,
        machine: ClientMachine,
        *,
        every_us: int,
        ownership: Ownership,
        may_be_lost: Callable[[], bool],
        records_max: int,
    ) -> None:
        super().__init__(name, site, machine)
        self._every_us = every_us
        self._ownership = ownership
        self._may_be_lost = may_be_lost
        self._records_max = records_max
        self._me = ""
        self._begins_at: dict[int, int] = {}  # Where commits were when it got each partition.

    async def _work(self) -> None:
        while not self._is_done:
            self._me = f"{self.name}.{next(self._lives)}"
            commits = self._dice.random() < _COMMITS
            consumer = Consumer(
                self._site.bootstrap,
                group="shared",
                request_timeout_ms=5_000,
                enable_auto_commit=not commits,
                auto_commit_interval_ms=1_000,
                auto_offset_reset="earliest",
            )
            try:
                await consumer.subscribe(
                    [self._site.topic],
                    on_assigned=self._on_assigned,
                    on_revoked=self._on_given_up,
                    on_lost=self._on_given_up,
                )
                await self._read(consumer, commits=commits)
            finally:
                if self._dice.random() < _DIES:
                    _forget(consumer)
                try:
                    await consumer.close()
                except MillraceError as error:  # Of its last commit.
                    self._judge(error)
            self._on_given_up([(self._site.topic, number) for number in self._owned])
            await self._pause(2 * SECOND)

    @property
    def _owned(self) -> list[int]:
        owners = self._ownership.owners
        return [number for number, owner in owners.items() if owner == self._me]

    async def _read(self, consumer: Consumer, *, commits: bool) -> None:
        for _ in range(1 + self._dice.randrange(2 * _POLLS_OF_EACH)):
            if self._is_done:
                return
            try:
                records = await consumer.poll(_POLL_MS, self._records_max)
                for record in records:
                    self._check(record)
                if commits and records:
                    await self._commit(consumer, {each.partition for each in records})
            except MillraceError as error:
                self._judge(error)
                for place in consumer.assignment():
                    if isinstance(error, LogTruncatedError | OffsetOutOfRangeError):
                        consumer.seek(place, "beginning")
            await self._pause(self._every_us)

    async def _commit(self, consumer: Consumer, partitions: set[int]) -> None:
        topic = self._site.topic
        positions = {each: await consumer.position((topic, each)) for each in partitions}
        await consumer.commit({(topic, each): at for each, at in positions.items()})
        committed = self._ownership.committed
        committed.update({each: max(committed.get(each, 0), at) for each, at in positions.items()})

    def _on_assigned(self, places: list[PartitionName]) -> None:
        for _, number in places:
            self._ownership.owners[number] = self._me
            self._begins_at[number] = self._ownership.committed.get(number, 0)

    def _on_given_up(self, places: list[PartitionName]) -> None:
        for _, number in places:
            if self._ownership.owners.get(number) == self._me:
                del self._ownership.owners[number]

    def _check(self, record: Record) -> None:
        number, offset = record.partition, record.offset
        owner = self._ownership.owners.get(number)
        if owner != self._me:
            raise Violation(f"{self._me} reads {offset} of {number}, which {owner} owns (P61)")
        topic_partition = self._site.partitions[number]
        if offset >= self._site.committed(topic_partition):
            raise Violation(f"{self._me} gets {offset} of {number}: it is not committed")
        at = self._ownership.next_offsets.get(number, 0)
        may_jump = self._site.may_be_cut(topic_partition) or self._may_be_lost()
        if offset > at and offset > self._site.kept_from(topic_partition) and not may_jump:
            raise Violation(f"{self._me} gets {offset} of {number}, and the group is at {at}")
        if offset < self._begins_at.pop(number, 0) and not may_jump:
            raise Violation(
                f"{self._me} gets {offset} of {number}, and more was committed before (P58, P60, "
                "P62)"
            )
        self._ownership.next_offsets[number] = max(at, offset + 1)

    def _judge(self, error: MillraceError) -> None:
        # A session may have ended while brokers or the network were away.
        fenced = (UnknownMemberIdError, FencedMemberEpochError, StaleMemberEpochError)
        may_be_gone = self._site.has_been_cut or self._site.has_given_up
        if isinstance(error, LogTruncatedError | OffsetOutOfRangeError) and may_be_gone:
            return
        if not isinstance(error, fenced):
            super()._judge(error)


def _forget(consumer: Consumer) -> None:
    """Let a consumer die as a member: it neither commits nor leaves its group."""
    membership, consumer._core.membership = consumer._core.membership, None
    assert membership is not None
    membership._beating.cancel()
