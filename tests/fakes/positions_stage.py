"""One partition of `__positions` on a broker, with a follower whose reports the test gives."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import LogOnDisk
from tests.fakes.open_partition import lead, partition_of
from tests.fakes.stamped_batches import TOPIC_PARTITION
from tests.fakes.two_replicas import HERE, THERE, complete, raise_it
from tests.fakes.until import until

from millrace.broker.coordinator.coordinators import CoordinatorLimits, _read_records
from millrace.broker.coordinator.groups import Groups
from millrace.broker.replica.appender import Appender
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.reader import LogReader
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import CoordinatorRecord, GroupCoordinator
from millrace.core.coordinator.positions.position import Kind, Position, PositionsConfig
from millrace.core.errors import CoordinatorLoadInProgressError, MillraceError
from millrace.core.ids import Offset, TopicId, TopicPartition, WallMs
from millrace.core.metadata.model import BrokerLife
from millrace.core.replica.replication.effects import Effect
from millrace.core.replica.replication.events import Corrupt, DiskEvent
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.runtime.clock import monotonic_now
from millrace.runtime.mailbox import Mailbox
from millrace.runtime.turns import Turns

PLACE = TopicPartition(TopicId(b"t" * 16), 0)
LIMITS = CoordinatorLimits()


class NotedReader(LogReader):
    """Notes from where records of positions are read."""

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(mailbox, threads=1, buffer_bytes=1 << 20)
        self.starts: list[Offset] = []

    def call(self, log_dir: str, job: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        if job is _read_records:
            self.starts.append(args[1])
        return super().call(log_dir, job, *args)


class Stage:
    """One partition of `__positions` with a follower, whose reports the test gives."""

    def __init__(
        self,
        config: PositionsConfig | None = None,
        limits: CoordinatorLimits = LIMITS,
        groups: GroupsConfig | None = None,
    ) -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        self.disk = Disk()
        self.log = LogOnDisk(self.disk).log
        self.appender = Appender(
            "a", mailbox, lambda _: None, on_disk=self.on_disk, on_failed=raise_it
        )
        self.reader = NotedReader(mailbox)
        self.config = config or PositionsConfig()
        self.limits = limits
        self.groups = groups or GroupsConfig()
        self.image: Any = None
        self.log_starts: list[Offset] = []
        self.partition = partition_of(self.log, self.appender, "__positions")
        self._epoch = 0
        self.open()

    def open(self) -> None:
        """Let another runtime serve the partition."""
        me: Any = self
        self.positions = Groups(
            me,
            self.reader,
            self.config,
            self.groups,
            turns=Turns(),
            on_failure=raise_it,
            limits=self.limits,
        )

    # --- What the runtime asks of all partitions ---

    def add_opened_callback(self, callback: Callable[[Partition], None]) -> None:
        callback(self.partition)  # It is open.

    def find(self, _: TopicPartition) -> Partition:
        return self.partition

    def advance_log_start(self, _: Partition, start_offset: Offset) -> None:
        self.log_starts.append(start_offset)

    def take_offline(self, _: TopicPartition, error: MillraceError) -> None:
        pytest.fail(error.message)

    # --- What happens ---

    def lead(self, leader: BrokerLife | None = HERE) -> None:
        self._epoch += 1
        self.perform(lead(self.partition, leader, self._epoch))

    def replicate(self) -> None:
        """Let the follower have everything that is in the log."""
        leader = self.partition.leader
        end = self.log.log_end_offset
        epochs = self.log.leader_epochs
        progress = FollowerProgress(end, end, Offset(0), epochs.latest_epoch)
        effects = leader.on_follower_fetch(
            THERE,
            leader.leader_epoch,
            progress,
            epochs,
            monotonic_now(),
            log_start_offset=self.log.log_start_offset,
        )
        self.perform(effects)

    def on_disk(self, partition: Partition, event: DiskEvent) -> None:
        assert not isinstance(event, Corrupt)
        self.perform(partition.replica.on_disk(event, monotonic_now()))

    def perform(self, effects: list[Effect]) -> None:
        complete(effects)
        self.partition.on_readers_concerned()

    # --- What is asked ---

    async def loaded(self) -> None:
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(CoordinatorLoadInProgressError):
                    for shard in self.positions.runtime._shards.values():
                        shard.ready()
                    return
                await asyncio.sleep(0.001)

    def resolve(
        self, offset: int, name: str = "q", place: TopicPartition = PLACE
    ) -> "asyncio.Task[object]":
        def handle(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, object]:
            proposals = {place: Position(offset)}
            found = machine.handle_resolve_initial(name, proposals, now)
            return Result(found.records, found.response[place].offset)

        return asyncio.create_task(self.positions.runtime.ask(TOPIC_PARTITION, handle))

    def look(self, name: str = "q") -> "asyncio.Task[object]":
        def handle(machine: GroupCoordinator, _: WallMs) -> Result[CoordinatorRecord, object]:
            found = machine.positions(name, Kind.INITIAL)
            return Result([], [each.offset for each in found.values()])

        return asyncio.create_task(self.positions.runtime.ask(TOPIC_PARTITION, handle))

    async def keep(self, offset: int, name: str = "q", place: TopicPartition = PLACE) -> None:
        """Store a position, and have it committed."""
        end = self.log.log_end_offset
        stored = self.resolve(offset, name, place)
        await self.written(end + 1)
        self.replicate()
        assert await stored == offset

    async def written(self, end: int) -> None:
        await until(lambda: self.partition.replica.role.written_offset >= end)


@contextlib.asynccontextmanager
async def stage(
    config: PositionsConfig | None = None,
    limits: CoordinatorLimits = LIMITS,
    groups: GroupsConfig | None = None,
) -> AsyncIterator[Stage]:
    the = Stage(config, limits, groups)
    try:
        yield the
    finally:
        the.positions.runtime.stop()
        await asyncio.to_thread(the.appender.close)
        the.reader.close()


async def is_waiting(*tasks: "asyncio.Task[object]") -> bool:
    await asyncio.sleep(0.02)
    return not any(task.done() for task in tasks)
