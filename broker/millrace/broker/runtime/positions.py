"""Positions under names: a machine for each partition of `__positions` that this broker leads.

The machine's state is its log (`core/positions/machine.py`). When a partition becomes led here its
log is read from its start, on a reading thread, and replayed; until that is done every request is
told to come again. What a request comes to is appended and replayed at once, so the next one builds
on it, and its answer is held back until all that was replayed by then is committed. Answers that
only read are held back likewise: nobody is told what a failover could take back.

A replay cannot be undone. So when an append fails after all, and when the role or its epoch
changes, everybody who waits is told so, and the machine is held against the log as any reader is
(P4), if this broker leads again. Where the log goes on from what was replayed, as when the same
broker goes on leading, the machine reads on from there; otherwise another one begins at the start.
What another broker leads is let go of.

To read much keeps nobody waiting: one partition of a log directory is read at a time, a piece at a
time, and replaying it gives the loop back (`Turns`).

Bounds: how many requests wait for their commit at a time, and for how long.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from millrace.broker.runtime.clock import wall_now
from millrace.broker.runtime.partition import Partition
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.runtime.turns import Turns
from millrace.broker.storage.log import PartitionLog
from millrace.core.errors import (
    Appended,
    BrokerBusyError,
    CoordinatorLoadInProgressError,
    CorruptLogError,
    MillraceError,
    NotLeaderError,
    RequestTimedOutError,
)
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.positions.machine import PositionsMachine, Result
from millrace.core.positions.position import PositionsConfig
from millrace.core.positions.records import PositionRecord, decode, encode
from millrace.core.records import batch as record_batch
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header
from millrace.core.replication.leader import Acks, Waiter
from millrace.core.topics import POSITIONS_TOPIC

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_WAITING_MAX: Final = 1000
"""Requests of one partition that wait for their commit."""
_COMMIT_SECONDS: Final = 10.0
"""How long they wait; then nobody knows."""
_READ_BYTES: Final = 256 << 10
"""Bytes that are read in one go: to decode them keeps a reading thread some 10 ms."""
_BATCH_RECORDS: Final = 200
"""Records of one batch: with the longest names and metadata it stays below a megabyte."""
_LOAD_AGAIN_SECONDS: Final = 1.0
_LOG_START_STEP: Final = 1000
"""The log's start moves by at least so many records: each time costs a flush."""
_EXPIRE_SECONDS: Final = 60.0
_EXPIRE_AT_ONCE: Final = 10
"""Names that are looked at in one go."""


class PositionsShell:
    """See the module. On the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        reader: LogReader,
        config: PositionsConfig,
        *,
        turns: Turns,
        inflated_bytes_max: int,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.partitions = partitions
        self.reader = reader
        self.config = config
        self.turns = turns
        # By log directory: who reads a whole partition does so alone.
        self.loading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.inflated_bytes_max = inflated_bytes_max
        self.on_failure = on_failure
        self._shards: dict[TopicPartition, _Shard] = {}
        partitions.on_opened = self._on_opened

    def _on_opened(self, partition: Partition) -> None:
        if partition.topic == str(POSITIONS_TOPIC):
            # Another one of the same partition is closed by now, and nobody's any more.
            shard = self._shards[partition.topic_partition] = _Shard(self, partition)
            partition.follow(shard, 0)
            shard.on_advanced(0)

    def kept(self) -> int:
        """Return how many positions there are in what is served here; from any thread."""
        return sum(shard.kept for shard in list(self._shards.values()))

    def unready(self) -> int:
        """Return how many partitions are led here, and not served; from any thread."""
        return sum(shard.is_unready for shard in list(self._shards.values()))

    async def ask(
        self,
        topic_partition: TopicPartition,
        handle: Callable[[PositionsMachine, WallMs], Result[_T]],
    ) -> _T:
        """Have the machine of a partition handle something; return its answer once it counts.

        Raises:
            NotLeaderError: another broker leads the partition.
            CoordinatorLoadInProgressError: this one does, and is not ready.
            MillraceError: the machine refused, or the append; `appended` says what is known.
        """
        shard = self._shards.get(topic_partition)
        if shard is None:
            raise _not_led(topic_partition)
        return await shard.ready().ask(handle)

    async def expire(self) -> None:
        """Forget, for as long as the broker runs, what nobody has touched for long."""
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            await self.expire_now()

    async def expire_now(self) -> None:
        """Look through everything once."""
        for shard in list(self._shards.values()):
            with suppress(MillraceError):  # The next time, or the next leader, does it.
                names = await shard.ready().ask(lambda machine, _: Result([], machine.names()))
                for at in range(0, len(names), _EXPIRE_AT_ONCE):
                    some = names[at : at + _EXPIRE_AT_ONCE]

                    def forget(
                        machine: PositionsMachine, now: WallMs, some: Sequence[str] = some
                    ) -> Result[None]:
                        return machine.handle_expire(some, now, self._exists)

                    await shard.ready().ask(forget)
                    await asyncio.sleep(0)  # Others want the loop, too.

    def _exists(self, topic_id: TopicId) -> bool:
        image = self.partitions.image
        return image is None or topic_id in image.topics_by_id

    def stop(self) -> None:
        """Serve nothing any more."""
        for shard in self._shards.values():
            shard.unload()


@dataclass(slots=True)
class _Replayed:
    """A machine, and the leader epoch of the last record that it has replayed; -1: none yet."""

    machine: PositionsMachine
    last_epoch: LeaderEpoch = NO_LEADER_EPOCH


class _Shard:
    """One partition here; a `Reader` of it, to be told of its role and its high watermark."""

    def __init__(self, shell: PositionsShell, partition: Partition) -> None:
        self.shell = shell
        self.partition = partition
        self._epoch: LeaderEpoch | None = None  # None: it is not led here.
        self._loading: asyncio.Task[None] | None = None
        self._ready: _Ready | None = None
        self._replayed: _Replayed | None = None  # What is served, or was, or is being read.
        self._failure: MillraceError | None = None  # Why it could not be loaded the last time.

    @property
    def kept(self) -> int:
        """How many positions there are, if it is served."""
        ready = self._ready
        return 0 if ready is None else len(ready.machine)

    @property
    def is_unready(self) -> bool:
        """Whether it is led here, and not served."""
        return self._epoch is not None and self._ready is None

    def on_advanced(self, handle: int) -> None:
        """Look at the role and at what is committed."""
        del handle  # There is one.
        epoch = self._led_epoch()
        if epoch != self._epoch:
            self._epoch = epoch
            self.load_again(self._not_led())
        if epoch is None and self._is_led_elsewhere():
            self._replayed = None
        elif self._ready is not None:
            self._ready.on_committed()

    def _led_epoch(self) -> LeaderEpoch | None:
        partition = self.partition
        is_open = self.shell.partitions.find(partition.topic_partition) is partition
        leader = partition.replica.leader
        return leader.leader_epoch if is_open and leader and partition.replica.leads else None

    def _is_led_elsewhere(self) -> bool:
        replica = self.partition.replica
        state = replica.state
        return state is None or state.leader not in (NO_BROKER, replica.broker.broker_id)

    def _not_led(self) -> NotLeaderError:
        return _not_led(self.partition.topic_partition)

    def ready(self) -> "_Ready":
        """Return what serves.

        Raises:
            NotLeaderError, CoordinatorLoadInProgressError: nothing does.
        """
        if self._ready is not None:
            return self._ready
        if self._epoch is None:
            raise self._not_led()
        why = f": {self._failure.message}" if self._failure is not None else ""
        raise CoordinatorLoadInProgressError(
            f"the positions of {self.partition.topic_partition} are not read yet{why}: try again "
            "shortly"
        )

    def load_again(self, error: MillraceError) -> None:
        """Serve no more; if this broker leads, read what is in the log and not replayed."""
        if self._loading is not None:
            self._loading.cancel()
        if self._ready is not None:
            self._ready.fail(error)
        self._loading = self._ready = self._failure = None
        if self._epoch is not None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
            self._loading.add_done_callback(self._on_loaded)

    def _on_loaded(self, task: asyncio.Task[None]) -> None:
        if self._loading is task:
            self._loading = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self.shell.on_failure(error)

    def unload(self) -> None:
        """Serve nothing any more."""
        self.partition.leave(self, 0)
        self._epoch = self._replayed = None
        self.load_again(self._not_led())

    async def _load(self) -> None:
        while True:
            try:
                replayed = await self._read()
            except MillraceError as error:
                self._failure = error
                _log.warning(
                    "positions cannot be read yet",
                    extra={
                        "partition": self.partition.topic_partition.partition,
                        "error": error.message,
                    },
                )
                if isinstance(error, CorruptLogError):  # Damaged for everybody (P65).
                    self.shell.partitions.take_offline(self.partition.topic_partition, error)
            else:
                self._ready = _Ready(self, replayed)
                self._ready.on_committed()
                return
            await asyncio.sleep(_LOAD_AGAIN_SECONDS)

    async def _read(self) -> _Replayed:
        """Return a machine that has replayed all that is in the log, committed or not."""
        partition = self.partition
        async with self.shell.loading[partition.log.log_dir]:
            while True:
                # Behind all that was on its way to the disk.
                await partition.appender.call(_nothing)
                log = partition.log  # It may have moved meanwhile.
                end = log.log_end_offset
                replayed = self._replayed
                if replayed is None or not self._goes_on_from(replayed):
                    machine = PositionsMachine(self.shell.config, log.log_start_offset)
                    replayed = self._replayed = _Replayed(machine)
                if replayed.machine.next_offset >= end and partition.leader.is_settled:
                    return replayed
                while replayed.machine.next_offset < end:
                    await self._read_on(replayed, end)

    def _goes_on_from(self, replayed: _Replayed) -> bool:
        """Whether the log goes on from what was replayed, as it must for any reader (P4).

        Raises:
            NotLeaderError: this broker does not lead any more.
        """
        leader, log = self.partition.leader, self.partition.log
        at, epoch = replayed.machine.next_offset, replayed.last_epoch
        return (
            epoch != NO_LEADER_EPOCH
            and log.log_start_offset <= at
            and leader.diverging(at, epoch, log.leader_epochs) is None
        )

    async def _read_on(self, replayed: _Replayed, end: Offset) -> None:
        log = self.partition.log
        machine = replayed.machine
        found = await self.shell.reader.call(
            log.log_dir,
            _read_records,
            log,
            machine.next_offset,
            end,
            self.shell.inflated_bytes_max,
        )
        work = self.shell.turns.work()
        for epoch, records in found:
            await work.give_way(len(records))
            replayed.last_epoch = epoch
            for offset, record in records:
                machine.replay(record, offset)


class _Ready:
    """A machine that has read its log, and the answers that wait; the owner of its appends."""

    def __init__(self, shard: _Shard, replayed: _Replayed) -> None:
        self._shard = shard
        self._replayed = replayed
        self.machine = replayed.machine
        self._partition = shard.partition
        self._failure: MillraceError | None = None
        # By what has to be committed.
        self._waiting: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        # Where the log may begin, once the other is committed; and what was asked for last.
        self._log_start: tuple[Offset, Offset] | None = None
        self._log_start_asked = shard.partition.log.log_start_offset

    async def ask(self, handle: Callable[[PositionsMachine, WallMs], Result[_T]]) -> _T:
        """See `PositionsShell.ask`."""
        if len(self._waiting) >= _WAITING_MAX:
            raise BrokerBusyError(
                f"{len(self._waiting)} requests wait for their commit: try again shortly"
            )
        result = handle(self.machine, wall_now())
        self._append(result.records)
        await self._committed(self.machine.next_offset)
        return result.response

    def _append(self, records: Sequence[PositionRecord]) -> None:
        topic_partition = self._partition.topic_partition
        for at in range(0, len(records), _BATCH_RECORDS):
            some = records[at : at + _BATCH_RECORDS]
            keys, values = zip(*map(encode, some), strict=True)
            times = np.array([each.timestamp for each in some], np.int64)
            prepared = record_batch.prepare(
                topic_partition, Columns(len(some), times, values=values, keys=keys)
            )
            batch = memoryview(prepared.finish() + bytes(prepared.body))
            waiter = self._partition.append(parse_header(batch), batch, Acks.ALL, self)
            self._replayed.last_epoch = self._partition.leader.leader_epoch
            for offset, record in enumerate(some, waiter.base_offset):
                self.machine.replay(record, Offset(offset))

    async def _committed(self, offset: Offset) -> None:
        if self._partition.replica.high_watermark >= offset:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, done))
        try:
            async with asyncio.timeout(_COMMIT_SECONDS):
                await done
        except TimeoutError:
            raise RequestTimedOutError(
                "the positions were not committed by all in-sync replicas in time: asking again "
                "is safe"
            ) from None

    def on_append_done(self, waiter: Waiter) -> None:
        """Implement `AppendOwner`: what failed may be in the log, or not."""
        if waiter.error is not None and self._failure is None:
            self._shard.load_again(waiter.error)

    def fail(self, error: MillraceError) -> None:
        """Serve no more."""
        self._failure = error
        maybe = type(error)(error.message, appended=Appended.MAYBE)
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(maybe)
        self._waiting.clear()

    def on_committed(self) -> None:
        """Give the answers that may be given, and let go of what the log needs no more."""
        high_watermark = self._partition.replica.high_watermark
        while self._waiting and self._waiting[0][0] <= high_watermark:
            done = self._waiting.popleft()[1]
            if not done.done():
                done.set_result(None)
        if self._log_start is not None and self._log_start[1] <= high_watermark:
            self._log_start_asked, self._log_start = self._log_start[0], None
            self._shard.shell.partitions.advance_log_start(self._partition, self._log_start_asked)
        elif self._log_start is None:
            oldest = self.machine.oldest_offset
            if oldest - self._log_start_asked >= _LOG_START_STEP:
                # What took the place of older records may itself not be committed yet.
                self._log_start = oldest, self.machine.next_offset


def _not_led(topic_partition: TopicPartition) -> NotLeaderError:
    return NotLeaderError(
        f"{topic_partition} is not led by this broker: go to the one that leads it",
        appended=Appended.NO,
    )


def _nothing() -> None:
    pass


def _read_records(
    log: PartitionLog, start: Offset, end: Offset, inflated_bytes_max: int
) -> list[tuple[LeaderEpoch, list[tuple[Offset, PositionRecord]]]]:
    """Return the records of some batches from `start` on, each batch with its leader epoch.

    On a reading thread.

    Raises:
        MillraceError: they cannot be read, or not be understood.
    """
    plan = log.plan_read(start, _READ_BYTES, end)
    found: list[tuple[LeaderEpoch, list[tuple[Offset, PositionRecord]]]] = []
    if plan is None:
        return found
    for header, batch in record_batch.walk(log.read(plan)):
        opened = record_batch.open_batch(log.topic_partition, header, batch, inflated_bytes_max)
        columns = (
            opened.column(name).to_pylist() for name in ("offset", "timestamp", "key", "value")
        )
        records = [
            (Offset(offset), decode(key, value, WallMs(timestamp)))
            for offset, timestamp, key, value in zip(*columns, strict=True)
            if offset >= start
        ]
        found.append((header.leader_epoch, records))
    return found
