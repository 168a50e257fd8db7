"""A follower's stream to a leader that cannot be reached, or ends it, or falls silent."""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tests.fakes.until import until

from millrace.broker.peer_connection import PeerConnections
from millrace.broker.replica.fetcher import ReplicaFetcher
from millrace.broker.rpc.server import make_server
from millrace.core.broker_config import LimitsConfig
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.model import NOWHERE, BrokerLife
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.replica.replication.effects import FetchFrom
from millrace.core.replica.replication.events import Fetched
from millrace.core.replica.replication.leader_session import LeaderSession
from millrace.core.replica.replication.progress import NO_PROGRESS
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.proto.codec import fetch_response
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.runtime.clock import monotonic_now
from millrace.runtime.mailbox import Mailbox, Worker

LEADER = BrokerId(1)
LIMITS = LimitsConfig(replica_keepalive_ms=200)
PLACE = TopicPartition(TopicId(b"t" * 16), 0)

Serve = Callable[[Any], Any]


class Leader:
    """A leader's replica listener; `serve` is what it does with a stream."""

    def __init__(self, serve: Serve) -> None:
        self.opened = 0
        self._serve = serve
        self._server = make_server(LIMITS)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        fetch: dict[str, Any] = {"Fetch": grpc.stream_stream_rpc_method_handler(self._fetch)}
        handlers = grpc.method_handlers_generic_handler("millrace.proto.v1.Replica", fetch)
        self._server.add_generic_rpc_handlers([handlers])

    async def _fetch(self, _: object, context: Any) -> None:
        self.opened += 1
        await self._serve(context)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)


async def answer(context: Any) -> None:
    """Say that there is nothing new."""
    await context.write(b"".join(fetch_response(pb.FetchHeader(), [])))


@dataclass
class Following:
    """A follower's stream.

    Attributes:
        registration: where the leader is, as the metadata says.
        session: what there is to say to the leader.
        on_concerned: to be called when that may have changed.
        broken: when the stream broke.
        fetched: the leader's answers, as they reach the machine.
        checker: the thread that verifies.
    """

    registration: SimpleNamespace
    session: LeaderSession
    on_concerned: Callable[[], None] = lambda: None
    broken: list[MonotonicMs] = field(default_factory=list)
    fetched: list[Fetched] = field(default_factory=list)
    checker: Worker | None = None


@contextlib.asynccontextmanager
async def following(port: int) -> AsyncIterator[Following]:
    """Follow the leader at a port."""
    session = LeaderSession(1 << 20)
    leader = SimpleNamespace(
        name="broker-1",
        replica_address=f"127.0.0.1:{port}",
        tls_addresses=NOWHERE,
        drpc_address_at=lambda _: "",
    )
    the = Following(leader, session)
    position = FetchFrom(PLACE, LEADER, LeaderEpoch(1), Offset(0), LeaderEpoch(-1), 1)
    session.open(position, NO_PROGRESS, MonotonicMs(0))

    def on_broken(_: BrokerId, now: MonotonicMs) -> list[object]:
        the.broken.append(now)
        for lost in session.on_broken():
            session.open(lost, NO_PROGRESS, now)
        return []

    def on_fetched(_: BrokerId, fetched: Fetched, now: MonotonicMs) -> list[object]:
        the.fetched.append(fetched)
        return []

    callbacks: list[Callable[[], None]] = []
    partitions: Any = SimpleNamespace(
        image=SimpleNamespace(broker=lambda _: the.registration),
        replicas=SimpleNamespace(
            sessions={LEADER: session}, on_session_broken=on_broken, on_fetched=on_fetched
        ),
        perform=lambda _: None,
        add_sessions_callback=callbacks.append,
    )
    failures: list[BaseException] = []
    fetcher = ReplicaFetcher(
        BrokerLife(BrokerId(0), BrokerEpoch(1)),
        partitions,
        mailbox=Mailbox(asyncio.get_running_loop()),
        config=ReplicationConfig(),
        connections=PeerConnections(LIMITS),
        on_failure=failures.append,
    )
    the.checker = fetcher.checker
    (the.on_concerned,) = callbacks
    try:
        the.on_concerned()
        yield the
    finally:
        await fetcher.stop()
    assert failures == []


def test_a_leader_that_cannot_be_reached_is_told_of_once_and_again_when_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "millrace")

    async def hold(context: Any) -> None:
        await answer(context)
        await asyncio.Event().wait()

    async def story() -> None:
        leader = Leader(hold)
        await leader.start()
        nobody = socket.socket()
        nobody.bind(("127.0.0.1", 0))  # It does not listen.
        try:
            async with following(nobody.getsockname()[1]) as the:
                await until(lambda: len(the.broken) > 2)
                the.registration.replica_address = f"127.0.0.1:{leader.port}"
                await until(lambda: "fetching goes on" in caplog.messages)
        finally:
            nobody.close()
            await leader.stop()

    asyncio.run(story())
    assert caplog.messages[:2] == ["fetching ended", "fetching goes on"]


async def test_a_stream_that_worked_is_opened_again_without_a_pause() -> None:
    leader = Leader(answer)  # And then the stream ends.
    await leader.start()
    try:
        async with following(leader.port):
            await until(lambda: leader.opened > 20, 1.9)  # Pauses alone: 2 s.
    finally:
        await leader.stop()


async def test_a_position_that_pauses_is_said_in_time_although_nobody_asks_again() -> None:
    said: list[int] = []

    async def listen(context: Any) -> None:
        await answer(context)
        while isinstance(message := await context.read(), bytes):
            said.extend(
                partition.partition for partition in pb.FetchRequest.FromString(message).partitions
            )

    leader = Leader(listen)
    await leader.start()
    try:
        async with following(leader.port) as the:
            await until(lambda: said == [0])
            other = TopicPartition(PLACE.topic_id, 1)
            position = FetchFrom(other, LEADER, LeaderEpoch(1), Offset(0), LeaderEpoch(-1), 1, 30)
            the.session.open(position, NO_PROGRESS, monotonic_now())
            the.on_concerned()
            await until(lambda: said == [0, 1])
    finally:
        await leader.stop()


class Relay:
    """Passes connections on to a port; those of now can be cut off without a word to anybody."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, there_writer]
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            self._tasks.append(asyncio.create_task(self._pass_on(source, sink)))

    @staticmethod
    async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()

    def cut_off(self) -> None:
        """Take nothing any more from the connections that there are, and leave them open."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        self.cut_off()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        self._server.close()
        await self._server.wait_closed()


async def test_a_connection_that_only_the_leader_knows_to_be_gone_is_found_out() -> None:
    """A follower that has nothing to say would never hear of it."""
    told = asyncio.Event()

    async def hold(context: Any) -> None:
        await answer(context)
        told.set()
        await asyncio.Event().wait()

    leader = Leader(hold)
    await leader.start()
    relay = Relay(leader.port)
    await relay.start()
    try:
        async with following(relay.port) as the:
            await asyncio.wait_for(told.wait(), 20)
            relay.cut_off()
            await until(lambda: leader.opened > 1)
            assert len(the.broken) == 1
    finally:
        await relay.stop()
        await leader.stop()


async def test_a_small_response_does_not_wait_for_the_checking_thread() -> None:
    may_send, is_over = asyncio.Event(), threading.Event()

    async def send(context: Any) -> None:
        await may_send.wait()
        for sent in batches:
            found = pb.FetchedPartition(handle=1, length=len(sent), high_watermark=0)
            header = pb.FetchHeader(partitions=[found])
            await context.write(b"".join(fetch_response(header, [sent])))
        await asyncio.Event().wait()

    batches = [sealed_batch(100), sealed_batch(100_000)]
    leader = Leader(send)
    await leader.start()
    try:
        async with following(leader.port) as the:
            assert the.checker is not None
            the.checker.submit(lambda *_: None, is_over.wait)
            may_send.set()
            await until(lambda: the.fetched)
            assert [each.size for each in the.fetched] == [len(batches[0])]
            is_over.set()
            await until(lambda: len(the.fetched) == 2)
            assert [len(each.batches) for each in the.fetched] == [1, 1]
    finally:
        is_over.set()
        await leader.stop()


def sealed_batch(value_bytes: int) -> bytes:
    prepared = prepare(PLACE, Columns(1, WallMs(0), values=[b"v" * value_bytes]))
    return prepared.finish() + bytes(prepared.body)
