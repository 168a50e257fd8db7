"""From intakes to sealed batches."""

import random
from collections.abc import Callable
from functools import partial
from math import inf

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.client.producer.batch import ProducerBatch, encode
from millrace.core.client.producer.distributor import Distributor, TopicLayout
from millrace.core.client.producer.intake import Intake, Intakes
from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.client.producer.partitioners import ByFunction, Keyed, Partitioner, RoundRobin
from millrace.core.client.producer.sent_columns import SentColumns
from millrace.core.errors import InvalidRecordError, UnknownTopicOrPartitionError
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition, WallMs
from millrace.core.records.batch import open_batch
from millrace.core.records.columns import HEADERS_TYPE
from millrace.core.records.compression import Compressor
from millrace.core.records.header import parse_header

TOPIC_ID = TopicId(b"t" * 16)
FOREVER = MonotonicMs(2**62)
WALL = WallMs(1_700_000_000_000)


def make(
    batch_size: int = 1000,
    partitioner: Partitioner | None = None,
    queue_length: Callable[[TopicPartition], float] = lambda _: 0,
) -> Distributor:
    return Distributor(batch_size, partitioner or Keyed(), queue_length, random.Random(1))


def intake_of(
    values: list[bytes | None],
    keys: list[bytes | None] | None = None,
    partitions: list[int] | None = None,
    opened_at: int = 0,
    *,
    as_columns: bool = False,
) -> Intake:
    intakes = Intakes(2**30, 2**31)
    if as_columns:
        sent = SentColumns(
            pa.array(values, pa.binary()),
            None if keys is None else pa.array(keys, pa.binary()),
            None,
            None,
            None if partitions is None else np.array(partitions),
            len(values),
        )
        size = int(sent.sizes().sum())
        assert intakes.add_columns("t", sent, size, MonotonicMs(opened_at), WALL)
    else:
        for row, value in enumerate(values):
            key = None if keys is None else keys[row]
            partition = None if partitions is None or partitions[row] < 0 else partitions[row]
            intakes.add("t", value, key, partition, None, None, MonotonicMs(opened_at), WALL)
        intakes.close("t")
    return intakes.closed[-1]


def rows(batch: ProducerBatch) -> list[tuple[bytes | None, bytes | None]]:
    prepared = encode(batch, Compressor())
    data = prepared.finish() + bytes(prepared.body)
    opened = open_batch(batch.topic_partition, parse_header(data), data, 2**30)
    keys, values = opened.column("key").to_pylist(), opened.column("value").to_pylist()
    return list(zip(keys, values, strict=True))


def test_records_without_keys_stay_together_until_the_batch_is_sealed() -> None:
    distributor = make()
    for number in range(3):
        distributor.distribute(intake_of([b"%d" % number]), TopicLayout(TOPIC_ID, 8))
    distributor.seal_opened_until(FOREVER)
    (batch,) = distributor.sealed
    assert rows(batch) == [(None, b"0"), (None, b"1"), (None, b"2")]


def test_the_next_batch_without_keys_avoids_the_longer_queue() -> None:
    distributor = make(queue_length=lambda place: 0 if place.partition == 2 else 9)
    found = set()
    for _ in range(40):
        distributor.distribute(intake_of([b"x"]), TopicLayout(TOPIC_ID, 4))
        distributor.seal_opened_until(FOREVER)
        found.add(distributor.sealed[-1].topic_partition.partition)
    partitions = [batch.topic_partition.partition for batch in distributor.sealed]
    assert partitions.count(2) > 10
    assert len(found) > 1  # Not even an empty queue gets everything.


def partitions_without_keys(distributor: Distributor, partition_count: int) -> list[int]:
    for _ in range(500):
        distributor.distribute(intake_of([b"x"]), TopicLayout(TOPIC_ID, partition_count))
        distributor.seal_opened_until(FOREVER)
    return [batch.topic_partition.partition for batch in distributor.sealed]


def test_the_longest_queue_never_gets_records_without_keys() -> None:
    distributor = make(queue_length=lambda place: 5 if place.partition == 1 else 0)
    assert set(partitions_without_keys(distributor, 3)) == {0, 2}


def test_records_without_keys_go_where_somebody_leads_however_few_that_are() -> None:
    led = {2, 5}
    distributor = make(queue_length=lambda place: 7 if place.partition in led else inf)
    partitions = partitions_without_keys(distributor, 6)
    assert set(partitions) == led
    led.clear()  # Then they wait anywhere.
    assert set(partitions_without_keys(distributor, 6)) == set(range(6))
    assert set(partitions_without_keys(make(), 1)) == {0}


def test_a_key_goes_where_kafka_would_put_it() -> None:
    distributor = make()
    keys: list[bytes | None] = [b"key-%d" % number for number in range(50)]
    distributor.distribute(intake_of(list(keys), keys), TopicLayout(TOPIC_ID, 5))
    distributor.seal_opened_until(FOREVER)
    for batch in distributor.sealed:
        for key, value in rows(batch):
            assert key is not None
            assert key == value
            assert partition_of(key, 5) == batch.topic_partition.partition


def test_a_named_partition_wins() -> None:
    distributor = make()
    distributor.distribute(
        intake_of([b"a", b"b", b"c"], [b"k", b"k", b"k"], [3, 1, 3]), TopicLayout(TOPIC_ID, 4)
    )
    distributor.seal_opened_until(FOREVER)
    found = {batch.topic_partition.partition: rows(batch) for batch in distributor.sealed}
    assert found == {1: [(b"k", b"b")], 3: [(b"k", b"a"), (b"k", b"c")]}


def test_a_partition_that_does_not_exist_fails_its_record_alone() -> None:
    distributor = make()
    intake = intake_of([b"a", b"b", b"c"], None, [0, 9, 0])
    distributor.distribute(intake, TopicLayout(TOPIC_ID, 2))
    distributor.seal_opened_until(FOREVER)
    error = intake.locate(1)
    assert isinstance(error, UnknownTopicOrPartitionError)
    assert "0 to 1" in error.message
    (batch,) = distributor.sealed
    assert [value for _, value in rows(batch)] == [b"a", b"c"]
    assert intake.locate(2) == (batch, 1)


def test_round_robin_goes_on_over_intakes() -> None:
    distributor = make(partitioner=RoundRobin())
    for start in (0, 3):
        values: list[bytes | None] = [b"%d" % (start + number) for number in range(3)]
        distributor.distribute(intake_of(values), TopicLayout(TOPIC_ID, 4))
    distributor.seal_opened_until(FOREVER)
    found = {
        batch.topic_partition.partition: [value for _, value in rows(batch)]
        for batch in distributor.sealed
    }
    assert found == {0: [b"0", b"4"], 1: [b"1", b"5"], 2: [b"2"], 3: [b"3"]}


@pytest.mark.parametrize("as_columns", [False, True])
def test_the_users_function_decides_and_its_mistakes_stay_alone(as_columns: bool) -> None:
    calls = []

    def choose(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        calls.append((topic, key, value, count))
        assert value is not None
        return int(value)

    distributor = make(partitioner=ByFunction(choose))
    intake = intake_of([b"1", b"boom", b"7", b"0"], as_columns=as_columns)
    distributor.distribute(intake, TopicLayout(TOPIC_ID, 3))
    distributor.seal_opened_until(FOREVER)
    assert calls[0] == ("t", None, b"1", 3)
    for row, text in ((1, "boom"), (2, "returned 7")):
        error = intake.locate(row)
        assert isinstance(error, InvalidRecordError)
        assert text in error.message
    assert sorted(batch.topic_partition.partition for batch in distributor.sealed) == [0, 1]


def test_large_columns_are_cut_into_batches_and_spread() -> None:
    distributor = make(batch_size=1000)
    values: list[bytes | None] = [b"%090d" % number for number in range(100)]
    distributor.distribute(intake_of(values, as_columns=True), TopicLayout(TOPIC_ID, 16))
    distributor.seal_opened_until(FOREVER)
    assert all(batch.size <= 1000 for batch in distributor.sealed)
    assert len({batch.topic_partition for batch in distributor.sealed}) > 3
    found = [value for batch in distributor.sealed for _, value in rows(batch)]
    assert len(found) == 100
    assert set(found) == set(values)


def test_a_batch_size_of_zero_seals_each_record_alone() -> None:
    distributor = make(batch_size=0)
    distributor.distribute(intake_of([b"a", b"b"], as_columns=True), TopicLayout(TOPIC_ID, 1))
    assert [rows(batch) for batch in distributor.sealed] == [[(None, b"a")], [(None, b"b")]]


def test_a_batch_is_sealed_by_the_age_of_its_oldest_record() -> None:
    distributor = make()
    distributor.distribute(intake_of([b"a"], [b"k"], opened_at=10), TopicLayout(TOPIC_ID, 1))
    distributor.distribute(intake_of([b"b"], [b"k"], opened_at=20), TopicLayout(TOPIC_ID, 1))
    assert distributor.first_opened_at() == 10
    distributor.seal_opened_until(MonotonicMs(9))
    assert not distributor.sealed
    distributor.seal_opened_until(MonotonicMs(10))
    assert [value for _, value in rows(distributor.sealed[0])] == [b"a", b"b"]


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(
                st.tuples(
                    st.none() | st.binary(max_size=3),
                    st.none() | st.binary(max_size=60),
                    st.sampled_from([-1, -1, 0, 1, 2]),
                ),
                min_size=1,
                max_size=20,
            ),
        ),
        max_size=5,
    ),
    st.sampled_from([0, 64, 300, 5000]),
)
def test_no_record_is_lost_doubled_or_passed_by_a_later_one_of_its_partition(
    sent: list[tuple[bool, list[tuple[bytes | None, bytes | None, int]]]], batch_size: int
) -> None:
    distributor = make(batch_size)
    handles = []
    for as_columns, records in sent:
        intake = intake_of(
            [value for _, value, _ in records],
            [key for key, _, _ in records],
            [partition for _, _, partition in records],
            as_columns=as_columns,
        )
        before = intake.size
        distributor.distribute(intake, TopicLayout(TOPIC_ID, 3))
        assert intake.size == before
        handles += [(intake, row, record) for row, record in enumerate(records)]
    distributor.seal_opened_until(FOREVER)
    contents = {id(batch): rows(batch) for batch in distributor.sealed}
    order = {id(batch): place for place, batch in enumerate(distributor.sealed)}
    latest: dict[int, tuple[int, int]] = {}
    seen = set()
    for intake, row, (key, value, named) in handles:
        place = intake.locate(row)
        assert isinstance(place, tuple)
        batch, index = place
        assert contents[id(batch)][index] == (key, value)
        assert (id(batch), index) not in seen
        seen.add((id(batch), index))
        partition = batch.topic_partition.partition
        if named >= 0:
            assert partition == named
        elif key is not None:
            assert partition == partition_of(key, 3)
        position = (order[id(batch)], index)
        assert latest.get(partition, (-1, -1)) < position
        latest[partition] = position
    assert len(seen) == sum(map(len, contents.values()))


def by_size(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
    return len(key or b"") + len(value or b"")  # Now and then no partition.


@pytest.mark.parametrize(
    "partitioner", [Keyed, RoundRobin, partial(ByFunction, by_size)], ids=["key", "turns", "size"]
)
@given(
    sent=st.lists(
        st.lists(
            st.tuples(
                st.none() | st.binary(max_size=9) | st.binary(min_size=200, max_size=200),
                st.none() | st.binary(max_size=60),
                st.sampled_from([-1, -1, 0, 1, 2, 3]),
            ),
            min_size=1,
            max_size=8,
        ),
        max_size=4,
    ),
    are_named=st.booleans(),
    batch_size=st.sampled_from([0, 64, 300, 5000]),
)
def test_records_one_by_one_go_where_the_same_records_in_columns_go(
    sent: list[list[tuple[bytes | None, bytes | None, int]]],
    are_named: bool,
    batch_size: int,
    partitioner: Callable[[], Partitioner],
) -> None:
    found = []
    for as_columns in (False, True):
        distributor = make(batch_size, partitioner())
        places: list[object] = []
        for records in sent:
            keys = [key for key, _, _ in records]
            partitions = [partition for _, _, partition in records]
            intake = intake_of(
                [value for _, value, _ in records],
                keys if any(key is not None for key in keys) else None,
                partitions if are_named and max(partitions) >= 0 else None,
                as_columns=as_columns,
            )
            distributor.distribute(intake, TopicLayout(TOPIC_ID, 3))
            for row in range(len(records)):
                place = intake.locate(row)
                if isinstance(place, tuple):
                    places.append((place[0].topic_partition, place[1]))
                else:
                    places.append(str(place))
        distributor.seal_opened_until(FOREVER)
        batches = [(batch.topic_partition, batch.size, rows(batch)) for batch in distributor.sealed]
        found.append((places, batches))
    assert found[0] == found[1]


def test_headers_of_several_columns_share_a_batch() -> None:
    distributor = make(batch_size=10_000)
    intakes = Intakes(2**30, 2**31)
    for number in range(2):
        headers = pa.array([[{"key": "n", "value": b"%d" % number}], None], HEADERS_TYPE)
        values = pa.array([b"v", b"w"])
        sent = SentColumns(values, None, headers, None, np.array([0, 0]), 2)
        assert intakes.add_columns("t", sent, int(sent.sizes().sum()), MonotonicMs(0), WALL)
        distributor.distribute(intakes.closed.popleft(), TopicLayout(TOPIC_ID, 1))
    distributor.seal_opened_until(FOREVER)
    (batch,) = distributor.sealed
    joined = batch.columns().headers
    assert isinstance(joined, pa.Array)
    rows = [row or () for row in joined.to_pylist()]
    assert [[(header["key"], header["value"]) for header in row] for row in rows] == [
        [("n", b"0")], [], [("n", b"1")], [],
    ]  # fmt: skip
