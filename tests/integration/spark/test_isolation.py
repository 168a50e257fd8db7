"""What Spark reads of a topic with transactions, asked without Spark."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.broker import FakeBroker
from tests.fakes.transaction_log import TransactionLog

from millrace.client._sync.loop_thread import LoopThread
from millrace.spark.options.option import Use
from millrace.spark.options.source_options import SourceOptions, parse_options

limits = pytest.importorskip(
    "pyspark.sql.streaming.datasource", reason="needs pyspark: sh requirements/install.sh spark"
)
batch_reader = pytest.importorskip("millrace.spark.source.batch_reader")
range_reader = pytest.importorskip("millrace.spark.source.range_reader")
schema = pytest.importorskip("millrace.spark.source.schema")
stream_reader = pytest.importorskip("millrace.spark.source.stream_reader")

SCHEMA = schema.source_schema(with_headers=False)
COMMITTED = [b"committed", b"plain"]
"""Then there is an aborted tail, and an open transaction at offset 6."""


class Served:
    """A broker with a topic `orders` of one partition, and readers of it."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        broker.create_topic("orders", 1)
        self.log = TransactionLog(broker.log("orders").topic_partition)
        self.log.append([b"committed"], 1)
        self.log.end([1], is_committed=True)
        self.log.append([b"plain"])
        self.log.append([b"aborted"] * 2, 2)
        self.log.end([2], is_committed=False)
        self.log.append([b"open"] * 2, 3)
        self.put()

    def put(self) -> None:
        self.broker.log("orders").put(self.log)

    def options(self, use: Use, **others: str) -> SourceOptions:
        given = {"bootstrap.servers": self.broker.address, "subscribe": "orders"}
        return parse_options({**given, "startingOffsets": "earliest", **others}, use)

    def batch(self, **others: str) -> list[bytes]:
        options = self.options(Use.BATCH, pollTimeoutMs="5s", **others)
        return self.rows(batch_reader.make_batch_reader(options, SCHEMA, None))

    def rows(self, reader: Any, *between: Any) -> list[bytes]:
        read: list[pa.RecordBatch] = []
        for task in reader.partitions(*between):
            read += reader.read(task)
        return [value for batch in read for value in batch.column("value").to_pylist()]


@pytest.fixture
def served() -> Iterator[Served]:
    broker, loop = FakeBroker(), LoopThread.shared()
    loop.call(broker.start())
    yield Served(broker)
    loop.call(broker.stop())


@pytest.fixture
def stream(served: Served) -> Iterator[Any]:
    made = []

    def make(**others: str) -> Any:
        options = served.options(Use.STREAM, **others)
        made.append(stream_reader.StreamReader(options, SCHEMA))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def end_of(offset: dict[str, Any]) -> int:
    return int(offset["orders"]["0"])


ALL = limits.ReadAllAvailable()


def test_a_batch_ends_before_an_open_transaction_and_reads_no_aborted_record(
    served: Served,
) -> None:
    assert served.batch() == COMMITTED
    found = served.batch(isolation="read_uncommitted")
    assert found == [b"committed", b"plain", b"aborted", b"aborted", b"open", b"open"]


def test_a_batch_whose_tasks_are_split_within_a_transaction_reads_the_same(served: Served) -> None:
    assert served.batch(minPartitions="6") == COMMITTED


def test_an_available_now_query_ends_with_the_last_decided_record(
    served: Served, stream: Any
) -> None:
    reader = stream(maxOffsetsPerTrigger="2")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    found, ends = [], []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        found += served.rows(reader, start, end)
        ends.append(end_of(end))
        start = end
    assert found == COMMITTED
    assert ends == [2, 4, 6], "batches without a record come to an end, too"


def test_a_stream_goes_on_with_a_transaction_once_it_is_committed(
    served: Served, stream: Any
) -> None:
    reader = stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert end_of(end) == 6
    assert reader.latestOffset(end, ALL) == end
    served.log.end([3], is_committed=True)
    served.put()
    last = reader.latestOffset(end, ALL)
    assert served.rows(reader, end, last) == [b"open", b"open"]
    assert end_of(last) == served.log.end_offset


def test_a_query_that_has_read_uncommitted_records_waits_for_those_that_are_committed(
    served: Served, stream: Any
) -> None:
    before = stream(isolation="read_uncommitted")
    start = before.initialOffset()
    checkpoint = before.latestOffset(start, ALL)
    assert end_of(checkpoint) == 8
    reader = stream()
    reader.initialOffset()
    assert reader.latestOffset(checkpoint, ALL) == checkpoint, "nothing is lost, and it stays"
    assert served.rows(reader, checkpoint, checkpoint) == []
    served.log.append([b"later"])
    served.log.end([3], is_committed=True)
    served.put()
    end = reader.latestOffset(checkpoint, ALL)
    assert served.rows(reader, checkpoint, end) == [b"later"]
