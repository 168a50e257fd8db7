"""What a task reads, from a real broker and without Spark."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker
from tests.integration.running_cluster import RunningCluster
from tests.integration.spark.conftest import LaggingCluster, append

from millrace.client import (
    ConnectionFailedError,
    OffsetOutOfRangeError,
    SyncAdmin,
    SyncConsumer,
    UnknownTopicOrPartitionError,
)
from millrace.spark.errors import DataLossError, ReadStalledError, TopicRecreatedError
from millrace.spark.options.option import Use
from millrace.spark.options.source_options import SourceOptions, parse_options
from millrace.spark.source import range_reader
from millrace.spark.source.planning import Range
from millrace.spark.source.range_reader import Task, read_task

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)


def options(address: str, **others: str) -> SourceOptions:
    given = {"bootstrap.servers": address, "subscribe": "unused", **others}
    return parse_options(given, Use.BATCH)


def fill(address: str, topic: str, count: int, partitions: int = 1) -> None:
    with SyncAdmin(address) as admin:
        admin.create_topic(topic, partitions)
    append(address, topic, range(count), partitions)


def rows(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, int, bytes]]:
    return [
        (row["partition"], row["offset"], row["value"])
        for batch in batches
        for row in batch.select(["partition", "offset", "value"]).to_pylist()
    ]


@pytest.fixture(autouse=True)
def no_idle_consumers() -> Iterator[None]:
    yield
    range_reader._idle.close()


def kept_consumer() -> SyncConsumer | None:
    kept = range_reader._idle._kept
    return None if kept is None else kept[2]


def test_ranges_of_several_partitions_are_read_exactly(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    fill(shared_broker.address, topic_name, 9000, partitions=3)
    ranges = (Range(topic_name, 0, 5, 2017), Range(topic_name, 2, 2999, 3000))
    given = options(shared_broker.address, batchRows="500")
    read = rows(read_task(Task(ranges, {}), given, SCHEMA))
    wanted = [(0, at, b"%d" % (3 * at)) for at in range(5, 2017)] + [(2, 2999, b"8999")]
    assert sorted(read) == wanted


def test_whose_times_they_are_is_told(shared_broker: RunningBroker, topic_name: str) -> None:
    fill(shared_broker.address, topic_name, 2)
    with SyncAdmin(shared_broker.address) as admin:
        admin.alter_topic(topic_name, set_config={"message.timestamp.type": "LogAppendTime"})
    append(shared_broker.address, topic_name, range(2, 4))
    task = Task((Range(topic_name, 0, 0, 4),), {})
    read = pa.Table.from_batches(read_task(task, options(shared_broker.address), SCHEMA))
    assert read["timestampType"].to_pylist() == [0, 0, 1, 1]


def test_the_consumer_is_kept_for_the_next_task_and_closed_when_one_ends_early(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    fill(shared_broker.address, topic_name, 5000)
    task = Task((Range(topic_name, 0, 0, 5000),), {})
    given = options(shared_broker.address, batchRows="100")
    assert len(rows(read_task(task, given, SCHEMA))) == 5000
    kept = kept_consumer()
    assert kept is not None
    assert len(rows(read_task(task, given, SCHEMA))) == 5000
    assert kept_consumer() is kept
    stopped = read_task(task, given, SCHEMA)
    next(stopped)
    assert kept_consumer() is None
    stopped.close()  # type: ignore[attr-defined]  # A generator, as Spark knows too.
    assert kept._core.is_closed
    assert kept_consumer() is None


def test_a_topic_that_was_made_anew_is_not_read_for_the_one_before(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    fill(shared_broker.address, topic_name, 10)
    task = Task((Range(topic_name, 0, 0, 5),), {topic_name: "00" * 16})
    with pytest.raises(TopicRecreatedError, match="deleted and created again"):
        rows(read_task(task, options(shared_broker.address), SCHEMA))


def test_a_topic_that_was_made_anew_gives_nothing_to_a_task_of_the_one_before(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    lenient = options(shared_broker.address, failOnDataLoss="false")
    fill(shared_broker.address, topic_name, 20, partitions=2)
    # The second range ends after all that the new topic has.
    ranges = (Range(topic_name, 0, 0, 5), Range(topic_name, 1, 50, 60))
    assert rows(read_task(Task(ranges, {topic_name: "00" * 16}), lenient, SCHEMA)) == []


def test_a_topic_that_is_deleted_before_a_task_reads_it_is_a_loss(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    other = f"{topic_name}-other"
    fill(shared_broker.address, topic_name, 10)
    fill(shared_broker.address, other, 10)
    with SyncAdmin(shared_broker.address) as admin:
        admin.delete_topic(topic_name)
    task = Task((Range(topic_name, 0, 0, 10), Range(other, 0, 3, 6)), {})
    told = (
        rf": {topic_name}-0: the partition does not exist any more, and 0 to 10 was to be read\. "
        r"Nothing was skipped\. failOnDataLoss=false goes on with what is there, and so does a "
        r"DataFrame that is loaded again$"
    )
    with pytest.raises(DataLossError, match=told) as raised:
        rows(read_task(task, options(shared_broker.address), SCHEMA))
    assert type(raised.value) is DataLossError
    lenient = options(shared_broker.address, failOnDataLoss="false")
    assert rows(read_task(task, lenient, SCHEMA)) == [(0, at, b"%d" % at) for at in (3, 4, 5)]


def test_a_range_that_is_not_in_the_log_is_a_loss(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    fill(shared_broker.address, topic_name, 10)
    task = Task((Range(topic_name, 0, 50, 60),), {})
    told = (
        rf": {topic_name}-0: the log ends at 10, before 50, and 50 to 60 was to be read\. "
        r"Nothing was skipped\. failOnDataLoss=false goes on with what is there, and so does a "
        r"DataFrame that is loaded again$"
    )
    with pytest.raises(DataLossError, match=told) as raised:
        rows(read_task(task, options(shared_broker.address), SCHEMA))
    assert isinstance(raised.value.__cause__, OffsetOutOfRangeError)
    stream = Task(task.ranges, {}, Use.STREAM)
    with pytest.raises(DataLossError, match=r"there; a new checkpoint starts over$"):
        rows(read_task(stream, options(shared_broker.address), SCHEMA))
    named = parse_options(
        {"bootstrap.servers": shared_broker.address, "subscribe": "unused", "groupId": "etl"},
        Use.STREAM,
    )
    with pytest.raises(DataLossError, match="once millrace group delete 'etl' has forgotten"):
        rows(read_task(stream, named, SCHEMA))
    lenient = options(shared_broker.address, failOnDataLoss="false")
    assert rows(read_task(task, lenient, SCHEMA)) == []


def test_a_topic_that_was_made_anew_and_is_empty_is_not_waited_for(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    fill(shared_broker.address, topic_name, 0)
    task = Task((Range(topic_name, 0, 0, 5),), {topic_name: "00" * 16})
    with pytest.raises(TopicRecreatedError, match=f"'{topic_name}' was deleted and created"):
        rows(read_task(task, options(shared_broker.address), SCHEMA))
    lenient = options(shared_broker.address, failOnDataLoss="false")
    assert rows(read_task(task, lenient, SCHEMA)) == []


def test_a_topic_that_is_made_anew_while_it_is_read_ends_there(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    other = f"{topic_name}-other"
    fill(shared_broker.address, topic_name, 40_000, partitions=4)
    fill(shared_broker.address, other, 100)
    with SyncAdmin(shared_broker.address) as admin:
        topic_id = admin.describe_topic(topic_name).topic_id.hex()
    ranges = (
        *(Range(topic_name, number, 0, 10_000) for number in range(4)),
        Range(other, 0, 0, 100),
    )
    lenient = options(
        shared_broker.address, failOnDataLoss="false", fetchMaxBytes="64KiB", batchRows="200"
    )
    reading = read_task(Task(ranges, {topic_name: topic_id}), lenient, SCHEMA)
    batches = [next(reading)]
    with SyncAdmin(shared_broker.address) as admin:
        admin.delete_topic(topic_name)
        admin.create_topic(topic_name, 4)
    append(shared_broker.address, topic_name, range(1_000_000, 1_040_000), 4)
    batches += reading
    numbers = [
        int(row["value"])
        for batch in batches
        for row in batch.select(["topic", "value"]).to_pylist()
        if row["topic"] == topic_name
    ]
    assert 0 < len(numbers) < 40_000
    assert max(numbers) < 40_000
    assert sum(map(len, batches)) - len(numbers) == 100
    # Nothing of it is left in the consumer for the next task.
    assert len(rows(read_task(Task((Range(other, 0, 0, 100),), {}), lenient, SCHEMA))) == 100


def test_a_topic_that_goes_when_its_range_was_read_is_no_loss(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    other = f"{topic_name}-other"
    fill(shared_broker.address, topic_name, 1)
    fill(shared_broker.address, other, 100)
    given = options(shared_broker.address)
    task = Task((Range(topic_name, 0, 0, 1), Range(other, 0, 0, 200)), {})
    consumer = range_reader._open_consumer(range_reader._ConsumerKind.of(given))
    reading = range_reader._Reading(task, given, SCHEMA, consumer)
    batches = reading.batches()
    count = 0
    while count < 101:
        count += len(next(batches))
    with SyncAdmin(shared_broker.address) as admin:
        admin.delete_topic(topic_name)
    for _ in range(2):  # One look-up may meet a broker that has not heard of a new topic.
        consumer._thread.call(consumer._core.fetching.streams._refresh([topic_name]))
    assert consumer._core.fetching.fetcher.has_news
    rest = threading.Timer(0.3, append, (shared_broker.address, other, range(100, 200)))
    rest.start()
    assert count + sum(map(len, batches)) == 201
    rest.join()
    consumer.close()


@pytest.mark.parametrize("lenience", ["true", "false"])
def test_a_broker_that_lags_is_not_believed_that_a_topic_is_gone(
    lagging_cluster: LaggingCluster, lenience: str
) -> None:
    lagging, current = lagging_cluster.lagging, lagging_cluster.current
    topic = current.create_topic("clicks")
    append(current.address, "clicks", range(5))
    task = Task((Range("clicks", 0, 0, 5),), {"clicks": topic.topic_id.hex()})
    given = options(lagging.address, failOnDataLoss=lenience, pollTimeoutMs="500")
    patient = options(lagging.address, failOnDataLoss=lenience)
    assert len(rows(read_task(task, patient, SCHEMA))) == 5
    range_reader._idle.close()  # Another consumer knows no more than the broker that it asks.
    # It may also know the topic that had the name before.
    lagging.create_topic("clicks")
    with pytest.raises(UnknownTopicOrPartitionError, match="clicks"):
        rows(read_task(task, given, SCHEMA))

    def catch_up() -> None:
        lagging.topics["clicks"] = topic
        lagging.metadata_epoch = 8

    later = threading.Timer(0.5, catch_up)
    later.start()
    assert len(rows(read_task(task, patient, SCHEMA))) == 5
    later.join()


def test_a_loss_is_not_believed_while_brokers_that_may_know_better_do_not_answer(
    lagging_cluster: LaggingCluster,
) -> None:
    lagging_cluster.stop_current()
    # The other one is to answer in this time.
    given = options(
        lagging_cluster.lagging.address, failOnDataLoss="false", requestTimeoutMs="2000"
    )
    with pytest.raises(ConnectionFailedError, match=r"brokers \[2\] do not answer"):
        rows(read_task(Task((Range("clicks", 0, 0, 5),), {}), given, SCHEMA))


def test_a_range_that_has_no_more_records_stalls_and_says_so(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    fill(shared_broker.address, topic_name, 10)
    given = options(shared_broker.address, pollTimeoutMs="3000")  # The ten are to come in it.
    task = Task((Range(topic_name, 0, 0, 20),), {})
    with pytest.raises(ReadStalledError, match=rf"{topic_name}-0@10, and the ranges end at .*@20"):
        rows(read_task(task, given, SCHEMA))


def test_a_range_goes_on_when_the_leader_is_killed(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path).start()
    try:
        cluster.create_topic("clicks", 1, 3)
        append(cluster.bootstrap, "clicks", range(20_000))
        given = options(cluster.bootstrap, fetchMaxBytes="64KiB", batchRows="200")
        reading = read_task(Task((Range("clicks", 0, 0, 20_000),), {}), given, SCHEMA)
        first = rows(iter([next(reading)]))
        with SyncAdmin(cluster.bootstrap) as admin:
            leader = admin.describe_topic("clicks").partitions[0].leader_address
        cluster.at(leader).kill()
        assert first + rows(reading) == [(0, at, b"%d" % at) for at in range(20_000)]
    finally:
        cluster.abandon()


def test_a_task_that_begins_while_its_broker_restarts_waits_for_it(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    fill(broker.address, "clicks", 10)
    task = Task((Range("clicks", 0, 0, 10),), {})
    with broker.killed_for(1):
        assert len(rows(read_task(task, options(broker.address), SCHEMA))) == 10


def test_no_broker_is_told(start_broker: StartBroker) -> None:
    broker = start_broker()
    fill(broker.address, "clicks", 1)
    given = options(broker.address, requestTimeoutMs="500", pollTimeoutMs="500")
    broker.kill()
    with pytest.raises(ConnectionFailedError, match=r"localhost|127"):
        rows(read_task(Task((Range("clicks", 0, 0, 1),), {}), given, SCHEMA))
