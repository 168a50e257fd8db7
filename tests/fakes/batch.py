"""Batches for tests that need only offsets and epochs, and one partition for them."""

from functools import cache
from typing import NamedTuple, Self

from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import BatchHeader, parse_header

PARTITION = TopicPartition(TopicId(b"t" * 16), 0)
WALL = WallMs(1_000_000)


@cache
def header_of(
    records: int = 1, producer_id: int = -1, sequence: int = -1, timestamp: int = WALL
) -> BatchHeader:
    """Return a batch's header as the checking thread passes it on."""
    prepared = prepare(PARTITION, Columns(records, WallMs(timestamp), [b"x"] * records))
    epoch = ProducerEpoch(-1 if producer_id < 0 else 0)
    return parse_header(prepared.finish(ProducerId(producer_id), epoch, sequence))


class Batch(NamedTuple):
    """A batch in a log; `text` stands for its bytes."""

    base_offset: Offset
    next_offset: Offset
    leader_epoch: LeaderEpoch
    text: str

    def cut(self, topic_partition: TopicPartition, offset: Offset) -> Self:
        """Return its end."""
        return self._replace(base_offset=offset, text=f"{self.text} from {offset}")
