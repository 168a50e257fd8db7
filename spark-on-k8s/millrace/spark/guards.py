"""Whether what a query has read, or is to read, is still in the log: pure.

Offsets alone do not tell. A topic that was deleted and made anew counts from 0 again, and after an
unclean election other records may have an offset that was read. So offsets are kept with the id of
the topic and a leader epoch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.spark.errors import CheckpointError, DataLossError, TopicRecreatedError
from millrace.spark.offsets import Log, LogPosition, Offsets, Place

WHAT_TO_DO: Final = (
    "Nothing was skipped. failOnDataLoss=false goes on with what is there; a new checkpoint begins "
    "anew"
)
"""Ends the message of every loss."""


@dataclass(slots=True, frozen=True)
class Loss:
    """Records of one partition that cannot be read."""

    place: Place
    why: str
    read_on_at: int | None
    """Where what is there begins; None: the partition is gone."""
    is_other_topic: bool = False


def with_new_partitions(begin: Offsets, until: Offsets, log: Log) -> Offsets:
    """Return where a batch begins, also in partitions that have come since: at their beginning.

    Args:
        begin: where the batch before ended.
        until: where this one ends; it says which topics the new partitions are of.
        log: the partitions as they are.
    """
    new = {
        place: LogPosition(log.beginnings.get(place, 0))
        for place in until.positions
        if place not in begin.positions
    }
    return Offsets({**new, **begin.positions}, {**until.topic_ids, **begin.topic_ids})


def losses(at: Offsets, log: Log, lost_from: Mapping[Place, int]) -> Iterator[Loss]:
    """Return what is missing of the records from these offsets on.

    Args:
        at: where to read on.
        log: the partitions as they are.
        lost_from: partitions whose leader has another log from an offset on.
    """
    for place, position in sorted(at.positions.items()):
        topic, offset = place[0], position.offset
        if place not in log.beginnings:
            yield Loss(place, "the partition does not exist any more", None)
            continue
        beginning, end = log.beginnings[place], log.ends.positions[place].offset
        known = at.topic_ids.get(topic)
        if known is not None and known != log.ends.topic_ids[topic]:
            why = f"topic {topic!r} was deleted and made anew"
            yield Loss(place, why, beginning, is_other_topic=True)
        elif offset < beginning:
            yield Loss(place, f"the log begins at {beginning}, after {offset}", beginning)
        elif place in lost_from:  # Counts first: new records may be below an end that is passed.
            why = f"an unclean election has replaced the records from {lost_from[place]} on"
            yield Loss(place, why, max(beginning, min(end, lost_from[place])))
        elif offset > end:
            yield Loss(place, f"the log ends at {end}, before {offset}", end)


def raise_for(found: list[Loss], name: str | None = None) -> None:
    """Raise what was lost, if anything was.

    Args:
        found: what was lost.
        name: under which the brokers keep where the query began.

    Raises:
        DataLossError: with every loss, and what to do.
    """
    if found:
        kind = TopicRecreatedError if any(loss.is_other_topic for loss in found) else DataLossError
        told = "; ".join(f"{loss.place[0]}-{loss.place[1]}: {loss.why}" for loss in found)
        # A new checkpoint of the same name would begin where this one did.
        once = (
            f", once millrace positions delete {name!r} has forgotten the old one" if name else ""
        )
        raise kind(f"records that were to be read are gone: {told}. {WHAT_TO_DO}{once}")


def read_on(at: Offsets, found: list[Loss], log: Log) -> Offsets:
    """Return where to read on in spite of losses."""
    positions = dict(at.positions)
    for loss in found:
        if loss.read_on_at is None:
            del positions[loss.place]
        else:
            positions[loss.place] = LogPosition(loss.read_on_at)
    return Offsets(positions, {**at.topic_ids, **log.ends.topic_ids})


def check_is_of_this_query(checkpoint: Offsets, topics: set[str]) -> None:
    """Refuse a checkpoint of other topics.

    Raises:
        CheckpointError: it has none of the topics that the query reads.
    """
    before = {topic for topic, _ in checkpoint.positions}
    if before and topics and not before & topics:
        raise CheckpointError(
            f"the checkpoint is of {sorted(before)}, and the query reads {sorted(topics)}: give "
            "the query a checkpoint of its own"
        )
