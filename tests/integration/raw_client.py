"""A client without manners: it says to a broker whatever a test wants said."""

import queue
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import crc32c
import grpc
from tests.fakes.header_fields import FIELDS

from millrace.core.ids import TopicId, TopicPartition, WallMs
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.compression import Compressor
from millrace.core.records.header import HEADER_BYTES
from millrace.proto.codec import decode_fetch_response, produce_request
from millrace.proto.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    fetch_pb2,
    fetch_pb2_grpc,
    produce_pb2,
    produce_pb2_grpc,
)
from millrace.proto.v1.common_pb2 import TopicPartition as NamedPartition

TIMEOUT_SECONDS = 20.0
PRODUCE = "/millrace.proto.v1.Produce/Produce"
FETCH = "/millrace.proto.v1.Fetch/Fetch"


def batch_of(
    topic_partition: TopicPartition,
    values: Sequence[bytes | None] = (b"value",),
    *,
    timestamp: int | None = None,
    codec: str = "none",
    producer_id: int = -1,
    sequence: int = -1,
    epoch: int = 0,
) -> bytes:
    """Return an honest batch, of this moment unless `timestamp` says otherwise."""
    moment = int(time.time() * 1000) if timestamp is None else timestamp
    columns = Columns(len(values), WallMs(moment), values)
    prepared = prepare(topic_partition, columns, Compressor(codec))
    identity: dict[str, Any] = {
        "producer_id": producer_id,
        "producer_epoch": -1 if producer_id < 0 else epoch,
        "base_sequence": sequence,
    }
    return prepared.finish(**identity) + bytes(prepared.body)


def resealed(topic_partition: TopicPartition, batch: bytes, **numbers: Any) -> bytes:
    """Return `batch` with other numbers in its header and checksums that fit them."""
    data = bytearray(batch)
    for name, number in numbers.items():
        at, kind = FIELDS[name]
        struct.pack_into(kind, data, at, number)
    crc = crc32c.crc32c(struct.pack("<16sI", *topic_partition))
    crc = crc32c.crc32c(bytes(data[:64]), crc)
    struct.pack_into("<I", data, 64, crc32c.crc32c(bytes(data[HEADER_BYTES:]), crc))
    struct.pack_into("<I", data, 92, crc32c.crc32c(bytes(data[:92])))
    return bytes(data)


def request_of(
    *batches: tuple[TopicPartition, bytes], acks: int = -1, epoch: int = -1, **header: Any
) -> bytes:
    """Return a produce request of one batch for each partition."""
    partitions = [
        produce_pb2.ProducePartition(
            topic_id=topic_id, partition=partition, leader_epoch=epoch, length=len(batch)
        )
        for (topic_id, partition), batch in batches
    ]
    header = {"correlation_id": 1, "request_timeout_ms": 10_000, **header}
    parts = produce_request(
        produce_pb2.ProduceHeader(acks=acks, partitions=partitions, **header),
        [batch for _, batch in batches],
    )
    return b"".join(parts)


class RawStream:
    """A stream whose messages are bytes, in both directions.

    Args:
        channel: the connection.
        method: path of the method.
        metadata: of the call.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        method: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        open_stream: Any = channel.stream_stream(method)
        self.call = open_stream(iter(self._outgoing.get, None), timeout=timeout, metadata=metadata)

    def send(self, message: bytes) -> None:
        """Queue a message."""
        self._outgoing.put(message)

    def receive(self) -> bytes:
        """Return the next response; raises grpc.RpcError when the stream ended badly."""
        message: bytes = next(self.call)
        return message

    def all_answers(self) -> list[produce_pb2.ProduceAnswer]:
        """Return the answers of a produce stream until it ends."""
        responses = map(produce_pb2.ProduceResponse.FromString, self.call)
        return [answer for response in responses for answer in response.answers]

    def half_close(self) -> None:
        """Say that nothing more comes."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        """Break the stream off."""
        self._outgoing.put(None)
        self.call.cancel()

    def ended_with(self) -> grpc.StatusCode:
        """Return the status of a stream that the broker ends; its messages are dropped."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        code: grpc.StatusCode = self.call.code()
        return code


def _stub(kind: Any, channel: grpc.Channel) -> Any:
    """Return a generated stub; the generator writes no types."""
    return kind(channel)


class RawClient:
    """One connection to a broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", 1 << 20),
                # What is not read stays at the broker, and not in buffers on this side.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", 1 << 16),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self.cluster = _stub(cluster_pb2_grpc.ClusterStub, self.channel)
        self.fetches = _stub(fetch_pb2_grpc.FetchStub, self.channel)
        self.producers = _stub(produce_pb2_grpc.ProduceStub, self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def new_producer_id(self) -> int:
        """Have the broker give out a producer id."""
        request = produce_pb2.InitProducerIdRequest()
        given = self.producers.InitProducerId(request, timeout=TIMEOUT_SECONDS)
        return int(given.producer_id)

    def create_topic(self, name: str, partitions: int = 1, **config: object) -> TopicId:
        """Create a topic, settings with `_` for `.`; return its id."""
        topic = cluster_pb2.NewTopic(
            name=name,
            partitions=partitions,
            replication_factor=1,
            config={key.replace("_", "."): str(value) for key, value in config.items()},
        )
        request = cluster_pb2.CreateTopicsRequest(topics=[topic])
        (result,) = self.cluster.CreateTopics(request, timeout=TIMEOUT_SECONDS).results
        assert not result.HasField("error"), result.error
        return TopicId(result.topic.topic_id)

    def produce(self, *messages: bytes) -> list[produce_pb2.ProduceAnswer]:
        """Send requests on a stream of their own; return all answers."""
        stream: Any = self.channel.stream_stream(
            PRODUCE, response_deserializer=produce_pb2.ProduceResponse.FromString
        )
        responses = stream(iter(messages), timeout=TIMEOUT_SECONDS)
        return [answer for response in responses for answer in response.answers]

    def produce_batch(self, topic_partition: TopicPartition, batch: bytes, **header: Any) -> Any:
        """Send one batch; return its result, or the whole answer when that is an error."""
        (answer,) = self.produce(request_of((topic_partition, batch), **header))
        return answer if answer.HasField("error") else answer.results[0]

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """Return the high watermark."""
        offset: int = self.list_offset(topic_partition, latest=True).offset
        return offset

    def list_offset(self, topic_partition: TopicPartition, **position: Any) -> Any:
        """Look up an offset."""
        query = fetch_pb2.ListOffsetsPartition(
            topic_partition=named(topic_partition), current_leader_epoch=-1, **position
        )
        request = fetch_pb2.ListOffsetsRequest(partitions=[query])
        return self.fetches.ListOffsets(request, timeout=TIMEOUT_SECONDS).offsets[0]

    def log(self, topic_partition: TopicPartition) -> cluster_pb2.LogDescription:
        """Describe a partition's log."""
        request = cluster_pb2.DescribeLogsRequest(partitions=[named(topic_partition)])
        description: cluster_pb2.LogDescription = self.cluster.DescribeLogs(
            request, timeout=TIMEOUT_SECONDS
        ).logs[0]
        return description

    def fetch(self, *, timeout: float = TIMEOUT_SECONDS) -> "FetchSession":
        """Open a fetch session."""
        return FetchSession(self.channel, timeout)


def named(topic_partition: TopicPartition) -> NamedPartition:
    """Return the message that names a partition."""
    return NamedPartition(topic_id=topic_partition.topic_id, partition=topic_partition.partition)


class FetchSession:
    """A fetch stream."""

    def __init__(self, channel: grpc.Channel, timeout: float = TIMEOUT_SECONDS) -> None:
        self.stream = RawStream(channel, FETCH, timeout=timeout)
        self._is_configured = False
        self._answers = self._receive_all()

    def ask(
        self,
        partitions: Iterable[tuple[int, TopicPartition, int]] = (),
        *,
        credit: int = 0,
        remove: Iterable[int] = (),
        epoch: int = -1,
        end_offset: int = 0,
        **settings: int,
    ) -> None:
        """Add partitions as (handle, partition, offset), leave some, and grant credit."""
        request = fetch_pb2.FetchRequest(
            partitions=[
                fetch_pb2.FetchPartition(
                    handle=handle,
                    topic_id=topic_id,
                    partition=partition,
                    fetch_offset=offset,
                    current_leader_epoch=epoch,
                    last_fetched_epoch=-1,
                    end_offset=end_offset,
                )
                for handle, (topic_id, partition), offset in partitions
            ],
            remove=remove,
            credit_bytes=credit,
        )
        if not self._is_configured:
            self._is_configured = True
            wanted: dict[str, Any] = {"min_bytes": 1, "max_wait_ms": 500, **settings}
            request.settings.CopyFrom(fetch_pb2.FetchSettings(**wanted))
        self.stream.send(request.SerializeToString())

    def answers(self) -> Iterator[tuple[fetch_pb2.FetchedPartition, bytes]]:
        """Return partitions with news and their batches, going on where the last call ended."""
        return self._answers

    def _receive_all(self) -> Iterator[tuple[fetch_pb2.FetchedPartition, bytes]]:
        while True:
            header, batches = decode_fetch_response(self.stream.receive())
            for partition, batch in zip(header.partitions, batches, strict=True):
                yield partition, bytes(batch)

    def next_error(self) -> Any:
        """Return the next error that a partition is answered with."""
        return next(partition.error for partition, _ in self.answers() if partition.error.code)

    def close(self) -> None:
        """Leave."""
        self.stream.cancel()
