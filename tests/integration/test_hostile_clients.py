"""Strangers who break every rule: each is refused by name or cut off, and nobody else notices.

An honest client works beside every test. After each test nothing was appended, the memory of
requests is given back, and the broker's memory has not grown by more than a bound.
"""

import random
import resource
import select
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2
from tests.integration.drpc_by_hand import (
    MALFORMED,
    DrpcByHand,
    all_methods,
    invoke,
    listening_ports,
    served_by_drpc,
    served_by_grpc,
    unfinished,
)
from tests.integration.drpc_by_hand import frame as packet
from tests.integration.hostile_http2 import (
    CANCEL,
    DATA,
    PING,
    PREFACE,
    RST_STREAM,
    Http2Connection,
    call_headers,
    frame,
)
from tests.integration.raw_client import (
    FETCH,
    PRODUCE,
    FetchSession,
    RawClient,
    RawStream,
    batch_of,
    named,
    request_of,
    resealed,
)
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.core.ids import TopicId, TopicPartition
from millrace.core.records.header import HEADER_BYTES
from millrace.proto.v1 import cluster_pb2, fetch_pb2, groups_pb2, positions_pb2, produce_pb2
from millrace.proto.v1 import common_pb2 as common
from millrace.proto.v1.common_pb2 import APPENDED_NO, ErrorCode
from millrace.runtime.telemetry_server import CONNECTIONS_MAX
from millrace.runtime.transport.drpc.wire import Kind

MIB = 1 << 20
GROWTH_MAX = 128 * MIB
SLOWEST_MAX_SECONDS = 15.0
"""Far below the time for which the attackers hold on; a busy machine alone may take seconds."""
HONEST_SECONDS_MAX = 300.0
"""Its streams end after this time: far above that of a test, also on a slow machine."""
CUT_SECONDS_MAX = 9.0
"""Within this time a connection is cut that the settings below cut within three seconds.

Less than `connection_silence_ms_max`, after which silence alone is enough.
"""
CONNECTIONS = 'millrace_connections{listener="clients"}'
"""The broker's metric: connections that are open."""
SETTINGS: dict[str, object] = {
    "limits.message_bytes_max": MIB,
    "limits.batch_inflated_bytes_max": MIB,
    "limits.connection_request_memory_bytes_max": 4 * MIB,
    "limits.request_memory_bytes_max": 16 * MIB,
    "limits.fetch_response_bytes_max": 512 << 10,
    "limits.fetch_session_partitions_max": 500,
    "limits.request_entries_max": 1000,
    "limits.handshake_ms_max": 500,
    "limits.connection_unknown_bytes_max": 16 * MIB,
    "limits.connections_max": 300,
    "limits.connections_per_host_max": 250,
    "limits.message_ms_max": 2000,
    "limits.incomplete_bytes_max": 32 * MIB,
    "listeners.outside.port": 0,
    "listeners.outside_drpc.port": 0,
}
ELSEWHERE = "127.0.0.2"
"""The address that attackers by DRPC come from; the honest client has another one."""


@dataclass
class Honest:
    """A client that behaves, and notices when it is not served.

    Attributes:
        slowest: seconds of its slowest round trip.
        done: how many round trips it has made.
        seconds: of each.
    """

    address: str
    partition: TopicPartition
    slowest: float = 0.0
    done: int = 0
    seconds: list[float] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Write a batch and read it back, over and over."""
        try:
            with RawClient(self.address) as client:
                session = client.fetch(timeout=HONEST_SECONDS_MAX)
                end = client.end_offset(self.partition)
                session.ask([(1, self.partition, end)], credit=1 << 40, max_wait_ms=100)
                produce = RawStream(client.channel, PRODUCE, timeout=HONEST_SECONDS_MAX)
                while not self._ended.wait(0.02):
                    started = time.monotonic()
                    produce.send(request_of((self.partition, batch_of(self.partition))))
                    produce.receive()
                    while not next(session.answers())[0].length:
                        pass
                    self.seconds.append(time.monotonic() - started)
                    self.slowest = max(self.slowest, self.seconds[-1])
                    self.done += 1
                produce.cancel()
                session.close()
        except BaseException as error:
            self.failures.append(error)

    def end(self) -> None:
        """Have `run` return."""
        self._ended.set()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """The broker that all of them attack."""
    running = RunningBroker(tmp_path_factory.mktemp("attacked"), SETTINGS).start()
    yield running
    log = running.log_path.read_text()
    assert '"level": "critical"' not in log, running.log_end()
    assert "Traceback" not in log, running.log_end()
    assert running.stop() == 0


@pytest.fixture(scope="module")
def topic(broker: RunningBroker) -> TopicId:
    """A topic of two partitions that must stay empty."""
    with RawClient(broker.address) as client:
        return client.create_topic("attacked", partitions=2, max_message_bytes=500_000)


@pytest.fixture
def target(topic: TopicId) -> TopicPartition:
    """What they try to write to."""
    return TopicPartition(topic, 0)


@pytest.fixture(scope="module")
def honest_partition(broker: RunningBroker) -> TopicPartition:
    """What the honest client uses."""
    with RawClient(broker.address) as client:
        return TopicPartition(client.create_topic("honest", durability="replicated"), 0)


@dataclass
class Attack:
    """What a test may look at while it attacks.

    Attributes:
        honest: the client beside it.
        rss_bytes: the broker's memory before.
    """

    broker: RunningBroker
    honest: Honest
    rss_bytes: int

    def assert_memory_is_bounded(self) -> None:
        """Hold the broker's memory against what it was before."""
        grown = self.broker.rss_bytes() - self.rss_bytes
        assert grown < GROWTH_MAX, f"the broker grew by {grown >> 20} MiB"


@pytest.fixture(autouse=True)
def attack(
    broker: RunningBroker, honest_partition: TopicPartition, target: TopicPartition
) -> Iterator[Attack]:
    """Hold every test to what must stay true."""
    client = Honest(broker.address, honest_partition)
    thread = threading.Thread(target=client.run)
    with RawClient(broker.address) as observer:
        assert observer.end_offset(target) == 0
        thread.start()
        wait_until(lambda: client.done or client.failures, "the honest client is served before")
        attack = Attack(broker, client, broker.rss_bytes())
        yield attack
        done = client.done
        wait_until(lambda: client.done > done or client.failures, "and after")
        client.end()
        thread.join()
        assert not client.failures, client.failures
        assert client.slowest < SLOWEST_MAX_SECONDS
        wait_until(
            lambda: broker.metrics()["millrace_request_memory_bytes"] == 0, "memory is given back"
        )
        attack.assert_memory_is_bounded()
        for number in (0, 1):
            partition = TopicPartition(target.topic_id, number)
            assert observer.log(partition).log_end_offset == 0, "something was appended"


def bomb(kind: str, size: int) -> bytes:
    """Return `size` zeros, compressed."""
    if kind == "gzip":
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        return packer.compress(bytes(size)) + packer.flush()
    return bytes(pa.Codec(kind).compress(bytes(size), asbytes=True))


def with_body(target: TopicPartition, body: bytes, codec: int, inflated: int) -> bytes:
    """Return a batch that says of `body` what the caller wants."""
    batch = batch_of(target)
    attributes = int.from_bytes(batch[20:22], "little") & ~7 | codec
    return resealed(
        target,
        batch[:HEADER_BYTES] + body,
        stored_length=len(body),
        inflated_length=inflated,
        attributes=attributes,
    )


def changed(**numbers: object) -> Callable[[TopicPartition], bytes]:
    """Return an honest batch with some numbers of its header changed, and right checksums."""
    return lambda target: resealed(target, batch_of(target, [b"value"] * 3), **numbers)


def flipped(at: int) -> Callable[[TopicPartition], bytes]:
    """Return an honest batch with one bit wrong."""

    def make(target: TopicPartition) -> bytes:
        batch = bytearray(batch_of(target))
        batch[at] ^= 1
        return bytes(batch)

    return make


CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
E = ErrorCode
HOSTILE_BATCHES: dict[str, tuple[Callable[[TopicPartition], bytes], int]] = {
    "no magic": (flipped(0), E.ERROR_CODE_CORRUPT_BATCH),
    "a later version": (changed(magic=b"MRB\x09"), E.ERROR_CODE_UNSUPPORTED_FORMAT),
    "a wrong checksum of the header": (flipped(94), E.ERROR_CODE_CORRUPT_BATCH),
    "a changed body": (flipped(HEADER_BYTES + 9), E.ERROR_CODE_CORRUPT_BATCH),
    "a changed count": (flipped(12), E.ERROR_CODE_CORRUPT_BATCH),
    "nothing": (lambda _: b"", E.ERROR_CODE_MALFORMED_REQUEST),
    "half a header": (lambda target: batch_of(target)[:50], E.ERROR_CODE_MALFORMED_REQUEST),
    "no body": (lambda target: batch_of(target)[:HEADER_BYTES], E.ERROR_CODE_CORRUPT_BATCH),
    "two batches": (lambda target: batch_of(target) * 2, E.ERROR_CODE_CORRUPT_BATCH),
    "noise": (lambda _: random.Random(1).randbytes(5000), E.ERROR_CODE_CORRUPT_BATCH),
    "another partition's batch": (
        lambda target: batch_of(TopicPartition(target.topic_id, 1)),
        E.ERROR_CODE_CORRUPT_BATCH,
    ),
    "a longer stored length": (changed(stored_length=2**31 - 97), E.ERROR_CODE_CORRUPT_BATCH),
    "an impossible length": (changed(stored_length=2**32 - 1), E.ERROR_CODE_CORRUPT_BATCH),
    "a shorter stored length": (changed(stored_length=8), E.ERROR_CODE_CORRUPT_BATCH),
    "a huge inflated length": (changed(inflated_length=2**31 - 97), E.ERROR_CODE_MESSAGE_TOO_LARGE),
    "no records": (changed(record_count=0), E.ERROR_CODE_INVALID_RECORD),
    "more records": (changed(record_count=4), E.ERROR_CODE_CORRUPT_BATCH),
    "more records and offsets": (
        changed(record_count=4, last_offset_delta=3),
        E.ERROR_CODE_INVALID_RECORD,
    ),
    "millions of records": (
        changed(record_count=2**31 - 2, last_offset_delta=2**31 - 3),
        E.ERROR_CODE_MESSAGE_TOO_LARGE,
    ),
    "gaps": (changed(last_offset_delta=9), E.ERROR_CODE_INVALID_RECORD),
    "an unknown codec": (
        lambda target: with_body(target, bytes(64), 7, 64),
        E.ERROR_CODE_UNSUPPORTED_FORMAT,
    ),
    "unknown attributes": (changed(attributes=0x8800), E.ERROR_CODE_UNSUPPORTED_FORMAT),
    "a control batch": (changed(attributes=0x0810), E.ERROR_CODE_INVALID_RECORD),
    "a transaction": (
        changed(attributes=0x0808, producer_id=1, producer_epoch=0, base_sequence=0),
        E.ERROR_CODE_INVALID_TRANSACTION_STATE,
    ),
    "a delete horizon": (
        changed(attributes=0x0820, delete_horizon=1),
        E.ERROR_CODE_INVALID_RECORD,
    ),
    "an offset of its own": (changed(base_offset=7), E.ERROR_CODE_INVALID_RECORD),
    "a negative offset": (changed(base_offset=-1), E.ERROR_CODE_CORRUPT_BATCH),
    "an epoch of its own": (changed(leader_epoch=0), E.ERROR_CODE_INVALID_RECORD),
    "an append time": (
        changed(append_timestamp=1, broker_attributes=1),
        E.ERROR_CODE_INVALID_RECORD,
    ),
    "a negative producer": (changed(producer_id=-2), E.ERROR_CODE_CORRUPT_BATCH),
    "a producer without sequences": (changed(producer_id=5), E.ERROR_CODE_CORRUPT_BATCH),
    "records of the year 9000": (
        changed(base_timestamp=220_000_000_000_000, max_timestamp=220_000_000_000_000),
        E.ERROR_CODE_INVALID_TIMESTAMP,
    ),
    "a negative time": (
        changed(base_timestamp=-5, max_timestamp=-5),
        E.ERROR_CODE_CORRUPT_BATCH,
    ),
    "a batch beyond the topic's limit": (
        lambda target: batch_of(target, [bytes(300_000)] * 2),
        E.ERROR_CODE_MESSAGE_TOO_LARGE,
    ),
    **{
        f"a {kind} bomb that says how large it is": (
            lambda target, kind=kind: with_body(  # type: ignore[misc]
                target, bomb(kind, 8 * MIB), CODECS[kind], 8 * MIB
            ),
            E.ERROR_CODE_MESSAGE_TOO_LARGE,
        )
        for kind in CODECS
    },
    **{
        f"a {kind} bomb that says it is small": (
            lambda target, kind=kind: with_body(  # type: ignore[misc]
                target, bomb(kind, 8 * MIB), CODECS[kind], 1000
            ),
            E.ERROR_CODE_CORRUPT_BATCH,
        )
        for kind in CODECS
    },
    **{
        f"{kind} noise": (
            lambda target, kind=kind: with_body(  # type: ignore[misc]
                target, random.Random(2).randbytes(500), CODECS[kind], 1000
            ),
            E.ERROR_CODE_CORRUPT_BATCH,
        )
        for kind in CODECS
    },
}


def test_hostile_batches_are_refused_by_name_on_a_stream_that_goes_on(
    broker: RunningBroker, target: TopicPartition, honest_partition: TopicPartition
) -> None:
    found = {}
    with RawClient(broker.address) as client:
        stream = RawStream(client.channel, PRODUCE)
        for name, (make, _) in HOSTILE_BATCHES.items():
            stream.send(request_of((target, make(target))))
            (answer,) = produce_pb2.ProduceResponse.FromString(stream.receive()).answers
            error = answer.error if answer.HasField("error") else answer.results[0].error
            found[name] = error.code
            assert error.appended == APPENDED_NO, name
            assert error.message, name
            assert not error.retriable, name
            assert all(result.base_offset == -1 for result in answer.results), name
        stream.send(request_of((honest_partition, batch_of(honest_partition))))
        (answer,) = produce_pb2.ProduceResponse.FromString(stream.receive()).answers
        assert not answer.results[0].error.code
        stream.cancel()
    names = ErrorCode.Name
    assert {name: names(code) for name, code in found.items()} == {
        name: names(code) for name, (_, code) in HOSTILE_BATCHES.items()
    }


def test_hostile_requests_are_refused_whole_or_by_partition(
    broker: RunningBroker, target: TopicPartition, topic: TopicId
) -> None:
    honest_batch = batch_of(target)
    lying = produce_pb2.ProduceHeader(
        acks=-1,
        partitions=[produce_pb2.ProducePartition(topic_id=topic, length=len(honest_batch) + 1)],
    )
    body = b"\x12" + bytes([len(honest_batch)]) + honest_batch
    whole = {
        "noise": random.Random(3).randbytes(1000),
        "zeros": bytes(1000),
        "an endless varint": b"\xff" * 1000,
        "a field that is longer than the message": b"\x0a\xff\xff\xff\xff\x0f",
        "a header that is no message": b"\x0a\x04\xff\xff\xff\xff",
        "lengths that do not add up": b"\x0a"
        + bytes([lying.ByteSize()])
        + lying.SerializeToString()
        + body,
        "a thousand empty fields": b"\x1a\x00" * 1000,
        "partitions without batches": request_of(*[(target, b"")] * 5),
        "acks of 7": request_of((target, honest_batch), acks=7),
        "a transaction without all replicas": request_of(
            (target, honest_batch), acks=1, transactional_id="mine"
        ),
        "a transactional id of half a megabyte": request_of(
            (target, honest_batch), transactional_id="m" * (1 << 19)
        ),
        "one partition twice": request_of((target, honest_batch), (target, honest_batch)),
        "too many partitions": request_of(
            *((TopicPartition(topic, number), bytes(96)) for number in range(1001))
        ),
    }
    unknown = E.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
    single = {
        TopicPartition(topic, 2): unknown,
        TopicPartition(topic, 2**31): unknown,
        TopicPartition(topic, 2**32 - 1): unknown,
        TopicPartition(TopicId(bytes(16)), 0): unknown,
        TopicPartition(TopicId(b""), 0): E.ERROR_CODE_MALFORMED_REQUEST,
        TopicPartition(TopicId(bytes(5000)), 0): E.ERROR_CODE_MALFORMED_REQUEST,
    }
    with RawClient(broker.address) as client:
        for name, message in whole.items():
            (answer,) = client.produce(message)
            assert answer.error.code in (
                E.ERROR_CODE_MALFORMED_REQUEST,
                E.ERROR_CODE_INVALID_TRANSACTIONAL_ID,
            ), name
            assert answer.error.appended == APPENDED_NO, name
        for partition, code in single.items():
            result = client.produce_batch(partition, honest_batch)
            assert (result.error.code, result.error.appended) == (code, APPENDED_NO), partition
        plain = client.produce_batch(target, honest_batch, transactional_id="mine")
        assert plain.error.code == E.ERROR_CODE_INVALID_TRANSACTION_STATE
        assert plain.error.appended == APPENDED_NO
        fenced = client.produce_batch(target, honest_batch, epoch=2**31 - 1)
        assert fenced.error.code == E.ERROR_CODE_UNKNOWN_LEADER_EPOCH
        assert client.produce(b"") == [], "an empty request asks for no answer"


def test_producer_ids_that_nobody_was_given_are_refused(
    broker: RunningBroker, honest_partition: TopicPartition
) -> None:
    with RawClient(broker.address) as client:
        given = client.new_producer_id()
        for producer_id in (given + 1000, 10**15, 2**62):
            batch = batch_of(honest_partition, producer_id=producer_id, sequence=0)
            error = client.produce_batch(honest_partition, batch).error
            assert error.code == E.ERROR_CODE_UNKNOWN_PRODUCER_ID
            assert error.appended == APPENDED_NO
            assert error.retriable, "another broker may have given it out this moment"
        batch = batch_of(honest_partition, producer_id=given, sequence=0)
        assert not client.produce_batch(honest_partition, batch).error.code


def test_sequences_from_the_future_are_refused(
    broker: RunningBroker, honest_partition: TopicPartition
) -> None:
    partition = honest_partition
    with RawClient(broker.address) as client:
        producer_id = client.new_producer_id()

        def send(sequence: int, epoch: int = 0) -> int:
            batch = batch_of(partition, producer_id=producer_id, sequence=sequence, epoch=epoch)
            return client.produce_batch(partition, batch).error.code  # type: ignore[no-any-return]

        assert send(0) == 0
        assert send(2) == E.ERROR_CODE_OUT_OF_ORDER_SEQUENCE
        assert send(2**31 - 1) != 0
        assert send(5, epoch=1) == E.ERROR_CODE_OUT_OF_ORDER_SEQUENCE
        assert send(1) == 0
        assert send(0) == 0, "a repetition"


@pytest.mark.parametrize("method", [PRODUCE, FETCH, "/millrace.proto.v1.Cluster/GetMetadata"])
def test_a_message_beyond_the_limit_ends_its_call(broker: RunningBroker, method: str) -> None:
    with RawClient(broker.address) as client:
        stream = RawStream(client.channel, method)
        stream.send(bytes(MIB + 1))
        assert stream.ended_with() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_hostile_sessions_are_told_or_ended(
    broker: RunningBroker, target: TopicPartition, topic: TopicId
) -> None:
    ends = {
        "noise": random.Random(4).randbytes(1000),
        "a million empty partitions": b"\x0a\x00" * 100_000,
        "a million handles to leave": b"\x12\x90\x4e" + bytes(10_000),
        "a follower": fetch_pb2.FetchRequest(
            settings=fetch_pb2.FetchSettings(replica_id=1)
        ).SerializeToString(),
    }
    with RawClient(broker.address) as client:
        for name, message in ends.items():
            stream = RawStream(client.channel, FETCH)
            stream.send(message)
            assert stream.ended_with() is grpc.StatusCode.INVALID_ARGUMENT, name
        session = client.fetch()
        strange = {
            TopicPartition(topic, 2): E.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
            TopicPartition(topic, 2**32 - 1): E.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
            TopicPartition(TopicId(b"short"), 0): E.ERROR_CODE_MALFORMED_REQUEST,
        }
        for handle, (partition, code) in enumerate(strange.items()):
            session.ask([(handle, partition, 0)], credit=1)
            assert session.next_error().code == code
        for offset in (-1, -(2**63), 1, 2**63 - 1):
            session.ask([(9, target, offset)], credit=1)
            assert session.next_error().code == E.ERROR_CODE_OFFSET_OUT_OF_RANGE
        session.ask([(9, target, 0)], credit=2**64 - 1, remove=[9, 9, 77])
        session.ask(((handle, target, 0) for handle in range(1000)), credit=2**64 - 1)
        errors = [session.next_error().code for _ in range(500)]
        assert set(errors) == {E.ERROR_CODE_MALFORMED_REQUEST}, "it has a handle already"
        session.close()


def test_handles_that_are_used_again_follow_the_latest_wish(
    broker: RunningBroker, honest_partition: TopicPartition
) -> None:
    with RawClient(broker.address) as client:
        session = client.fetch()
        end = client.end_offset(honest_partition)
        for _ in range(50):
            session.ask([(1, honest_partition, 0)], credit=100)
            session.ask([(1, honest_partition, end)], remove=[1])
        session.ask([(2, honest_partition, end)], credit=MIB)
        assert session.next_error().code == E.ERROR_CODE_MALFORMED_REQUEST, "handle 1 has it"
        session.ask([(2, honest_partition, end)], remove=[1])
        assert next(news for news, _ in session.answers() if news.handle == 2 and news.length)
        session.close()


def test_what_is_named_again_and_again_is_answered_once(
    broker: RunningBroker, target: TopicPartition
) -> None:
    with RawClient(broker.address) as client:
        metadata = client.cluster.GetMetadata(
            cluster_pb2.GetMetadataRequest(
                topics=["attacked"] * 1000, topic_ids=[target.topic_id] * 1000
            )
        )
        logs = client.cluster.DescribeLogs(
            cluster_pb2.DescribeLogsRequest(partitions=[named(target)] * 1000)
        )
    assert [topic.name for topic in metadata.topics] == ["attacked"]
    assert len(logs.logs) == 1


def test_unary_bombs_are_refused(broker: RunningBroker, target: TopicPartition) -> None:
    name = named(target)
    many = 1001
    with RawClient(broker.address) as client:
        calls: list[tuple[Callable[..., object], object]] = [
            (client.cluster.GetMetadata, cluster_pb2.GetMetadataRequest(topics=[""] * 200_000)),
            (client.cluster.GetMetadata, cluster_pb2.GetMetadataRequest(topic_ids=[b""] * many)),
            (
                client.cluster.CreateTopics,
                cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic()] * many),
            ),
            (
                client.cluster.AlterTopics,
                cluster_pb2.AlterTopicsRequest(
                    topics=[cluster_pb2.TopicChange(name="attacked", topic_id=b"short")]
                ),
            ),
            (
                client.cluster.AlterTopics,
                cluster_pb2.AlterTopicsRequest(
                    topics=[
                        cluster_pb2.TopicChange(
                            set_config={f"k{number}": "" for number in range(many)}
                        )
                    ]
                ),
            ),
            (
                client.cluster.DeleteTopics,
                cluster_pb2.DeleteTopicsRequest(topics=[cluster_pb2.TopicRef()] * many),
            ),
            (
                client.cluster.DescribeLogs,
                cluster_pb2.DescribeLogsRequest(partitions=[name] * many),
            ),
            (
                client.cluster.DescribeLogs,
                cluster_pb2.DescribeLogsRequest(
                    partitions=[common.TopicPartition(topic_id=b"short")]
                ),
            ),
            (
                client.fetches.ListOffsets,
                fetch_pb2.ListOffsetsRequest(
                    partitions=[fetch_pb2.ListOffsetsPartition(topic_partition=name)] * many
                ),
            ),
            (
                client.fetches.OffsetsForLeaderEpoch,
                fetch_pb2.OffsetsForLeaderEpochRequest(
                    partitions=[fetch_pb2.LeaderEpochQuery(topic_partition=name)] * many
                ),
            ),
        ]
        for call, request in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call(request, timeout=10)
            status: grpc.Call = refused.value  # type: ignore[assignment]
            assert status.code() is grpc.StatusCode.INVALID_ARGUMENT, request.__class__
            assert status.details(), request.__class__
        endless = produce_pb2.InitProducerIdRequest(transactional_id="mine")

        def refused_for_good() -> bool:
            """The first request makes the topic of transactions, which is loaded a moment later."""
            error = client.producers.InitProducerId(endless, timeout=10).error
            assert error.retriable or error.code == E.ERROR_CODE_INVALID_TRANSACTION_TIMEOUT
            return not error.retriable

        wait_until(refused_for_good, "a transaction without an end is refused")
        empty = client.fetches.ListOffsets(
            fetch_pb2.ListOffsetsRequest(partitions=[fetch_pb2.ListOffsetsPartition()]), timeout=10
        )
        assert empty.offsets[0].error.code == E.ERROR_CODE_MALFORMED_REQUEST


def test_refused_calls_of_every_method_leave_nothing_in_memory(
    broker: RunningBroker, attack: Attack
) -> None:
    """3,000 MB are refused: a call that stays until the garbage collector comes is too much."""
    services = [
        service
        for module in (cluster_pb2, fetch_pb2, groups_pb2, positions_pb2, produce_pb2, health_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    ]
    paths = [
        f"/{service.full_name}/{method.name}"
        for service in services
        for method in service.methods
        if service.full_name != health_pb2.DESCRIPTOR.package + ".Health" or method.name == "Check"
    ]
    assert len(paths) >= 30
    unknown = health_pb2.HealthCheckRequest(service="x" * (MIB - 100)).SerializeToString()
    with RawClient(broker.address) as client:
        for path in paths:
            for _ in range(100):
                stream = RawStream(client.channel, path)
                stream.send(unknown if "health" in path else b"\xff" * (MIB - 100))
                stream.half_close()
                if path == PRODUCE:  # It refuses single requests.
                    (answer,) = produce_pb2.ProduceResponse.FromString(stream.receive()).answers
                    assert answer.error.code == E.ERROR_CODE_MALFORMED_REQUEST
                else:
                    assert stream.ended_with() is not grpc.StatusCode.OK, path
    attack.assert_memory_is_bounded()


def test_settings_that_nobody_knows_are_refused_in_few_words(broker: RunningBroker) -> None:
    def topic(number: int, settings: int) -> cluster_pb2.NewTopic:
        config = {f"no.such.{number}.{setting}": "1" for setting in range(settings)}
        return cluster_pb2.NewTopic(name=f"t{number}", partitions=1, config=config)

    request = cluster_pb2.CreateTopicsRequest(
        topics=[*(topic(number, 12) for number in range(40)), topic(40, 520)],
        validate_only=True,
    )
    with RawClient(broker.address) as client:
        calls = [client.cluster.CreateTopics.future(request, timeout=60) for _ in range(5)]
        for call in calls:
            answer = call.result()
            assert {result.error.code for result in answer.results} == {E.ERROR_CODE_INVALID_CONFIG}
            assert max(len(result.error.message) for result in answer.results) < 1000
            assert answer.ByteSize() < MIB


def test_readers_that_never_read_cost_a_response_each(
    broker: RunningBroker, attack: Attack
) -> None:
    with RawClient(broker.address) as client:
        big = TopicPartition(client.create_topic("big", durability="replicated"), 0)
        for _ in range(40):
            client.produce_batch(big, batch_of(big, [bytes(1000)] * 400))
        with ExitStack() as stack:
            sessions: list[FetchSession] = []
            for _ in range(4):
                dead = stack.enter_context(RawClient(broker.address))
                sessions += [dead.fetch() for _ in range(15)]
            for session in sessions:
                session.ask([(1, big, 0)], credit=2**63)
            wait_until(lambda: broker.metrics()["millrace_fetch_streams"] >= 60, "they are open")
            name = 'millrace_topic_fetched_bytes_total{topic="big"}'
            wait_until(lambda: broker.metrics()[name] >= 60 * 400_000, "each was sent a response")
            attack.assert_memory_is_bounded()
            assert broker.metrics()[name] < 60 * 4 * 400_000, "nobody was sent much more"
        topics = [cluster_pb2.TopicRef(name="big")]
        client.cluster.DeleteTopics(cluster_pb2.DeleteTopicsRequest(topics=topics), timeout=10)
    wait_until(lambda: broker.metrics()["millrace_fetch_streams"] <= 1, "they are gone")


def test_a_reader_without_credit_waits_for_ever_and_is_told_nothing(
    broker: RunningBroker, honest_partition: TopicPartition, attack: Attack
) -> None:
    with RawClient(broker.address) as client:
        session = client.fetch()
        session.ask([(1, honest_partition, 0)], credit=0, max_wait_ms=0)
        done = attack.honest.done
        wait_until(lambda: attack.honest.done > done + 10, "records go by")
        session.ask([], credit=MIB)
        news, _ = next(session.answers())
        assert news.fetch_offset == 0, "nothing was sent before the credit came"
        session.close()


def refused(broker: RunningBroker) -> float:
    """How many partitions were asked for that are not there."""
    series = 'millrace_refusals_total{error="UNKNOWN_TOPIC_OR_PARTITION",'
    return sum(value for name, value in broker.metrics().items() if name.startswith(series))


def refused_since(broker: RunningBroker, before: float) -> float:
    """How many more there are, once the broker reads no further requests."""
    wait_until(lambda: refused(broker) > before, "the first is refused")
    told = -1.0
    while told != (told := refused(broker)):
        time.sleep(0.5)
    return told - before


def test_a_reader_that_takes_no_errors_is_not_listened_to(
    broker: RunningBroker, target: TopicPartition, attack: Attack
) -> None:
    before = refused(broker)
    missing = TopicPartition(target.topic_id, 99)
    message = fetch_pb2.FetchRequest(
        partitions=[
            fetch_pb2.FetchPartition(handle=handle, topic_id=missing.topic_id, partition=99)
            for handle in range(1000)
        ]
    ).SerializeToString()
    with RawClient(broker.address) as client:
        streams = [RawStream(client.channel, FETCH) for _ in range(4)]
        for _ in range(2000):
            for stream in streams:
                stream.send(message)
        assert refused_since(broker, before) < 4 * 2000 * 1000 / 4
        attack.assert_memory_is_bounded()
        for stream in streams:
            stream.cancel()


def test_producers_that_never_take_answers_are_not_listened_to(
    broker: RunningBroker, target: TopicPartition, attack: Attack
) -> None:
    before = refused(broker)
    partitions = [(TopicPartition(target.topic_id, number), bytes(96)) for number in range(2, 900)]
    message = request_of(*partitions)
    with RawClient(broker.address) as client:
        streams = [RawStream(client.channel, PRODUCE) for _ in range(4)]
        for _ in range(1500):
            for stream in streams:
                stream.send(message)
        assert refused_since(broker, before) < 4 * 1500 * len(partitions) / 2
        attack.assert_memory_is_bounded()
        for stream in streams:
            stream.cancel()


def test_more_produce_streams_than_a_connection_may_have_are_refused(
    broker: RunningBroker, honest_partition: TopicPartition
) -> None:
    with RawClient(broker.address) as client:
        streams = [RawStream(client.channel, PRODUCE) for _ in range(4)]
        for stream in streams:
            stream.send(request_of((honest_partition, batch_of(honest_partition))))
            assert stream.receive()
        assert RawStream(client.channel, PRODUCE).ended_with() is grpc.StatusCode.UNAVAILABLE
        streams[0].half_close()
        assert streams[0].ended_with() is grpc.StatusCode.OK
        assert client.produce_batch(honest_partition, batch_of(honest_partition)).base_offset
        for stream in streams:
            stream.cancel()


def test_requests_that_wait_for_memory_do_not_starve_others(
    broker: RunningBroker, target: TopicPartition
) -> None:
    """Clients break off while their requests wait for the pool: all of it comes back."""
    message = request_of(*[(target, bytes(900_000))])
    for _ in range(5):
        with RawClient(broker.address) as client:
            streams = [RawStream(client.channel, PRODUCE) for _ in range(4)]
            for stream in streams:
                for _ in range(20):
                    stream.send(message)
            streams[0].receive()


def test_connections_that_say_nothing_are_closed(broker: RunningBroker) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(Http2Connection(broker.address)) for _ in range(60)]
        for number, connection in enumerate(silent):
            connection.send((b"", PREFACE[:10], PREFACE, b"GET / HTTP/1.1\r\n\r\n")[number % 4])
        assert all(connection.is_closed_within(CUT_SECONDS_MAX) for connection in silent)


def test_streams_beyond_the_bound_of_a_connection_wait_and_harm_nobody(
    broker: RunningBroker, target: TopicPartition
) -> None:
    with RawClient(broker.address) as client:
        sessions = [client.fetch() for _ in range(150)]
        for session in sessions:
            session.ask([(1, target, 0)], credit=1)
        wait_until(lambda: broker.metrics()["millrace_fetch_streams"] >= 64, "some are open")
        assert broker.metrics()["millrace_fetch_streams"] <= 64 + 1
    wait_until(lambda: broker.metrics()["millrace_fetch_streams"] <= 1, "they are gone")


def test_a_flood_of_pings_is_cut_off(broker: RunningBroker) -> None:
    with Http2Connection(broker.address) as connection:
        connection.greet()
        for _ in range(200):
            if not connection.send(frame(PING, bytes(8)) * 50):
                break
        assert connection.is_closed_within(CUT_SECONDS_MAX)


def test_calls_with_too_much_metadata_are_refused(broker: RunningBroker) -> None:
    with RawClient(broker.address) as client:
        with pytest.raises(grpc.RpcError) as refused:
            client.cluster.Hello(
                common.HelloRequest(),
                timeout=10,
                metadata=[(f"name-{number}", "x" * 1000) for number in range(100)],
            )
        status: grpc.Call = refused.value  # type: ignore[assignment]
        assert status.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
        assert client.cluster.Hello(common.HelloRequest(), timeout=10).cluster_id


def test_calls_that_are_reset_at_once_harm_nobody(broker: RunningBroker) -> None:
    for _ in range(3):
        with Http2Connection(broker.address) as connection:
            connection.greet()
            for number in range(1, 4001, 2):
                reset = frame(RST_STREAM, CANCEL.to_bytes(4, "big"), stream=number)
                if not connection.send(call_headers(FETCH, number) + reset):
                    break


def test_messages_that_never_end_hold_no_more_than_a_message_each(
    broker: RunningBroker, attack: Attack
) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(Http2Connection(broker.address))
            connection.greet()
            connection.socket.settimeout(0.2)
            for number in range(1, 60, 2):
                begun = b"\x00" + MIB.to_bytes(4, "big") + bytes(8000)
                connection.send(call_headers(PRODUCE, number) + frame(DATA, begun, stream=number))
        wait_until(lambda: broker.metrics()["millrace_produce_streams"] >= 4, "they are open")
        attack.assert_memory_is_bounded()


def test_requests_that_never_become_whole_hold_no_more_than_a_message_each(
    broker: RunningBroker, attack: Attack
) -> None:
    """Nothing else bounds it: see `connection_streams_max`."""
    method = "/millrace.proto.v1.Cluster/GetMetadata"
    with ExitStack() as stack:
        for _ in range(15):
            connection = stack.enter_context(Http2Connection(broker.address))
            connection.greet()
            for number in (1, 3, 5):
                begun = b"\x00" + MIB.to_bytes(4, "big") + bytes(MIB - 10)
                connection.send(call_headers(method, number))
                connection.send(frame(DATA, begun[: MIB // 2], stream=number))
                connection.send(frame(DATA, begun[MIB // 2 :], stream=number))
        with RawClient(broker.address) as client:
            request = cluster_pb2.GetMetadataRequest(topics=["attacked"])
            assert client.cluster.GetMetadata(request, timeout=10).topics[0].name == "attacked"
        attack.assert_memory_is_bounded()


@pytest.mark.nightly
def test_silent_connections_to_the_metrics_page_make_room_for_who_asks(
    broker: RunningBroker,
) -> None:
    threads, descriptors = broker.threads(), broker.descriptors()
    with ExitStack() as stack:
        silent = []
        for number in range(300):
            connection = stack.enter_context(Http2Connection(broker.metrics_address))
            connection.send((b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost:")[number % 3])
            silent.append(connection)
        assert all(connection.is_closed_within(10) for connection in silent[:-CONNECTIONS_MAX])
        # There is also the honest client, and what the broker begins and opens now and then.
        assert broker.threads() - threads < CONNECTIONS_MAX + 20
        assert broker.descriptors() - descriptors < CONNECTIONS_MAX + 20
        assert broker.metrics()
        assert silent[-1].is_closed_within(30), "after a while none is left"


def test_a_storm_of_connections_passes(broker: RunningBroker) -> None:
    host, _, port = broker.address.rpartition(":")
    for _ in range(20):
        with ExitStack() as stack:
            for _ in range(50):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
    wait_until(lambda: broker.metrics()[CONNECTIONS] < 50, "the broker notices that they are gone")


def is_served(broker: RunningBroker) -> bool:
    """Whether there is room for one more client."""
    with RawClient(broker.address) as client:
        try:
            return bool(client.cluster.Hello(common.HelloRequest(), timeout=2).cluster_id)
        except grpc.RpcError:
            return False


@pytest.mark.nightly
def test_connections_that_do_nothing_make_room_for_who_has_something_to_say(
    broker: RunningBroker,
) -> None:
    """They are more than the broker takes, they greet, and then they hold on."""

    before = broker.metrics()
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(Http2Connection(broker.address)).greet()
        wait_until(lambda: broker.metrics()[CONNECTIONS] > 200, "they are counted")
        wait_until(lambda: is_served(broker), "there is room while all of them hold on")
        wait_until(
            lambda: broker.metrics()[CONNECTIONS] < 50, "those that never call are closed", 40
        )
    closed = 'millrace_connections_closed_total{listener="clients"}'
    assert broker.metrics()[closed] - before.get(closed, 0) > 200
    assert broker.log_has("others are refused") or broker.log_has("made no call were closed")


def test_connections_beyond_the_bound_are_refused_until_others_leave(
    broker: RunningBroker,
) -> None:
    with ExitStack() as stack:
        held = []
        for _ in range(350):
            connection = stack.enter_context(Http2Connection(broker.address))
            connection.greet()
            held.append(connection)
        refused = sum(connection.is_closed_within(0.005) for connection in held[::-1][:100])
        assert refused > 20

    wait_until(lambda: is_served(broker), "there is room again")


# --- DRPC ----------------------------------------------------------------------------------------

HELLO = "/millrace.proto.v1.Cluster/Hello"
GET_METADATA = "/millrace.proto.v1.Cluster/GetMetadata"
REPLICA_FETCH = "/millrace.proto.v1.Replica/Fetch"
SESSION = "/millrace.proto.v1.Controller/Session"
ROUND_TRIPS = 50
NOISE_SECONDS = 0.5
"""What a busy machine alone may add."""
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(32)
DRPC_CLOSED = 'millrace_connections_closed_total{listener="clients_drpc"}'


def ninth_decile(seconds: list[float]) -> float:
    """Return what 9 of 10 do not exceed: a pause of the machine makes one round trip long."""
    return sorted(seconds)[len(seconds) * 9 // 10]


def round_trips(honest: Honest) -> list[float]:
    """Return the seconds of the next round trips of the honest client."""
    begin = honest.done
    wait_until(lambda: honest.done >= begin + ROUND_TRIPS or honest.failures, "it is served", 60)
    return honest.seconds[begin : begin + ROUND_TRIPS]


@pytest.fixture
def usual(attack: Attack) -> float:
    """The ninth decile of the honest client's round trips before the attack."""
    return ninth_decile(round_trips(attack.honest))


def assert_drpc_is_served(broker: RunningBroker) -> None:
    """Another client has its answer."""
    with DrpcByHand(broker.drpc_address) as connection:
        assert connection.call(HELLO, b"")[0] == Kind.MESSAGE


def test_each_port_serves_exactly_what_its_twin_of_the_other_protocol_serves(
    broker: RunningBroker,
) -> None:
    """W1. Every method of every service is tried on every port."""
    with RawClient(broker.outside_address) as client:
        outside_drpc = client.cluster.Hello(common.HelloRequest(), timeout=10).drpc_address
    known = {
        int(address.rpartition(":")[2])
        for address in (
            *(broker.address, broker.outside_address, broker.metrics_address),
            *(broker.drpc_address, outside_drpc),
        )
    }
    of_brokers = [f"127.0.0.1:{port}" for port in set(listening_ports(broker.pid)) - known]
    assert len(of_brokers) == 2, "one for each protocol"
    with DrpcByHand(of_brokers[0]) as first:
        first.send(PREFACE + frame(4))
        if not first.socket.recv(1):  # Only gRPC answers that.
            of_brokers.reverse()
    replicas, replicas_drpc = of_brokers

    for_clients = served_by_grpc(broker.address)
    for_brokers = served_by_grpc(replicas)
    assert served_by_grpc(broker.outside_address) == for_clients
    assert served_by_drpc(broker.drpc_address) == for_clients
    assert served_by_drpc(outside_drpc) == for_clients
    assert served_by_drpc(replicas_drpc) == for_brokers - {SESSION}
    assert SESSION in for_brokers
    assert REPLICA_FETCH in for_brokers
    assert for_clients == {
        method for method in all_methods() if "Replica/" not in method and method != SESSION
    }


BROKEN: dict[str, bytes] = {
    "a length of 2 GB": invoke(FETCH) + b"\x05\x01\x02\xff\xff\xff\xff\x07",
    "a length of 2^63": invoke(FETCH) + b"\x05\x01\x02" + b"\xff" * 8 + b"\x7f",
    "a varint without end": invoke(FETCH) + b"\x05" + b"\xff" * 100,
    "a million empty frames": invoke(FETCH) + unfinished(Kind.MESSAGE, 1, 2) * 100_000,
    "ids that go back": invoke(FETCH, 9) + invoke(FETCH, 8),
    "an id of 0": packet(Kind.INVOKE, 0, 1, FETCH.encode()),
    "a message without a call": packet(Kind.MESSAGE, 1, 1, b"x"),
    "an unknown kind": invoke(FETCH) + packet(50, 1, 2, b"x"),
    "a method of 10 KB": packet(Kind.INVOKE, 1, 1, b"/" * 10_000),
    "metadata of 1 MB": packet(Kind.METADATA, 1, 1, bytes(MIB - 100)),
    "metadata that are none": packet(Kind.METADATA, 1, 1, MALFORMED),
    "a hello of TLS": TLS_HELLO,
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "a greeting of HTTP/2": PREFACE + frame(4),
    "a header of DRPC's migration": b"DRPC!!!1",
    "frames for a call that has ended": invoke(HELLO)
    + packet(Kind.MESSAGE, 1, 2, MALFORMED)
    + b"".join(packet(Kind.MESSAGE, 1, number) for number in range(3, 3000)),
    "unknown kinds without end": invoke(FETCH)
    + b"".join(packet(60, 1, number, is_ignorable=True) for number in range(2, 3000)),
    "unknown methods without end": b"".join(invoke("/x/y", number) for number in range(1, 3000)),
}


def test_what_breaks_the_rules_of_drpc_is_cut_off_and_nothing_else_is(
    broker: RunningBroker, attack: Attack
) -> None:
    with DrpcByHand(broker.drpc_address) as other:
        for stream, (name, sent) in enumerate(BROKEN.items(), 1):
            with DrpcByHand(broker.drpc_address, ELSEWHERE) as connection:
                connection.send(sent)
                assert connection.is_closed_within(CUT_SECONDS_MAX), name
            assert other.call(HELLO, b"", stream)[0] == Kind.MESSAGE, name
    for number in range(20):
        with DrpcByHand(broker.drpc_address, ELSEWHERE) as connection:
            connection.send(random.Random(number).randbytes(20_000))
            # Perhaps it is a packet that may be ignored, and its rest is still awaited.
            assert connection.is_closed_within(15), number
    attack.assert_memory_is_bounded()


def test_half_messages_by_drpc_take_what_has_arrived_within_the_bound_and_are_cut(
    broker: RunningBroker, attack: Attack, usual: float
) -> None:
    before = broker.rss_bytes()
    half = packet(Kind.MESSAGE, 1, 2, bytes(MIB))[: 300 << 10]
    in_frames = unfinished(Kind.MESSAGE, 1, 2, bytes(8000)) * 38
    with ExitStack() as stack:
        peers = [
            stack.enter_context(DrpcByHand(broker.drpc_address, ELSEWHERE)) for _ in range(200)
        ]
        for number, peer in enumerate(peers):
            peer.socket.settimeout(0.05)
            peer.send(invoke(PRODUCE), in_frames if number % 2 else half)
        assert ninth_decile(round_trips(attack.honest)) < 2 * usual + NOISE_SECONDS
        # Of 59 MiB: 16 of 32 for one address, a message, 16 KiB each, and the connections.
        assert broker.rss_bytes() - before < 40 * MIB
        assert_drpc_is_served(broker)
        # 2 s, and its 300 KiB at 64 KiB/s, since it is read: others wait until the first are cut.
        by_socket = {peer.socket: peer for peer in peers}

        def one_is_closed() -> bool:
            ready, _, _ = select.select(by_socket, (), (), 0)
            return any(by_socket[found].is_closed_within(0.01) for found in ready)

        wait_until(one_is_closed, "one is cut, as it sends nothing more", 30)


def test_calls_by_drpc_that_end_one_another_delay_nobody(
    broker: RunningBroker, attack: Attack, usual: float
) -> None:
    streams = iter(range(1, 1 << 30))
    with DrpcByHand(broker.drpc_address, ELSEWHERE) as connection:
        found = []
        ending = threading.Thread(
            target=lambda: found.append(ninth_decile(round_trips(attack.honest)))
        )
        ending.start()
        connection.send(*(invoke(FETCH, next(streams)) for _ in range(500)))
        while ending.is_alive():
            assert connection.send(invoke(FETCH, next(streams)))
            time.sleep(0.001)
        assert found[0] < 2 * usual + NOISE_SECONDS
        stream = next(streams)
        assert connection.call(HELLO, b"", stream)[0] == Kind.MESSAGE


def test_who_asks_by_drpc_and_never_reads_makes_the_broker_hold_little(
    broker: RunningBroker, attack: Attack
) -> None:
    request = cluster_pb2.GetMetadataRequest().SerializeToString()
    with ExitStack() as stack:
        before = broker.rss_bytes()
        for _ in range(20):
            peer = stack.enter_context(DrpcByHand(broker.drpc_address, ELSEWHERE))
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.socket.settimeout(0.1)
            for stream in range(1, 5000, 50):
                calls = b"".join(
                    invoke(GET_METADATA, number)
                    + packet(Kind.MESSAGE, number, 2, request)
                    + packet(Kind.CLOSE_SEND, number, 3)
                    for number in range(stream, stream + 50)
                )
                if not peer.send(calls):
                    break
        assert broker.rss_bytes() - before < 40 * MIB
        assert_drpc_is_served(broker)


def test_a_message_by_drpc_of_a_byte_a_second_is_cut(broker: RunningBroker) -> None:
    with DrpcByHand(broker.drpc_address, ELSEWHERE) as connection:
        sent = invoke(PRODUCE) + packet(Kind.MESSAGE, 1, 2, bytes(100_000))
        connection.send(sent[:100])
        deadline = time.monotonic() + 20
        for at in range(100, 1000):
            if not connection.send(sent[at : at + 1]):
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_one_address_cannot_take_all_connections_by_drpc(broker: RunningBroker) -> None:
    with ExitStack() as stack:
        peers = []
        for _ in range(270):
            peers.append(stack.enter_context(DrpcByHand(broker.drpc_address, ELSEWHERE)))
            # At once: one that makes no call is closed after a while, and makes room.
            peers[-1].send(invoke(FETCH))
        assert_drpc_is_served(broker)
        assert sum(peer.is_closed_within(1) for peer in peers[-20:]) == 20
    assert broker.metrics()[DRPC_CLOSED] >= 20


def test_a_thousand_connections_that_announce_8_mib_and_send_a_byte_take_no_memory(
    tmp_path: Path,
) -> None:
    """W2. With the settings that a broker has by itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with RunningBroker(tmp_path) as broker, ExitStack() as stack:
        assert_drpc_is_served(broker)
        peers = [
            stack.enter_context(DrpcByHand(broker.drpc_address, ELSEWHERE)) for _ in range(1000)
        ]
        for peer in peers:
            peer.send(invoke(FETCH))
        open_connections = 'millrace_connections{listener="clients_drpc"}'
        wait_until(lambda: broker.metrics()[open_connections] >= 1000, "they are open")
        time.sleep(1)  # What their calls take is there.
        before = broker.rss_bytes()
        announced = packet(Kind.MESSAGE, 1, 2, bytes((8 << 20) - 100))
        for peer in peers:
            peer.send(announced[:10])
        assert_drpc_is_served(broker)
        time.sleep(0.5)
        grown = broker.rss_bytes() - before
        assert grown < 16 * MIB, f"the broker grew by {grown >> 10} KiB"
