"""Producers of Kafka's own world write, and Millrace's consumer reads what they wrote."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from tests.fakes.kafka_batches import Record, batch_of
from tests.fakes.kafka_ends import request_frame
from tests.integration.kafka.ends import bootstrap, closing
from tests.integration.running_broker import RunningBroker

from millrace.broker.kafka import codec
from millrace.broker.kafka.errors import Code
from millrace.broker.kafka.requests import ApiKey
from millrace.client import SyncAdmin, SyncConsumer

confluent = pytest.importorskip("confluent_kafka")


def read(broker: RunningBroker, topic: str, count: int) -> list[Any]:
    """Return a topic's first records."""
    found: list[Any] = []
    with SyncConsumer(broker.address) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            found.append(record)
            if len(found) == count:
                break
    return found


@pytest.fixture
def topic(kafka_broker: RunningBroker, topic_name: str) -> str:
    """A topic with one partition."""
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(topic_name, 1, 1)
    return topic_name


def test_kafka_python_writes_with_each_kind_of_acknowledgement(
    kafka_broker: RunningBroker, topic: str
) -> None:
    for number, acks in enumerate((0, 1, "all")):
        settings = {
            "bootstrap_servers": bootstrap(kafka_broker),
            "acks": acks,
            "enable_idempotence": acks == "all",
        }
        with closing(KafkaProducer(**settings)) as producer:
            sent = producer.send(topic, b"%d" % number, timestamp_ms=1_700_000_000_000 + number)
            told = sent.get(20)
            producer.flush(20)
        if acks != 0:
            assert told.offset == number
    found = read(kafka_broker, topic, 3)
    assert [record.value for record in found] == [b"0", b"1", b"2"]
    assert [record.timestamp for record in found][1:] == [1_700_000_000_001, 1_700_000_000_002]


class Hand:
    """A connection by hand."""

    def __init__(self, broker: RunningBroker) -> None:
        host, _, port = broker.kafka_address.rpartition(":")
        self.connection = socket.create_connection((host, int(port)), timeout=20)
        self.reader = self.connection.makefile("rb")

    def close(self) -> None:
        """End it."""
        self.reader.close()
        self.connection.close()

    def produce(
        self, topic: str, *records: bytes | None, version: int = 9, **more: Any
    ) -> list[tuple[int, int]]:
        """Send records, one for each partition; return code and base offset of each."""
        self.send(topic, *records, version=version, **more)
        return self.answer(version)

    def send(self, topic: str, *records: bytes | None, version: int = 9, **more: Any) -> None:
        """Send records, one for each partition."""
        kind: Any = ProduceRequest.TopicProduceData
        data = [
            kind.PartitionProduceData(index=index, records=each)
            for index, each in enumerate(records)
        ]
        request = ProduceRequest(
            **{"transactional_id": None, "acks": -1, "timeout_ms": 10_000, **more},
            topic_data=[kind(name=topic, partition_data=data)],
        )
        self.connection.sendall(request_frame(ApiKey.PRODUCE, version, request))

    def answer(self, version: int = 9) -> list[tuple[int, int]]:
        """Return code and base offset of each partition."""
        (length,) = struct.unpack(">i", self.reader.read(4))
        data = self.reader.read(length)
        begin = 5 if version >= 9 else 4
        found = codec.response_class(ApiKey.PRODUCE).decode(data[begin:], version=version)
        (topic,) = found.responses
        return [(each.error_code, each.base_offset) for each in topic.partition_responses]

    def is_ended(self) -> bool:
        """Whether the other side ends the connection."""
        return self.reader.read(1) == b""


@pytest.fixture
def hand(kafka_broker: RunningBroker) -> Iterator[Hand]:
    opened = Hand(kafka_broker)
    yield opened
    opened.close()


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_is_answered(hand: Hand, topic: str, version: int) -> None:
    batch = batch_of([Record(b"a"), Record(b"b")])
    assert hand.produce(topic, batch, version=version) == [(0, 0)]
    assert hand.produce(topic, batch, version=version, acks=1) == [(0, 2)]


def test_what_is_wrong_with_a_batch_is_told_of_its_partition(
    hand: Hand, topic: str, kafka_broker: RunningBroker
) -> None:
    good = batch_of([Record(b"a")])
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    assert hand.produce(topic, flipped) == [(Code.CORRUPT_MESSAGE, -1)]
    old = good[:16] + b"\1" + good[17:]
    assert hand.produce(topic, old) == [(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1)]
    assert hand.produce(topic, None) == [(Code.INVALID_RECORD, -1)]
    assert hand.produce(topic, good + good) == [(Code.INVALID_RECORD, -1)]
    assert hand.produce(topic, good[:-5]) == [(Code.CORRUPT_MESSAGE, -1)]
    assert hand.produce(topic, good, good) == [(0, 0), (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert hand.produce("nowhere", good) == [(Code.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert hand.produce("a/b", good) == [(Code.INVALID_TOPIC_EXCEPTION, -1)]
    large = batch_of([Record(bytes(2_000_000))])
    assert hand.produce(topic, large) == [(Code.MESSAGE_TOO_LARGE, -1)]
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(f"{topic}-compacted", 1, 1, {"cleanup.policy": "compact"})
    assert hand.produce(f"{topic}-compacted", good) == [(Code.INVALID_RECORD, -1)]
    assert hand.produce(topic, good) == [(0, 1)]


def test_without_acknowledgement_a_refusal_ends_the_connection(hand: Hand, topic: str) -> None:
    good = batch_of([Record(b"a")])
    hand.send(topic, good, acks=0)
    assert hand.produce(topic, good) == [(0, 1)]
    hand.send("nowhere", good, acks=0)
    assert hand.is_ended()


def test_who_asks_for_other_acknowledgements_is_not_answered(hand: Hand, topic: str) -> None:
    hand.send(topic, batch_of([Record(b"a")]), acks=2)
    assert hand.is_ended()


def test_a_topic_may_stamp_append_time(
    hand: Hand, kafka_broker: RunningBroker, topic_name: str
) -> None:
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(topic_name, 1, 1, {"message.timestamp.type": "LogAppendTime"})
    assert hand.produce(topic_name, batch_of([Record(b"a")])) == [(0, 0)]
    (found,) = read(kafka_broker, topic_name, 1)
    assert found.timestamp > 1_700_000_000_000


def test_an_idempotent_batch_that_is_repeated_is_written_once(hand: Hand, topic: str) -> None:
    producer_id = new_producer_id(hand)
    first, second = (numbered(producer_id, number) for number in range(2))
    assert hand.produce(topic, first) == [(0, 0)]
    assert hand.produce(topic, second) == [(0, 1)]
    assert hand.produce(topic, first) == [(0, 0)]
    third = numbered(producer_id, 5)
    assert hand.produce(topic, third) == [(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]


def test_a_batch_behind_a_refused_one_does_not_begin_in_its_place(hand: Hand, topic: str) -> None:
    """librdkafka #4438: the repeated first one would count as written, and would not be (K1)."""
    producer_id = new_producer_id(hand)
    first, second = (numbered(producer_id, number) for number in range(2))
    broken = first[:-1] + bytes([first[-1] ^ 1])
    hand.send(topic, broken)
    hand.send(topic, second)
    assert hand.answer() == [(Code.CORRUPT_MESSAGE, -1)]
    assert hand.answer() == [(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert hand.produce(topic, first) == [(0, 0)]
    assert hand.produce(topic, second) == [(0, 1)]


def numbered(producer_id: int, sequence: int) -> bytes:
    """Return a batch of one record of an idempotent producer."""
    return batch_of(
        [Record(b"a")], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )


def new_producer_id(hand: Hand) -> int:
    """Return the id of a new producer."""
    asked = InitProducerIdRequest(transactional_id=None)
    hand.connection.sendall(request_frame(ApiKey.INIT_PRODUCER_ID, 1, asked))
    (length,) = struct.unpack(">i", hand.reader.read(4))
    data = hand.reader.read(length)
    found = codec.response_class(ApiKey.INIT_PRODUCER_ID).decode(data[4:], version=1)
    assert found.error_code == 0
    return int(found.producer_id)
