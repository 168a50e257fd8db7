"""Attacks by somebody who is known, and may do everything in a namespace of its own."""

import asyncio
import itertools
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from tests.abuse.attack import Attack, Peer, Port, Target, drpc_call
from tests.integration.raw_client import batch_of, request_of, resealed

from millrace.core.ids import TopicId, TopicPartition
from millrace.core.records.header import HEADER_BYTES
from millrace.proto.v1 import (
    cluster_pb2,
    common_pb2,
    fetch_pb2,
    groups_pb2,
    positions_pb2,
    produce_pb2,
    transactions_pb2,
)
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.wire import Kind

_PATH: Final = "/millrace.proto.v1."
_ZSTD: Final = 4
_MIB: Final = 1 << 20


def _partition(target: Target) -> TopicPartition:
    return TopicPartition(TopicId(bytes.fromhex(target.topic_id)), 0)


def _repeat(method: str, make: Callable[[], Any]) -> Callable[[Peer, Target], Awaitable[None]]:
    """Return a step that makes one call after another."""

    async def repeat(peer: Peer, target: Target) -> None:
        while True:
            await peer.call(_PATH + method, make().SerializeToString(), target.token)

    return repeat


def _name(what: str) -> str:
    return f"mallory/{what}-{random.getrandbits(48):x}"


def _member() -> groups_pb2.GroupHeartbeatRequest:
    return groups_pb2.GroupHeartbeatRequest(
        group=_name("group"),
        member_id=str(uuid.uuid4()),
        member=groups_pb2.GroupMember(topics=["mallory/topic"]),
    )


def _transaction() -> produce_pb2.InitProducerIdRequest:
    return produce_pb2.InitProducerIdRequest(
        transactional_id=_name("transaction"), transaction_timeout_ms=10_000
    )


def _unknown_names(count: int) -> Callable[[], cluster_pb2.GetMetadataRequest]:
    names = [f"mallory/missing-{number}" for number in range(count)]
    request = cluster_pb2.GetMetadataRequest(topics=names)
    return lambda: request


def _new_topics() -> cluster_pb2.CreateTopicsRequest:
    topics = [
        cluster_pb2.NewTopic(name=_name("topic"), partitions=1, config={"no.such.setting": "1"})
        for _ in range(50)
    ]
    return cluster_pb2.CreateTopicsRequest(topics=topics)


def _position() -> positions_pb2.CommitPositionsRequest:
    return positions_pb2.CommitPositionsRequest(name=_name("reader"))


async def _produce(peer: Peer, target: Target, batch: bytes) -> None:
    """Send a batch, again and again, on one stream."""
    request = request_of((_partition(target), batch))
    await peer.send(drpc_call(1, _PATH + "Produce/Produce", None, target.token))
    for number in itertools.count(3):
        await peer.send(wire.frame_header(Kind.MESSAGE, 1, number, len(request)) + request)
        await peer.reader.read(1)


async def _batch_bombs(peer: Peer, target: Target) -> None:
    partition = _partition(target)
    batch = batch_of(partition)
    body = bytes(pa.Codec("zstd").compress(bytes(64 * _MIB), asbytes=True))
    attributes = int.from_bytes(batch[20:22], "little") & ~7 | _ZSTD
    bomb = resealed(
        partition,
        batch[:HEADER_BYTES] + body,
        stored_length=len(body),
        inflated_length=7 * _MIB,
        attributes=attributes,
    )
    await _produce(peer, target, bomb)


async def _noise_batches(peer: Peer, target: Target) -> None:
    await _produce(peer, target, random.randbytes(100_000))


async def _large_batches(peer: Peer, target: Target) -> None:
    await _produce(peer, target, batch_of(_partition(target), [bytes(700_000)] * 3))


def _unawaited(
    values: Sequence[bytes], codec: str = "none"
) -> Callable[[Peer, Target], Awaitable[None]]:
    """Return a step that sends one batch without end on one stream, and waits for no answer."""

    async def produce(peer: Peer, target: Target) -> None:
        partition = _partition(target)
        request = request_of((partition, batch_of(partition, values, codec=codec)))
        await peer.send(drpc_call(1, _PATH + "Produce/Produce", None, target.token))
        reading = asyncio.create_task(peer.hold_on())
        try:
            for number in itertools.count(3):
                await peer.send(wire.frame_header(Kind.MESSAGE, 1, number, len(request)) + request)
        finally:
            reading.cancel()

    return produce


def _missing_offsets() -> fetch_pb2.ListOffsetsRequest:
    return fetch_pb2.ListOffsetsRequest(
        partitions=[
            fetch_pb2.ListOffsetsPartition(
                topic_partition=common_pb2.TopicPartition(topic_id=bytes(16), partition=number),
                latest=True,
            )
            for number in range(5000)
        ]
    )


async def _oversize(peer: Peer, target: Target) -> None:
    await peer.send(drpc_call(1, _PATH + "Produce/Produce", None, target.token))
    await peer.send(wire.frame_header(Kind.MESSAGE, 1, 3, 9 * _MIB) + bytes(_MIB))
    await peer.hold_on()


async def _long_polls(peer: Peer, target: Target) -> None:
    request = fetch_pb2.FetchRequest(
        partitions=[fetch_pb2.FetchPartition(handle=1, topic_id=bytes.fromhex(target.topic_id))],
        settings=fetch_pb2.FetchSettings(min_bytes=1 << 30, max_wait_ms=60_000),
        credit_bytes=1 << 30,
    ).SerializeToString()
    await peer.send(drpc_call(1, _PATH + "Fetch/Fetch", None, target.token))
    await peer.send(wire.frame_header(Kind.MESSAGE, 1, 3, len(request)) + request)
    await peer.hold_on()


async def _busy_session(peer: Peer, target: Target) -> None:
    """Positions that change all the time."""
    await peer.send(drpc_call(1, _PATH + "Fetch/Fetch", None, target.token))
    for number in itertools.count(3):
        request = fetch_pb2.FetchRequest(
            partitions=[
                fetch_pb2.FetchPartition(handle=handle, topic_id=bytes(16), partition=handle)
                for handle in range(1000)
            ]
        ).SerializeToString()
        await peer.send(wire.frame_header(Kind.MESSAGE, 1, number, len(request)) + request)
        await asyncio.sleep(0.01)


_entries: Final = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name="x")] * 100_000)

D: Final = Port.DRPC
ATTACKS: Final = (
    Attack("batch_bombs", "batches that inflate to 64 MiB", D, 10, _batch_bombs),
    Attack("batch_noise", "batches of random bytes", D, 10, _noise_batches),
    Attack("batch_large", "batches beyond the topic's bound", D, 10, _large_batches),
    Attack("batch_small", "small batches without end", D, 20, _unawaited([b"x"])),
    Attack(
        "batch_zipped",
        "batches that inflate to 7 MiB, without end",
        D,
        20,
        _unawaited([bytes(7 * _MIB)], "zstd"),
    ),
    Attack(
        "offsets",
        "ends of 5,000 partitions that are missing",
        D,
        10,
        _repeat("Fetch/ListOffsets", _missing_offsets),
    ),
    Attack("oversize_messages", "messages beyond the bound", D, 20, _oversize),
    Attack("long_polls", "two thousand readers that wait", D, 2000, _long_polls),
    Attack("busy_sessions", "a thousand missing partitions a time", D, 5, _busy_session),
    Attack(
        "group_churn",
        "a new group with each call",
        D,
        10,
        _repeat("Groups/GroupHeartbeat", _member),
    ),
    Attack(
        "transaction_churn",
        "a new transactional id with each call",
        D,
        10,
        _repeat("Produce/InitProducerId", _transaction),
    ),
    Attack(
        "producer_ids",
        "producer ids without end",
        D,
        10,
        _repeat("Produce/InitProducerId", produce_pb2.InitProducerIdRequest),
    ),
    Attack(
        "metadata_names",
        "metadata of 10,000 topics that are missing",
        D,
        10,
        _repeat("Cluster/GetMetadata", _unknown_names(10_000)),
    ),
    Attack(
        "metadata_many_names",
        "metadata of 100,000 topics",
        D,
        10,
        _repeat("Cluster/GetMetadata", _unknown_names(100_000)),
    ),
    Attack(
        "metadata_all",
        "metadata of all topics",
        D,
        10,
        _repeat("Cluster/GetMetadata", cluster_pb2.GetMetadataRequest),
    ),
    Attack(
        "entries",
        "a request of 100,000 entries",
        D,
        10,
        _repeat("Cluster/CreateTopics", lambda: _entries),
    ),
    Attack(
        "topic_churn",
        "topics with settings that nobody knows",
        D,
        10,
        _repeat("Cluster/CreateTopics", _new_topics),
    ),
    Attack(
        "positions",
        "names of readers without end",
        D,
        10,
        _repeat("Positions/CommitPositions", _position),
    ),
    Attack(
        "list_names",
        "names of readers are listed",
        D,
        10,
        _repeat("Positions/ListNames", positions_pb2.ListNamesRequest),
    ),
    Attack(
        "list_transactions",
        "transactional ids are listed",
        D,
        10,
        _repeat("Transactions/ListTransactions", transactions_pb2.ListTransactionsRequest),
    ),
)
