"""Checks that the records of a query, read or to be read, are still in the log: pure.

Offsets alone do not suffice. A topic that was deleted and created again counts from 0 again, and
after an unclean election other records may have an offset that was read. So offsets are kept with
the id of the topic and a leader epoch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace.core.topics import PartitionName
from millrace.spark.cluster.offsets import Log, LogPosition, Offsets
from millrace.spark.errors import CheckpointError, DataLossError, TopicRecreatedError
from millrace.spark.options.option import Use
from millrace.spark.options.subscriptions import Subscription

NOTHING_SKIPPED: Final = "Nothing was skipped. failOnDataLoss=false goes on with what is there"


@dataclass(slots=True, frozen=True)
class Loss:
    """Records of one partition that cannot be read."""

    place: PartitionName
    why: str
    read_on_at: int | None
    """The offset of the first existing record; None: the partition is gone."""
    is_other_topic: bool = False

    @staticmethod
    def of_partition(place: PartitionName) -> "Loss":
        """A partition that no longer exists."""
        return Loss(place, "the partition does not exist any more", None)

    @staticmethod
    def of_end(place: PartitionName, end: int, wanted: int) -> "Loss":
        """The end of a log that is shorter than it was."""
        return Loss(place, f"the log ends at {end}, before {wanted}", end)

    def of_options(self) -> "Loss":
        """Return the loss of a partition that may be there, but the query's options changed."""
        return replace(self, why="the options of the query do not name it any more")

    @property
    def is_of_topic(self) -> bool:
        """Whether the partition itself is gone, and not only records of it."""
        return self.read_on_at is None or self.is_other_topic


def as_planned(begin: Offsets, until: Offsets) -> Offsets:
    """Return where a batch begins, as it was planned.

    Args:
        begin: where the batch before ended; initial offsets, looked up again, if there was none.
        until: where this one ends; it has the beginnings of new partitions. A checkpoint of an
            earlier release lacks them: there a new partition begins at 0.
    """
    if begin == until:  # A batch without new records; `until` tells of the batch before.
        return begin
    new = {place: LogPosition(0) for place in until.positions if place not in begin.positions}
    planned = until.begin or Offsets({})
    return Offsets(
        {**new, **begin.positions, **planned.positions},
        {**until.topic_ids, **begin.topic_ids, **planned.topic_ids},
    )


def losses_of_new(begin: Offsets, beginnings: Mapping[PartitionName, int]) -> Iterator[Loss]:
    """Return the missing records of partitions that a query meets while it runs.

    Kafka's source reports them likewise.

    Args:
        begin: where the batch before ended.
        beginnings: where the logs of the new partitions begin.
    """
    for place, beginning in sorted(beginnings.items()):
        if place not in begin.positions and beginning > 0:
            why = f"the partition is new, and its log begins at {beginning} instead of 0"
            yield Loss(place, why, beginning)


def losses(at: Offsets, log: Log, lost_from: Mapping[PartitionName, int]) -> Iterator[Loss]:
    """Return the missing records from these offsets on.

    Args:
        lost_from: partitions whose leader has another log from an offset on.
    """
    for place, position in sorted(at.positions.items()):
        topic, offset = place[0], position.offset
        if place not in log.beginnings:
            yield Loss.of_partition(place)
            continue
        beginning, end = log.beginnings[place], log.ends.positions[place].offset
        if is_of_other_topic(at, log, topic):
            yield Loss(place, _was_recreated(topic), beginning, is_other_topic=True)
        elif offset < beginning:
            yield Loss(place, f"the log begins at {beginning}, after {offset}", beginning)
        elif place in lost_from:  # Takes precedence: new records may be below a passed end.
            why = f"an unclean election has replaced the records from {lost_from[place]} on"
            yield Loss(place, why, max(beginning, min(end, lost_from[place])))
        elif offset > end:
            yield Loss.of_end(place, end, offset)


def losses_before(until: Offsets, begin: Offsets, log: Log) -> Iterator[Loss]:
    """Return the missing records up to these offsets.

    Args:
        begin: the first existing offsets; partitions that are not in it were reported before.
    """
    for place in sorted(until.positions.keys() & begin.positions.keys()):
        first, last = begin.positions[place].offset, until.positions[place].offset
        end = log.ends.positions[place].offset
        if is_of_other_topic(until, log, place[0]):
            yield Loss(place, _was_recreated(place[0]), None, is_other_topic=True)
        elif end < last:
            yield Loss.of_end(place, end, last)
        elif first > last:
            why = f"it was to be read up to {last}, and is read from {first} on"
            yield Loss(place, why, first)


def is_of_other_topic(offsets: Offsets, log: Log, topic: str) -> bool:
    """Return whether offsets are those of an earlier topic of the name."""
    known = offsets.topic_ids.get(topic)
    return known is not None and known != log.ends.topic_ids[topic]


def _was_recreated(topic: str) -> str:
    return f"topic {topic!r} was deleted and created again"


def what_to_do(use: Use, name: str | None) -> str:
    """Return the end of the message about every loss since a query began.

    Args:
        use: whether the query is a stream, which has a checkpoint.
        name: under which the brokers keep where the query began.
    """
    if use is Use.BATCH:  # Its ranges were looked up when it was loaded.
        return f"{NOTHING_SKIPPED}, and so does a DataFrame that is loaded again"
    advice = f"{NOTHING_SKIPPED}; a new checkpoint starts over"
    if name:  # A new checkpoint of the same name would begin where this one did.
        advice += f", once millrace group delete {name!r} has forgotten the old one"
    return advice


def told(found: list[Loss]) -> str:
    """Return losses as a text."""
    return "; ".join(f"{loss.place[0]}-{loss.place[1]}: {loss.why}" for loss in found)


def raise_for(found: list[Loss], advice: str, cause: Exception | None = None) -> None:
    """Raise an error for losses, if there are any.

    Raises:
        DataLossError: with every loss, and what to do.
    """
    if found:
        kind = TopicRecreatedError if any(loss.is_other_topic for loss in found) else DataLossError
        raise kind(f"records that were to be read are gone: {told(found)}. {advice}") from cause


def read_on(at: Offsets, found: list[Loss], log: Log) -> Offsets:
    """Return where to continue in spite of losses."""
    positions = dict(at.positions)
    for loss in found:
        if loss.read_on_at is None:
            del positions[loss.place]
        else:
            positions[loss.place] = LogPosition(loss.read_on_at)
    return Offsets(positions, {**at.topic_ids, **log.ends.topic_ids})


def check_is_of_this_query(checkpoint: Offsets, subscription: Subscription) -> None:
    """Refuse a checkpoint of other topics. Topics that are gone are a loss, reported elsewhere.

    Raises:
        CheckpointError: it has none of the topics that the query reads.
    """
    before = sorted({topic for topic, _ in checkpoint.positions})
    if before and not any(map(subscription.matches, before)):
        raise CheckpointError(
            f"the checkpoint is of {before}, and the query reads {subscription}: give the query a "
            "checkpoint of its own"
        )
