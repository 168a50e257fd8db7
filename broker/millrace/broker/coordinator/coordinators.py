"""Runs the coordinators of one internal topic: a machine for each partition that this broker leads.

`coordinator/contract.py` has the contract between a machine and this runtime.

When this broker becomes the leader of a partition, a reading thread reads the log from its start
and the machine replays it. Until that is done, the runtime refuses requests: the client tries
again. After that a request is handled, and its records are appended and replayed at once, so that
the next request builds on it. The answer waits for the commit of everything that was replayed by
then (P55, P60). Answers to requests that only read wait too: a failover must not take back what a
client was told.

A failed append and each change of the role or of its epoch fail all waiting requests. If this
broker still leads, the runtime compares the machine with the log, as it does for any reader (P4).
If the log continues where the machine stopped, the machine reads on from there. Otherwise a new
machine starts at the log's start. The machine of a partition that another broker leads is
dropped.

Loading does not delay other work: one partition of a log directory is loaded at a time, in
pieces, and replay gives the loop back between them (`Turns`).

Bounds: the number of requests that wait for their commit, and their time.

Source: Kafka's CoordinatorRuntime (KIP-848).
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from millrace.broker import events
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.broker.storage.log import PartitionLog
from millrace.core.coordinator.contract import CoordinatorMachine, RecordT, ResponseT, Result
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
    TopicPartition,
    WallMs,
)
from millrace.core.records import batch as record_batch
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.settings import BATCH_INFLATED_BYTES_MAX
from millrace.core.words import count
from millrace.runtime.clock import wall_now
from millrace.runtime.turns import Turns

_log = logging.getLogger(__name__)

_BATCH_RECORDS: Final = 200
_BATCH_BYTES: Final = 512 << 10
"""Bounds of one batch; one record may be larger."""
_LOAD_AGAIN_SECONDS: Final = 1.0

MachineT = TypeVar("MachineT", bound=CoordinatorMachine[Any])


class RecordCodec(Protocol[RecordT]):
    """Translates a coordinator's records to and from keys and values: a module will do."""

    def encode(self, record: RecordT) -> tuple[bytes, bytes | None]:
        """Return the key and the value of a record."""
        ...

    def decode(self, key: bytes | None, value: bytes | None, timestamp: WallMs) -> RecordT:
        """Return a record.

        Raises:
            UnsupportedFormatError: this release does not know it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorLimits:
    """Bounds of one partition.

    Attributes:
        waiting_max: requests that wait for their commit.
        commit_seconds: how long a request waits for its commit.
        read_bytes: bytes that one read takes: decoding the default keeps a reading thread busy for
            about 10 ms.
        log_start_step: records by which the log's start advances at least: each advance costs a
            flush.
    """

    waiting_max: int = 1000
    commit_seconds: float = 10.0
    read_bytes: int = 256 << 10
    log_start_step: int = 1000


class Committed(NamedTuple, Generic[MachineT]):
    """How far the log of a partition is committed, which this broker serves.

    Attributes:
        place: the partition.
        leader_epoch: with which this broker leads it.
        machine: has replayed the log, also what is not committed.
        high_watermark: what is below it is committed.
    """

    place: TopicPartition
    leader_epoch: LeaderEpoch
    machine: MachineT
    high_watermark: Offset


class CoordinatorRuntime(Generic[MachineT, RecordT]):
    """Loads, asks and drops the machines of one internal topic. It belongs to the event loop.

    Args:
        topic: the internal topic.
        new_machine: returns a machine for a log that starts at an offset.
        codec: of the machine's records.
        partitions: of this broker. The runtime follows those of the topic.
        reader: runs reads on threads.
        turns: limit the time that replay takes in a turn of the loop.
        on_failure: called with an unexpected error.
        limits: of each partition.
        on_ended: called when a partition is not served any more: another broker may serve it from
            now on. What the caller keeps about it in memory ends here.
        on_committed: called when a partition is loaded, and when more of it may be committed.
    """

    def __init__(
        self,
        topic: str,
        new_machine: Callable[[Offset], MachineT],
        codec: RecordCodec[RecordT],
        *,
        partitions: Partitions,
        reader: LogReader,
        turns: Turns,
        on_failure: Callable[[BaseException], None],
        limits: CoordinatorLimits,
        on_ended: Callable[[TopicPartition], None] = lambda _: None,
        on_committed: Callable[[Committed[MachineT]], None] = lambda _: None,
    ) -> None:
        self.topic = topic
        self.new_machine = new_machine
        self.codec = codec
        self.partitions = partitions
        self.reader = reader
        self.turns = turns
        self.on_failure = on_failure
        self.on_ended = on_ended
        self.on_committed = on_committed
        self.limits = limits
        # By log directory: one partition of it is loaded at a time.
        self.loading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._shards: dict[TopicPartition, _Shard[MachineT, RecordT]] = {}
        partitions.add_opened_callback(self._on_opened)

    def _on_opened(self, partition: Partition) -> None:
        if partition.topic == self.topic:
            # An earlier replica of the partition is closed by now, and has no shard any more.
            shard = self._shards[partition.topic_partition] = _Shard(self, partition)
            partition.follow(shard, 0)
            shard.on_advanced(0)

    def machines(self) -> Iterator[tuple[TopicPartition, MachineT]]:
        """Yield the loaded machines; from any thread."""
        for topic_partition, shard in list(self._shards.items()):
            ready = shard.served
            if ready is not None:
                yield topic_partition, ready.machine

    def machine(self, topic_partition: TopicPartition) -> MachineT | None:
        """Return the machine of a partition; None: it is not loaded here."""
        shard = self._shards.get(topic_partition)
        ready = None if shard is None else shard.served
        return None if ready is None else ready.machine

    def unready(self) -> int:
        """Return how many partitions this broker leads and has not loaded; from any thread."""
        return sum(shard.is_unready for shard in list(self._shards.values()))

    async def ask(
        self,
        topic_partition: TopicPartition,
        handle: Callable[[MachineT, WallMs], Result[RecordT, ResponseT]],
    ) -> ResponseT:
        """Let the machine of a partition handle a request; return its answer after the commit.

        Args:
            topic_partition: of the topic.
            handle: calls a `handle_*` method of the machine, with the time.

        Raises:
            NotLeaderError: another broker leads the partition.
            CoordinatorLoadInProgressError: this broker leads it, and has not loaded it.
            MillraceError: the machine refused the request, or the append failed; `appended` says
                what is known.
        """
        shard = self._shards.get(topic_partition)
        if shard is None:
            raise _not_led(topic_partition)
        return await shard.ready().ask(handle)

    def stop(self) -> None:
        """Serve no more requests."""
        for shard in self._shards.values():
            shard.unload()


@dataclass(slots=True)
class _Replayed(Generic[MachineT]):
    """A machine, and the leader epoch of the last record that it has replayed; -1: none yet."""

    machine: MachineT
    last_epoch: LeaderEpoch = NO_LEADER_EPOCH


class _Shard(Generic[MachineT, RecordT]):
    """One partition on this broker. As its `Reader` it hears of its role and high watermark."""

    def __init__(
        self, runtime: CoordinatorRuntime[MachineT, RecordT], partition: Partition
    ) -> None:
        self.runtime = runtime
        self.partition = partition
        self._epoch: LeaderEpoch | None = None  # None: this broker does not lead it.
        self._loading: asyncio.Task[None] | None = None
        self._ready: _Ready[MachineT, RecordT] | None = None
        # The machine that serves, that served last, or that is being loaded.
        self._replayed: _Replayed[MachineT] | None = None
        self._failure: MillraceError | None = None  # Why the last load failed.

    @property
    def served(self) -> "_Ready[MachineT, RecordT] | None":
        """What serves requests, if the partition is loaded."""
        return self._ready

    @property
    def is_unready(self) -> bool:
        """Whether this broker leads it and has not loaded it."""
        return self._epoch is not None and self._ready is None

    def on_advanced(self, handle: int) -> None:
        """Look at the role and at the high watermark."""
        del handle  # There is only one.
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
        is_open = self.runtime.partitions.find(partition.topic_partition) is partition
        leader = partition.replica.leader
        return leader.leader_epoch if is_open and leader and partition.replica.leads else None

    def _is_led_elsewhere(self) -> bool:
        replica = self.partition.replica
        state = replica.state
        return state is None or state.leader not in (NO_BROKER, replica.broker.broker_id)

    def _not_led(self) -> NotLeaderError:
        return _not_led(self.partition.topic_partition)

    def ready(self) -> "_Ready[MachineT, RecordT]":
        """Return what serves requests.

        Raises:
            NotLeaderError, CoordinatorLoadInProgressError: nothing serves them.
        """
        if self._ready is not None:
            return self._ready
        if self._epoch is None:
            raise self._not_led()
        why = f": {self._failure.message}" if self._failure is not None else ""
        raise CoordinatorLoadInProgressError(
            f"its log is not loaded yet{why}: try again shortly",
            topic_partition=self.partition.topic_partition,
        )

    def load_again(self, error: MillraceError) -> None:
        """Stop serving; if this broker leads, load what the machine has not replayed."""
        if self._loading is not None:
            self._loading.cancel()
        ended, self._ready = self._ready, None
        if ended is not None:
            ended.fail(error)
            self.runtime.on_ended(self.partition.topic_partition)
        self._loading = self._failure = None
        if self._epoch is not None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
            self._loading.add_done_callback(self._on_loaded)

    def _on_loaded(self, task: asyncio.Task[None]) -> None:
        if self._loading is task:
            self._loading = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self.runtime.on_failure(error)

    def unload(self) -> None:
        """Stop serving for good."""
        self.partition.leave(self, 0)
        self._epoch = self._replayed = None
        self.load_again(self._not_led())

    async def _load(self) -> None:
        while True:
            try:
                replayed = await self._read()
            except MillraceError as error:
                self._failure = error
                events.COORDINATOR_NOT_LOADED.log(
                    _log,
                    topic=self.partition.topic,
                    partition=self.partition.topic_partition.partition,
                    error=error.message,
                )
                if isinstance(error, CorruptLogError):  # Damaged for everybody (P65).
                    self.runtime.partitions.take_offline(self.partition.topic_partition, error)
            else:
                self._ready = _Ready(self, replayed)
                self._ready.on_committed()
                return
            await asyncio.sleep(_LOAD_AGAIN_SECONDS)

    async def _read(self) -> _Replayed[MachineT]:
        """Return a machine that has replayed the whole log, committed or not."""
        partition = self.partition
        async with self.runtime.loading[partition.log.log_dir]:
            while True:
                # After all appends that are under way.
                await partition.appender.call(_nothing)
                log = partition.log  # It may have moved to another log directory.
                end = log.log_end_offset
                replayed = self._replayed
                if replayed is None or not self._goes_on_from(replayed):
                    machine = self.runtime.new_machine(log.log_start_offset)
                    replayed = self._replayed = _Replayed(machine)
                if replayed.machine.next_offset >= end and partition.leader.is_settled:
                    return replayed
                while replayed.machine.next_offset < end:
                    await self._read_on(replayed, end)

    def _goes_on_from(self, replayed: _Replayed[MachineT]) -> bool:
        """Whether the log continues what was replayed, as it must for any reader (P4).

        Raises:
            NotLeaderError: this broker no longer leads.
        """
        leader, log = self.partition.leader, self.partition.log
        at, epoch = replayed.machine.next_offset, replayed.last_epoch
        return (
            epoch != NO_LEADER_EPOCH
            and log.log_start_offset <= at
            and leader.diverging(at, epoch, log.leader_epochs) is None
        )

    async def _read_on(self, replayed: _Replayed[MachineT], end: Offset) -> None:
        log = self.partition.log
        machine = replayed.machine
        found = await self.runtime.reader.call(
            log.log_dir,
            _read_records,
            log,
            machine.next_offset,
            end,
            self.runtime.codec,
            self.runtime.limits,
        )
        work = self.runtime.turns.work()
        for epoch, records in found:
            await work.give_way(len(records))
            replayed.last_epoch = epoch
            for offset, record in records:
                machine.replay(record, offset)


class _Ready(Generic[MachineT, RecordT]):
    """A loaded machine and the answers that wait for their commit; the owner of its appends."""

    def __init__(self, shard: _Shard[MachineT, RecordT], replayed: _Replayed[MachineT]) -> None:
        self._shard = shard
        self._limits = shard.runtime.limits
        self._replayed = replayed
        self.machine = replayed.machine
        self._partition = shard.partition
        self._leader_epoch = shard.partition.leader.leader_epoch
        self._failure: MillraceError | None = None
        # With the offset up to which all must be committed.
        self._waiting: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        # Where the log may start as soon as the second offset is committed.
        self._log_start: tuple[Offset, Offset] | None = None
        self._log_start_asked = shard.partition.log.log_start_offset

    async def ask(
        self, handle: Callable[[MachineT, WallMs], Result[RecordT, ResponseT]]
    ) -> ResponseT:
        """See `CoordinatorRuntime.ask`."""
        if len(self._waiting) >= self._limits.waiting_max:
            raise BrokerBusyError(
                f"{count(len(self._waiting), 'request waits', 'requests wait')} for a commit: "
                "try again shortly"
            )
        result = handle(self.machine, wall_now())
        self._append(result.records)
        await self._committed(self.machine.next_offset)
        return result.response

    def _append(self, records: Sequence[RecordT]) -> None:
        topic_partition = self._partition.topic_partition
        for some, encoded in self._batches(records):
            keys, values = zip(*encoded, strict=True)
            times = np.array([record.timestamp for record in some], np.int64)
            prepared = record_batch.prepare(
                topic_partition, Columns(len(some), times, values=values, keys=keys)
            )
            head, body = prepared.finish(), memoryview(prepared.body)
            waiter = self._partition.append(parse_header(head), head, body, Acks.ALL, self)
            self._replayed.last_epoch = self._partition.leader.leader_epoch
            for offset, record in enumerate(some, waiter.base_offset):
                self.machine.replay(record, Offset(offset))

    def _batches(
        self, records: Sequence[RecordT]
    ) -> Iterator[tuple[list[RecordT], list[tuple[bytes, bytes | None]]]]:
        """Yield records that share a batch, with their keys and values."""
        some: list[RecordT] = []
        encoded: list[tuple[bytes, bytes | None]] = []
        size = 0
        for record in records:
            key, value = self._shard.runtime.codec.encode(record)
            length = len(key) + len(value or b"")
            if some and (len(some) == _BATCH_RECORDS or size + length > _BATCH_BYTES):
                yield some, encoded
                some, encoded, size = [], [], 0
            some.append(record)
            encoded.append((key, value))
            size += length
        if some:
            yield some, encoded

    async def _committed(self, offset: Offset) -> None:
        if self._partition.replica.high_watermark >= offset:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, done))
        seconds = self._limits.commit_seconds
        try:
            async with asyncio.timeout(seconds):
                await done
        except TimeoutError:
            raise RequestTimedOutError(
                f"the in-sync replicas did not commit the request within {seconds:g} s: a retry is "
                "safe"
            ) from None
        finally:
            del done  # The trace of its error refers to this frame: a cycle.

    def on_append_done(self, waiter: Waiter) -> None:
        """Implement `AppendOwner`: the records of a failed append may be in the log, or not."""
        if waiter.error is not None and self._failure is None:
            self._shard.load_again(waiter.error)

    def fail(self, error: MillraceError) -> None:
        """Fail all waiting requests."""
        self._failure = error
        maybe = error.again(Appended.MAYBE)
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(maybe)
        self._waiting.clear()

    def on_committed(self) -> None:
        """Send the answers that are committed, and delete the records that nothing needs."""
        high_watermark = self._partition.replica.high_watermark
        while self._waiting and self._waiting[0][0] <= high_watermark:
            done = self._waiting.popleft()[1]
            if not done.done():
                done.set_result(None)
        if self._log_start is not None and self._log_start[1] <= high_watermark:
            self._log_start_asked, self._log_start = self._log_start[0], None
            self._shard.runtime.partitions.advance_log_start(self._partition, self._log_start_asked)
        elif self._log_start is None:
            oldest = self.machine.oldest_offset
            if oldest - self._log_start_asked >= self._limits.log_start_step:
                # The records that replaced older ones may not be committed yet.
                self._log_start = oldest, self.machine.next_offset
        place, epoch = self._partition.topic_partition, self._leader_epoch
        self._shard.runtime.on_committed(Committed(place, epoch, self.machine, high_watermark))


def _not_led(topic_partition: TopicPartition) -> NotLeaderError:
    return NotLeaderError(
        "this broker does not lead it: ask its leader",
        appended=Appended.NO,
        topic_partition=topic_partition,
    )


def _nothing() -> None:
    pass


def _read_records(
    log: PartitionLog,
    start: Offset,
    end: Offset,
    codec: RecordCodec[RecordT],
    limits: CoordinatorLimits,
) -> list[tuple[LeaderEpoch, list[tuple[Offset, RecordT]]]]:
    """Return the records of some batches from `start` on, each batch with its leader epoch.

    On a reading thread.

    Raises:
        MillraceError: they cannot be read or decoded.
    """
    plan = log.reader.plan_read(start, limits.read_bytes, end)
    found: list[tuple[LeaderEpoch, list[tuple[Offset, RecordT]]]] = []
    if plan is None:
        return found
    for header, batch in record_batch.walk(log.reader.read(plan)):
        # Brokers alone write these logs, so the limit of clients' batches does not count here: it
        # may be below what one record takes.
        opened = record_batch.open_batch(
            log.topic_partition, header, batch, BATCH_INFLATED_BYTES_MAX
        )
        columns = (
            opened.column(name).to_pylist() for name in ("offset", "timestamp", "key", "value")
        )
        records = [
            (Offset(offset), codec.decode(key, value, WallMs(timestamp)))
            for offset, timestamp, key, value in zip(*columns, strict=True)
            if offset >= start
        ]
        found.append((header.leader_epoch, records))
    return found
