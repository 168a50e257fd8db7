"""Producers of Kafka's own world write, and Millrace's consumer reads what they wrote."""

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from tests.fakes.kafka_batches import Record, batch_of
from tests.integration.kafka.by_hand import Hand
from tests.integration.kafka.ends import bootstrap, closing, read
from tests.integration.running_broker import RunningBroker

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.client import SyncAdmin

confluent = pytest.importorskip("confluent_kafka")


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


class Writer(Hand):
    """A producer by hand."""

    def produce(
        self, topic: str, *records: bytes | None, version: int = 9, **more: Any
    ) -> list[tuple[int, int]]:
        """Send records, one for each partition; return code and base offset of each."""
        self.begin(topic, *records, version=version, **more)
        return self.told(version)

    def begin(self, topic: str, *records: bytes | None, version: int = 9, **more: Any) -> None:
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
        self.send(ApiKey.PRODUCE, version, request)

    def told(self, version: int = 9) -> list[tuple[int, int]]:
        """Return code and base offset of each partition."""
        (topic,) = self.answer(ApiKey.PRODUCE, version).responses
        return [(each.error_code, each.base_offset) for each in topic.partition_responses]

    def is_ended(self) -> bool:
        """Whether the other side ends the connection."""
        return self.frame() is None


@pytest.fixture
def hand(kafka_broker: RunningBroker) -> Iterator[Writer]:
    opened = Writer(kafka_broker)
    yield opened
    opened.close()


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_is_answered(hand: Writer, topic: str, version: int) -> None:
    batch = batch_of([Record(b"a"), Record(b"b")])
    assert hand.produce(topic, batch, version=version) == [(0, 0)]
    assert hand.produce(topic, batch, version=version, acks=1) == [(0, 2)]


def test_what_is_wrong_with_a_batch_is_told_of_its_partition(
    hand: Writer, topic: str, kafka_broker: RunningBroker
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


def test_without_acknowledgement_a_refusal_ends_the_connection(hand: Writer, topic: str) -> None:
    good = batch_of([Record(b"a")])
    hand.begin(topic, good, acks=0)
    assert hand.produce(topic, good) == [(0, 1)]
    hand.begin("nowhere", good, acks=0)
    assert hand.is_ended()


def test_what_was_sent_without_acknowledgement_before_the_end_is_taken(
    kafka_broker: RunningBroker, topic: str
) -> None:
    """`kcat -P -X acks=0` ends once it has sent: Kafka's broker takes what has come."""
    for _ in range(5):
        hand = Writer(kafka_broker)
        for _ in range(60):  # So many that the last ones wait for their turn.
            hand.begin(topic, batch_of([Record(bytes(30_000))]), acks=0)
        hand.close()
    assert len(read(kafka_broker, topic, 300)) == 300


def test_who_asks_for_other_acknowledgements_is_not_answered(hand: Writer, topic: str) -> None:
    hand.begin(topic, batch_of([Record(b"a")]), acks=2)
    assert hand.is_ended()


def test_a_topic_may_stamp_append_time(
    hand: Writer, kafka_broker: RunningBroker, topic_name: str
) -> None:
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(topic_name, 1, 1, {"message.timestamp.type": "LogAppendTime"})
    assert hand.produce(topic_name, batch_of([Record(b"a")])) == [(0, 0)]
    (found,) = read(kafka_broker, topic_name, 1)
    assert found.timestamp > 1_700_000_000_000


def test_an_idempotent_batch_that_is_repeated_is_written_once(hand: Writer, topic: str) -> None:
    producer_id = new_producer_id(hand)
    first, second = (numbered(producer_id, number) for number in range(2))
    assert hand.produce(topic, first) == [(0, 0)]
    assert hand.produce(topic, second) == [(0, 1)]
    assert hand.produce(topic, first) == [(0, 0)]
    third = numbered(producer_id, 5)
    assert hand.produce(topic, third) == [(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]


def test_a_batch_behind_a_refused_one_does_not_begin_in_its_place(hand: Writer, topic: str) -> None:
    """librdkafka #4438: the repeated first one would count as written, and would not be (K1)."""
    producer_id = new_producer_id(hand)
    first, second = (numbered(producer_id, number) for number in range(2))
    broken = first[:-1] + bytes([first[-1] ^ 1])
    hand.begin(topic, broken)
    hand.begin(topic, second)
    assert hand.told() == [(Code.CORRUPT_MESSAGE, -1)]
    assert hand.told() == [(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert hand.produce(topic, first) == [(0, 0)]
    assert hand.produce(topic, second) == [(0, 1)]


def test_a_new_leader_does_not_begin_with_what_comes_by_another_connection_than_its_forerunners(
    hand: Writer, kafka_broker: RunningBroker, topic: str
) -> None:
    """The Java producer sends its next batch to the leader that it hears of, while the first ones
    are with the old leader, which is silent. It repeats all in their order (K1)."""
    producer_id = new_producer_id(hand)
    first, second, third, fourth = (numbered(producer_id, number) for number in range(4))
    hand.begin(topic, third)
    hand.begin(topic, fourth)
    assert hand.told() == [(Code.NOT_ENOUGH_REPLICAS, -1)]
    assert hand.told() == [(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    for offset, batch in enumerate((first, second, third, fourth)):
        assert hand.produce(topic, batch) == [(0, offset)]
    with closing(Writer(kafka_broker)) as again:  # This leader knows the producer.
        assert again.produce(topic, numbered(producer_id, 4)) == [(0, 4)]


def test_a_producer_that_its_leader_has_forgotten_begins_anywhere_at_its_second_attempt(
    hand: Writer, topic: str
) -> None:
    """As after a day of silence (P43): OUT_OF_ORDER_SEQUENCE_NUMBER would be librdkafka's end."""
    batch = numbered(new_producer_id(hand), 70)
    assert hand.produce(topic, batch) == [(Code.NOT_ENOUGH_REPLICAS, -1)]
    assert hand.produce(topic, batch) == [(0, 0)]


def test_what_was_never_written_is_no_duplicate_also_after_many_more(
    hand: Writer, topic: str
) -> None:
    """A client that repeats in another order has its leader begin in the middle (K1)."""
    producer_id = new_producer_id(hand)
    assert hand.produce(topic, numbered(producer_id, 1))[0][0] == Code.NOT_ENOUGH_REPLICAS
    for offset in range(8):
        assert hand.produce(topic, numbered(producer_id, 1 + offset)) == [(0, offset)]
    late = [hand.produce(topic, numbered(producer_id, number)) for number in range(2)]
    assert late == [
        [(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)],
        [(Code.DUPLICATE_SEQUENCE_NUMBER, -1)],
    ]


def numbered(producer_id: int, sequence: int) -> bytes:
    """Return a batch of one record of an idempotent producer."""
    return batch_of(
        [Record(b"a")], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )


def new_producer_id(hand: Writer) -> int:
    """Return the id of a new producer."""
    asked = InitProducerIdRequest(transactional_id=None)
    found = hand.ask(ApiKey.INIT_PRODUCER_ID, 1, asked)
    assert found.error_code == 0
    return int(found.producer_id)
