"""The bytes of the records of transactions, and those that this release does not know."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.coordinator.transactions import records as records_module
from millrace.core.coordinator.transactions.records import (
    GroupRecord,
    IdRecord,
    OwedRecord,
    ParticipantRecord,
    PartitionsRecord,
    TransactionRecord,
    decode,
    encode,
)
from millrace.core.coordinator.transactions.transaction import (
    NOBODY,
    Ended,
    Ending,
    Origin,
    Producer,
    Shared,
    State,
    Transaction,
    Version,
)
from millrace.core.errors import UnsupportedFormatError
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, WallMs
from millrace.core.records.markers import BUMPING, NOT_BUMPING

DOCUMENT = (Path(__file__).resolve().parents[5] / "docs" / "format.md").read_text()
NOW = WallMs(1_700_000_000_000)
TOPIC = TopicId(bytes(range(16)))

epochs = st.integers(0, 2**15 - 1).map(ProducerEpoch)
producers = st.builds(Producer, st.integers(0, 2**63 - 1).map(ProducerId), epochs)
protocols = st.sampled_from([BUMPING, NOT_BUMPING])
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
times = st.integers(0, 2**62).map(WallMs)
bitmaps = st.integers(1, 2**1024 - 1)
chunks = st.integers(0, 2**21)
texts = st.text(st.characters(codec="utf-8"), max_size=60)
versions = st.builds(Version, st.integers(0, 2**63 - 1), st.builds(Origin, texts, texts))
shared = st.builds(
    Shared,
    texts,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.none() | versions,
    st.none() | versions,
    st.lists(texts, max_size=5).map(tuple),
    st.lists(st.integers(0, 2**63 - 1).map(ProducerId), max_size=5).map(tuple),
)
ended = st.builds(Ended, producers, epochs, st.booleans(), st.sampled_from(Ending))
transactions = st.builds(
    Transaction,
    producers,
    st.integers(0, 2**32 - 1),
    st.sampled_from(State),
    protocols,
    times,
    ended,
    producers | st.just(NOBODY),
    st.booleans(),
    st.none() | shared,
) | st.builds(
    Transaction,
    producers,
    st.integers(0, 2**32 - 1),
    st.sampled_from([State.EMPTY, State.ONGOING]),
    protocols,
    times,
    st.none(),
    producers | st.just(NOBODY),
    st.booleans(),
    st.none() | shared,
)
records = st.one_of(
    st.builds(IdRecord, names, st.none() | transactions, times),
    st.builds(PartitionsRecord, names, st.just(TOPIC), chunks, producers, bitmaps, times),
    st.builds(PartitionsRecord, names, st.just(TOPIC), chunks, st.none(), st.just(0), times),
    st.builds(GroupRecord, names, names, st.none() | producers, times),
    st.builds(
        OwedRecord,
        st.just(TOPIC),
        chunks,
        producers,
        bitmaps,
        st.booleans(),
        protocols,
        names,
        times,
    ),
    st.builds(
        ParticipantRecord,
        names,
        st.integers(0, 2**63 - 1).map(ProducerId),
        epochs,
        st.integers(0, 2**63 - 1),
        times,
    ),
    st.builds(ParticipantRecord, names, st.just(ProducerId(7)), st.none(), st.just(0), times),
)


@given(records)
def test_a_record_is_read_as_it_was_written(record: TransactionRecord) -> None:
    assert decode(*encode(record), record.timestamp) == record


def test_the_document_has_the_table_of_the_code() -> None:
    lines = [line for line in (records_module.__doc__ or "").splitlines() if line.startswith("|")]
    assert len(lines) == 25
    assert all(line in DOCUMENT for line in lines)


def test_what_forgets_what_is_owed_has_its_key() -> None:
    owed = OwedRecord(TOPIC, 3, writer(), 0, True, BUMPING, "default/a", NOW)
    read = decode(*encode(owed), NOW)
    assert read.is_deletion
    assert read.key == owed.key


def writer() -> Producer:
    return Producer(ProducerId(7), ProducerEpoch(5))


def test_the_bytes_are_those_of_the_document() -> None:
    end = Ended(writer(), ProducerEpoch(6), True, Ending.PRODUCER)
    transaction = Transaction(
        Producer(ProducerId(7), ProducerEpoch(6)),
        60_000,
        State.PREPARE_COMMIT,
        BUMPING,
        WallMs(9),
        end,
        writer(),
    )
    key, value = encode(IdRecord("default/a", transaction, NOW))
    assert key == b"\x01default/a"
    assert value == bytes.fromhex(
        "01 03 02 02 0700000000000000 0600 60ea0000 0900000000000000"
        "0700000000000000 0500 0700000000000000 0500 0600 01"
    )
    key, value = encode(PartitionsRecord("default/a", TOPIC, 1, writer(), 0b100000001, NOW))
    assert key == b"\x02\x01\0\0\0" + TOPIC + b"default/a"
    assert value == bytes.fromhex("01 0700000000000000 0500 0101")
    key, value = encode(GroupRecord("default/a", "g", writer(), NOW))
    assert key == b"\x03\x09\0default/ag"
    assert value == bytes.fromhex("01 0700000000000000 0500")
    key, value = encode(OwedRecord(TOPIC, 0, writer(), 1, True, BUMPING, "default/a", NOW))
    assert key == b"\x04\0\0\0\0" + TOPIC + bytes.fromhex("0700000000000000 0500")
    assert value == bytes.fromhex("01 02 01 01 01") + b"default/a"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x01"),
        (b"", b"\x01"),
        (b"\x05a", b"\x01"),
        (b"\x01a", b"\x02" + bytes(48)),
        (b"\x01a", b"\x01" + bytes(20)),
        (b"\x01a", b""),
        (b"\x01a", b"\x01\x03\x02" + bytes(46)),
        (b"\x01a", b"\x01\x01\x09" + bytes(46)),
        (b"\x01a", b"\x01\x01\x02\x80" + bytes(45)),
        (b"\x01\xff", None),
        (b"\x02\0", b"\x01" + bytes(10)),
        (b"\x02" + bytes(21), b"\x01"),
        (b"\x03\0", None),
        (b"\x04" + bytes(20), None),
        (b"\x04" + bytes(30), b"\x01\x02\x01\x00"),
    ],
)
def test_a_record_that_this_release_does_not_know_is_refused(
    key: bytes | None, value: bytes | None
) -> None:
    with pytest.raises(UnsupportedFormatError, match="__transactions"):
        decode(key, value, NOW)
