"""Markers: how a partition's log says that transactions are over.

The leader writes a *control batch* when a transaction with records in the partition is decided: one
record for each producer whose transaction ends there. Readers of committed records skip the batches
of aborted transactions; nobody is shown a control batch.

A marker also says where the transaction's records lie in this partition. So an index of aborted
transactions follows from the control batches alone (T5), and a replica rebuilds it by reading them.

The record's value, little-endian; there is no key:

| offset | size | field             | meaning                                                      |
|-------:|-----:|-------------------|--------------------------------------------------------------|
|      0 |    1 | version           | of this format, 1                                            |
|      1 |    1 | kind              | 0: aborted, 1: committed                                     |
|      2 |    1 | protocol          | 2: each end has a new epoch (KIP-890); 1: Kafka before it    |
|      3 |    1 | (reserved)        | 0                                                            |
|      4 |    4 | coordinator_epoch | leader epoch of the coordinator's partition, int32           |
|      8 |    8 | producer_id       | int64                                                        |
|     16 |    8 | first_offset      | of the transaction's first record here, int64; -1: none      |
|     24 |    8 | last_offset       | of its last record here, int64; -1: none                     |
|     32 |    2 | producer_epoch    | int16: it fences what is late                                |

Source: KIP-98's control messages, KIP-890, KIP-1228.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.core.errors import InvalidRecordError
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records import column_writer
from millrace.core.records.batch import open_batch
from millrace.core.records.columns import Columns
from millrace.core.records.header import (
    Attributes,
    BatchHeader,
    Buffer,
    producer_section,
    seal,
)

NO_OFFSET: Final = Offset(-1)
MARKERS_MAX: Final = 10_000
"""Markers in one control batch."""
BUMPING: Final = 2
"""The protocol of Millrace's own clients: the epoch rises at each end (KIP-890)."""
NOT_BUMPING: Final = 1
"""Kafka's earlier protocol: a transaction's marker has the epoch of its records."""

_VERSION: Final = 1
_VALUE: Final = struct.Struct("<BBBBiqqqh")


class Marker(NamedTuple):
    """The end of a producer's transaction, as its coordinator decided it.

    Attributes:
        producer_epoch: the epoch from now on; with `BUMPING` the one after that of the records.
        coordinator_epoch: the leader epoch of the coordinator's partition.
        protocol: `BUMPING` or `NOT_BUMPING`.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    coordinator_epoch: LeaderEpoch
    protocol: int = BUMPING


class WrittenMarker(NamedTuple):
    """A marker in a partition's log, with the place of its transaction's records there.

    Attributes:
        first_offset: of the first record; `NO_OFFSET`: the partition has none.
        last_offset: of the last record, likewise.
    """

    marker: Marker
    first_offset: Offset = NO_OFFSET
    last_offset: Offset = NO_OFFSET


class AbortedTransaction(NamedTuple):
    """Where the records of an aborted transaction lie in one partition.

    Readers of committed records skip the producer's transactional batches that begin there.

    Attributes:
        first_offset: of the first record.
        last_offset: of the last record, inclusive.
    """

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset


def seal_markers(
    topic_partition: TopicPartition, markers: Sequence[WrittenMarker], now: WallMs
) -> bytes:
    """Return a control batch, header and body, not stamped yet.

    Args:
        topic_partition: where it is written.
        markers: 1 to `MARKERS_MAX`.
        now: the time of all its records.
    """
    assert 0 < len(markers) <= MARKERS_MAX
    written = column_writer.write(
        Columns(
            len(markers),
            np.full(len(markers), now, np.int64),
            values=[_value(marker) for marker in markers],
        )
    )
    section = producer_section(
        stored_length=len(written.body),
        inflated_length=len(written.body),
        record_count=len(markers),
        attributes=written.attributes | Attributes.CONTROL,
        base_timestamp=now,
        max_timestamp=now,
    )
    return seal(topic_partition, section, written.body) + bytes(written.body)


def read_markers(
    topic_partition: TopicPartition, header: BatchHeader, batch: Buffer
) -> list[WrittenMarker]:
    """Return the markers of a control batch; those that a cleaner took away are not among them.

    Args:
        topic_partition: where it was written.
        header: of the batch.
        batch: all of it.

    Raises:
        CorruptBatchError, UnsupportedFormatError, MessageTooLargeError: as `open_batch`.
        InvalidRecordError: a record is no marker that this release knows.
    """
    if not header.record_count:
        return []
    opened = open_batch(topic_partition, header, batch, header.inflated_length)
    return markers_of(opened.column("value"))


def markers_of(values: pa.Array) -> list[WrittenMarker]:
    """Return the markers that the values of a control batch are.

    Raises:
        InvalidRecordError: one is no marker that this release knows.
    """
    return [_parse(value) for value in values.to_pylist()]


def _value(written: WrittenMarker) -> bytes:
    marker = written.marker
    return _VALUE.pack(
        _VERSION,
        marker.is_commit,
        marker.protocol,
        0,
        marker.coordinator_epoch,
        marker.producer_id,
        written.first_offset,
        written.last_offset,
        marker.producer_epoch,
    )


def _parse(value: bytes | None) -> WrittenMarker:
    if value is None or len(value) != _VALUE.size:
        length = "no" if value is None else len(value)
        raise InvalidRecordError(f"a marker of {length} bytes: a later release has written it")
    version, kind, protocol, zero, coordinator, producer_id, first, last, epoch = _VALUE.unpack(
        value
    )
    is_known = version == _VERSION and kind <= 1 and protocol in (BUMPING, NOT_BUMPING)
    if not is_known or zero or producer_id < 0 or epoch < 0 or not -1 <= first <= last:
        raise InvalidRecordError(
            f"a marker of version {version}, kind {kind}, protocol {protocol}, producer "
            f"{producer_id} of epoch {epoch}, offsets {first} to {last}: a later release has "
            "written it"
        )
    return WrittenMarker(
        Marker(
            ProducerId(producer_id),
            ProducerEpoch(epoch),
            bool(kind),
            LeaderEpoch(coordinator),
            protocol,
        ),
        Offset(first),
        Offset(last),
    )
