"""A Kafka client's batch, as a leader takes it: checked once, stamped, bound to its partition."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import kafka_batches as made
from tests.fakes.kafka_batches import CODECS, FIELDS, NOON, Record
from tests.unit.core.records.batches import LIMITS, TOPIC_PARTITION, numbers_of

from millrace.core.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    MillraceError,
    UnsupportedFormatError,
)
from millrace.core.ids import NO_TIMESTAMP, LeaderEpoch, Offset, TopicPartition, WallMs
from millrace.core.records import batch as record_batch
from millrace.core.records import kafka_batch
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.columns import RECORDS_MAX
from millrace.core.records.compression import Codec
from millrace.core.records.header import (
    HEADER_BYTES,
    KAFKA_FORMAT,
    TIMESTAMP_MAX,
    BatchHeader,
    parse_header,
    verify_body,
)
from millrace.core.records.kafka_batch import KafkaAttributes, adopt, read_header, split, stamp

RECORDS = [
    Record(b"first", b"k1", NOON + 1),
    Record(b"", None, NOON, [("a", b"1"), ("ä", None)]),
    Record(None, b"", NOON + 9, [("", b"")]),
]
BATCH = made.idempotent(RECORDS)
KEYED = BatchLimits(batch_bytes_max=1 << 20, inflated_bytes_max=1 << 20, requires_keys=True)
TRANSACTED = BatchLimits(
    batch_bytes_max=1 << 20, inflated_bytes_max=1 << 20, takes_transactions=True
)


def adopted(batch: bytes, limits: BatchLimits = LIMITS) -> BatchHeader:
    """Return our header of a batch that the leader takes."""
    sealed, header = adopt(TOPIC_PARTITION, memoryview(batch), limits)
    assert parse_header(sealed) == header
    return header


def stored(batch: bytes, **stamps: Any) -> bytes:
    """Return a batch as a leader writes it, header and body."""
    sealed, _ = adopt(TOPIC_PARTITION, memoryview(batch), LIMITS)
    begin, rest = stamp(TOPIC_PARTITION, sealed, batch, **stamps)
    return begin + bytes(rest)


@pytest.mark.parametrize("codec", CODECS)
def test_a_header_of_ours_says_what_the_records_say(codec: str) -> None:
    batch = made.idempotent(RECORDS * 50, codec)
    header = adopted(batch)
    assert header.format == KAFKA_FORMAT
    assert header.codec == Codec[codec.upper()]
    assert header.stored_length == len(batch)
    assert header.inflated_length == len(made.idempotent(RECORDS * 50))
    assert (header.record_count, header.last_offset_delta) == (150, 149)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 20)
    assert (header.base_timestamp, header.max_timestamp) == (NOON + 1, NOON + 9)
    assert header.last_sequence == 169
    assert not header.is_stamped
    assert not header.is_transactional
    assert not header.is_control


def test_java_sends_snappy_in_blocks_and_librdkafka_in_one() -> None:
    plain = made.idempotent(RECORDS * 4000)
    data = plain[made.HEADER_BYTES :]
    identity = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 20}
    times = {"base_timestamp": NOON + 1, "max_timestamp": NOON + 9}
    for packed in (made.xerial(data), made.compressed("snappy", data)):
        batch = made.of_bytes(packed, 12000, "snappy", **identity | times)
        assert adopted(batch).inflated_length == len(plain)


def test_a_batch_without_a_producer_has_none() -> None:
    header = adopted(made.batch_of(RECORDS))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    # Some clients leave zeros in what means nothing.
    header = adopted(made.batch_of(RECORDS, producer_epoch=0, base_sequence=0))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


def test_a_transactional_batch_is_taken_where_transactions_are() -> None:
    batch = made.idempotent(RECORDS, attributes=made.TRANSACTIONAL)
    assert adopted(batch, TRANSACTED).is_transactional
    with pytest.raises(InvalidRecordError, match="no transactional batches"):
        adopted(batch)


def test_the_sequence_after_the_last_one_is_zero() -> None:
    header = adopted(made.idempotent(RECORDS, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


# Times (K3).


def test_a_record_without_a_time_has_none() -> None:
    header = adopted(made.batch_of([Record(timestamp=-1), Record(timestamp=-1)]))
    assert (header.base_timestamp, header.max_timestamp) == (NO_TIMESTAMP, NO_TIMESTAMP)
    assert header.largest_timestamp == NO_TIMESTAMP
    header = adopted(made.batch_of([Record(timestamp=-1), Record(timestamp=NOON)]))
    assert (header.base_timestamp, header.largest_timestamp) == (NO_TIMESTAMP, NOON)


def test_the_largest_time_is_that_of_the_records_whatever_the_client_says() -> None:
    for said in (-1, 0, NOON, 2**63 - 1):
        assert adopted(made.batch_of(RECORDS, max_timestamp=said)).max_timestamp == NOON + 9


@pytest.mark.parametrize("time", [-2, -(2**62), TIMESTAMP_MAX + 1, 2**62])
def test_a_time_that_is_none_is_refused(time: int) -> None:
    batch = made.batch_of([Record(), Record(timestamp=time)])
    with pytest.raises(InvalidTimestampError, match="times are"):
        adopted(batch)


def test_times_do_not_overflow() -> None:
    record = made.encoded(Record(timestamp=2**63 - 1), 0, 0)
    batch = made.of_bytes(record, 1, base_timestamp=2**63 - 1)
    with pytest.raises(InvalidTimestampError, match="times are"):
        adopted(batch)


def test_a_client_does_not_say_what_the_append_time_is() -> None:
    batch = made.batch_of(RECORDS, attributes=KafkaAttributes.APPEND_TIME)
    with pytest.raises(InvalidTimestampError, match="append time"):
        adopted(batch)


# The stamp, and the checksums (K2).


def test_a_stamp_is_in_both_headers_and_the_records_stay_as_they_were_sent() -> None:
    batch = stored(BATCH, base_offset=Offset(1 << 40), leader_epoch=LeaderEpoch(9))
    header, kafka = parse_header(batch), read_header(batch[HEADER_BYTES:])
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 9)
    assert (kafka.base_offset, kafka.leader_epoch) == (1 << 40, 9)
    assert header.is_stamped
    body = batch[HEADER_BYTES:]
    assert body[8:12] + body[16:] == BATCH[8:12] + BATCH[16:]
    assert made.sealed(body) == body
    verify_body(TOPIC_PARTITION, header, batch)


def test_what_a_client_says_of_offset_and_epoch_counts_for_nothing() -> None:
    told = made.with_fields(BATCH, base_offset=77, leader_epoch=3)
    stamps = {"base_offset": Offset(5), "leader_epoch": LeaderEpoch(2)}
    assert stored(told, **stamps) == stored(BATCH, **stamps)


def test_append_time_is_stamped_in_both_headers_and_seals_both_again() -> None:
    batch = stored(
        BATCH,
        base_offset=Offset(5),
        leader_epoch=LeaderEpoch(2),
        append_timestamp=WallMs(NOON + 99),
    )
    header, body = parse_header(batch), batch[HEADER_BYTES:]
    kafka = read_header(body)
    assert header.has_append_time
    assert header.largest_timestamp == NOON + 99
    assert header.max_timestamp == NOON + 9
    assert kafka.has_append_time
    assert (kafka.base_timestamp, kafka.max_timestamp) == (NOON + 1, NOON + 99)
    assert made.sealed(body) == body
    verify_body(TOPIC_PARTITION, header, batch)


def test_every_byte_of_a_stored_batch_is_covered() -> None:
    batch = stored(BATCH, base_offset=Offset(5), leader_epoch=LeaderEpoch(2))
    for at in range(len(batch)):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptBatchError):
            verify_body(TOPIC_PARTITION, parse_header(damaged), damaged)


def test_a_stamp_that_differs_from_our_header_is_damage() -> None:
    batch = bytearray(stored(BATCH, base_offset=Offset(5), leader_epoch=LeaderEpoch(2)))
    other = stored(BATCH, base_offset=Offset(6), leader_epoch=LeaderEpoch(2))
    batch[HEADER_BYTES:] = other[HEADER_BYTES:]
    with pytest.raises(CorruptBatchError, match="in Kafka's header"):
        verify_body(TOPIC_PARTITION, parse_header(batch), batch)


def test_a_batch_is_bound_to_its_partition() -> None:
    batch = stored(BATCH, base_offset=Offset(5), leader_epoch=LeaderEpoch(2))
    other = TopicPartition(TOPIC_PARTITION.topic_id, 4)
    with pytest.raises(CorruptBatchError, match="another partition"):
        verify_body(other, parse_header(batch), batch)


def test_a_producer_of_columns_does_not_send_format_2() -> None:
    sealed, _ = adopt(TOPIC_PARTITION, memoryview(BATCH), LIMITS)
    with pytest.raises(UnsupportedFormatError, match="Kafka"):
        record_batch.check(TOPIC_PARTITION, sealed + BATCH, LIMITS)


# What is refused.

HOSTILE: dict[str, tuple[bytes, type[MillraceError], str]] = {
    "a wrong checksum": (made.with_fields(BATCH, crc=1), CorruptBatchError, "checksum"),
    "a byte that changed": (BATCH[:-1] + b"x", CorruptBatchError, "checksum"),
    "a byte too few": (BATCH[:-1], CorruptBatchError, "by its header"),
    "a byte too many": (BATCH + b"x", CorruptBatchError, "by its header"),
    "a negative length": (
        made.with_fields(BATCH, batch_length=-1),
        CorruptBatchError,
        "by its header",
    ),
    "a cut header": (BATCH[:60], CorruptBatchError, "61 bytes"),
    "nothing": (b"", CorruptBatchError, "61 bytes"),
    "magic 0": (made.with_fields(BATCH, magic=0), UnsupportedFormatError, "message format 0"),
    "magic 1": (made.with_fields(BATCH, magic=1), UnsupportedFormatError, "message format 1"),
    "magic 3": (made.with_fields(BATCH, magic=3), UnsupportedFormatError, "message format 3"),
    "a later attribute": (
        made.with_fields(BATCH, attributes=0x80),
        UnsupportedFormatError,
        "later format",
    ),
    "a codec that is none": (
        made.with_fields(BATCH, attributes=5),
        UnsupportedFormatError,
        "codec 5",
    ),
    "a control batch": (
        made.with_fields(BATCH, attributes=KafkaAttributes.CONTROL),
        InvalidRecordError,
        "only a broker",
    ),
    "a delete horizon": (
        made.with_fields(BATCH, attributes=KafkaAttributes.DELETE_HORIZON),
        InvalidRecordError,
        "only a broker",
    ),
    "no records": (
        made.of_bytes(b"", 0, last_offset_delta=0),
        InvalidRecordError,
        "holds 0 records",
    ),
    "fewer than no records": (
        made.with_fields(BATCH, record_count=-1),
        InvalidRecordError,
        "holds -1",
    ),
    "a hole at the end": (
        made.with_fields(BATCH, last_offset_delta=3),
        InvalidRecordError,
        "dense",
    ),
    "a last offset delta of -1": (
        made.with_fields(BATCH, last_offset_delta=-1),
        InvalidRecordError,
        "dense",
    ),
    "more records than there are": (
        made.with_fields(BATCH, record_count=4, last_offset_delta=3),
        InvalidRecordError,
        "record 3",
    ),
    "fewer records than there are": (
        made.with_fields(BATCH, record_count=2, last_offset_delta=1),
        InvalidRecordError,
        "bytes came",
    ),
    "a hole between records": (
        made.of_bytes(made.encoded(Record(), 0, NOON) + made.encoded(Record(), 2, NOON), 2),
        InvalidRecordError,
        "dense",
    ),
    "offsets that do not begin with 0": (
        made.of_bytes(made.encoded(Record(), 1, NOON), 1),
        InvalidRecordError,
        "dense",
    ),
    "an offset twice": (
        made.of_bytes(made.encoded(Record(), 0, NOON) * 2, 2),
        InvalidRecordError,
        "dense",
    ),
    "attributes of a record": (
        made.of_bytes(made.encoded(Record(), 0, NOON).replace(b"\0", b"\x80", 1), 1),
        InvalidRecordError,
        "a record has attributes",
    ),
    "offsets that wrap": (
        made.of_bytes(made.encoded(Record(), 2**32, NOON), 1),
        InvalidRecordError,
        "longer than its kind",
    ),
    "a transaction without a producer": (
        made.batch_of(RECORDS, attributes=made.TRANSACTIONAL),
        InvalidRecordError,
        "no producer id",
    ),
    "a negative producer id": (
        made.with_fields(BATCH, producer_id=-2),
        InvalidRecordError,
        "negative",
    ),
    "a negative epoch": (
        made.with_fields(BATCH, producer_epoch=-1),
        InvalidRecordError,
        "negative",
    ),
    "a negative sequence": (
        made.with_fields(BATCH, base_sequence=-1),
        InvalidRecordError,
        "negative",
    ),
}


@pytest.mark.parametrize(("batch", "error", "words"), HOSTILE.values(), ids=HOSTILE)
def test_what_no_honest_client_sends_is_refused(
    batch: bytes, error: type[MillraceError], words: str
) -> None:
    with pytest.raises(error, match=words):
        adopted(batch)


def test_a_larger_batch_than_the_topic_takes_is_refused() -> None:
    at_most = BatchLimits(batch_bytes_max=len(BATCH), inflated_bytes_max=len(BATCH))
    assert adopted(BATCH, at_most)
    with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes"):
        adopted(BATCH, BatchLimits(batch_bytes_max=len(BATCH) - 1, inflated_bytes_max=1 << 20))


def test_more_records_than_a_batch_holds_are_too_many() -> None:
    record = made.encoded(Record(None), 0, NOON)
    with pytest.raises(MessageTooLargeError, match=f"limit is {RECORDS_MAX}"):
        adopted(made.of_bytes(record * (RECORDS_MAX + 1), RECORDS_MAX + 1))


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    assert adopted(made.batch_of([Record(key=b""), Record(key=b"k")]), KEYED)
    with pytest.raises(InvalidRecordError, match="1 record without a key") as refused:
        adopted(made.batch_of([Record(key=b"k"), Record(key=None)]), KEYED)
    assert refused.value.records == [1]


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_a_bomb_is_refused_before_it_is_inflated(codec: str) -> None:
    bomb = made.of_bytes(made.compressed(codec, bytes(64 << 20)), 1, codec)
    limits = BatchLimits(batch_bytes_max=16 << 20, inflated_bytes_max=1 << 20)
    with pytest.raises(MessageTooLargeError, match="inflated_bytes_max"):
        adopted(bomb, limits)


@pytest.mark.parametrize("codec", CODECS)
def test_what_inflates_to_the_limit_is_taken_and_a_byte_more_is_not(codec: str) -> None:
    plain = made.batch_of([Record(b"x" * 3000, b"k")] * 40)
    batch = made.batch_of([Record(b"x" * 3000, b"k")] * 40, codec)
    limits = BatchLimits(batch_bytes_max=1 << 20, inflated_bytes_max=len(plain))
    assert adopted(batch, limits).inflated_length == len(plain)
    if codec != "none":
        with pytest.raises(MessageTooLargeError, match="inflated_bytes_max"):
            adopted(batch, BatchLimits(batch_bytes_max=1 << 20, inflated_bytes_max=len(plain) - 1))


# Record sets.


def test_a_record_set_is_split_into_its_batches() -> None:
    other = made.batch_of(RECORDS * 2, "gzip")
    assert [bytes(view) for view in split(memoryview(BATCH + other))] == [BATCH, other]
    assert split(memoryview(b"")) == []


@pytest.mark.parametrize("rest", [b"x", BATCH[:60], BATCH[:-1]])
def test_a_record_set_that_ends_within_a_batch_is_refused(rest: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        split(memoryview(BATCH + rest))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_a_length_that_is_none_is_refused(length: int) -> None:
    with pytest.raises(CorruptBatchError, match="by its header"):
        split(memoryview(made.with_fields(BATCH, batch_length=length) + BATCH))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_refused_however_short(magic: int) -> None:
    message = struct.pack(">qiIbbii", 0, 14, 0, magic, 0, -1, -1)
    with pytest.raises(UnsupportedFormatError, match=f"message format {magic}"):
        split(memoryview(message))
    with pytest.raises(UnsupportedFormatError, match=f"message format {magic}"):
        split(memoryview(message + bytes(100)))


# Whatever comes.


def test_the_table_of_the_header_is_what_is_packed() -> None:
    lines = [line for line in (kafka_batch.__doc__ or "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [(int(at), int(size), name) for at, size, name, _ in rows] == [
        (at, struct.calcsize(kind), name) for name, (at, kind) in FIELDS.items()
    ]
    header = read_header(BATCH)
    for name, (at, kind) in FIELDS.items():
        assert getattr(header, name) == struct.unpack_from(kind, BATCH, at)[0], name


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_by_a_typed_error(data: bytes) -> None:
    with pytest.raises(MillraceError):
        adopted(data)


@given(st.binary(max_size=120), st.integers(0, 40), st.sampled_from(CODECS))
def test_any_records_are_refused_or_can_be_calculated_with(
    records: bytes, count: int, codec: str
) -> None:
    try:
        header = adopted(made.of_bytes(records, count, codec))
    except MillraceError:
        return
    numbers = numbers_of(header)
    assert numbers["record_count"] == count
    assert NO_TIMESTAMP <= header.base_timestamp <= header.max_timestamp <= TIMESTAMP_MAX


@given(st.data())
def test_any_number_in_the_header_is_refused_or_can_be_calculated_with(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(FIELDS)))
    bits = 8 * struct.calcsize(FIELDS[name][1])
    unsigned = FIELDS[name][1].isupper()
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    edges = st.sampled_from([low, high, 0, 1])
    batch = made.with_fields(BATCH, **{name: data.draw(edges | st.integers(low, high))})
    try:
        header = adopted(batch, TRANSACTED)
    except MillraceError:
        return
    assert header.record_count == 3
    assert header.stored_length == len(batch)
