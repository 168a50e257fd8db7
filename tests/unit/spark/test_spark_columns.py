"""From a consumer's columns to Spark's: nothing is decoded, and little is copied."""

from collections.abc import Sequence

import pyarrow as pa

from millrace.core.records.columns import SCHEMA
from millrace.core.records.header import TIMESTAMP_MAX
from millrace.spark.source.range_reader import Received, SparkColumns

HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
WITHOUT_HEADERS = pa.schema(
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
WITH_HEADERS = WITHOUT_HEADERS.append(pa.field("headers", HEADERS))
PLACE = ("clicks", 3)


def records(
    first: int, count: int, headers: Sequence[Sequence[dict[str, object]]] | None = None
) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        [
            pa.array(numbers, pa.int64()),
            pa.array([1000 + number for number in numbers], pa.int64()),
            pa.array([None if number % 3 == 0 else b"k%d" % number for number in numbers]),
            pa.array([b"v%d" % number for number in numbers], pa.binary()),
            pa.array([[]] * count if headers is None else headers, SCHEMA.field("headers").type),
        ],
        schema=SCHEMA,
    )


def received(records: pa.RecordBatch, *, has_append_time: bool = False) -> Received:
    return Received(PLACE, records, has_append_time)


def test_the_columns_are_kafka_s() -> None:
    (batch,) = SparkColumns(WITHOUT_HEADERS, 100).joined([received(records(6, 2))])
    assert batch.schema.equals(WITHOUT_HEADERS)
    batch.validate(full=True)
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_006_000, 1_007_000]
    rows = batch.drop_columns(["timestamp"]).to_pylist()
    assert rows[0] == {
        "key": None,
        "value": b"v6",
        "topic": "clicks",
        "partition": 3,
        "offset": 6,
        "timestampType": 0,
    }
    assert rows[1]["key"] == b"k7"


def test_whose_times_they_are_is_told_by_batch() -> None:
    given = [received(records(0, 2)), received(records(2, 3), has_append_time=True)]
    columns = SparkColumns(WITHOUT_HEADERS, 100)
    (batch,) = columns.joined([*given, received(records(5, 1))])
    assert batch.column("timestampType").to_pylist() == [0, 0, 1, 1, 1, 0]


def test_headers_are_null_where_a_record_has_none() -> None:
    headers: list[list[dict[str, object]]] = [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        [],
        [{"key": "b", "value": b""}],
        [],
    ]
    columns = SparkColumns(WITH_HEADERS, 3)
    batches = list(columns.joined([received(records(0, 4, headers)), received(records(4, 1))]))
    for batch in batches:
        assert batch.schema.equals(WITH_HEADERS)
        batch.validate(full=True)
    shown = [row for batch in batches for row in batch.column("headers").to_pylist()]
    assert shown == [headers[0], None, headers[2], None, None]


def test_keys_and_values_are_what_was_received() -> None:
    given = records(0, 50)
    (batch,) = SparkColumns(WITHOUT_HEADERS, 50).joined([received(given)])
    for name in ("key", "value", "offset"):
        shown, own = batch.column(name).buffers(), given.column(name).buffers()
        assert [buffer and buffer.address for buffer in shown] == [
            buffer and buffer.address for buffer in own
        ]


def test_small_batches_are_joined_and_large_ones_cut() -> None:
    columns = SparkColumns(WITH_HEADERS, 10)
    small = [received(records(4 * number, 4)) for number in range(5)]
    joined = list(columns.joined([*small, received(records(20, 25)), received(records(45, 0))]))
    assert [len(batch) for batch in joined] == [8, 8, 4, 10, 10, 5]
    offsets = [offset for batch in joined for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(45))
    assert list(columns.joined([])) == []


def test_large_batches_are_not_copied_and_keep_their_place() -> None:
    large = records(10, 2).set_column(
        3, SCHEMA.field("value"), pa.array([bytes(range(256)) * 1000] * 2, pa.binary())
    )
    batches = [received(part) for part in (records(0, 4), records(4, 6), large, records(12, 1))]
    joined = list(SparkColumns(WITHOUT_HEADERS, 100).joined(batches))
    assert [len(batch) for batch in joined] == [10, 2, 1]
    shown, own = joined[1].column("value").buffers(), large.column("value").buffers()
    assert shown[2].address == own[2].address


def test_nothing_is_kept_of_a_partition() -> None:
    columns, given = SparkColumns(WITHOUT_HEADERS, 20_000), records(0, 10)
    before = pa.total_allocated_bytes()
    for number in range(200):
        (batch,) = columns.joined([Received(("clicks", number), given, False)])
        assert batch.column("partition").to_pylist() == [number] * 10
    del batch
    assert pa.total_allocated_bytes() - before < 20_000


def test_the_last_time_that_a_record_may_have_is_told() -> None:
    times = pa.array([0, TIMESTAMP_MAX], pa.int64())
    latest = records(0, 2).set_column(1, SCHEMA.field("timestamp"), times)
    batch = SparkColumns(WITHOUT_HEADERS, 100).of(received(latest))
    assert [time.year for time in batch.column("timestamp").to_pylist()] == [1970, 9999]
