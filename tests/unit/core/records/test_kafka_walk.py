"""The walk over Kafka's records: where fields lie, and what is refused."""

import tracemalloc
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fakes.kafka_batches import cell, varint

from millrace.core.errors import InvalidRecordError, MessageTooLargeError
from millrace.core.records import kafka_walk
from millrace.core.records.arrow_views import slices
from millrace.core.records.columns import RECORDS_MAX
from millrace.core.records.kafka_walk import FEW_MAX, Walked, walk


class Record(NamedTuple):
    """The fields of a record; its headers' names are bytes, so that they can be wrong."""

    timestamp_delta: int = 0
    offset_delta: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


CELLS = st.binary(max_size=9) | st.none() | st.binary(min_size=60, max_size=70)
NAMES = st.text(max_size=3).map(str.encode)
RECORDS = st.builds(
    Record,
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300),
    st.integers(0, 2**31 - 1) | st.integers(0, 300),
    CELLS,
    CELLS,
    st.lists(st.tuples(NAMES, CELLS), max_size=3) | st.just([]),
)
MANY = FEW_MAX + 1


def fields(record: Record) -> list[bytes]:
    """Return the encoded fields behind a record's length, to make one of them wrong."""
    entries = [part for name, value in record.headers for part in (cell(name), cell(value))]
    return [
        b"\0",
        varint(record.timestamp_delta),
        varint(record.offset_delta),
        cell(record.key),
        cell(record.value),
        varint(len(record.headers)),
        *entries,
    ]


def sized(content: bytes) -> bytes:
    return varint(len(content)) + content


def encoded(record: Record) -> bytes:
    return sized(b"".join(fields(record)))


def long_varint(number: int, length: int) -> bytes:
    """Return a number in more bytes than it needs."""
    short = varint(number)
    return bytes(byte | 128 for byte in short) + b"\x80" * (length - len(short) - 1) + b"\0"


def read(data: bytes, walked: Walked) -> list[Record]:
    """Return what the places say, as the records were written."""
    keys = slices(data, walked.key_starts, walked.key_lengths).to_pylist()
    values = slices(data, walked.value_starts, walked.value_lengths).to_pylist()
    headers: list[list[tuple[bytes, bytes | None]]] = [[] for _ in keys]
    if found := walked.headers:
        names = slices(data, found.name_starts, found.name_lengths).to_pylist()
        cells = slices(data, found.value_starts, found.value_lengths).to_pylist()
        entries = list(zip(names, cells, strict=True))
        ends = list(accumulate(found.counts.tolist()))
        assert ends[-1] == len(entries)
        headers = [
            entries[end - count : end]
            for end, count in zip(ends, found.counts.tolist(), strict=True)
        ]
    rows = zip(
        walked.timestamp_deltas.tolist(),
        walked.offset_deltas.tolist(),
        keys,
        values,
        headers,
        strict=True,
    )
    return [Record(*row) for row in rows]


@given(st.lists(RECORDS, max_size=5), st.integers(0, MANY))
@example([Record()], 0)
@example([Record(headers=[(b"", None)] * 3, value=b"")], MANY)
def test_every_field_is_found(records: list[Record], more: int) -> None:
    records = [*records, *[Record(7, 8, b"k", b"v", [(b"n", b"")])] * more]
    data = b"".join(map(encoded, records))
    assert read(data, walk(memoryview(data), len(records))) == [
        record._replace(headers=list(record.headers)) for record in records
    ]


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_one_by_one_and_all_at_once_take_the_same_bytes(
    records: list[Record], drawn: st.DataObject
) -> None:
    data = bytearray(b"".join(map(encoded, records)))
    for _ in range(drawn.draw(st.integers(0, 3))):
        data[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    count = len(records) + drawn.draw(st.integers(-1, 1))

    assert _outcome(kafka_walk._walk_few, bytes(data), count) == _outcome(
        kafka_walk._walk_many, bytes(data), count
    )


def _outcome(
    way: Callable[[bytes, int], Walked], data: bytes, count: int
) -> tuple[list[Record], list[int]] | None:
    """Return the records that a way of the walk finds, and where they begin; None: it refuses."""
    try:
        walked = way(data, count)
    except (kafka_walk._WrongRecordError, InvalidRecordError, MessageTooLargeError):
        return None
    return read(data, walked), walked.starts.tolist()


@st.composite
def usual_records(draw: st.DrawFn) -> list[Record]:
    """Records as most producers lay them out: some sizes, each several times in a row."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(10, 200) | st.integers(8000, 8100), st.integers(1, 150)),
            min_size=1,
            max_size=4,
        )
    )
    key = draw(st.none() | st.binary(max_size=63))
    times = draw(st.lists(st.integers(-4096, 4095) | st.integers(0, 63), min_size=1, max_size=5))
    sizes = [size for size, count in rows for _ in range(count)]
    return [
        Record(times[number % len(times)], number, key, b"v" * size)
        for number, size in enumerate(sizes)
    ]


@given(usual_records(), st.data())
def test_usual_records_are_found_as_all_others(records: list[Record], drawn: st.DataObject) -> None:
    data = bytearray(b"".join(map(encoded, records)))
    begins = np.array([0, *accumulate(len(encoded(record)) for record in records)])
    found = kafka_walk._walk_usual(np.frombuffer(data, np.uint8), begins)
    assert found is not None
    assert read(bytes(data), found) == [record._replace(headers=[]) for record in records]
    for _ in range(drawn.draw(st.integers(0, 2))):
        # Where numbers are, in all likelihood.
        begin = drawn.draw(st.sampled_from(begins[:-1].tolist()))
        place = min(begin + drawn.draw(st.integers(-2, 12)), len(data) - 1)
        data[place] = drawn.draw(st.integers(0, 255))
    assert _outcome(kafka_walk._walk_few, bytes(data), len(records)) == _outcome(
        kafka_walk._walk_many, bytes(data), len(records)
    )


@given(
    st.lists(st.tuples(st.integers(0, 9) | st.integers(50, 300), st.integers(1, 300)), max_size=9)
)
@example([(1, 5000), (100, 64), (101, 65), (9000, 66), (2, 3)])
def test_records_of_one_size_in_a_row_are_passed_as_single_ones(
    rows: list[tuple[int, int]],
) -> None:
    pieces = [sized(bytes(size)) for size, count in rows for _ in range(count)]
    data = b"".join(pieces)
    found = kafka_walk._boundaries(data, np.frombuffer(data, np.uint8), len(pieces))
    assert found.tolist() == [0, *accumulate(map(len, pieces))]


@given(
    st.lists(st.binary(max_size=90) | st.integers(0, 90).map(bytes), min_size=1, max_size=60),
    st.sampled_from([b"abcd", bytes(range(127)), b"\0\1", b"\0\4\0"]),
    st.data(),
)
def test_small_records_are_found_at_once_as_one_by_one(
    values: list[bytes], letters: bytes, drawn: st.DataObject
) -> None:
    records = [
        Record(0, number, None, bytes(letters[byte % len(letters)] for byte in value))
        for number, value in enumerate(values * drawn.draw(st.integers(1, 3)))
    ]
    data = bytearray(b"".join(map(encoded, records)))
    begins = [0, *accumulate(len(encoded(record)) for record in records)]
    found = kafka_walk._small(np.frombuffer(bytes(data), np.uint8), len(records))
    if letters == b"abcd" and b"" not in values:
        assert found is not None
    assert found is None or found.tolist() == begins
    data[drawn.draw(st.integers(0, len(data) - 1))] = drawn.draw(st.integers(0, 255))
    found = kafka_walk._small(np.frombuffer(bytes(data), np.uint8), len(records))
    if found is not None:
        assert found.tolist() == kafka_walk._passed(bytes(data), 0, 0, len(records)).tolist()


@given(st.binary(max_size=200), st.integers(0, 40))
def test_any_bytes_are_read_or_refused(data: bytes, count: int) -> None:
    try:
        walked = walk(memoryview(data), count)
    except (InvalidRecordError, MessageTooLargeError):
        return
    assert len(read(data, walked)) == count


def both(number: int, wrong: bytes) -> Sequence[tuple[bytes, int]]:
    """Return the wrong record as one of a few, and as one of many; it is the one of `number`."""
    right = encoded(Record(1, 2, b"key", b"value"))
    return [(right * number + wrong, number + 1), (right * number + wrong + right * MANY, 100)]


WRONG_FIELDS = {
    "negative key length": (3, varint(-2), "negative"),
    "key beyond the record": (3, varint(50), "outside"),
    "key beyond the bytes": (3, varint(2**31 - 1), "outside"),
    "negative value length": (4, varint(-2), "negative"),
    "value beyond the record": (4, varint(50), "outside"),
    "negative header count": (5, varint(-1), "negative"),
    "more headers than bytes": (5, varint(1), "outside"),
    "no end of a number": (2, b"\xff" * 30, "longer"),
    "a timestamp of 65 bits": (1, b"\xff" * 9 + b"\x02", "longer"),
    "an offset of 33 bits": (2, b"\xff" * 4 + b"\x10", "longer"),
    "left over": (5, varint(0) + b"\0", "left over"),
}


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("wrong", WRONG_FIELDS)
def test_a_wrong_number_is_refused_with_the_number_of_its_record(wrong: str, number: int) -> None:
    place, content, why = WRONG_FIELDS[wrong]
    parts = fields(Record(1, 2, b"k", b"v"))
    parts[place] = content
    for data, count in both(number, sized(b"".join(parts))):
        count = data.count(encoded(Record(1, 2, b"key", b"value"))) + 1
        with pytest.raises(InvalidRecordError, match=f"record {number} of the batch.*{why}"):
            walk(memoryview(data), count)


@pytest.mark.parametrize(
    "entry",
    [
        varint(-1) + varint(0),
        varint(0) + varint(-2),
        varint(9) + varint(0),
        varint(0) + varint(9),
        long_varint(0, 6) + varint(0),
    ],
)
@pytest.mark.parametrize("more", [0, MANY])
def test_a_wrong_header_is_refused(entry: bytes, more: int) -> None:
    wrong = b"".join(fields(Record())[:-1]) + varint(2) + varint(0) + varint(0) + entry
    data = encoded(Record()) + sized(wrong) + encoded(Record()) * more
    with pytest.raises(InvalidRecordError, match="record 1 of the batch"):
        walk(memoryview(data), 2 + more)


@pytest.mark.parametrize("more", [0, MANY])
def test_a_name_that_is_no_text_is_refused(more: int) -> None:
    data = encoded(Record(headers=[(b"\xff", b"")])) + encoded(Record()) * more
    with pytest.raises(InvalidRecordError, match="UTF-8"):
        walk(memoryview(data), 1 + more)


@pytest.mark.parametrize("count", [1, MANY])
@pytest.mark.parametrize("change", [-1, 1])
def test_another_count_than_there_are_records_is_refused(count: int, change: int) -> None:
    data = encoded(Record(value=b"v" * 9)) * count
    with pytest.raises(InvalidRecordError):
        walk(memoryview(data), count + change)


@pytest.mark.parametrize("length", [-1, -8, 2**31 - 1, 8000, 70_000, 2**22, 2**28])
@pytest.mark.parametrize("more", [0, MANY])
def test_a_wrong_length_is_refused(length: int, more: int) -> None:
    record = encoded(Record())
    data = record + varint(length) + record[1:] + record * more
    with pytest.raises(InvalidRecordError):
        walk(memoryview(data), 2 + more)


@pytest.mark.parametrize("length", [200, 10_000, 2**21])
@pytest.mark.parametrize("count", [1, MANY])
def test_records_of_every_length_are_found(length: int, count: int) -> None:
    data = encoded(Record(value=bytes(length))) * count
    walked = walk(memoryview(data), count)
    assert walked.value_lengths.tolist() == [length] * count


def test_numbers_may_have_more_bytes_than_they_need() -> None:
    parts = [
        b"\0",
        long_varint(5, 10),
        long_varint(6, 5),
        long_varint(-1, 3),
        long_varint(0, 2),
        long_varint(0, 4),
    ]
    content = b"".join(parts)
    data = long_varint(len(content), 5) + content
    for count in (1, MANY):
        walked = walk(memoryview(data * count), count)
        assert read(data * count, walked) == [Record(5, 6, None, b"", [])] * count


def test_more_records_than_a_batch_may_have_are_too_large() -> None:
    with pytest.raises(MessageTooLargeError):
        walk(memoryview(bytes(10)), RECORDS_MAX + 1)


@pytest.mark.parametrize("more", [0, MANY])
def test_more_headers_than_a_record_may_have_are_too_large(more: int) -> None:
    headers = [(b"", None)] * (kafka_walk.RECORD_HEADERS_MAX + 1)
    data = encoded(Record(headers=headers)) + encoded(Record()) * more
    with pytest.raises(MessageTooLargeError, match="headers"):
        walk(memoryview(data), 1 + more)


def test_a_count_that_the_bytes_cannot_hold_takes_no_memory() -> None:
    data = encoded(Record(value=bytes(5_000)))
    tracemalloc.start()
    try:
        for count in (RECORDS_MAX, 2**31 - 1, -1):
            with pytest.raises((InvalidRecordError, MessageTooLargeError)):
                walk(memoryview(data), count)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
