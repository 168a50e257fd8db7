"""Transactions of Kafka's own clients: what is read, who is fenced, and what leaders verify."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import TransactionalIdNotFoundError
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from tests.fakes.kafka_batches import TRANSACTIONAL, Record, batch_of
from tests.integration.kafka.by_hand import Hand
from tests.integration.kafka.ends import KAFKA, bootstrap, closing
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec
from millrace.broker.kafka.wire.errors import Code
from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation

confluent = pytest.importorskip("confluent_kafka")

QUICK = {**KAFKA, "groups.classic_rebalance_delay_ms": 100}
TIMEOUT = 20.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker whose groups begin soon."""
    running = RunningBroker(tmp_path_factory.mktemp("kafka_transactions"), dict(QUICK))
    yield running.start()
    running.abandon()


@pytest.fixture
def topic(broker: RunningBroker, topic_name: str) -> str:
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(topic_name, 2, 1)
    return topic_name


def transactional(broker: RunningBroker, name: str, **settings: object) -> Any:
    """Return a producer of librdkafka that has begun with a transactional id."""
    producer = confluent.Producer(
        {
            "bootstrap.servers": bootstrap(broker),
            "transactional.id": name,
            "linger.ms": 2,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    producer.init_transactions(TIMEOUT)
    return producer


def write(producer: Any, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.flush(TIMEOUT)


def read_by_librdkafka(
    broker: RunningBroker, topic: str, isolation: str, partition: int = 0
) -> list[bytes]:
    """Return the values of a partition, up to its end."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap(broker),
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([confluent.TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value())
            elif message.error().code() == confluent.KafkaError._PARTITION_EOF:
                return values
            else:
                raise AssertionError(message.error())
    finally:
        consumer.close()
    raise AssertionError(f"no end of {topic}: {len(values)} records")


def read_by_millrace(
    broker: RunningBroker, topic: str, isolation: Isolation, partition: int = 0
) -> list[bytes]:
    place = (topic, partition)
    values: list[bytes] = []
    with (
        SyncConsumer(broker.address, isolation=isolation) as consumer,
        SyncAdmin(broker.address) as admin,
    ):
        end = admin.list_offsets(topic, isolation=isolation)[place].offset
        consumer.assign([topic])
        consumer.seek(place, 0)
        while consumer.position(place) < end:
            values += [
                record.value for record in consumer.poll(500) if record.partition == partition
            ]
    return values


def seen(broker: RunningBroker, topic: str, *, committed: bool) -> list[bytes]:
    """Return what both kinds of reader see, which is the same."""
    isolation = READ_COMMITTED if committed else READ_UNCOMMITTED
    by_librdkafka = read_by_librdkafka(
        broker, topic, "read_committed" if committed else "read_uncommitted"
    )
    assert by_librdkafka == read_by_millrace(broker, topic, isolation)
    return by_librdkafka


def until_seen(broker: RunningBroker, topic: str, expected: list[bytes]) -> None:
    """Return once these are the committed records: the last marker may come after the answer."""

    def are_all_seen() -> bool:
        found = read_by_librdkafka(broker, topic, "read_committed")
        assert found == expected[: len(found)]
        return len(found) == len(expected)

    wait_until(are_all_seen, f"readers see {len(expected)} records", 2 * TIMEOUT)
    # Only now: between the looks of two readers a marker may come.
    assert seen(broker, topic, committed=True) == expected


def state_of(admin: Any, transactional_id: str) -> str:
    [described] = admin.describe_transactions([transactional_id]).values()
    return str(described.state.value)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_aborted_is_not_read(broker: RunningBroker, topic: str, codec: str) -> None:
    producer = transactional(broker, f"codec-{codec}", compression_type=codec)
    expected, written = [], []
    for number in range(6):
        values = [b"%d.%d " % (number, part) * 30 for part in range(50)]
        producer.begin_transaction()
        write(producer, topic, values)
        written += values
        if number % 3 == 1:
            producer.abort_transaction(TIMEOUT)
        else:
            producer.commit_transaction(TIMEOUT)
            expected += values
    until_seen(broker, topic, expected)
    assert seen(broker, topic, committed=False) == written


def test_a_record_is_read_once_its_transaction_is_committed(
    broker: RunningBroker, topic: str
) -> None:
    producer = transactional(broker, "seen-later")
    producer.begin_transaction()
    write(producer, topic, [b"a"])
    assert seen(broker, topic, committed=True) == []
    assert seen(broker, topic, committed=False) == [b"a"]
    producer.commit_transaction(TIMEOUT)
    until_seen(broker, topic, [b"a"])


def test_transactions_of_both_protocols_lie_in_one_partition(
    broker: RunningBroker, topic: str
) -> None:
    kafkas = transactional(broker, "kafkas")
    with SyncProducer(broker.address, transactional_id="ours") as ours:
        for number in range(4):
            is_committed = number < 2
            kafkas.begin_transaction()
            ours.begin_transaction()
            write(kafkas, topic, [b"kafka %d" % number])
            ours.send(topic, b"ours %d" % number, partition=0)
            ours.flush()
            if is_committed:
                kafkas.commit_transaction(TIMEOUT)
                ours.commit_transaction()
            else:
                ours.abort_transaction()
                kafkas.abort_transaction(TIMEOUT)
    expected = [b"kafka 0", b"ours 0", b"kafka 1", b"ours 1"]
    until_seen(broker, topic, expected)


def test_a_second_producer_fences_the_first(broker: RunningBroker, topic: str) -> None:
    first = transactional(broker, "fenced")
    first.begin_transaction()
    write(first, topic, [b"first"])
    second = transactional(broker, "fenced")
    second.begin_transaction()
    write(second, topic, [b"second"])
    second.commit_transaction(TIMEOUT)
    with pytest.raises(confluent.KafkaException) as caught:
        first.commit_transaction(TIMEOUT)
    assert caught.value.args[0].fatal()
    until_seen(broker, topic, [b"second"])


def test_a_transaction_that_is_open_for_too_long_is_aborted(
    broker: RunningBroker, topic: str
) -> None:
    # Long enough for its record to be written before, also on a machine that pauses.
    producer = transactional(broker, "slow", transaction_timeout_ms=3000)
    producer.begin_transaction()
    write(producer, topic, [b"late"])
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(broker))) as admin:
        wait_until(lambda: state_of(admin, "slow") == "CompleteAbort", "it is aborted", 2 * TIMEOUT)
    with pytest.raises(confluent.KafkaException) as caught:
        producer.commit_transaction(TIMEOUT)
    assert caught.value.args[0].fatal()
    assert seen(broker, topic, committed=True) == []


def test_a_time_out_beyond_what_the_broker_allows_is_refused(broker: RunningBroker) -> None:
    with pytest.raises(confluent.KafkaException) as caught:
        transactional(broker, "long", transaction_timeout_ms=2_000_000_000)
    code = caught.value.args[0].code()
    assert code == confluent.KafkaError.INVALID_TRANSACTION_TIMEOUT


def test_records_are_copied_exactly_once(broker: RunningBroker, topic: str) -> None:
    """Consume, transform, produce; some transactions are aborted, and done again."""
    source = f"{topic}-source"
    count = 500
    with SyncAdmin(broker.address) as admin, SyncProducer(broker.address) as writer:
        admin.create_topic(source, 1, 1)
        for number in range(count):
            writer.send(source, b"%d" % number)
    settings = {
        "bootstrap.servers": bootstrap(broker),
        "group.id": topic,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = confluent.Consumer(settings)
    consumer.subscribe([source])
    producer = transactional(broker, topic)
    done = attempts = 0
    while done < count:
        messages = consumer.consume(50, timeout=1.0)
        assert all(message.error() is None for message in messages)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(topic, message.value() + b"!", partition=0)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT
        )
        attempts += 1
        if attempts % 3 == 2:
            producer.abort_transaction(TIMEOUT)
            for message in messages[:1]:
                consumer.seek(
                    confluent.TopicPartition(source, message.partition(), message.offset())
                )
            continue
        producer.commit_transaction(TIMEOUT)
        done += len(messages)
    consumer.close()
    until_seen(broker, topic, [b"%d!" % number for number in range(count)])
    with SyncAdmin(broker.address) as admin:
        wait_until(
            lambda: [found.offset for found in admin.fetch_positions(topic).values()] == [count],
            "the last position counts",
        )


def test_transactions_are_listed_and_described(broker: RunningBroker, topic: str) -> None:
    name = "listed/with a slash"
    producer = transactional(broker, name, transaction_timeout_ms=50_000)
    producer.begin_transaction()
    write(producer, topic, [b"a"], partition=1)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(broker))) as admin:
        described = admin.describe_transactions([name])[name]
        assert described.state.value == "Ongoing"
        assert described.transaction_timeout_ms == 50_000
        assert described.topic_partitions == {(topic, 1)}
        assert abs(described.transaction_start_time_ms / 1000 - time.time()) < TIMEOUT
        found = (described.producer_id, name, "Ongoing")
        assert found in listed(admin)
        assert listed(admin, state_filters=["Ongoing"]) == [found]
        assert listed(admin, producer_id_filters=[described.producer_id]) == [found]
        assert listed(admin, duration_filter_ms=3_600_000) == []
        assert found not in listed(admin, state_filters=["Empty"])
        producer.abort_transaction(TIMEOUT)
        with pytest.raises(TransactionalIdNotFoundError):
            admin.describe_transactions(["nobody"])


def listed(admin: Any, **filters: Any) -> list[tuple[int, str, str]]:
    return [
        (found.producer_id, found.transactional_id, found.state.value)
        for broker in admin.list_transactions(**filters).values()
        for found in broker
    ]


# What no honest client asks.


class ByHand(Hand):
    """A transactional producer by hand."""

    def __init__(self, broker: RunningBroker, transactional_id: str) -> None:
        super().__init__(broker)
        self.transactional_id = transactional_id
        begun = self.begin()
        assert begun.error_code == 0, begun
        self.producer_id, self.epoch = begun.producer_id, begun.producer_epoch

    def call(self, key: ApiKey, version: int, **fields: Any) -> Any:
        """Return the answer to a request with such fields."""
        return self.ask(key, version, codec.request_class(key)(version=version, **fields))

    def begin(self, version: int = 4, timeout_ms: int = 60_000) -> Any:
        return self.call(
            ApiKey.INIT_PRODUCER_ID,
            version,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )

    def add(self, *partitions: tuple[str, int], version: int = 3) -> list[int]:
        """Take partitions into the transaction; return the codes."""
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        answer = self.call(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                kind(name=name, partitions=[partition]) for name, partition in partitions
            ],
        )
        return [
            partition.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        ]

    def produce(self, topic: str, value: bytes, sequence: int) -> int:
        batch = batch_of(
            [Record(value)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        kind: Any = ProduceRequest.TopicProduceData
        answer = self.call(
            ApiKey.PRODUCE,
            9,
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                kind(name=topic, partition_data=[kind.PartitionProduceData(index=0, records=batch)])
            ],
        )
        return int(answer.responses[0].partition_responses[0].error_code)

    def end(self, *, committed: bool, version: int = 3) -> int:
        answer = self.call(
            ApiKey.END_TXN,
            version,
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        return int(answer.error_code)

    def commit_positions(self, group: str, topic: str) -> int:
        kind: Any = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        position = kind.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=5, committed_metadata=""
        )
        answer = self.call(
            ApiKey.TXN_OFFSET_COMMIT,
            3,
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[kind(name=topic, partitions=[position])],
        )
        return int(answer.topics[0].partitions[0].error_code)


@pytest.fixture
def hand(broker: RunningBroker, topic: str) -> Iterator[ByHand]:
    made = ByHand(broker, f"hand-{topic}")
    yield made
    made.close()


def test_a_leader_takes_no_batch_of_a_partition_that_is_not_in_the_transaction(
    broker: RunningBroker, hand: ByHand, topic: str
) -> None:
    """T14: such as the late batch of a transaction that has ended, in the epoch of the next."""
    assert hand.produce(topic, b"before", 0) == Code.INVALID_TXN_STATE
    assert hand.add((topic, 0)) == [0]
    assert hand.produce(topic, b"first", 0) == 0
    assert hand.produce(topic, b"second", 1) == 0
    assert hand.end(committed=True) == 0
    assert hand.end(committed=True) == 0
    assert hand.add((topic, 1)) == [0]
    assert hand.produce(topic, b"late", 2) == Code.INVALID_TXN_STATE
    assert hand.add((topic, 0)) == [0]
    assert hand.produce(topic, b"third", 2) == 0
    assert hand.end(committed=True) == 0
    until_seen(broker, topic, [b"first", b"second", b"third"])


def test_a_group_that_is_not_in_the_transaction_commits_nothing_with_it(
    broker: RunningBroker, hand: ByHand, topic: str
) -> None:
    assert hand.add((topic, 0)) == [0]
    assert hand.commit_positions(topic, topic) == Code.INVALID_TXN_STATE
    answer = hand.call(
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        transactional_id=hand.transactional_id,
        producer_id=hand.producer_id,
        producer_epoch=hand.epoch,
        group_id=topic,
    )
    assert answer.error_code == 0
    assert hand.commit_positions(topic, topic) == 0
    assert hand.end(committed=True) == 0
    with SyncAdmin(broker.address) as admin:
        wait_until(
            lambda: [found.offset for found in admin.fetch_positions(topic).values()] == [5],
            "the position counts",
        )


def test_a_partition_that_is_not_there_keeps_all_of_its_request_out(
    hand: ByHand, topic: str
) -> None:
    codes = hand.add((topic, 0), (topic, 99), ("no-such-topic", 0))
    assert codes == [
        Code.OPERATION_NOT_ATTEMPTED,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert hand.end(committed=True) == Code.INVALID_TXN_STATE  # Nothing is open.


def test_who_is_fenced_hears_it_as_its_version_knows_it(hand: ByHand, topic: str) -> None:
    """KIP-588."""
    assert hand.add((topic, 0)) == [0]
    assert hand.begin().producer_epoch > hand.epoch
    assert hand.add((topic, 0)) == [Code.PRODUCER_FENCED]
    assert hand.add((topic, 0), version=1) == [Code.INVALID_PRODUCER_EPOCH]
    assert hand.end(committed=True) == Code.PRODUCER_FENCED
    assert hand.end(committed=True, version=1) == Code.INVALID_PRODUCER_EPOCH
    assert hand.commit_positions(topic, topic) == Code.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("transactional_id", ["", "\n", "x" * 300])
def test_what_is_no_transactional_id_is_refused(
    hand: ByHand, topic: str, transactional_id: str
) -> None:
    hand.transactional_id = transactional_id
    assert hand.begin().error_code == Code.INVALID_REQUEST
    assert hand.add((topic, 0)) == [Code.INVALID_REQUEST]
    assert hand.end(committed=True) == Code.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [-1, 0, 2**31 - 1])
def test_a_time_out_out_of_bounds_is_refused(hand: ByHand, timeout_ms: int) -> None:
    assert hand.begin(timeout_ms=timeout_ms).error_code == Code.INVALID_TRANSACTION_TIMEOUT
