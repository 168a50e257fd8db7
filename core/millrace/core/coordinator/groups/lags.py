"""The lags of groups, by topic: what to ask the leaders of partitions, and sums of their answers.

A round takes up groups one after another, with their positions, and adds up what leaders answer.
Many groups are often at the same offset of a partition, as when all of them have read everything.
So a leader is asked once about each offset, however many groups are there.

Where a group has stored no position, it has read nothing: its lag counts from the log's start. So
the group that is furthest behind, one that never got to its first commit, is seen.

What is not known is not 0: as long as the lag in one partition is unknown, so are the sums. It is
unknown while the leader does not answer, and for a position beyond the end of the log.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from millrace.core.ids import Offset, TopicId, TopicPartition
from millrace.core.topics import PartitionName

FIRST: Final = Offset(0)
"""What leaders are asked about where no position is stored."""
Place = tuple[TopicPartition, int]
"""An offset in a partition: of the record that is read next."""


class Unread(NamedTuple):
    """What follows a place, as the partition's leader has measured it.

    Attributes:
        records: that are there.
        bytes: stored, of the batches that hold them.
        milliseconds: age of the first of these batches; 0: all is read; None: unknown.
    """

    records: int
    bytes: int
    milliseconds: int | None


class Measured(Protocol):
    """A lag in one partition; its attributes are those of `Unread`."""

    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def milliseconds(self) -> int | None: ...


class LagSums(NamedTuple):
    """The lag in several partitions.

    Attributes:
        records: over all partitions; None: unknown, and so below.
        records_max: of the partition with the most.
        bytes: over all partitions.
        milliseconds: of the partition that is furthest behind.
        unknown: partitions in which the lag is not known.
    """

    records: int | None
    records_max: int | None
    bytes: int | None
    milliseconds: int | None
    unknown: int


class GroupLag(NamedTuple):
    """How far a group is behind in a topic, by their names."""

    group: str
    topic: str
    lag: LagSums


def unread_records(position: int, log_start: int, end: int, unread_bytes: int) -> int:
    """Return how many records are there from a position on, in a log with these bounds.

    None where no batch is unread: what is left are ends of transactions. The end may also be before
    the position: a reader of uncommitted records was there.
    """
    return max(0, end - max(position, log_start)) if unread_bytes else 0


def asked_about(
    places: Iterable[PartitionName], positions: Mapping[PartitionName, int]
) -> dict[PartitionName, int]:
    """Return the offsets to ask leaders about, in partitions with and without a position."""
    return {place: positions.get(place, FIRST) for place in places}


def added_up(lags: Collection[Measured | None]) -> LagSums:
    """Return the sums; they are unknown if one of the lags is, or there is none."""
    known = [lag for lag in lags if lag is not None]
    unknown = len(lags) - len(known)
    if unknown or not known:
        return LagSums(None, None, None, None, unknown)
    times = [lag.milliseconds for lag in known if lag.milliseconds is not None]
    return LagSums(
        records=sum(lag.records for lag in known),
        records_max=max(lag.records for lag in known),
        bytes=sum(lag.bytes for lag in known),
        milliseconds=max(times) if len(times) == len(known) else None,
        unknown=0,
    )


class LagRound:
    """One round: what to ask, and the sums of what was answered.

    Args:
        series_max: of pairs of a group and a topic.
        name_of: returns the name of a topic; empty: it was deleted.

    Attributes:
        left_out: groups that do not fit any more.
        positions: of all groups that were taken up.
    """

    def __init__(self, series_max: int, name_of: Callable[[TopicId], str]) -> None:
        self._room = series_max
        self._name_of = name_of
        self._topics: dict[tuple[str, str], list[Place]] = {}
        self._places: dict[Place, None] = {}
        self.left_out = 0
        self.positions = 0

    @property
    def places(self) -> Collection[Place]:
        """What leaders are to be asked."""
        return self._places

    @property
    def is_full(self) -> bool:
        """Whether no other group fits."""
        return self._room <= 0

    def take(self, group: str, positions: Mapping[TopicPartition, Offset | None]) -> None:
        """Take up a group, unless its topics do not fit.

        Args:
            group: its name.
            positions: of the next record to read; None: the group has stored none.
        """
        names = {topic_id: self._name_of(topic_id) for topic_id, _ in positions}
        topics: dict[tuple[str, str], list[Place]] = defaultdict(list)
        for topic_partition, offset in positions.items():
            if name := names[topic_partition.topic_id]:
                place = topic_partition, FIRST if offset is None else offset
                topics[group, name].append(place)
        if len(topics) > self._room:
            self.left_out += 1
            return
        self._room -= len(topics)
        self._topics.update(topics)
        for places in topics.values():
            self.positions += len(places)
            self._places.update(dict.fromkeys(places))

    def lags(self, found: Mapping[Place, Unread]) -> Iterator[GroupLag]:
        """Yield the lags, from what leaders answered."""
        for (group, topic), places in self._topics.items():
            yield GroupLag(group, topic, added_up([found.get(place) for place in places]))
