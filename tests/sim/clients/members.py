"""Members of one consumer group, which come, go and die, and what they must not do.

Each member is a shipped consumer. `ownership` judges what all of them are told.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.sim.clients.readers_and_writers import Client, Job
from tests.sim.judges.ownership import GROUP, Life, Ownership, Session
from tests.sim.world import SECOND

from millrace.client import Admin, Consumer, Records
from millrace.core.errors import (
    FencedMemberEpochError,
    InstanceIdInUseError,
    InvalidGroupError,
    LogTruncatedError,
    MillraceError,
    OffsetOutOfRangeError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from millrace.core.topics import PartitionName

_POLL_MS: Final = 400
_COMMITS: Final = 0.5
"""The share of members that commit by themselves, after each poll."""
_DIES: Final = 0.3
"""The share of members that die instead of leaving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What the members of a group do.

    Attributes:
        members: how many processes.
        records_max: most records that a member takes at once.
        polls: after how many polls a member leaves, on average.
        works_us: how long a member works on average after some polls, before it commits and polls
            again; never more than twice as long.
        works: the share of these polls.
        instances: how many instance ids static members share, and keep over restarts; 0: they are
            dynamic.
        pattern: what they subscribe to; empty: to their topic.
        max_poll_ms: the members' `max_poll_interval_ms`.
        away_us: how long a member is away between two consumers; a dynamic one on average.
        stays: how many members never leave.
        returns: whether the others come back.
        dies: the share of consumers that die instead of leaving.
        commits: the share of consumers that commit by themselves; others leave it to the client.
        request_ms: the members' `request_timeout_ms`.
        stayers_wait: whether members that never leave wait for their commits; else they commit each
            partition by itself, and go on.
        others: how many processes speak the other protocol, Kafka's or Millrace's: they get nothing
            while the group has members (K11).
    """

    members: int = 3
    records_max: int = 10_000
    polls: int = 60
    works_us: int = 0
    works: float = 0.2
    instances: int = 0
    pattern: str = ""
    max_poll_ms: int = 300_000
    away_us: int = 2 * SECOND
    stays: int = 0
    returns: bool = True
    dies: float = _DIES
    commits: float = _COMMITS
    request_ms: int = 5_000
    stayers_wait: bool = True
    others: int = 0


class GroupMember(Client):
    """A process with one consumer of the group after the other."""

    def __init__(self, job: Job, *, number: int, plan: GroupPlan, ownership: Ownership) -> None:
        super().__init__(job)
        self._plan = plan
        self._ownership = ownership
        self._instance = f"instance-{number % plan.instances}" if plan.instances else ""
        self._stays = number < plan.stays
        self._committing: set[asyncio.Task[None]] = set()

    async def _work(self) -> None:
        while not self._is_done:
            commits = self._dice.random() < self._plan.commits
            consumer = Consumer(
                self._site.bootstrap,
                group=GROUP,
                group_instance_id=self._instance,
                request_timeout_ms=self._plan.request_ms,
                max_poll_interval_ms=self._plan.max_poll_ms,
                enable_auto_commit=not commits,
                auto_commit_interval_ms=1_000,
                auto_offset_reset="earliest",
                transport=self._machine.transport,
            )
            life = Life(
                self.name,
                next(self._lives),
                partial(_session, consumer),
                self._machine.clock,
            )
            try:
                await self._subscribe(consumer, life)
                await self._read(consumer, life, commits=commits)
            finally:
                if self._dice.random() < self._plan.dies:
                    _forget(consumer)
                try:
                    await consumer.close()
                except MillraceError as error:  # Of its last commit.
                    self._judge(error)
            self._ownership.on_ended(life)
            if not self._plan.returns:
                return
            if self._instance:
                await asyncio.sleep(self._plan.away_us / SECOND)
            else:
                await self._pause(self._plan.away_us)

    async def _subscribe(self, consumer: Consumer, life: Life) -> None:
        ownership, pattern = self._ownership, self._plan.pattern

        def on_assigned(places: list[PartitionName]) -> None:
            ownership.on_assigned(life, places)

        def on_revoked(places: list[PartitionName]) -> None:
            ownership.on_given_up(life, places)

        def on_lost(places: list[PartitionName]) -> None:
            ownership.on_lost(life, places)

        await consumer.subscribe(
            () if pattern else [self._site.topic],
            pattern=pattern,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
        )

    async def _read(self, consumer: Consumer, life: Life, *, commits: bool) -> None:
        polls = 1 + self._dice.randrange(2 * self._plan.polls)
        while not self._is_done and (polls or self._stays):
            polls = max(0, polls - 1)
            try:
                records = await consumer.poll(_POLL_MS, self._plan.records_max)
                for record in records:
                    self._ownership.on_read(life, record)
                try:
                    if self._plan.works_us and self._dice.random() < self._plan.works:
                        await asyncio.sleep(self._dice.uniform(0, 2 * self._plan.works_us) / SECOND)
                finally:  # A member that is interrupted closes its consumer, which commits.
                    self._ownership.on_done(records)
                if commits:
                    await self._commit_read(consumer, life, records)
            except MillraceError as error:
                self._judge(error)
                if isinstance(error, LogTruncatedError | OffsetOutOfRangeError):
                    self._ownership.on_set_back(consumer.assignment())
                    for place in consumer.assignment():
                        consumer.seek(place, "beginning")
            await self._pause(self._every_us)

    async def _commit_read(self, consumer: Consumer, life: Life, records: Records) -> None:
        positions = {(record.topic, record.partition): record.offset + 1 for record in records}
        if self._plan.stayers_wait or not self._stays:
            await self._commit(consumer, life, positions)
            return
        for place, at in positions.items():
            task = asyncio.create_task(self._try_to_commit(consumer, life, {place: at}))
            self._committing.add(task)
            task.add_done_callback(self._committing.discard)

    async def _try_to_commit(
        self, consumer: Consumer, life: Life, positions: dict[PartitionName, int]
    ) -> None:
        try:
            await self._commit(consumer, life, positions)
        except MillraceError as error:
            self._judge(error)

    async def _commit(
        self, consumer: Consumer, life: Life, positions: dict[PartitionName, int]
    ) -> None:
        if positions:
            attempts = self._ownership.attempts(life, positions)
            await consumer.commit(positions)
            self._ownership.on_committed(life, attempts)

    def _judge(self, error: MillraceError) -> None:
        # A session may have ended while brokers or the network were away.
        fenced = (UnknownMemberIdError, FencedMemberEpochError, StaleMemberEpochError)
        may_be_gone = self._site.has_been_cut or self._site.has_given_up
        if isinstance(error, LogTruncatedError | OffsetOutOfRangeError) and may_be_gone:
            return
        if isinstance(error, InvalidGroupError) and self._plan.others:
            return  # Members of the group speak the other protocol.
        if isinstance(error, InstanceIdInUseError) and self._instance:
            return  # Its twin lives.
        if not isinstance(error, fenced):
            super()._judge(error)


class Observer(Client):
    """Asks for the stored positions of the group."""

    def __init__(self, job: Job, *, ownership: Ownership) -> None:
        super().__init__(job)
        self._ownership = ownership

    async def _work(self) -> None:
        async with Admin(self._site.bootstrap, request_timeout_ms=5_000) as admin:
            while not self._is_done:
                floors = self._ownership.floors(self._site.topic)
                try:
                    stored = await admin.fetch_positions(GROUP)
                except MillraceError as error:
                    self._judge(error)
                else:
                    found = {place: position.offset for place, position in stored.items()}
                    self._ownership.on_observed(floors, found)
                await self._pause(self._every_us)


def _session(consumer: Consumer) -> Session | None:
    membership = consumer._core.membership
    if membership is None:
        return None
    heartbeats = membership.heartbeats
    return Session(heartbeats.is_lost, heartbeats.heard_at, heartbeats.session_s)


def _forget(consumer: Consumer) -> None:
    """Let a consumer die as a member: it neither commits nor leaves its group."""
    membership, consumer._core.membership = consumer._core.membership, None
    assert membership is not None
    membership._tasks.cancel()
