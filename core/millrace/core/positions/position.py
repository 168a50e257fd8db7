"""What is kept under a name: a position for each partition and kind, and the bounds of it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from millrace.core.errors import InvalidPositionError
from millrace.core.ids import TopicPartition
from millrace.core.settings import Unit, setting

NAME_BYTES_MAX: Final = 255
REQUEST_POSITIONS_MAX: Final = 1000
"""Positions in one request; a client sends more of them in several."""

_OFFSET_MAX: Final = 2**63 - 1
_EPOCH_MAX: Final = 2**31 - 1


class Kind(IntEnum):
    """What a position is; the numbers are on disk."""

    INITIAL = 1
    """Where a reader began: the first one that was proposed stays."""
    COMMITTED = 2
    """How far it has come: the last one that was said counts."""


@dataclass(slots=True, frozen=True)
class Position:
    """A place in a partition.

    Attributes:
        offset: of the record that is to be read next.
        leader_epoch: of the last record before it, by which a reader finds out that the log was
            truncated; -1: unknown.
        metadata: a text of the reader's own.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class PositionKey(NamedTuple):
    """What a position is kept under."""

    kind: Kind
    name: str
    topic_partition: TopicPartition


@dataclass(frozen=True, kw_only=True)
class PositionsConfig:
    """Positions that readers keep on the brokers: see [positions](clusters.md#positions)."""

    retention_ms: int = setting(
        604_800_000,
        "A name of which no position was stored for so long is forgotten, once something was "
        "committed under it. Positions in a topic that is deleted go after as long. Kafka's "
        "`offsets.retention.minutes`.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=_OFFSET_MAX,
        minus_one="never",
    )
    initial_retention_ms: int = setting(
        7_776_000_000,
        "Likewise while nothing was committed: its initial positions are all that says where its "
        "reader began, and one that is started again must begin there, or records are lost.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=_OFFSET_MAX,
        minus_one="never",
    )
    metadata_bytes_max: int = setting(
        4096,
        "Bytes of a position's metadata. Kafka's `offset.metadata.max.bytes`.",
        unit=Unit.BYTES,
        maximum=4096,
    )
    name_positions_max: int = setting(
        20_000,
        "Most positions under one name, initial and committed ones: enough for 10000 partitions.",
        minimum=1,
        maximum=1_000_000,
    )
    partition_positions_max: int = setting(
        25_000,
        "Most positions in one partition of `__positions`, initial and committed ones of all its "
        "names; a new one is refused then. They are in the memory of the broker that leads it, "
        "some 650 bytes each, and are read again when another broker leads, some 50000 in a "
        "second: a broker that leads all 16 partitions bears 400000 of them, with 260 MB.",
        minimum=1,
        maximum=10_000_000,
    )


def check_name(name: str) -> None:
    """Refuse a name under which nothing can be kept.

    Raises:
        InvalidPositionError: says why.
    """
    if not name.strip() or not name.isprintable() or len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidPositionError(
            f"the name {name[:NAME_BYTES_MAX]!r}: a name of positions is 1 to {NAME_BYTES_MAX} "
            "bytes of printable text"
        )


def check_position(position: Position, config: PositionsConfig) -> None:
    """Refuse a position that is none.

    Raises:
        InvalidPositionError: says why.
    """
    if not 0 <= position.offset <= _OFFSET_MAX or not -1 <= position.leader_epoch <= _EPOCH_MAX:
        raise InvalidPositionError(
            f"offset {position.offset} of leader epoch {position.leader_epoch}: an offset is 0 or "
            "more, an epoch -1 or more"
        )
    if len(position.metadata.encode()) > config.metadata_bytes_max:
        raise InvalidPositionError(
            f"the metadata of a position has {len(position.metadata.encode())} bytes, and the "
            f"setting positions.metadata_bytes_max allows {config.metadata_bytes_max}"
        )
