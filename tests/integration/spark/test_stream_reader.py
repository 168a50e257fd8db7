"""What the driver's reader answers Spark, asked without Spark."""

import itertools
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.fakes.broker import FakeBroker
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.spark.conftest import LaggingCluster, append

from millrace.client import (
    ConnectionFailedError,
    Position,
    SyncAdmin,
    SyncProducer,
    UnknownTopicOrPartitionError,
)
from millrace.spark.cluster.lookups import Lookups
from millrace.spark.errors import (
    CheckpointError,
    DataLossError,
    InvalidOptionError,
    TopicRecreatedError,
)
from millrace.spark.options.option import Use
from millrace.spark.options.source_options import SourceOptions, parse_options

limits = pytest.importorskip(
    "pyspark.sql.streaming.datasource", reason="needs pyspark: sh requirements/install.sh spark"
)
batch_reader = pytest.importorskip("millrace.spark.source.batch_reader")
schema = pytest.importorskip("millrace.spark.source.schema")
stream_reader = pytest.importorskip("millrace.spark.source.stream_reader")

MakeReader = Callable[..., Any]


@pytest.fixture
def open_reader() -> Iterator[MakeReader]:
    """Make readers of any broker, which end with the test."""
    made = []

    def make(broker: RunningBroker | FakeBroker, **others: str) -> Any:
        given = {"bootstrap.servers": broker.address, "startingOffsets": "earliest", **others}
        given = {name: value for name, value in given.items() if value}
        columns = schema.source_schema(with_headers=False)
        made.append(stream_reader.StreamReader(parse_options(given, Use.STREAM), columns))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


@pytest.fixture
def make_reader(
    shared_broker: RunningBroker, open_reader: MakeReader, topic_name: str
) -> MakeReader:
    """Make readers of this test's topic, of two partitions."""
    shared_broker.create_topic(topic_name, 2)
    return lambda **others: open_reader(shared_broker, **{"subscribe": topic_name, **others})


@pytest.fixture
def send(shared_broker: RunningBroker, topic_name: str) -> Iterator[Callable[[int], None]]:
    """Send so many records to each partition."""
    with SyncProducer(shared_broker.address) as producer:

        def send(count: int) -> None:
            for number in range(2 * count):
                producer.send(topic_name, bytes(100), partition=number % 2)
            producer.flush()

        yield send


def ends(offset: dict[str, Any], topic: str) -> list[int]:
    return list(offset[topic].values())


def spans(tasks: Any) -> list[tuple[int, int, int]]:
    return [(part.partition, part.start, part.end) for task in tasks for part in task.value.ranges]


def test_batches_follow_each_other_within_their_limit(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    reader = make_reader(maxOffsetsPerTrigger="30")
    assert reader.reportLatestOffset() is None
    start = reader.initialOffset()
    send(50)
    assert reader.initialOffset() == start
    assert ends(start, topic_name) == [0, 0]
    limit = reader.getDefaultReadLimit()
    assert limit == limits.ReadMaxRows(30)
    end = reader.latestOffset(start, limit)
    assert ends(end, topic_name) == [15, 15]
    assert ends(reader.reportLatestOffset(), topic_name) == [50, 50]
    assert spans(reader.partitions(start, end)) == [(0, 0, 15), (1, 0, 15)]
    assert ends(reader.latestOffset(end, limit), topic_name) == [30, 30]
    assert ends(reader.latestOffset(end, limits.ReadAllAvailable()), topic_name) == [50, 50]


def test_where_nothing_is_new_the_end_is_the_start_itself(
    make_reader: MakeReader, send: Callable[[int], None]
) -> None:
    reader = make_reader(latestOffsetMaxWaitMs="200")
    send(5)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    began = time.monotonic()
    again = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert time.monotonic() - began >= 0.2
    assert repr(again) == repr(end)
    assert reader.partitions(end, again) == []


def test_a_limit_of_bytes_goes_by_what_records_take(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    reader = make_reader(maxBytesPerTrigger="20KiB")
    send(1000)
    assert reader.getDefaultReadLimit() == limits.ReadMaxBytes(20 * 1024)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    first, second = ends(end, topic_name)
    assert 60 <= first + second <= 210


def test_a_limit_of_bytes_holds_where_records_are_larger_than_they_are_elsewhere(
    shared_broker: RunningBroker,
    make_reader: MakeReader,
    send: Callable[[int], None],
    topic_name: str,
) -> None:
    with SyncProducer(shared_broker.address, batch_size=20_000) as producer:
        for _ in range(40):
            producer.send(topic_name, bytes(10_000), partition=0)
        producer.flush()
    send(5000)
    reader = make_reader(maxBytesPerTrigger="60KiB")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    first, second = ends(end, topic_name)
    assert 1 <= first <= 6, "by the average it would be hundreds"
    assert second > 6


def test_a_batch_waits_for_enough_records_but_no_longer_than_it_may(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    reader = make_reader(minOffsetsPerTrigger="100", maxTriggerDelay="6s")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert limit == limits.ReadMinRows(100)
    send(10)
    first = reader.latestOffset(start, limit)
    assert ends(first, topic_name) == [10, 10], "after a start nothing is waited for, as in Kafka"
    send(10)
    assert reader.latestOffset(first, limit) == first
    wait_until(lambda: reader.latestOffset(first, limit) != first, "the delay is over")
    send(90)
    end = reader.latestOffset(first, limit)
    assert ends(end, topic_name) == [110, 110]


def test_a_query_that_reads_what_is_there_ends_while_others_write(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    reader = make_reader(maxOffsetsPerTrigger="12")
    send(10)
    reader.prepareForTriggerAvailableNow()
    at, batches = reader.initialOffset(), 0
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        send(10)
        at, batches = end, batches + 1
    assert (ends(at, topic_name), batches) == ([10, 10], 2)
    # A restart may have planned further already: it ends there.
    restarted = make_reader()
    restarted.prepareForTriggerAvailableNow()
    send(10)
    further = make_reader().latestOffset(at, limits.ReadAllAvailable())
    assert restarted.latestOffset(further, limits.ReadAllAvailable()) == further


def test_a_start_beyond_the_end_is_refused(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    reader = make_reader()
    send(10)
    start = reader.initialOffset()
    beyond = {**start, topic_name: {"0": 99, "1": 0}}
    ending = make_reader()
    ending.prepareForTriggerAvailableNow()
    asks: list[Callable[[], Any]] = [
        lambda: reader.latestOffset(beyond, reader.getDefaultReadLimit()),
        lambda: ending.latestOffset(beyond, reader.getDefaultReadLimit()),
        lambda: reader.partitions(beyond, {**start, topic_name: {"0": 10, "1": 10}}),
        lambda: reader.partitions(start, beyond),
    ]
    for ask in asks:
        with pytest.raises(DataLossError, match="ends at 10, before 99"):
            ask()
    lenient = make_reader(failOnDataLoss="false")
    assert spans(lenient.partitions(start, beyond)) == [(0, 0, 10)]
    lenient.prepareForTriggerAvailableNow()
    goes_on = lenient.latestOffset(beyond, limits.ReadAllAvailable())
    assert ends(goes_on, topic_name) == [10, 10]
    assert spans(lenient.partitions(beyond, goes_on)) == [(1, 0, 10)]


def test_a_batch_that_ends_before_it_begins_has_lost_records(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    """As where somebody has changed a checkpoint."""
    reader = make_reader()
    send(10)
    end = {**reader.initialOffset(), topic_name: {"0": 5, "1": 10}}
    start = {**end, topic_name: {"0": 8, "1": 0}}
    with pytest.raises(DataLossError, match="0: it was to be read up to 5, and is read from 8 on"):
        reader.partitions(start, end)
    lenient = make_reader(failOnDataLoss="false")
    assert spans(lenient.partitions(start, end)) == [(1, 0, 10)]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_first_batch_that_failed_is_repeated_from_where_it_was_planned(
    shared_broker: RunningBroker,
    make_reader: MakeReader,
    send: Callable[[int], None],
    topic_name: str,
    starting: str,
) -> None:
    """After a restart Spark asks for the initial offsets again, and these may be others."""
    send(5)
    options = {"startingOffsets": starting, "groupId": topic_name if starting == "latest" else ""}
    reader = make_reader(**options)
    start = reader.initialOffset()
    send(10)
    end = reader.latestOffset(start, limits.ReadAllAvailable())
    planned = spans(reader.partitions(start, end))
    send(7)
    # As if nobody had kept where it began.
    again = make_reader(startingOffsets=starting, groupId=f"{topic_name}-2").initialOffset()
    assert spans(make_reader(**options).partitions(again, end)) == planned
    with SyncAdmin(shared_broker.address) as admin:
        admin.delete_records({(topic_name, 0): 12})
    again = make_reader(startingOffsets="earliest").initialOffset()
    begins = planned[0][1]
    with pytest.raises(DataLossError, match=f"-0: the log begins at 12, after {begins}"):
        make_reader(**options).partitions(again, end)
    lenient = make_reader(**options, failOnDataLoss="false")
    assert spans(lenient.partitions(again, end)) == [(0, 12, 15), planned[1]]


def test_a_partition_that_came_in_a_batch_is_read_again_from_where_that_was_planned(
    shared_broker: RunningBroker, open_reader: MakeReader, topic_name: str
) -> None:
    pattern, new = f"{topic_name}.*", f"{topic_name}-new"

    def reader(**options: str) -> Any:
        return open_reader(shared_broker, subscribePattern=pattern, **options)

    with SyncAdmin(shared_broker.address) as admin:
        admin.create_topic(topic_name, 1)
        running = reader(groupId=topic_name)
        start = running.initialOffset()
        first = running.latestOffset(start, limits.ReadAllAvailable())
        admin.create_topic(new, 1)
        append(shared_broker.address, new, range(10), 1)
        end = running.latestOffset(first, limits.ReadAllAvailable())
        assert spans(running.partitions(first, end)) == [(0, 0, 10)]
        assert running.latestOffset(end, limits.ReadAllAvailable()) == end
        admin.delete_records({(new, 0): 6})
        with pytest.raises(DataLossError, match=f"{new}-0: the log begins at 6, after 0"):
            reader(groupId=topic_name).partitions(first, end)
        # A partition that has lost records before it was planned is a loss, as in Kafka's source.
        with pytest.raises(DataLossError, match=f"{new}-0: the partition is new, and its log begi"):
            reader(groupId=topic_name).latestOffset(first, limits.ReadAllAvailable())
        lenient = reader(failOnDataLoss="false")
        planned = lenient.latestOffset(first, limits.ReadAllAvailable())
        assert spans(lenient.partitions(first, planned)) == [(0, 6, 10)]
        admin.delete_records({(new, 0): 9})
        assert spans(lenient.partitions(first, planned)) == [(0, 9, 10)]


def test_a_partition_that_comes_before_a_query_has_begun_to_read_what_is_there_is_read_too(
    shared_broker: RunningBroker, open_reader: MakeReader, topic_name: str
) -> None:
    """Spark asks for what is there before it asks for the beginning."""
    shared_broker.create_topic(f"{topic_name}-1", 1)
    reader = open_reader(shared_broker, subscribePattern=f"{topic_name}-.")
    reader.prepareForTriggerAvailableNow()
    shared_broker.create_topic(f"{topic_name}-2", 1)
    append(shared_broker.address, f"{topic_name}-2", range(5), 1)
    start = reader.initialOffset()
    end = reader.latestOffset(start, limits.ReadAllAvailable())
    assert spans(reader.partitions(start, end)) == [(0, 0, 5)]
    append(shared_broker.address, f"{topic_name}-2", range(5), 1)
    assert reader.latestOffset(end, limits.ReadAllAvailable()) == end


@pytest.mark.parametrize(
    "limit", [{"maxOffsetsPerTrigger": "20"}, {"maxBytesPerTrigger": "2KiB"}], ids=str
)
def test_a_limit_counts_what_retention_has_left_where_a_query_goes_on_with_that(
    shared_broker: RunningBroker,
    make_reader: MakeReader,
    send: Callable[[int], None],
    topic_name: str,
    limit: dict[str, str],
) -> None:
    """As where it was away for long: there would be batches without a record, one after another."""
    reader = make_reader(**limit, failOnDataLoss="false")
    start = reader.initialOffset()
    for _ in range(5):  # So many batches of the log.
        send(200)
    with SyncAdmin(shared_broker.address) as admin:
        admin.delete_records({(topic_name, 0): 600, (topic_name, 1): 1000})
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    ((partition, first, last),) = spans(reader.partitions(start, end))
    assert (partition, first) == (0, 600)
    assert 600 < last < 700
    strict = make_reader(**limit)
    with pytest.raises(DataLossError, match="-0: the log begins at 600, after 0"):
        strict.partitions(start, strict.latestOffset(start, strict.getDefaultReadLimit()))


def test_a_batch_of_another_topic_s_checkpoint_is_refused(
    shared_broker: RunningBroker, make_reader: MakeReader, topic_name: str
) -> None:
    other = f"{topic_name}-2"
    shared_broker.create_topic(other, 1)
    before = make_reader().initialOffset()
    for lenience in ("true", "false"):
        reader = make_reader(subscribe=other, failOnDataLoss=lenience)
        for start in (before, reader.initialOffset()):  # The latter before the first batch is done.
            with pytest.raises(CheckpointError, match=rf"is of \['{topic_name}'\], and the query"):
                reader.partitions(start, before)


def test_a_topic_that_came_in_a_batch_and_is_gone_or_another_is_a_loss(
    shared_broker: RunningBroker, open_reader: MakeReader, topic_name: str
) -> None:
    """The batch was planned, and the driver died before it was read."""
    pattern, new = f"{topic_name}.*", f"{topic_name}-new"

    def create(topic: str, records: int) -> None:
        shared_broker.create_topic(topic, 1)
        with SyncProducer(shared_broker.address) as producer:
            for _ in range(records):
                producer.send(topic, b"")

    def partitions(fail: str) -> Any:
        reader = open_reader(shared_broker, subscribePattern=pattern, failOnDataLoss=fail)
        return reader.partitions(start, end)

    create(topic_name, 0)
    reader = open_reader(shared_broker, subscribePattern=pattern)
    start = reader.initialOffset()
    create(new, 5)
    end = reader.latestOffset(start, limits.ReadAllAvailable())
    assert spans(partitions("true")) == [(0, 0, 5)]
    with SyncAdmin(shared_broker.address) as admin:
        admin.delete_topic(new)
    with pytest.raises(DataLossError, match=f"{new}-0: the partition does not exist any more"):
        partitions("true")
    assert partitions("false") == []
    create(new, 7)
    with pytest.raises(TopicRecreatedError, match=f"'{new}' was deleted and created again"):
        partitions("true")
    assert spans(partitions("false")) == []


def test_a_batch_that_was_planned_of_a_topic_reads_nothing_of_another_of_its_name(
    shared_broker: RunningBroker,
    make_reader: MakeReader,
    send: Callable[[int], None],
    topic_name: str,
) -> None:
    """As where the first batch failed, and the topic was made anew before it is repeated."""
    send(5)
    reader = make_reader()
    before = reader.initialOffset()
    end = reader.latestOffset(before, limits.ReadAllAvailable())
    with SyncAdmin(shared_broker.address) as admin:
        admin.delete_topic(topic_name)
        admin.create_topic(topic_name, 2)
    append(shared_broker.address, topic_name, range(14), 2)
    for start in (before, make_reader().initialOffset()):
        with pytest.raises(
            TopicRecreatedError, match=f"'{topic_name}' was deleted and created again"
        ):
            make_reader().partitions(start, end)
        assert make_reader(failOnDataLoss="false").partitions(start, end) == []
    # The next batch reads all of it, once.
    lenient = make_reader(failOnDataLoss="false")
    assert spans(lenient.partitions(end, lenient.latestOffset(end, limits.ReadAllAvailable()))) == [
        (0, 0, 7),
        (1, 0, 7),
    ]


@pytest.mark.parametrize("named", ["subscribe", "assign"])
def test_a_named_topic_that_is_gone_is_left_out_where_that_is_wanted(
    shared_broker: RunningBroker,
    make_reader: MakeReader,
    send: Callable[[int], None],
    topic_name: str,
    named: str,
) -> None:
    goes = f"{topic_name}-goes"
    shared_broker.create_topic(goes, 1)
    if named == "subscribe":
        given = {"subscribe": f"default/{topic_name},{goes}"}
    else:
        given = {"assign": f'{{"{topic_name}":[0,1],"{goes}":[0]}}', "subscribe": ""}
    send(5)
    reader = make_reader(**given, failOnDataLoss="false")
    start = reader.initialOffset()
    planned = reader.latestOffset(start, limits.ReadAllAvailable())
    with SyncAdmin(shared_broker.address) as admin:
        admin.delete_topic(goes)
    for lenient in (reader, make_reader(**given, failOnDataLoss="false")):
        end = lenient.latestOffset(start, limits.ReadAllAvailable())
        assert end.keys() == {"__meta", topic_name}
        assert spans(lenient.partitions(start, end)) == [(0, 0, 5), (1, 0, 5)]
        assert spans(lenient.partitions(start, planned)) == [(0, 0, 5), (1, 0, 5)]
        lenient.prepareForTriggerAvailableNow()
        assert lenient.latestOffset(start, limits.ReadAllAvailable()) == end
    strict = make_reader(**given)
    with pytest.raises(UnknownTopicOrPartitionError, match=goes):
        strict.latestOffset(start, limits.ReadAllAvailable())
    # Where a query begins a name that is wrong is no loss.
    with pytest.raises(UnknownTopicOrPartitionError, match=goes):
        make_reader(**given, failOnDataLoss="false").initialOffset()


def test_topics_of_a_pattern_may_all_be_others_after_a_while(
    shared_broker: RunningBroker, open_reader: MakeReader, topic_name: str
) -> None:
    def reader(**options: str) -> Any:
        return open_reader(shared_broker, subscribePattern=f"{topic_name}-.*", **options)

    with SyncAdmin(shared_broker.address) as admin:
        admin.create_topic(f"{topic_name}-monday", 1)
        start = reader().initialOffset()
        admin.delete_topic(f"{topic_name}-monday")
        admin.create_topic(f"{topic_name}-tuesday", 1)
    with SyncProducer(shared_broker.address) as producer:
        producer.send(f"{topic_name}-tuesday", b"")
    lenient = reader(failOnDataLoss="false")
    end = lenient.latestOffset(start, limits.ReadAllAvailable())
    assert spans(lenient.partitions(start, end)) == [(0, 0, 1)]
    with pytest.raises(DataLossError, match="monday-0: the partition does not exist any more"):
        reader().latestOffset(start, limits.ReadAllAvailable())
    other = open_reader(shared_broker, subscribePattern=f"{topic_name}-t.*", failOnDataLoss="false")
    with pytest.raises(CheckpointError, match="monday"):
        other.latestOffset(start, limits.ReadAllAvailable())


@pytest.mark.parametrize("lenience", ["true", "false"])
def test_a_broker_that_lags_is_not_believed_that_a_topic_is_gone(
    lagging_cluster: LaggingCluster, open_reader: MakeReader, lenience: str
) -> None:
    lagging, current = lagging_cluster.lagging, lagging_cluster.current
    for topic in ("clicks", "views"):
        current.create_topic(topic)
        append(current.address, topic, range(5))
    lagging.topics["views"] = current.topics["views"]
    options = {"subscribePattern": "clicks|views", "failOnDataLoss": lenience}
    start = open_reader(current, **options).initialOffset()
    end = open_reader(lagging, **options).latestOffset(start, limits.ReadAllAvailable())
    assert {topic: end[topic] for topic in ("clicks", "views")} == {
        "clicks": {"0": 5},
        "views": {"0": 5},
    }
    tasks = open_reader(lagging, **options).partitions(start, end)
    assert spans(tasks) == [(0, 0, 5), (0, 0, 5)]
    ending = open_reader(lagging, **options)
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(start, limits.ReadAllAvailable()) == end
    append(current.address, "clicks", range(3))
    assert ending.latestOffset(end, limits.ReadAllAvailable()) == end
    if lenience == "false":
        named = {"subscribe": "clicks,views", "failOnDataLoss": lenience}
        assert spans(open_reader(lagging, **named).partitions(start, end)) == spans(tasks)


@pytest.mark.parametrize("named", ["subscribe", "assign"])
def test_a_partition_that_the_options_name_no_more_is_not_told_to_be_gone(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str, named: str
) -> None:
    send(5)
    whole: dict[str, str] = {}
    part = {"assign": f'{{"{topic_name}":[0]}}', "subscribe": ""}
    other = f"{topic_name}-1: the options of the query do not name it any more"
    if named == "subscribe":
        name = f"{topic_name}-other"
        with SyncAdmin(make_reader()._options.bootstrap_servers) as admin:
            admin.create_topic(name, 1)
        whole, part = {"subscribe": f"{topic_name},{name}"}, {"subscribe": topic_name}
        other = f"{name}-0: the options of the query do not name it any more"
    start = make_reader(**whole).initialOffset()
    end = make_reader(**whole).latestOffset(start, limits.ReadAllAvailable())
    reader = make_reader(**part)
    with pytest.raises(DataLossError, match=other):
        reader.latestOffset(start, limits.ReadAllAvailable())
    with pytest.raises(DataLossError, match=other):
        reader.partitions(start, end)
    lenient = make_reader(**part, failOnDataLoss="false")
    goes_on = lenient.latestOffset(start, limits.ReadAllAvailable())
    assert len(lenient.partitions(start, goes_on)) == (1 if named == "assign" else 2)


def test_a_checkpoint_without_a_partition_it_had_is_refused(
    make_reader: MakeReader, topic_name: str
) -> None:
    reader = make_reader()
    start = reader.initialOffset()
    with pytest.raises(DataLossError, match="does not exist any more"):
        reader.partitions({**start, topic_name: {"0": 0, "7": 0}}, start)


def test_a_reader_can_be_sent_to_executors_after_it_was_used(make_reader: MakeReader) -> None:
    reader = make_reader()
    start = reader.initialOffset()
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.initialOffset() == start
    copy.stop()


def test_positions_must_name_the_partitions_that_there_are(
    make_reader: MakeReader, topic_name: str
) -> None:
    reader = make_reader(startingOffsets=f'{{"{topic_name}":{{"0":0}}}}')
    with pytest.raises(InvalidOptionError, match=f"Missing: {topic_name}-1"):
        reader.initialOffset()
    late = make_reader(startingTimestamp="99999999999999")
    with pytest.raises(InvalidOptionError, match="no records so late"):
        late.initialOffset()


def test_a_restart_before_the_first_batch_begins_where_the_query_began(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    """Else what came meanwhile would be skipped in silence."""
    send(10)
    start = make_reader(startingOffsets="latest", groupId=topic_name).initialOffset()
    assert ends(start, topic_name) == [10, 10]
    send(10)
    assert make_reader(startingOffsets="latest", groupId=topic_name).initialOffset() == start
    other = make_reader(startingOffsets="latest", groupId=f"{topic_name}-2").initialOffset()
    assert ends(other, topic_name) == [20, 20]


def test_a_name_under_which_another_query_began_elsewhere_is_refused(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    send(10)
    make_reader(startingOffsets="latest", groupId=topic_name).initialOffset()
    told = (
        rf"'{topic_name}' began at latest in {topic_name}-0, and startingOffsets says earliest.*"
        rf"millrace group delete '{topic_name}'"
    )
    for _ in range(2):
        with pytest.raises(InvalidOptionError, match=told):
            make_reader(groupId=topic_name).initialOffset()
    same = f'{{"{topic_name}":{{"0":-1,"1":-1}}}}'
    start = make_reader(startingOffsets=same, groupId=topic_name).initialOffset()
    assert ends(start, topic_name) == [10, 10]


def test_a_position_that_says_nothing_of_options_is_taken_and_a_loss_tells_how_to_forget_it(
    shared_broker: RunningBroker, make_reader: MakeReader, topic_name: str
) -> None:
    with SyncAdmin(shared_broker.address) as admin:
        admin.resolve_initial(topic_name, {(topic_name, number): Position(7) for number in (0, 1)})
    reader = make_reader(groupId=topic_name)
    start = reader.initialOffset()
    assert ends(start, topic_name) == [7, 7]
    with pytest.raises(DataLossError, match=f"once millrace group delete '{topic_name}' has"):
        reader.latestOffset(start, limits.ReadAllAvailable())


def test_a_trigger_that_may_wait_ends_when_records_come(
    make_reader: MakeReader, send: Callable[[int], None], topic_name: str
) -> None:
    reader = make_reader(latestOffsetMaxWaitMs="30000")
    start = reader.initialOffset()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.latestOffset, start, limits.ReadAllAvailable())
        send(3)
        assert sum(ends(waiting.result(20), topic_name)) > 0


def test_a_trigger_that_waits_in_vain_returns_the_start(make_reader: MakeReader) -> None:
    reader = make_reader(latestOffsetMaxWaitMs="60")
    start = reader.initialOffset()
    began = time.monotonic()
    assert reader.latestOffset(start, limits.ReadAllAvailable()) == start
    assert time.monotonic() - began >= 0.06


@pytest.mark.nightly
def test_a_broker_that_restarts_is_waited_for(
    start_broker: StartBroker, open_reader: MakeReader
) -> None:
    broker = start_broker()
    broker.create_topic("clicks", 1)
    with SyncProducer(broker.address) as producer:
        producer.send("clicks", b"1")
    reader = open_reader(broker, subscribe="clicks")
    asks: list[Callable[[], Any]] = [
        open_reader(broker, subscribe="clicks", groupId="etl").initialOffset,
        lambda: reader.latestOffset(reader.initialOffset(), limits.ReadAllAvailable()),
        lambda: reader.partitions(reader.initialOffset(), end),
    ]
    start, end = reader.initialOffset(), asks[1]()
    answers = []
    for ask in asks:
        with broker.killed_for(1):
            answers.append(ask())
    assert answers[:2] == [start, end]
    assert spans(answers[2]) == [(0, 0, 1)]


def test_no_broker_is_told_when_the_time_is_over(
    start_broker: StartBroker, open_reader: MakeReader
) -> None:
    broker = start_broker()
    reader = open_reader(broker, subscribe="clicks", requestTimeoutMs="700")
    broker.kill()
    began = time.monotonic()
    with pytest.raises(ConnectionFailedError, match="no broker can be reached"):
        reader.initialOffset()
    assert 0.5 < time.monotonic() - began < 15  # By default it has 30 s.


class DeletingLookups(Lookups):
    """Deletes a topic before one of its questions."""

    def __init__(self, options: SourceOptions, topic: str, number: int) -> None:
        super().__init__(options)
        self._topic = topic
        self.left = number
        """Questions until it is deleted."""

    def ask(self, question: Callable[[SyncAdmin], Any]) -> Any:
        self.left -= 1
        if self.left == 0:
            super().ask(lambda admin: admin.delete_topic(self._topic))
        return super().ask(question)


@pytest.mark.parametrize("reads", ["stream", "available now", "batch"])
def test_a_topic_of_a_pattern_may_go_between_any_two_look_ups(
    shared_broker: RunningBroker, open_reader: MakeReader, topic_name: str, reads: str
) -> None:
    stays, goes = f"{topic_name}-stays", f"{topic_name}-goes"

    def create(topic: str) -> None:
        shared_broker.create_topic(topic, 1)
        with SyncProducer(shared_broker.address) as producer:
            for _ in range(5):
                producer.send(topic, bytes(100))

    create(stays)
    for number in itertools.count(1):
        create(goes)
        options = {"subscribePattern": f"{topic_name}.*", "failOnDataLoss": "false"}
        if reads == "batch":
            given = {"bootstrap.servers": shared_broker.address, **options}
            reader = batch_reader.BatchReader(parse_options(given, Use.BATCH), None)
        else:
            reader = open_reader(
                shared_broker,
                groupId=f"{topic_name}-{number}",
                maxBytesPerTrigger="1MiB",
                **options,
            )
        reader._lookups = lookups = DeletingLookups(reader._options, goes, number)
        if reads == "batch":
            tasks = reader.partitions()
        else:
            if reads == "available now":
                reader.prepareForTriggerAvailableNow()
            start = reader.initialOffset()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            tasks = reader.partitions(start, end)
        ranges = [task.value.ranges[0] for task in tasks]
        assert [part.end for part in ranges if part.topic == stays] == [5]
        if lookups.left > 0:
            assert number > 5
            return
