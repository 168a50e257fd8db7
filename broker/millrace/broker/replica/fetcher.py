"""Fetches what this broker follows: one stream to each leader, for all partitions that it leads.

The machine (`LeaderSession`) decides what to send to a leader and what to do with the answers. In
between every batch's checksums are verified, before the machine gets the response (P8, P66): on the
loop if a response is small, else by a thread. A broken stream is opened again, at once if it had
worked, and after a pause if not; the machine then sends all positions again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.broker import events
from millrace.broker.peer_connection import PeerConnections, Way
from millrace.broker.replica.partitions import Partitions
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import MillraceError, OffsetOutOfRangeError
from millrace.core.ids import BrokerId, EpochEnd, LeaderEpoch, MonotonicMs, Offset, TopicPartition
from millrace.core.metadata.model import BrokerLife, BrokerRegistration
from millrace.core.records.batch import walk
from millrace.core.records.header import HEADER_BYTES, verify_body
from millrace.core.replica.replication.events import Fetched
from millrace.core.replica.replication.leader_session import LeaderSession, SessionRequest
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.proto.codec import decode_fetch_response
from millrace.proto.features import BROKER_PROTOCOL
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.runtime.clock import monotonic_now
from millrace.runtime.mailbox import Mailbox, Worker
from millrace.runtime.streams import run_until_first
from millrace.runtime.transport.calls import CallError, ClientStream, until_draining

_log = logging.getLogger(__name__)

_METHOD: Final = "/millrace.proto.v1.Replica/Fetch"
_RECONNECT_SECONDS: Final = 0.1
_CONNECT_SECONDS_MAX: Final = 3.0
"""Time-out of an attempt: a new one is faster than TCP's retries with growing pauses."""
_HIGH_WATERMARK_DELAY_MS: Final = 5
"""How long a leader may delay a high watermark that moved without records."""
_SHORT_RESPONSE_BYTES: Final = 8 << 10
"""Batches that are verified on the loop: they are few, and a thread is further away."""


@dataclass(slots=True)
class _Refused:
    """A position that the leader refused."""

    handle: int
    log_start_offset: Offset | None
    """The leader's, where the position is out of its range."""


class ReplicaFetcher:
    """The stream to each leader.

    Args:
        mailbox: of the loop.
    """

    def __init__(
        self,
        broker: BrokerLife,
        partitions: Partitions,
        *,
        mailbox: Mailbox,
        config: ReplicationConfig,
        connections: PeerConnections,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.partitions = partitions
        self.checker = Worker("check-followed", mailbox)  # Clients cannot keep it busy.
        self.connections = connections
        self.settings = pb.FetchSettings(
            min_bytes=1,
            max_wait_ms=_HIGH_WATERMARK_DELAY_MS,
            replica_id=broker.broker_id,
            replica_broker_epoch=broker.broker_epoch,
            window_bytes=config.replica_fetch_window_bytes,
            features=[BROKER_PROTOCOL],
        )
        self.connectors = {
            has_tls: connections.new_connector(has_tls=has_tls) for has_tls in (False, True)
        }
        self._on_failure = on_failure
        self._streams: dict[BrokerId, tuple[_LeaderStream, asyncio.Task[None]]] = {}
        partitions.add_sessions_callback(self._on_sessions_concerned)

    def _on_sessions_concerned(self) -> None:
        """There may be news for leaders."""
        for leader, session in self.partitions.replicas.sessions.items():
            known = self._streams.get(leader)
            if known is not None:
                known[0].wake_if_concerned()
            else:
                stream = _LeaderStream(self, leader, session)
                task = asyncio.get_running_loop().create_task(stream.run())
                task.add_done_callback(self._on_done)
                self._streams[leader] = (stream, task)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def stop(self) -> None:
        """Fetch no more."""
        tasks = [task for _, task in self._streams.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.checker.close()


class _LeaderStream:
    def __init__(self, fetcher: ReplicaFetcher, leader: BrokerId, session: LeaderSession) -> None:
        self._fetcher = fetcher
        self._leader = leader
        self._session = session
        self._wake = asyncio.Event()
        self._waits_until: MonotonicMs | None = None  # End of the present pause.
        self._has_answered = False  # On the present stream, or the last one.
        self._is_noted = False  # Whether the end of the stream was logged.
        # How DRPC failed, until gRPC is known to work.
        self._avoids: Way | None = None

    def wake_if_concerned(self) -> None:
        """Send the session's requests if there are any; called after every event."""
        session = self._session
        if session.has_news or session.next_due() != self._waits_until:
            self._wake.set()

    async def run(self) -> None:
        """Keep a stream for as long as there is something to follow."""
        partitions = self._fetcher.partitions
        while True:
            if not len(self._session):
                self._waits_until = None
                self._wake.clear()
                await self._wake.wait()
                continue
            self._has_answered = False
            broker = None if partitions.image is None else partitions.image.broker(self._leader)
            if broker is not None and broker.replica_address:
                try:
                    await self._hold(broker)
                except CallError as error:
                    self._note_end(error.details)
                except TimeoutError:
                    self._note_end("it cannot be reached")
                except MillraceError as error:
                    events.FETCHING_FAILED.log(_log, leader=self._leader, error=str(error))
                    self._has_answered = False
                partitions.perform(
                    partitions.replicas.on_session_broken(self._leader, monotonic_now())
                )
            if not self._has_answered:
                await asyncio.sleep(_RECONNECT_SECONDS)

    def _note_end(self, reason: str) -> None:
        """Log that a stream ended, but not each attempt to open another."""
        events.FETCHING_ENDED.log(_log, leader=self._leader, error=reason, is_repeat=self._is_noted)
        self._is_noted = True

    def _note_answer(self) -> None:
        self._has_answered = True
        if self._avoids is not None:
            self._fetcher.connectors[self._avoids.has_tls].avoid(self._avoids.drpc_address)
            self._avoids = None
        if self._is_noted:
            self._is_noted = False
            events.FETCHING_RESUMED.log(_log, leader=self._leader)

    async def _hold(self, leader: BrokerRegistration) -> None:
        way = self._fetcher.connections.way_to(leader)
        stream: ClientStream | None = await self._fetcher.connectors[way.has_tls].stream(
            way.drpc_address,
            _METHOD,
            check=self._fetcher.connections.check_of(leader.name),  # With TLS only.
        )
        if stream is not None:
            self._avoids = None
            try:
                await self._follow(stream)
            finally:
                stream.cancel()
            return
        self._avoids = way
        async with self._fetcher.connections.connect(way) as channel:
            await self._follow(channel.stream(_METHOD))

    async def _follow(self, stream: ClientStream) -> None:
        settings = pb.FetchRequest(settings=self._fetcher.settings)
        async with asyncio.timeout(_CONNECT_SECONDS_MAX):
            await stream.write(settings.SerializeToString())
        await run_until_first(self._write(stream), self._read(stream), until_draining(stream))
        stream.cancel()

    async def _write(self, stream: ClientStream) -> None:
        while True:
            self._wake.clear()
            now = monotonic_now()
            request = self._session.take_request(now)
            if request is not None:
                await stream.write(_message_of(request).SerializeToString())
                continue
            due = self._waits_until = self._session.next_due()
            if due is None:
                await self._wake.wait()
                continue
            # A pause ends by then.
            timer = asyncio.get_running_loop().call_later((due - now) / 1000, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def _read(self, stream: ClientStream) -> None:
        fetcher = self._fetcher
        partitions, replicas = fetcher.partitions, fetcher.partitions.replicas
        while (message := await stream.read()) is not None:
            self._note_answer()
            header, views = decode_fetch_response(message)
            places = [self._place_of(partition.handle) for partition in header.partitions]
            found = (
                await fetcher.checker.call(_checked, header, views, places)
                if sum(map(len, views)) > _SHORT_RESPONSE_BYTES
                else _checked(header, views, places)
            )
            for answer in found:
                now = monotonic_now()
                if isinstance(answer, Fetched):
                    effects = replicas.on_fetched(self._leader, answer, now)
                else:
                    effects = replicas.on_fetch_error(
                        self._leader, answer.handle, answer.log_start_offset, now
                    )
                partitions.perform(effects)

    def _place_of(self, handle: int) -> TopicPartition | None:
        position = self._session.position(handle)
        return None if position is None else position.topic_partition


def _checked(
    header: pb.FetchHeader, views: Sequence[memoryview], places: Sequence[TopicPartition | None]
) -> list[Fetched | _Refused]:
    """Verify a response's batches; on the checking thread if they are many bytes.

    Args:
        header: of the response.
        views: the batches of each of its partitions.
        places: their partitions; None: no longer followed.
    """
    found: list[Fetched | _Refused] = []
    for partition, view, place in zip(header.partitions, views, places, strict=True):
        if partition.HasField("error"):
            is_outside = partition.error.code == OffsetOutOfRangeError.code
            start = Offset(partition.log_start_offset) if is_outside else None
            found.append(_Refused(partition.handle, start))
            continue
        batches, is_damaged = ([], False) if place is None else _verified(place, view)
        diverging = None
        if partition.HasField("diverging"):
            diverging = EpochEnd(
                LeaderEpoch(partition.diverging.leader_epoch),
                Offset(partition.diverging.end_offset),
            )
        found.append(
            Fetched(
                handle=partition.handle,
                fetch_offset=Offset(partition.fetch_offset),
                high_watermark=Offset(partition.high_watermark),
                log_start_offset=Offset(partition.log_start_offset),
                compacted_offset=Offset(partition.compacted_offset),
                batches=batches,
                size=len(view),
                is_damaged=is_damaged,
                diverging=diverging,
            )
        )
    return found


def _verified(topic_partition: TopicPartition, view: memoryview) -> tuple[list[StampedBatch], bool]:
    """Return the batches with right checksums, and whether one had a wrong one (P8)."""
    batches: list[StampedBatch] = []
    size = 0
    try:
        for header, batch in walk(view):
            verify_body(topic_partition, header, batch)
            batches.append(
                StampedBatch.of(header, bytes(batch[:HEADER_BYTES]), batch[HEADER_BYTES:])
            )
            size += len(batch)
    except MillraceError as error:
        events.BATCH_DAMAGED.log(_log, partition=str(topic_partition), error=error.message)
        return batches, True
    return batches, size < len(view)


def _message_of(request: SessionRequest) -> pb.FetchRequest:
    message = pb.FetchRequest(remove=request.removed, credit_bytes=request.credit_bytes)
    progress = list(request.progress)
    for handle, position, its_progress in request.added:
        message.partitions.add(
            handle=handle,
            topic_id=position.topic_partition.topic_id,
            partition=position.topic_partition.partition,
            fetch_offset=position.fetch_offset,
            current_leader_epoch=position.leader_epoch,
            last_fetched_epoch=position.last_fetched_epoch,
            log_start_offset=its_progress.log_start_offset,
            verify_until=position.verify_until,
        )
        progress.append((handle, its_progress))
    for handle, said in progress:
        message.progress.add(
            handle=handle,
            log_end_offset=said.log_end_offset,
            flushed_offset=said.flushed_offset,
            log_start_offset=said.log_start_offset,
            last_fetched_epoch=said.last_fetched_epoch,
            compacted_offset=said.compacted_offset,
        )
    return message
