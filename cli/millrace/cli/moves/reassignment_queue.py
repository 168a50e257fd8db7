"""A plan of reassignments that is worked through in waves, as many at a time as the cluster takes.

The controller bounds how many partitions are reassigned at a time, and refuses more.

Partitions refused only for that wait here, and are requested again as soon as others have ended.
There is no state beside the plan: the cluster itself shows what is done and what is under way. So
an interrupted command can be run again, also from elsewhere, and continues. If a partition was seen
on its way, and is neither done nor on its way any more, an operator has cancelled it: it is not
begun again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from millrace.cli.moves.moves import partitions_of
from millrace.core.errors import (
    MillraceError,
    ReassignmentReason,
    ReassignmentRefusedError,
    UnknownTopicOrPartitionError,
)
from millrace.core.topics import PartitionName
from millrace.core.words import shown

if TYPE_CHECKING:
    from millrace.client import PartitionDescription, TopicDescription

REQUEST_PARTITIONS_MAX = 500
"""Partitions in one request: the controller decides on each without a break."""


class Cluster(Protocol):
    """The part of an administration client that this uses."""

    def describe_topics(self) -> "Mapping[str, TopicDescription]":
        """Return all topics."""

    def reassign_partitions(
        self, assignments: Mapping[PartitionName, Sequence[int] | None]
    ) -> Mapping[PartitionName, MillraceError | None]:
        """Begin reassignments; return what was refused."""


class ReassignmentQueue:
    """Requests the reassignments of a plan, as many at a time as the controller takes.

    Args:
        wanted: the replicas of each partition, the preferred leader first.
        at_once: the most of the plan's partitions under way at a time; None: as many as the cluster
            takes.

    Attributes:
        done: partitions that are as the plan wants them.
        under_way: those on their way there; False: asked for, and not seen in the metadata yet.
        waiting: those that have not begun.
        refused: those that will not be moved, with the reason.
    """

    def __init__(
        self, wanted: Mapping[PartitionName, Sequence[int]], at_once: int | None = None
    ) -> None:
        self.done: dict[PartitionName, None] = {}
        self.under_way: dict[PartitionName, bool] = {}
        self.waiting: dict[PartitionName, None] = dict.fromkeys(wanted)
        self.refused: dict[PartitionName, MillraceError] = {}
        self._wanted = {place: tuple(replicas) for place, replicas in wanted.items()}
        self._at_once = at_once
        # How many were under way in the whole cluster when it took no more; None: it took all.
        self._full_at: int | None = None

    @property
    def total(self) -> int:
        """Return how many partitions the plan names."""
        return len(self._wanted)

    @property
    def is_over(self) -> bool:
        """Return whether there is nothing left to wait for."""
        return not (self.under_way or self.waiting)

    def go_on(self, cluster: Cluster) -> "list[TopicDescription]":
        """Update the progress, and begin as many as the cluster takes; return its topics.

        Raises:
            MillraceError: the cluster cannot be asked.
        """
        topics = list(cluster.describe_topics().values())
        described = dict(partitions_of(topics))
        self._look(described)
        moving = sum(partition.is_reassigning for partition in described.values())
        self._begin(cluster, moving)
        return topics

    def _look(self, described: "Mapping[PartitionName, PartitionDescription]") -> None:
        for place in [*self.under_way, *self.waiting]:
            was_seen = self.under_way.pop(place, None)
            partition = described.get(place)
            if partition is None:
                self._refuse(place, UnknownTopicOrPartitionError(f"there is no {shown(place)}"))
            elif partition.target_replicas == self._wanted[place]:
                self.waiting.pop(place, None)
                if partition.is_reassigning:
                    self.under_way[place] = True
                else:
                    self.done[place] = None
            elif was_seen:
                self._refuse(
                    place,
                    ReassignmentRefusedError(
                        f"{shown(place)} is not on its way any more: it was cancelled",
                        reason=ReassignmentReason.NOT_IN_PROGRESS,
                    ),
                )
            elif was_seen is not None:
                self.waiting[place] = None  # A repeated request changes nothing if it has begun.

    def _begin(self, cluster: Cluster, moving: int) -> None:
        """Request as many as may have room.

        Args:
            moving: partitions that are being reassigned now, of this plan or not.
        """
        candidates = list(self.waiting)[: self._room(moving)]
        begun = 0
        tried_in_vain: dict[PartitionName, MillraceError] = {}
        for start in range(0, len(candidates), REQUEST_PARTITIONS_MAX):
            part = candidates[start : start + REQUEST_PARTITIONS_MAX]
            answers = cluster.reassign_partitions({place: self._wanted[place] for place in part})
            for place in part:
                error = answers.get(place)
                if (
                    isinstance(error, ReassignmentRefusedError)
                    and error.reason is ReassignmentReason.LIMIT_REACHED
                ):
                    tried_in_vain[place] = error
                elif error is not None:
                    self._refuse(place, error)
                else:
                    del self.waiting[place]
                    self.under_way[place] = False
                    begun += 1
            if tried_in_vain and begun:
                break
        if tried_in_vain:
            self._full_at = moving + begun
            self._put_last(tried_in_vain)
            if not self._full_at:  # It does not fit although nothing else is under way.
                for place, error in tried_in_vain.items():
                    self._refuse(place, error)

    def _room(self, moving: int) -> int:
        room = len(self.waiting)
        if self._at_once is not None:
            room = min(room, self._at_once - len(self.under_way))
        if self._full_at is not None and moving:
            room = min(room, self._full_at - moving)
        return max(room, 0)

    def _put_last(self, places: Iterable[PartitionName]) -> None:
        """Let others have their turn first: they may fit where these did not."""
        for place in places:
            del self.waiting[place]
            self.waiting[place] = None

    def _refuse(self, place: PartitionName, error: MillraceError) -> None:
        self.waiting.pop(place, None)
        self.under_way.pop(place, None)
        self.refused[place] = error
