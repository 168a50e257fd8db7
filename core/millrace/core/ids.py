"""Identities and quantities that must never be mistaken for one another.

An offset next to a word is always one of: `base_offset` (first), `last_offset` (inclusive),
`next_offset` or `end_offset` (exclusive). Ranges are half-open: `[base_offset, next_offset)`.
"""

import re
from typing import Final, NamedTuple, NewType

TopicId = NewType("TopicId", bytes)
"""16 random bytes, given once at creation. A topic deleted and made again has another id."""

BrokerId = NewType("BrokerId", int)
"""int32, given by the controller at a broker's first registration."""

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
PartitionEpoch = NewType("PartitionEpoch", int)
BrokerEpoch = NewType("BrokerEpoch", int)
ControllerEpoch = NewType("ControllerEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)

MonotonicMs = NewType("MonotonicMs", int)
"""Milliseconds of a clock that never jumps: sessions, lag, leases, time-outs."""

WallMs = NewType("WallMs", int)
"""Milliseconds UTC since 1970: record timestamps and retention. Never used to measure time."""

UNKNOWN_OFFSET: Final = Offset(-1)
VERIFY_NOTHING: Final = Offset(0)
"""As `verify_until`, below which a reader has its broker verify batches: none came damaged."""
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = WallMs(-1)
NO_BROKER: Final = BrokerId(-1)

TOPIC_ID_BYTES: Final = 16
PARTITION_MAX: Final = 2**31 - 1

# One spelling only, so that two directories never stand for one partition.
_TOPIC_PARTITION: Final = re.compile(r"([0-9a-f]{32})-(0|[1-9][0-9]{0,9})", re.ASCII)


class TopicPartition(NamedTuple):
    """One partition of one topic, named by what never changes."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        """The name of the partition's directory: topic id in hex, a hyphen, the number."""
        return f"{self.topic_id.hex()}-{self.partition}"


class EpochEnd(NamedTuple):
    """A leader epoch and the exclusive end of what it wrote."""

    epoch: LeaderEpoch
    end_offset: Offset


NOTHING_WRITTEN: Final = EpochEnd(NO_LEADER_EPOCH, Offset(0))
"""The end of no records: every log has all before it."""


class Leader(NamedTuple):
    """The leader of a partition, and its leader epoch."""

    broker_id: BrokerId
    leader_epoch: LeaderEpoch


class KnownLeader(NamedTuple):
    """A leader with the place where it can be reached.

    Attributes:
        address: `host:port` of its client listener; empty when there is no leader.
    """

    leader: Leader
    address: str


def parse_topic_partition(text: str) -> TopicPartition | None:
    """Return the partition that a directory name stands for, or None when it is not one."""
    match = _TOPIC_PARTITION.fullmatch(text)
    if match is None or int(match[2]) > PARTITION_MAX:
        return None
    return TopicPartition(TopicId(bytes.fromhex(match[1])), int(match[2]))
