"""Offsets as a checkpoint keeps them: pure.

In Kafka's form, so that people can read it, and with the identity of topic and log:

    {"__meta": {"v": 1, "ids": {"clicks": "<topic id>"}, "epoch": {"clicks": {"0": 4}}},
     "clicks": {"0": 23, "1": 7}}

Spark repeats a batch that failed by its end alone: it asks for the initial offsets again, and its
last offsets lack partitions that came with the batch. By then retention or a deletion may have
moved the beginning of a log. So the end of a batch also says where the batch begins, in partitions
that no batch has read before: `__meta` then has `"begin"`, offsets of the same form.

Spark compares offsets as texts: equal offsets must be written equally, or it sees new data where
there is none. So all keys are in order, and unknown values are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from millrace.core.numbers import parse_whole_number
from millrace.core.settings import INT32_MAX, INT64_MAX
from millrace.core.topics import PartitionName
from millrace.spark.errors import CheckpointError

_META: Final = "__meta"
_VERSION: Final = 1
UNKNOWN_EPOCH: Final = -1


@dataclass(slots=True, frozen=True)
class LogPosition:
    """Where to read next in a partition."""

    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    """No record below `offset` has a later leader epoch; -1: unknown."""


@dataclass(slots=True, frozen=True)
class Offsets:
    """A position in each partition of a query."""

    positions: Mapping[PartitionName, LogPosition]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids in hex."""
    begin: "Offsets | None" = None
    """Of the end of a batch: where the batch begins in partitions that no batch has read before."""

    def to_dict(self) -> dict[str, Any]:
        """Return the offsets for the checkpoint, in their only form."""
        places = sorted(self.positions)
        topics = sorted({topic for topic, _ in places})
        epochs: dict[str, dict[str, int]] = {}
        offsets: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        for topic, partition in places:
            position = self.positions[topic, partition]
            offsets[topic][str(partition)] = position.offset
            if position.leader_epoch >= 0:
                epochs.setdefault(topic, {})[str(partition)] = position.leader_epoch
        ids = {topic: self.topic_ids[topic] for topic in topics if topic in self.topic_ids}
        begin = {} if self.begin is None else {"begin": self.begin.to_dict()}
        return {_META: {**begin, "epoch": epochs, "ids": ids, "v": _VERSION}, **offsets}

    @staticmethod
    def from_dict(value: Mapping[str, Any]) -> "Offsets":
        """Return the offsets of a checkpoint.

        Raises:
            CheckpointError: another source wrote them, or a later version of this one.
        """
        try:
            meta = value[_META]
            version = meta["v"]
            if version != _VERSION:
                raise CheckpointError(
                    f"the checkpoint's offsets are of version {version!r}, and this release reads "
                    f"version {_VERSION}: go on with the release that wrote it, or begin a new "
                    "checkpoint"
                )
            positions = {
                (topic, _partition(partition)): LogPosition(
                    _number(offset, INT64_MAX),
                    _epoch(meta["epoch"].get(topic, {}).get(partition, UNKNOWN_EPOCH)),
                )
                for topic, partitions in value.items()
                if topic != _META
                for partition, offset in partitions.items()
            }
            ids = {topic: str(topic_id) for topic, topic_id in meta["ids"].items()}
            begin = Offsets.from_dict(meta["begin"]) if "begin" in meta else None
            return Offsets(positions, ids, begin)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint's offsets are not of the source millrace: {str(value)[:200]}: "
                "give the query a checkpoint of its own"
            ) from error

    def with_known_epochs(self, before: "Offsets") -> "Offsets":
        """Return these offsets with the epochs of `before` if nothing was read since.

        A new leader alone is no news: a different text would cause an empty batch.
        """
        positions = {
            place: before.positions[place]
            if place in before.positions and before.positions[place].offset == position.offset
            else position
            for place, position in self.positions.items()
        }
        return replace(self, positions=positions)


@dataclass(slots=True, frozen=True)
class Log:
    """The partitions of a query at one time."""

    beginnings: Mapping[PartitionName, int]
    ends: Offsets


def check_topic_names(topics: Iterable[str]) -> None:
    """Refuse topics that offsets cannot name.

    Raises:
        CheckpointError: one has the name that the offsets use themselves.
    """
    if _META in topics:
        raise CheckpointError(f"a topic named {_META} cannot be read by Spark: rename it")


def _partition(text: str) -> int:
    number = parse_whole_number(text, INT32_MAX)
    if number is None or str(number) != text:  # "00" would be a second name of one.
        raise ValueError(f"{text!r} is no partition")
    return number


def _epoch(value: object) -> int:
    return UNKNOWN_EPOCH if value == UNKNOWN_EPOCH else _number(value, INT32_MAX)


def _number(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no whole number from 0 to {most}")
    return value
