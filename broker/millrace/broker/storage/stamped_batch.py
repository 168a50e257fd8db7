"""A batch from a leader for its log: the original body after the stamped header."""

import struct
from dataclasses import dataclass
from typing import Final, Self

from millrace.core.ids import (
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.header import SEQUENCE_MAX, BatchHeader, Buffer, parse_header
from millrace.core.records.rewriting import cut

_STAMP: Final = struct.Struct("<iq")  # Leader epoch and base offset of a stamped header.
_STAMP_AT: Final = 68
_APPENDED: Final = struct.Struct("<q")
_APPENDED_AT: Final = 80


@dataclass(slots=True)
class StampedBatch:
    """A batch with its offsets, ready to be written. `header` and `body` are the bytes.

    `header` begins with the 96 bytes of ours; of a Kafka client's batch it has Kafka's header, too,
    which is stamped likewise. `length` counts both; `next_offset` is that of the first record after
    the batch. `came_at` is when this replica took it as the leader; -1: it comes when it is
    written.
    """

    header: bytes
    body: Buffer
    length: int
    base_offset: Offset
    next_offset: Offset
    last_offset_delta: int
    leader_epoch: LeaderEpoch
    largest_timestamp: WallMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    attributes: int
    came_at: WallMs = NO_TIMESTAMP

    @classmethod
    def of(
        cls,
        header: BatchHeader,
        stamped: bytes,
        body: Buffer,
        append_timestamp: WallMs = NO_TIMESTAMP,
        came_at: WallMs = NO_TIMESTAMP,
    ) -> Self:
        """Return a checked batch with the header from `header.stamp`, or `kafka_batch.stamp`.

        Args:
            header: the parsed header; its offset and epoch need not be those of `stamped`.
            stamped: the bytes from that.
            body: the rest of the stored body.
            append_timestamp: as given to `stamp`.
            came_at: when this replica, as the leader, took it.
        """
        leader_epoch, base_offset = _STAMP.unpack_from(stamped, _STAMP_AT)
        return cls(
            stamped,
            body,
            len(stamped) + len(body),
            base_offset,
            Offset(base_offset + header.last_offset_delta + 1),
            header.last_offset_delta,
            leader_epoch,
            header.largest_timestamp if append_timestamp == NO_TIMESTAMP else append_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.attributes,
            came_at,
        )

    def cut(self, topic_partition: TopicPartition, offset: Offset) -> Self:
        """Return the end of the batch, from `offset` on; see `rewriting.cut`."""
        whole = memoryview(self.header + bytes(self.body))
        made = cut(topic_partition, parse_header(whole), whole, offset)
        return self.of(made.header, made.stamped, made.body)

    @property
    def format(self) -> int:
        """The version of the layout."""
        return self.header[3]

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record."""
        # Not by the record count: a cleaner removes records, but no sequences.
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def append_timestamp(self) -> WallMs:
        """As the header says: -1 unless the topic stamps append time."""
        (timestamp,) = _APPENDED.unpack_from(self.header, _APPENDED_AT)
        return WallMs(timestamp)
