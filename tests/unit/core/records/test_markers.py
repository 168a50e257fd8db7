"""Control batches: one ends many transactions, and says where their records lie (T5)."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.core.errors import InvalidRecordError
from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.batch import check, prepare
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.columns import Columns
from millrace.core.records.header import Attributes, parse_header
from millrace.core.records.markers import (
    BUMPING,
    MARKERS_MAX,
    NOT_BUMPING,
    Marker,
    WrittenMarker,
    read_markers,
    seal_markers,
)

NOON = WallMs(43_200_000)
VALUE = struct.Struct("<BBBBiqqqh")


def written(producer_id: int, *, is_commit: bool = True) -> WrittenMarker:
    marker = Marker(ProducerId(producer_id), ProducerEpoch(3), is_commit, LeaderEpoch(5))
    return WrittenMarker(marker, Offset(10), Offset(19))


@given(
    st.lists(
        st.builds(
            lambda marker, first, more: WrittenMarker(
                Marker(*marker), Offset(first), Offset(first + more)
            ),
            st.tuples(
                st.integers(0, 2**63 - 1).map(ProducerId),
                st.integers(0, 2**15 - 1).map(ProducerEpoch),
                st.booleans(),
                st.integers(-1, 2**31 - 1).map(LeaderEpoch),
                st.sampled_from((BUMPING, NOT_BUMPING)),
            ),
            st.integers(-1, 2**40),
            st.integers(0, 2**40),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_markers_are_read_as_they_were_written(markers: list[WrittenMarker]) -> None:
    batch = seal_markers(TOPIC_PARTITION, markers, NOON)
    header = parse_header(batch)
    assert header.is_control
    assert header.producer_id == -1
    assert header.next_offset == len(markers)
    assert read_markers(TOPIC_PARTITION, header, batch) == markers


def test_one_batch_ends_the_transactions_of_many_producers() -> None:
    markers = [written(producer_id) for producer_id in range(MARKERS_MAX)]
    batch = seal_markers(TOPIC_PARTITION, markers, NOON)
    assert len(batch) < 60 * MARKERS_MAX
    assert read_markers(TOPIC_PARTITION, parse_header(batch), batch) == markers


def test_clients_cannot_forge_markers() -> None:
    limits = BatchLimits(
        batch_bytes_max=1 << 20, inflated_bytes_max=1 << 20, takes_transactions=True
    )
    with pytest.raises(InvalidRecordError, match="only a broker may write control batches"):
        check(TOPIC_PARTITION, seal_markers(TOPIC_PARTITION, [written(7)], NOON), limits)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        VALUE.pack(2, 0, 2, 0, 0, 7, -1, -1, 0),  # A later version,
        VALUE.pack(1, 2, 2, 0, 0, 7, -1, -1, 0),  # kind,
        VALUE.pack(1, 0, 3, 0, 0, 7, -1, -1, 0),  # protocol,
        VALUE.pack(1, 0, 2, 1, 0, 7, -1, -1, 0),  # or field.
        VALUE.pack(1, 0, 2, 0, 0, -1, -1, -1, 0),
        VALUE.pack(1, 0, 2, 0, 0, 7, -1, -1, -1),
        VALUE.pack(1, 0, 2, 0, 0, 7, 5, 4, 0),
        VALUE.pack(1, 0, 2, 0, 0, 7, -2, 4, 0),
    ],
)
def test_what_is_no_marker_is_refused(value: bytes | None) -> None:
    prepared = prepare(TOPIC_PARTITION, Columns(1, NOON, values=[value]))
    prepared.attributes |= Attributes.CONTROL
    batch = prepared.finish() + bytes(prepared.body)
    with pytest.raises(InvalidRecordError, match="a later release has written it"):
        read_markers(TOPIC_PARTITION, parse_header(batch), batch)
