import struct
from dataclasses import replace
from typing import Any

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.header_fields import FIELDS
from tests.unit.core.records.batches import (
    TOPIC_PARTITION,
    idempotent,
    numbers_of,
    resealed,
    stamped,
)

from millrace.core.errors import CorruptBatchError, MillraceError, UnsupportedFormatError
from millrace.core.ids import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.columns import Columns
from millrace.core.records.header import (
    APPEND_TIME,
    BODY_BYTES_MAX,
    HEADER_BYTES,
    KAFKA_FORMAT,
    KAFKA_MAGIC,
    MAGIC,
    SEQUENCE_MAX,
    TIMESTAMP_MAX,
    Attributes,
    parse_header,
    stamp,
    verify_body,
)

NOON = WallMs(1_700_000_000_000)
BATCH = idempotent(Columns(record_count=3, timestamps=NOON, values=[b"a", None, b"ccc"]))


def test_every_field_is_read_from_its_place() -> None:
    batch = stamped(
        BATCH, base_offset=Offset(1 << 40), leader_epoch=LeaderEpoch(9), append_timestamp=NOON
    )
    read = numbers_of(parse_header(batch))
    for name, number in read.items():
        at, kind = FIELDS[name]
        assert number == struct.unpack_from(kind, batch, at)[0], name
    assert read["producer_id"] == 7
    assert read["base_offset"] == 1 << 40


def test_a_header_tells_where_the_batch_and_its_offsets_end() -> None:
    header = parse_header(stamped(BATCH, base_offset=Offset(100), leader_epoch=LeaderEpoch(0)))
    assert header.length == len(BATCH)
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 102, 103)


def test_a_header_is_read_in_the_middle_of_other_bytes() -> None:
    assert parse_header(b"xyz" + BATCH + b"more", 3) == parse_header(BATCH)


def test_stamping_keeps_what_the_producer_sealed() -> None:
    batch = stamped(BATCH, base_offset=Offset(5), leader_epoch=LeaderEpoch(2))
    assert batch[:68] == BATCH[:68]
    verify_body(TOPIC_PARTITION, parse_header(batch), batch)


def test_stamping_again_changes_the_stamp_alone() -> None:
    once = stamp(BATCH[:HEADER_BYTES], base_offset=Offset(5), leader_epoch=LeaderEpoch(2))
    again = stamp(once, base_offset=Offset(6), leader_epoch=LeaderEpoch(3))
    assert again == stamp(BATCH[:HEADER_BYTES], base_offset=Offset(6), leader_epoch=LeaderEpoch(3))


def test_append_time_is_the_largest_time_where_the_topic_stamps_it() -> None:
    created = parse_header(stamped(BATCH, base_offset=Offset(0), leader_epoch=LeaderEpoch(0)))
    assert created.largest_timestamp == NOON
    appended = parse_header(
        stamped(
            BATCH,
            base_offset=Offset(0),
            leader_epoch=LeaderEpoch(0),
            append_timestamp=WallMs(NOON + 5),
        )
    )
    assert appended.largest_timestamp == NOON + 5
    assert appended.max_timestamp == NOON


def test_a_batch_without_records_has_no_largest_time() -> None:
    created = parse_header(stamped(BATCH, base_offset=Offset(0), leader_epoch=LeaderEpoch(0)))
    appended = replace(created, append_timestamp=WallMs(NOON + 5), broker_attributes=APPEND_TIME)
    assert appended.largest_timestamp == NOON + 5
    for header in (created, appended):
        assert replace(header, record_count=0).largest_timestamp == NO_TIMESTAMP


def test_only_a_stamped_header_says_so() -> None:
    assert not parse_header(BATCH).is_stamped
    zero = stamped(BATCH, base_offset=Offset(0), leader_epoch=LeaderEpoch(0))
    assert parse_header(zero).is_stamped


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (20, 2, 22), (SEQUENCE_MAX, 0, SEQUENCE_MAX), (SEQUENCE_MAX, 1, 0)],
)
def test_sequences_wrap_to_zero(base: int, delta: int, last: int) -> None:
    batch = resealed(BATCH, base_sequence=base, record_count=1, last_offset_delta=delta)
    assert parse_header(batch).last_sequence == last


def test_a_cleaned_batch_still_tells_its_producers_last_sequence() -> None:
    emptied = resealed(
        BATCH[:HEADER_BYTES], record_count=0, stored_length=0, inflated_length=0, attributes=0
    )
    header = parse_header(emptied)
    assert header.record_count == 0
    assert header.last_sequence == parse_header(BATCH).last_sequence == 22
    assert header.next_offset == parse_header(BATCH).next_offset


def test_a_batch_without_a_producer_has_no_sequences() -> None:
    none = {"producer_id": NO_PRODUCER_ID, "producer_epoch": -1, "base_sequence": NO_SEQUENCE}
    assert parse_header(resealed(BATCH, **none)).last_sequence == NO_SEQUENCE


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "more records than offsets": {"record_count": 4},
    "offsets beyond int32": {"last_offset_delta": SEQUENCE_MAX},
    "a last offset delta of -1": {"last_offset_delta": 0xFFFFFFFF},
    "a stored length beyond int32": {"stored_length": BODY_BYTES_MAX + 1},
    "an inflated length beyond int32": {"inflated_length": 0xFFFFFFFF},
    "a negative offset": {"base_offset": -1},
    "offsets beyond int64": {"base_offset": 2**63 - 3},
    "a leader epoch below none": {"leader_epoch": -2},
    "a time before 1970": {"base_timestamp": -1, "max_timestamp": -1},
    "a time beyond the year 9999": {
        "base_timestamp": TIMESTAMP_MAX + 1,
        "max_timestamp": TIMESTAMP_MAX + 1,
    },
    "times that fall": {"max_timestamp": NOON - 1},
    "two times without a column of them": {"max_timestamp": NOON + 1},
    "append time unannounced": {"append_timestamp": NOON},
    "append time announced and missing": {"broker_attributes": APPEND_TIME},
    "delete horizon unannounced": {"delete_horizon": NOON},
    "delete horizon below none": {"delete_horizon": -2},
    "a producer id below none": {"producer_id": -2},
    "an epoch without a producer": {"producer_id": -1, "base_sequence": -1},
    "a sequence without a producer": {"producer_id": -1, "producer_epoch": -1},
    "a producer without an epoch": {"producer_epoch": -1},
    "a producer without a sequence": {"base_sequence": -1},
    "a negative sequence": {"base_sequence": -(2**31)},
    "a transaction without a producer": {
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "attributes": Attributes.VALUES | Attributes.TRANSACTIONAL,
    },
}


@pytest.mark.parametrize("numbers", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_numbers_are_refused_under_a_checksum_that_fits(numbers: Any) -> None:
    with pytest.raises(CorruptBatchError, match="impossible numbers"):
        parse_header(resealed(BATCH, **numbers))


KAFKA: dict[str, Any] = {
    "magic": KAFKA_MAGIC,
    "attributes": 0,
    "stored_length": 61,
    "inflated_length": 61,
}


def test_a_batch_of_kafkas_may_have_two_times_without_columns_or_none() -> None:
    for base, top in ((NOON, NOON + 5), (-1, NOON), (-1, -1)):
        header = parse_header(resealed(BATCH, **KAFKA, base_timestamp=base, max_timestamp=top))
        assert header.format == KAFKA_FORMAT
        assert (header.base_timestamp, header.largest_timestamp) == (base, top)


@pytest.mark.parametrize(
    "numbers",
    [
        {"record_count": 0},
        {"stored_length": 60},
        {"inflated_length": 60},
        {"base_timestamp": -2},
        {"base_timestamp": NOON, "max_timestamp": -1},
    ],
)
def test_impossible_numbers_of_kafkas_batches_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(CorruptBatchError, match="impossible numbers"):
        parse_header(resealed(BATCH, **{**KAFKA, **numbers}))


@pytest.mark.parametrize(
    "attributes", [Attributes.CONTROL, Attributes.VALUES, Attributes.KEYS_EMPTY, 0x40]
)
def test_a_batch_of_kafkas_has_no_columns_and_ends_no_transaction(attributes: int) -> None:
    with pytest.raises(UnsupportedFormatError):
        parse_header(resealed(BATCH, **{**KAFKA, "attributes": attributes}))


def test_numbers_at_the_very_edge_are_possible() -> None:
    header = parse_header(
        resealed(
            BATCH,
            last_offset_delta=SEQUENCE_MAX - 1,
            base_offset=2**63 - 1 - SEQUENCE_MAX,
            leader_epoch=SEQUENCE_MAX,
            stored_length=BODY_BYTES_MAX,
            base_timestamp=TIMESTAMP_MAX,
            max_timestamp=TIMESTAMP_MAX,
        )
    )
    assert header.next_offset == 2**63 - 1


def test_a_transactions_marker_has_a_producer_and_no_sequence() -> None:
    marker = Attributes.CONTROL | Attributes.TRANSACTIONAL | Attributes.VALUES
    header = parse_header(resealed(BATCH, attributes=marker, base_sequence=NO_SEQUENCE))
    assert header.is_control
    assert header.is_transactional
    assert header.last_sequence == NO_SEQUENCE


@pytest.mark.parametrize(
    "numbers",
    [
        {"magic": b"MRB\x03"},
        {"magic": b"MRB\x00"},
        {"attributes": 0x8000 | Attributes.VALUES},
        {"attributes": 0x0040 | Attributes.VALUES},
        {"broker_attributes": 2},
        {"reserved": 1},
        {"broker_reserved": 1},
    ],
)
def test_what_a_later_format_may_mean_is_refused_as_unsupported(numbers: Any) -> None:
    with pytest.raises(UnsupportedFormatError):
        parse_header(resealed(BATCH, **numbers))


@pytest.mark.parametrize("data", [bytes(96), b"\xff" * 200, b"PAR1" + bytes(92)])
def test_bytes_that_are_no_batch_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptBatchError, match="no batch"):
        parse_header(data)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_a_cut_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptBatchError, match="96 bytes"):
        parse_header(BATCH[:size])
    with pytest.raises(CorruptBatchError, match="96 bytes"):
        parse_header(BATCH, len(BATCH) - size)


@pytest.mark.parametrize(
    "other",
    [
        TOPIC_PARTITION._replace(partition=4),
        TOPIC_PARTITION._replace(topic_id=TopicId(bytes(16))),
        TopicPartition(TopicId(bytes(range(1, 17))), 3),
    ],
)
def test_a_batch_of_another_partition_does_not_verify(other: TopicPartition) -> None:
    verify_body(TOPIC_PARTITION, parse_header(BATCH), BATCH)
    with pytest.raises(CorruptBatchError, match="another partition"):
        verify_body(other, parse_header(BATCH), BATCH)


def test_a_cut_body_does_not_verify() -> None:
    with pytest.raises(CorruptBatchError, match="are there"):
        verify_body(TOPIC_PARTITION, parse_header(BATCH), BATCH[:-1])


def test_what_follows_a_batch_does_not_matter_to_it() -> None:
    verify_body(TOPIC_PARTITION, parse_header(BATCH), BATCH + b"next")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_a_typed_error(data: bytes) -> None:
    with pytest.raises(MillraceError):
        parse_header(data)


@given(
    st.sampled_from([MAGIC, KAFKA_MAGIC]),
    st.binary(min_size=HEADER_BYTES - 8, max_size=HEADER_BYTES - 8),
)
def test_any_sealed_bytes_are_refused_or_can_be_calculated_with(
    magic: bytes, fields: bytes
) -> None:
    covered = magic + fields
    data = covered + struct.pack("<I", crc32c.crc32c(covered))
    try:
        header = parse_header(data)
    except MillraceError:
        return
    assert header.next_offset <= 2**63 - 1
    assert header.length <= 2**31 - 1


def test_headers_made_of_possible_numbers_read_back() -> None:
    at_random = st.fixed_dictionaries(
        {
            "last_offset_delta": st.integers(2, SEQUENCE_MAX - 1),
            "producer_id": st.integers(0, 2**63 - 1),
            "producer_epoch": st.integers(0, 2**15 - 1),
            "base_sequence": st.integers(0, SEQUENCE_MAX),
            "base_offset": st.integers(0, 2**62),
            "leader_epoch": st.integers(-1, SEQUENCE_MAX),
            "record_count": st.integers(0, 3),
        }
    )

    @given(at_random)
    def reads_back(numbers: dict[str, int]) -> None:
        read = numbers_of(parse_header(resealed(BATCH, **numbers)))
        assert {name: read[name] for name in numbers} == numbers

    reads_back()
