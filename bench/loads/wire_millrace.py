"""The broker's own rate: prebuilt messages of the published .proto, without encoding or decoding
records. The client is that of the bare DRPC frames (`bench.peers.drpc_frames`), so that only the
server differs.

Ways: `produce` writes ProduceRequests that were built before the clock starts. Each is one batch of
1 KB records, for the partitions in turn, without a producer id, so that the same bytes may be sent
again; an error in an answer ends the load. `fetch` grants credit and takes whole FetchResponses; at
the end of the topic it starts over.

`settings`: `message_bytes`, the size of a message; `in_flight`, the number of unanswered messages
(or, for fetch, the number that the credit allows); `drpc`, the broker's address for DRPC.
"""

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import uvloop
from bench.loads.spec import Load, Moved, run_from_command_line, used_since
from bench.peers.drpc_frames import Connection, Kind, open_call
from bench.records import read_records

from millrace.client import SyncAdmin
from millrace.core.ids import TopicId, TopicPartition, WallMs
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.proto.codec import decode_fetch_response, produce_request
from millrace.proto.v1 import fetch_pb2, produce_pb2

HEADER_ROOM = 512
"""Bytes of a message that are not records: protobuf, batch header, column table."""
RECORD_ROOM = 4
"""Bytes that the format adds to a record: its offset in the value column."""
FETCH_WAIT_MS = 500


def run(load: Load) -> Moved:
    """Produce or fetch for the load's time."""
    with SyncAdmin(load.address) as admin:
        topic_id = admin.describe_topic(load.topic).topic_id
        log_bytes = sum(log.size_bytes for log in admin.describe_logs(load.topic))
    if load.way == "produce":
        return uvloop.run(_produce(load, _build_requests(load, topic_id)))
    return uvloop.run(_fetch(load, topic_id, log_bytes))


async def _produce(load: Load, requests: list[bytes]) -> Moved:
    async with _Stream.of(load, "/millrace.proto.v1.Produce/Produce") as stream:
        room = asyncio.Semaphore(load.settings["in_flight"])
        answered = 0

        async def count_answers() -> None:
            nonlocal answered
            while (message := await stream.read()) is not None:
                for answer in produce_pb2.ProduceResponse.FromString(message).answers:
                    problems = [result.error for result in answer.results if result.error.code]
                    if answer.error.code or problems or not answer.results:
                        raise SystemExit(f"refused: {answer.error} {problems}")
                    answered += 1
                    room.release()
            room.release()  # The broker has ended the stream: `sent` is more than `answered`.

        answers = asyncio.create_task(count_answers())
        sent = 0
        started, cpu_started = time.perf_counter(), time.process_time()
        while time.perf_counter() - started < load.seconds and not answers.done():
            await room.acquire()
            await stream.write(requests[sent % len(requests)])
            sent += 1
        stream.done_writing()
        await answers
        seconds = time.perf_counter() - started
        used = used_since(cpu_started)
    if answered != sent:
        raise SystemExit(f"{sent} requests, {answered} answers")
    return Moved(
        records=sent,
        bytes=sent * len(requests[0]),
        seconds=seconds,
        detail=used,
    )


def _build_requests(load: Load, topic_id: TopicId) -> list[bytes]:
    """Build enough requests that no two in flight have the same correlation id."""
    values = read_records(load.records_path)
    size = load.settings["message_bytes"]
    count = (size - HEADER_ROOM) // (len(values[0]) + RECORD_ROOM)
    requests = []
    for number in range(-(-load.settings["in_flight"] // load.partitions) * load.partitions):
        partition = number % load.partitions
        first = number * count % max(1, len(values) - count)
        prepared = prepare(
            TopicPartition(topic_id, partition),
            Columns(count, WallMs(int(time.time() * 1000)), values[first : first + count]),
        )
        header = produce_pb2.ProduceHeader(
            correlation_id=number,
            acks=-1,
            request_timeout_ms=30_000,
            partitions=[
                produce_pb2.ProducePartition(
                    topic_id=topic_id,
                    partition=partition,
                    leader_epoch=-1,
                    length=prepared.length,
                )
            ],
        )
        requests.append(b"".join(produce_request(header, (prepared.finish(), prepared.body))))
    return requests


async def _fetch(load: Load, topic_id: TopicId, log_bytes: int) -> Moved:
    size = load.settings["message_bytes"]
    window = size * load.settings["in_flight"]
    handles = itertools.count(1)

    def from_the_beginning() -> list[fetch_pb2.FetchPartition]:
        return [
            fetch_pb2.FetchPartition(
                handle=next(handles),
                topic_id=topic_id,
                partition=partition,
                fetch_offset=0,
                current_leader_epoch=-1,
                last_fetched_epoch=-1,
            )
            for partition in range(load.partitions)
        ]

    following = from_the_beginning()
    settings = fetch_pb2.FetchSettings(
        min_bytes=1, max_wait_ms=FETCH_WAIT_MS, response_bytes_max=size, window_bytes=window
    )
    moved = messages = in_pass = to_grant = 0
    async with _Stream.of(load, "/millrace.proto.v1.Fetch/Fetch") as stream:

        async def ask(**fields: Any) -> None:
            await stream.write(fetch_pb2.FetchRequest(**fields).SerializeToString())

        started, cpu_started = time.perf_counter(), time.process_time()
        await ask(partitions=following, credit_bytes=window, settings=settings)
        while (seconds := time.perf_counter() - started) < load.seconds:
            message = await stream.read()
            if message is None:
                raise SystemExit("the broker has ended the stream")
            header, _ = decode_fetch_response(message)
            batch_bytes = sum(fetched.length for fetched in header.partitions)
            problems = [fetched.error for fetched in header.partitions if fetched.error.code]
            if problems:
                raise SystemExit(f"refused: {problems}")
            moved += len(message)
            messages += 1
            in_pass += batch_bytes
            to_grant += batch_bytes
            if in_pass >= log_bytes:
                in_pass = 0
                removed = [partition.handle for partition in following]
                following = from_the_beginning()
                await ask(remove=removed, partitions=following)
            if to_grant >= window // 2:
                await ask(credit_bytes=to_grant)
                to_grant = 0
        used = used_since(cpu_started)
    return Moved(
        records=messages,
        bytes=moved,
        seconds=seconds,
        detail={"message_bytes": moved / messages, **used},
    )


class _Stream:
    """A call of the broker that carries messages both ways."""

    connection: Connection

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Bounded by the credit, or by the number of unanswered messages."""

    @classmethod
    @asynccontextmanager
    async def of(cls, load: Load, method: str) -> "AsyncIterator[_Stream]":
        """Open a call, and end it with the block."""
        stream = cls()
        stream.connection = await open_call(
            load.settings["drpc"], method, stream._received, stream._lost
        )
        try:
            yield stream
        finally:
            stream.connection.transport.abort()

    async def write(self, message: bytes) -> None:
        """Send a message once there is room for it."""
        await self.connection.room()
        self.connection.send(message)

    def done_writing(self) -> None:
        """Tell the broker that no message follows."""
        self.connection.send_packet(Kind.CLOSE_SEND)

    async def read(self) -> bytes | None:
        """Return the next message, None at the end."""
        return await self._arrived.get()

    def _received(self, connection: Connection, kind: Kind, body: bytes | bytearray) -> None:
        if kind is Kind.MESSAGE:
            self._arrived.put_nowait(cast("bytes", body))  # It is not copied: nothing hashes it.
            return
        if kind is Kind.ERROR:
            print(f"refused: {bytes(body)!r}", file=sys.stderr)
        self._lost()

    def _lost(self) -> None:
        self._arrived.put_nowait(None)


if __name__ == "__main__":
    run_from_command_line(run)
