"""Batches without the records that later ones replace: their records, times, headers and sizes."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.kafka_batches import Record
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, kafka_batch_of

from millrace.core.ids import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    WallMs,
)
from millrace.core.records.batch import open_batch, prepare
from millrace.core.records.columns import Columns
from millrace.core.records.compression import Compressor
from millrace.core.records.header import (
    COLUMNS_FORMAT,
    KAFKA_FORMAT,
    Attributes,
    BatchHeader,
    parse_header,
    stamp,
)
from millrace.core.records.rewriting import RewrittenBatch, cut
from millrace.core.replica.compaction.batches import (
    BatchCleaner,
    CleaningRules,
    KeyCollector,
    OpenedBatch,
    open_groups,
)
from millrace.core.replica.compaction.key_hashes import KeyHasher
from millrace.core.replica.compaction.offset_map import OffsetMap

HASHER = KeyHasher(b"a secret of the test")
INFLATED_MAX = 1 << 30
NOW = WallMs(50_000)


def batch(
    base_offset: int,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None] | None = None,
    *,
    codec: str = "none",
    epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    sequence: int = -1,
    append_timestamp: int = NO_TIMESTAMP,
    **others: Any,
) -> bytes:
    """A stamped batch of records whose values say their offsets, unless they are given."""
    count = len(keys)
    filled = values or [b"value of %d" % (base_offset + number) for number in range(count)]
    columns = Columns(count, others.pop("timestamps", WallMs(1000)), filled, keys, **others)
    prepared = prepare(TOPIC_PARTITION, columns, Compressor(codec))
    producer_epoch = ProducerEpoch(-1 if producer_id < 0 else 0)
    header = prepared.finish(ProducerId(producer_id), producer_epoch, sequence)
    stamped = stamp(
        header,
        base_offset=Offset(base_offset),
        leader_epoch=LeaderEpoch(epoch),
        append_timestamp=WallMs(append_timestamp),
    )
    return stamped + bytes(prepared.body)


def whole(made: RewrittenBatch) -> bytes:
    return made.stamped + bytes(made.body)


def cleaned(
    data: bytes, *, now: WallMs = NOW, batch_bytes_max: int = 1 << 20, **rules: Any
) -> list[RewrittenBatch]:
    """Clean a log of these batches as a whole."""
    table = OffsetMap(1 << 20, records=10_000)
    collector = KeyCollector(table, HASHER, Offset(0))
    groups = list(open_groups(TOPIC_PARTITION, data, INFLATED_MAX))
    for group in groups:
        collector.take(group)
    cleaner = BatchCleaner(
        CleaningRules(
            topic_partition=TOPIC_PARTITION,
            start_offset=rules.get("start_offset", Offset(0)),
            end_offset=rules.get("end_offset", collector.end_offset),
            now=now,
            delete_retention_ms=1000,
            tombstones_end=rules.get("end_offset", collector.end_offset),
            last_batches=rules.get("last_batches", {}),
            batch_bytes_max=batch_bytes_max,
        ),
        table,
        HASHER,
    )
    made = [each for group in groups for each in cleaner.take(group)]
    return [*made, *cleaner.finish()]


def opened(made: RewrittenBatch) -> dict[str, list[Any]]:
    data = whole(made)
    header = parse_header(data)
    records: dict[str, list[Any]] = open_batch(
        TOPIC_PARTITION, header, data, INFLATED_MAX
    ).to_pydict()
    return records


def spans(batches: Sequence[RewrittenBatch]) -> list[tuple[int, int, int]]:
    """The offsets that each batch covers, and how many records it has."""
    return [
        (each.header.base_offset, each.header.next_offset, each.header.record_count)
        for each in batches
    ]


def test_what_stays_keeps_its_offsets_times_and_headers() -> None:
    times = np.array([1000, 3000, 2000], np.int64)
    headers = [[("a", b"1")], [], [("b", None)]]
    data = batch(0, [b"x", b"y", b"z"], timestamps=times, headers=headers) + batch(3, [b"y"])
    (made,) = cleaned(data)
    assert spans([made]) == [(0, 4, 3)]
    assert opened(made) == {
        "offset": [0, 2, 3],
        "timestamp": [1000, 2000, 1000],
        "key": [b"x", b"z", b"y"],
        "value": [b"value of 0", b"value of 2", b"value of 3"],
        "headers": [[{"key": "a", "value": b"1"}], [{"key": "b", "value": None}], []],
    }
    assert made.header.max_timestamp == 2000


def test_a_batch_that_keeps_all_and_is_not_small_is_given_back_byte_for_byte() -> None:
    large = batch(0, [b"key-%d" % number for number in range(300)], [b"x" * 100] * 300)
    small = batch(300, [b"a"]) + batch(301, [b"b"])
    made = cleaned(large + small)
    assert whole(made[0]) == large
    assert not made[0].is_rewritten
    assert spans(made[1:]) == [(300, 302, 2)]


@given(keys=st.lists(st.lists(st.sampled_from([b"x", b"y", b"z", None]), min_size=1), min_size=1))
def test_records_of_the_head_stay_as_those_that_are_hashed_again(
    keys: list[list[bytes | None]],
) -> None:
    data, end = b"", 0
    for some in keys:
        data += batch(end, some)
        end += len(some)
    as_head = cleaned(data)
    hashed_again = cleaned(data, start_offset=Offset(end))
    assert [whole(each) for each in as_head] == [whole(each) for each in hashed_again]
    latest = {key: offset for offset, key in enumerate(chain(*keys)) if key is not None}
    without_key = [offset for offset, key in enumerate(chain(*keys)) if key is None]
    found = [offset for each in as_head for offset in opened(each)["offset"]]
    assert found == sorted([*latest.values(), *without_key])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_codec_stays(codec: str) -> None:
    keys = [b"key-%d" % (number % 40) for number in range(80)]
    data = batch(0, keys, codec=codec) + batch(80, keys[:7], codec=codec)
    made = cleaned(data)
    assert len({each.header.codec for each in made}) == 1
    assert made[0].header.codec == parse_header(data).codec


def test_batches_of_other_epochs_codecs_and_append_times_stay_apart() -> None:
    data = b"".join(
        (
            batch(0, [b"a"]),
            batch(1, [b"b"], epoch=1),
            batch(2, [b"c"], epoch=1, append_timestamp=7000),
            batch(3, [b"d"], epoch=1, append_timestamp=7000),
            batch(4, [b"e"], epoch=1, append_timestamp=8000),
        )
    )
    made = cleaned(data)
    assert spans(made) == [(0, 1, 1), (1, 2, 1), (2, 4, 2), (4, 5, 1)]
    assert [each.header.append_timestamp for each in made] == [-1, -1, 7000, 8000]
    assert opened(made[2])["timestamp"] == [7000, 7000]


def kafka(base_offset: int, keys: Sequence[bytes | None], **more: Any) -> bytes:
    """Return a batch of a Kafka client's."""
    records = [Record(b"v%d" % at, key, 1000) for at, key in enumerate(keys, base_offset)]
    return bytes_of(kafka_batch_of(base_offset, records, **more))


def test_batches_of_kafka_become_one_of_kafka_and_none_with_columns() -> None:
    data = b"".join(
        (
            kafka(0, [b"a", b"b"]),
            kafka(2, [b"a", b"c"]),
            kafka(4, [b"a", b"d"]),
            batch(6, [b"e"]),
            batch(7, [b"a"]),
            kafka(8, [b"a", b"f"]),
        )
    )
    made = cleaned(data)
    assert spans(made) == [(0, 6, 3), (6, 8, 1), (8, 10, 2)]
    assert [each.header.format for each in made] == [KAFKA_FORMAT, COLUMNS_FORMAT, KAFKA_FORMAT]
    assert opened(made[0])["offset"] == [1, 3, 5]
    assert opened(made[0])["value"] == [b"v1", b"v3", b"v5"]
    assert not made[2].is_rewritten
    assert spans(cleaned(b"".join(map(whole, made)))) == spans(made)


def test_the_last_batch_of_a_kafka_producer_keeps_its_sequence_without_records() -> None:
    data = kafka(0, [b"a", b"b"], producer_id=7, sequence=0) + kafka(2, [b"a", b"b"])
    made = cleaned(data, last_batches={ProducerId(7): Offset(1)})
    assert spans(made) == [(0, 2, 0), (2, 4, 2)]
    assert (made[0].header.producer_id, made[0].header.last_sequence) == (7, 1)


def test_where_nothing_is_left_an_empty_batch_covers_the_offsets_of_each_epoch() -> None:
    data = b"".join(batch(number, [b"a"], epoch=number // 3) for number in range(9))
    made = cleaned(data + batch(9, [b"a"], epoch=3))
    assert spans(made) == [(0, 3, 0), (3, 6, 0), (6, 9, 0), (9, 10, 1)]
    assert [each.header.leader_epoch for each in made] == [0, 1, 2, 3]
    assert made[0].length == 96
    assert spans(cleaned(b"".join(map(whole, made)))) == spans(made)


def test_batches_that_are_put_together_are_no_larger_than_a_topic_allows() -> None:
    value = b"x" * 300
    data = b"".join(batch(number, [b"key-%d" % number], [value]) for number in range(40))
    made = cleaned(data, batch_bytes_max=4000)
    assert max(each.length for each in made) <= 4000
    assert len(made) < 20
    assert [offset for each in made for offset in opened(each)["offset"]] == list(range(40))
    covered = spans(made)
    assert all(one[1] == other[0] for one, other in pairwise(covered))
    assert (covered[0][0], covered[-1][1]) == (0, 40)


def test_a_batch_that_became_too_large_is_divided() -> None:
    """The offset column takes four bytes a record, which may be more than what goes."""
    keys = [b"key-%d" % number for number in range(200)]
    data = batch(0, keys, [b""] * 200)
    made = cleaned(data + batch(200, [b"key-7"]), batch_bytes_max=len(data))
    assert max(each.length for each in made) <= len(data)
    assert sum(each.header.record_count for each in made) == 200


def test_tombstones_get_a_horizon_and_go_after_it() -> None:
    data = batch(0, [b"a", b"b"], [b"1", b"2"]) + batch(2, [b"a"], [None])
    (made,) = cleaned(data)
    assert made.header.delete_horizon == NOW + 1000
    assert opened(made)["offset"] == [1, 2]
    again = whole(made)
    (same,) = cleaned(again, now=WallMs(NOW + 999))
    assert whole(same) == again
    (gone,) = cleaned(again, now=WallMs(NOW + 1000))
    assert opened(gone)["offset"] == [1]
    assert gone.header.delete_horizon == NO_TIMESTAMP
    assert spans([gone]) == [(0, 3, 1)]


def test_a_horizon_is_not_put_off_by_a_later_tombstone() -> None:
    (first,) = cleaned(batch(0, [b"a"], [None]))
    made = cleaned(whole(first) + batch(1, [b"b"], [None]), now=WallMs(NOW + 500))
    assert [each.header.delete_horizon for each in made] == [NOW + 1000, NOW + 1500]


def test_the_last_batch_of_a_producer_stays_apart_with_its_sequence() -> None:
    data = b"".join(
        (
            batch(0, [b"a", b"b"], producer_id=7, sequence=0),
            batch(2, [b"a", b"b"], producer_id=7, sequence=2),
            batch(4, [b"a", b"b"]),
        )
    )
    made = cleaned(data, last_batches={ProducerId(7): Offset(3)})
    assert spans(made) == [(0, 2, 0), (2, 4, 0), (4, 6, 2)]
    assert [each.header.producer_id for each in made] == [-1, 7, -1]
    assert (made[1].header.base_sequence, made[1].header.last_sequence) == (2, 3)


def headers_of(group: Sequence[OpenedBatch]) -> list[BatchHeader]:
    return [each.header for each in group]


def test_groups_are_of_bounded_size() -> None:
    value = b"x" * 300_000
    data = b"".join(batch(number, [b"k"], [value]) for number in range(9))
    groups = list(open_groups(TOPIC_PARTITION, data, INFLATED_MAX))
    assert sum(map(len, groups)) == 9
    sizes = [[each.opened_bytes for each in headers_of(group)] for group in groups]
    assert all(len(size) == 1 or sum(size) <= 1 << 20 for size in sizes)


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_the_end_of_a_batch_has_the_same_records(offset: int) -> None:
    data = batch(10, [b"a", b"b", b"c", b"d", b"e"], producer_id=3, sequence=100, epoch=4)
    header = parse_header(data)
    made = cut(TOPIC_PARTITION, header, data, Offset(10 + offset))
    assert spans([made]) == [(10 + offset, 15, 5 - offset)]
    assert opened(made)["offset"] == list(range(10 + offset, 15))
    assert made.header.leader_epoch == 4
    assert made.header.base_sequence == 100 + offset
    assert made.header.last_sequence == header.last_sequence


@pytest.mark.parametrize("kind", [Attributes.TRANSACTIONAL, Attributes.CONTROL])
def test_the_end_of_a_batch_is_of_the_same_kind(kind: int) -> None:
    prepared = prepare(TOPIC_PARTITION, Columns(3, WallMs(1000), [b"a", b"b", b"c"]))
    prepared.attributes |= kind
    identity = (ProducerId(3), ProducerEpoch(0), 0) if kind == Attributes.TRANSACTIONAL else ()
    data = stamp(prepared.finish(*identity), base_offset=Offset(10), leader_epoch=LeaderEpoch(1))
    data += bytes(prepared.body)
    made = cut(TOPIC_PARTITION, parse_header(data), data, Offset(11))
    assert made.header.attributes & (Attributes.TRANSACTIONAL | Attributes.CONTROL) == kind


def test_the_end_of_a_batch_may_have_no_records() -> None:
    made = cleaned(batch(0, [b"a", b"b"]) + batch(2, [b"b", b"b", b"b"]) + batch(5, [b"b"]))
    (joined,) = made
    assert spans([joined]) == [(0, 6, 2)]
    end = cut(TOPIC_PARTITION, joined.header, whole(joined), Offset(2))
    assert spans([end]) == [(2, 6, 1)]
    empty = cut(TOPIC_PARTITION, parse_header(whole(end)), whole(end), Offset(5))
    assert opened(empty)["offset"] == [5]
