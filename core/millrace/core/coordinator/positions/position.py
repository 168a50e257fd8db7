"""Positions under a name: one for each partition and kind, and their bounds."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from millrace.core.errors import InvalidPositionError
from millrace.core.ids import TopicPartition
from millrace.core.settings import Unit, setting

NAME_BYTES_MAX: Final = 255
REQUEST_POSITIONS_MAX: Final = 1000
"""Positions in one request; a client divides more of them over several requests."""

_OFFSET_MAX: Final = 2**63 - 1
_EPOCH_MAX: Final = 2**31 - 1


class Kind(IntEnum):
    """The kind of a position; the numbers are on disk."""

    INITIAL = 1
    """Where a reader began: the first proposal stays."""
    COMMITTED = 2
    """How far it has read: the last commit counts."""


@dataclass(slots=True, frozen=True)
class Position:
    """A place in a partition.

    Attributes:
        offset: of the next record to read.
        leader_epoch: of the last record before it, with which a reader detects a truncated log; -1:
            unknown.
        metadata: a text of the reader's own.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommitNumber(NamedTuple):
    """Which commit of a group's member stored a position.

    Attributes:
        member_id: of the member.
        number: counts the commits of this member, so that a late attempt is known as such.
    """

    member_id: str
    number: int

    def precedes(self, other: "CommitNumber | None") -> bool:
        """Whether the same member has made this commit before the other one."""
        return (
            other is not None and other.member_id == self.member_id and self.number < other.number
        )


class PositionKey(NamedTuple):
    """The key of a position."""

    kind: Kind
    name: str
    topic_partition: TopicPartition


@dataclass(frozen=True, kw_only=True)
class PositionsConfig:
    """Positions that readers keep on the brokers: see [positions](clusters.md#positions)."""

    retention_ms: int = setting(
        604_800_000,
        "A name is forgotten when no position of it was stored for this long, if a position was "
        "committed under it. Those of a topic that is gone for good are forgotten after the same "
        "time.",
        kafka="offsets.retention.minutes",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=_OFFSET_MAX,
        minus_one="never",
    )
    initial_retention_ms: int = setting(
        7_776_000_000,
        "Likewise for a name without a commit: only its initial positions say where its reader "
        "began, and the reader must begin there again after a restart, or records are lost.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=_OFFSET_MAX,
        minus_one="never",
    )
    left_topic_retention_ms: int = setting(
        604_800_000,
        "A group with members forgets its position in a topic to which none has subscribed for "
        "this long, if none was stored there meanwhile; its lag there counts until then. In a "
        "group of Kafka's classic protocol the time begins again with each rebalance. "
        "`millrace group forget` does it at once.",
        kafka="offsets.retention.minutes",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=_OFFSET_MAX,
        minus_one="never",
    )
    metadata_bytes_max: int = setting(
        4096,
        "Bytes of a position's metadata.",
        kafka="offset.metadata.max.bytes",
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
        "names; a new one is refused then. They take memory of the broker that leads it, about 650 "
        "bytes each, and are read again when another broker leads, about 50000 a second: a broker "
        "that leads all 16 partitions can have 400000 of them, in 260 MB.",
        minimum=1,
        maximum=10_000_000,
    )


def why_no_name(name: str, owner: str) -> str:
    """Return why a name is invalid; empty: it is valid.

    Args:
        name: of positions, or of a group.
        owner: what has the name, in words.
    """
    if name.strip() and name.isprintable() and len(name.encode()) <= NAME_BYTES_MAX:
        return ""
    return (
        f"the name {name[:NAME_BYTES_MAX]!r}: a name of {owner} is 1 to {NAME_BYTES_MAX} bytes of "
        "printable text"
    )


def check_name(name: str) -> None:
    """Refuse an invalid name.

    Raises:
        InvalidPositionError: says why.
    """
    if why := why_no_name(name, "positions"):
        raise InvalidPositionError(why)


def check_place(position: Position) -> None:
    """Refuse an offset or an epoch that no record can have.

    Raises:
        InvalidPositionError: says why.
    """
    if not 0 <= position.offset <= _OFFSET_MAX or not -1 <= position.leader_epoch <= _EPOCH_MAX:
        raise InvalidPositionError(
            f"offset {position.offset} of leader epoch {position.leader_epoch}: an offset is 0 or "
            "more, an epoch -1 or more"
        )


def check_position(position: Position, config: PositionsConfig) -> None:
    """Refuse an invalid position.

    Raises:
        InvalidPositionError: says why.
    """
    check_place(position)
    if len(position.metadata.encode()) > config.metadata_bytes_max:
        raise InvalidPositionError(
            f"the metadata of a position has {len(position.metadata.encode())} bytes, and the "
            f"setting positions.metadata_bytes_max allows {config.metadata_bytes_max}"
        )
