"""A compacted topic in Spark: what is left of it, exactly, and as a table of the latest rows (P57).

Its records were replaced by later ones here and there, over long stretches, and at the ends of
batches: so ranges of offsets hold fewer records than offsets, or none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.spark.test_batch import read
from tests.integration.spark.test_ranges import SCHEMA, options, rows
from tests.integration.spark.test_stream import Query

from millrace.client import Record, SyncAdmin, SyncConsumer, SyncProducer
from millrace.spark import tables
from millrace.spark.errors import InvalidColumnsError
from millrace.spark.source import range_reader
from millrace.spark.source.planning import Range
from millrace.spark.source.range_reader import Task, read_task

pytestmark = pytest.mark.timeout(300)  # Several queries, and a cleaner, on a machine that is busy.
TOPIC = "aircraft"
PARTITIONS = 2
KEYS = 300
ROUNDS = 8
REMOVED = "millrace_cleaner_removed_records_total"


Cell = tuple[bytes, bytes | None]


def rounds() -> Iterator[list[Cell]]:
    """Return what is written: each round writes all keys but some; the last one deletes some."""
    for number in range(ROUNDS):
        yield [
            (b"N%d" % key, b"%d in round %d" % (key, number)) for key in range(number * 20, KEYS)
        ]
    yield [(b"N%d" % key, None) for key in range(0, KEYS, 3)]


WRITTEN = [cell for cells in rounds() for cell in cells]
EXPECTED = {key: value for key, value in dict(WRITTEN).items() if value is not None}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker with the topic; all but its latest records are removed."""
    running = RunningBroker(
        tmp_path_factory.mktemp("compacted"), {"storage.cleaner_backoff_ms": 50}
    )
    try:
        running.start()
        with SyncAdmin(running.address) as admin:
            config = {
                "cleanup.policy": "compact",
                "segment.ms": "1000",
                "min.cleanable.dirty.ratio": "0",
            }
            admin.create_topic(TOPIC, PARTITIONS, config=config)
        for cells in rounds():  # The last batch of a producer stays, without its records.
            with SyncProducer(running.address, batch_size="1KiB") as producer:
                for key, value in cells:
                    producer.send(TOPIC, value, key=key)
        removed = len(WRITTEN) - KEYS
        wait_until(lambda: running.metrics()[REMOVED] >= removed, "only the latest are left", 40)
        yield running
    finally:
        running.abandon()
        range_reader._idle.close()


@pytest.fixture(scope="module")
def left(broker: RunningBroker) -> dict[tuple[int, int], Record]:
    """The records that are left, by their places: as the client reads them."""
    with SyncAdmin(broker.address) as admin, SyncConsumer(broker.address) as consumer:
        ends = {offset: end.offset for offset, end in admin.list_offsets(TOPIC).items()}
        consumer.assign([TOPIC], start="beginning")
        found: dict[tuple[int, int], Record] = {}
        while any(consumer.position(place) < end for place, end in ends.items()):
            found.update(
                {(record.partition, record.offset): record for record in consumer.poll(500)}
            )
    assert len(found) == KEYS
    assert sum(ends.values()) > 5 * len(found)
    return found


def end_of(broker: RunningBroker, partition: int) -> int:
    with SyncAdmin(broker.address) as admin:
        return admin.list_offsets([(TOPIC, partition)])[TOPIC, partition].offset


def test_each_range_of_offsets_has_the_records_that_are_left_in_it(
    broker: RunningBroker, left: dict[tuple[int, int], Record]
) -> None:
    end = end_of(broker, 0)
    given = options(broker.address, pollTimeoutMs="5000")
    for size in (1, 7, 100, end):
        starts = range(0, end, size) if size > 1 else range(end - 40, end)
        for start in starts:
            task = Task((Range(TOPIC, 0, start, min(start + size, end)),), {})
            found = [offset for _, offset, _ in rows(read_task(task, given, SCHEMA))]
            assert found == [
                at for number, at in sorted(left) if number == 0 and start <= at < start + size
            ]


@pytest.mark.parametrize("more", [{}, {"minPartitions": "9"}, {"maxRecordsPerPartition": "11"}])
def test_a_batch_has_what_is_left(
    spark: Any,
    broker: RunningBroker,
    left: dict[tuple[int, int], Record],
    more: dict[str, str],
) -> None:
    frame = read(spark, broker, subscribe=TOPIC, **more)
    found = {(row.partition, row.offset): (row.key, row.value) for row in frame.collect()}
    assert found == {place: (entry.key, entry.value) for place, entry in left.items()}


def test_read_as_a_table_it_equals_a_dict_of_the_last_values(
    spark: Any, broker: RunningBroker
) -> None:
    table = tables.latest_of_each_key(read(spark, broker, subscribe=TOPIC, minPartitions="5"))
    assert {row.key: row.value for row in table.collect()} == EXPECTED
    assert table.count() == len(EXPECTED)


def test_a_table_has_the_columns_of_the_records_and_tells_partitions_apart(spark: Any) -> None:
    records = spark.createDataFrame(
        [
            (b"a", b"old", "t", 0, 1),
            (b"a", b"new", "t", 0, 7),
            (b"a", b"elsewhere", "t", 1, 3),
            (b"", b"of the empty key", "t", 0, 2),
            (None, b"without a key", "t", 0, 8),
            (b"gone", b"value", "t", 0, 4),
            (b"gone", None, "t", 0, 5),
            (b"back", None, "t", 0, 6),
            (b"back", b"again", "t", 0, 9),
        ],
        "key binary, value binary, topic string, partition int, offset long",
    )
    table = tables.latest_of_each_key(records)
    assert table.schema == records.schema
    assert sorted((row.key, row.value, row.partition) for row in table.collect()) == [
        (b"", b"of the empty key", 0),
        (b"a", b"elsewhere", 1),
        (b"a", b"new", 0),
        (b"back", b"again", 0),
    ]


def test_a_table_of_records_without_their_offsets_is_refused(spark: Any) -> None:
    records = spark.createDataFrame(
        [(b"a", b"b", "t", 0)], "key binary, value binary, topic string, partition int"
    )
    with pytest.raises(
        InvalidColumnsError, match=r"without the columns \['offset'\]: call this first"
    ):
        tables.latest_of_each_key(records)


def test_a_stream_reads_what_is_left_in_batches_that_count_offsets(
    spark: Any, broker: RunningBroker, left: dict[tuple[int, int], Record], tmp_path: Path
) -> None:
    query = Query(spark, broker, tmp_path, subscribe=TOPIC, maxOffsetsPerTrigger="200")
    progress = query.run()
    assert all(batch["numInputRows"] <= 200 for batch in progress)
    found = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in found) == sorted(left)
    ends = {str(number): end_of(broker, number) for number in range(PARTITIONS)}
    assert query.offsets(max(batch["batchId"] for batch in progress))[TOPIC] == ends


def test_a_stream_that_begins_where_records_were_removed_begins_with_the_next(
    spark: Any, broker: RunningBroker, left: dict[tuple[int, int], Record], tmp_path: Path
) -> None:
    removed = next(at for at in range(end_of(broker, 0)) if (0, at) not in left)
    starting = f'{{"{TOPIC}":{{"0":{removed},"1":{end_of(broker, 1)}}}}}'
    query = Query(spark, broker, tmp_path, subscribe=TOPIC, startingOffsets=starting)
    query.run(maxBytesPerTrigger="1000")
    found = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset").collect()
    expected = [place for place in sorted(left) if place >= (0, removed) and not place[0]]
    assert sorted((row.partition, row.offset) for row in found) == expected


def test_rows_go_to_a_compacted_topic_with_keys_only(spark: Any, broker: RunningBroker) -> None:
    topic = "written-by-spark"
    broker.create_topic(topic, config={"cleanup.policy": "compact"})

    def write(rows: list[tuple[str | None, str | None]]) -> None:
        frame = spark.createDataFrame(rows, "key string, value string").coalesce(1)
        writer = frame.write.format("millrace").option("bootstrap.servers", broker.address)
        writer.option("topic", topic).mode("append").save()

    with pytest.raises(Exception, match="the batch has 1 record without a key, and the topic is"):
        write([(None, "value")])
    write([("a", "old"), ("b", "old"), ("a", "new"), ("b", None)])
    table = tables.latest_of_each_key(read(spark, broker, subscribe=topic))
    assert [(row.key, row.value) for row in table.collect()] == [(b"a", b"new")]
