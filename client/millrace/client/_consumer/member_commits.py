"""What a group's member commits: how far it has read, and where the group begins.

Invariants:

- The member commits only what it has handed out before the poll that commits.
- It numbers its commits, so that the coordinator knows an attempt that arrives late (P62).
- Where the group begins at the end of a partition, the member commits that end as soon as it knows
  it, and tries again as long as it owns the partition. Without that, the next owner would begin at
  a later end, and skip what came between. An end has a lower number than all other commits of the
  member, so it never replaces one of them, in whatever order their attempts arrive (P62).
"""

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

from millrace.client import events
from millrace.client._cluster.arguments import log_end
from millrace.client._cluster.positions import KeptPositions, Within
from millrace.client._consumer.assignment import Assignment
from millrace.client._consumer.counters import ConsumerCounters
from millrace.client._consumer.heartbeats import Heartbeats
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._threads.logs import Log
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import (
    Appended,
    MillraceError,
    RequestTimedOutError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from millrace.core.ids import Offset, TopicPartition
from millrace.runtime import host

_log = Log(__name__)

_END_NUMBER: Final = 1
"""The number of a commit of ends at which the group begins: that of the first commit."""
_END_PAUSE_S_MAX: Final = 5.0
"""The longest pause before such a commit is tried again; it doubles from `_END_PAUSE_S`."""
_END_PAUSE_S: Final = 0.1


@dataclass(eq=False, kw_only=True)
class MemberCommits:
    """The commits of one member."""

    config: ConsumerConfig
    positions: KeptPositions
    heartbeats: Heartbeats
    assignment: Assignment
    owned: Mapping[TopicPartition, str]
    counters: ConsumerCounters
    end_at: float | None = None
    """Set when the member is closed: a dead broker must not hold up the program's end."""
    ends: dict[TopicPartition, Position | None] = field(default_factory=dict)
    """Owned partitions of which the group has no position, with the ends at which it begins;
    None: the end is not found yet."""
    _has_found_end: asyncio.Event = field(default_factory=asyncio.Event)
    _committed_at: float = field(default_factory=host.monotonic_s)
    _committing: asyncio.Task[None] | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: count(_END_NUMBER + 1))

    # Where the group begins.

    @property
    def begins_at_end(self) -> bool:
        """Whether the group begins at the end of a partition without a position."""
        return log_end(self.config.auto_offset_reset) == "end"

    def begin_at_ends(self, places: Iterable[TopicPartition]) -> None:
        """Commit the ends of partitions without a position, if the group begins there."""
        if self.begins_at_end:
            self.ends.update(dict.fromkeys(places))

    def on_end_found(self, place: TopicPartition, end: Offset) -> None:
        """Commit the end of a partition if the group begins there."""
        if place in self.ends and self.ends[place] is None:
            self.ends[place] = Position(end)
            self._has_found_end.set()

    async def keep_ends(self) -> None:
        """Commit the ends at which the group begins, until it has them."""
        pause_s = _END_PAUSE_S
        while True:
            await self._has_found_end.wait()
            await asyncio.sleep(0)  # The ends of other partitions are found in the same turn.
            await self._log_failure_of(self._commit_ends(self.owned))
            if any(self.ends.values()):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _END_PAUSE_S_MAX)
            else:
                self._has_found_end.clear()
                pause_s = _END_PAUSE_S

    async def _commit_ends(self, places: Iterable[TopicPartition]) -> None:
        """Commit those ends of partitions that are found, and that the group lacks.

        Raises:
            MillraceError: as `commit`.
        """
        ends = {place: end for place in places if (end := self.ends.get(place)) is not None}
        await self._store(ends, _END_NUMBER)
        for place, end in ends.items():
            if self.ends.get(place) is end:  # And not of a later assignment.
                del self.ends[place]

    # How far it has read.

    def begin_due(self) -> None:
        """Commit for a user who does not, if it is time and no such commit is under way."""
        now = host.monotonic_s()
        if now < self.due_at:
            return
        self._committed_at = now
        if not self.is_committing:  # Else the next one is due after another interval.
            # The positions of now: those that this poll hands out are not done (P62).
            positions = self._positions_of(self.owned)
            # Records need not wait for it.
            self._committing = asyncio.create_task(self._commit_by_itself(positions))

    @property
    def is_committing(self) -> bool:
        """Whether a commit for a user who does not is under way."""
        return self._committing is not None and not self._committing.done()

    @property
    def due_at(self) -> float:
        """When it is time to commit for a user who does not."""
        if not (self.config.enable_auto_commit and self.owned):
            return inf
        return self._committed_at + self.config.auto_commit_interval_ms / 1000

    async def _commit_by_itself(self, positions: dict[TopicPartition, Position]) -> None:
        """Commit for a user who does not; what fails is tried again with the next commit."""
        before, current = self._committing, asyncio.current_task()
        if before is not None and before is not current:
            await asyncio.wait([before], timeout=self._left_s())  # Its positions are older.
        self._committed_at = host.monotonic_s()
        await self._log_failure_of(self.commit(positions))

    async def commit_before_others_own(self, places: Collection[TopicPartition]) -> None:
        """Commit what the next owners of partitions need, in the time of one request at most."""
        limit_s = self.config.request_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                if self.config.enable_auto_commit:
                    await self._commit_by_itself(self._positions_of(places))
                await self._log_failure_of(self._commit_ends(places))
        except TimeoutError:
            self.counters.commit_failures[RequestTimedOutError.name()] += 1
            problem = f"the group's coordinator did not answer in {limit_s:g} s"
            events.COMMIT_FAILED.log(_log, group=self.config.group, error=problem)

    async def _log_failure_of(self, commit: Awaitable[object]) -> None:
        try:
            await commit
        except (StaleMemberEpochError, UnknownMemberIdError):
            pass  # The next poll is told.
        except MillraceError as error:
            events.COMMIT_FAILED.log(_log, group=self.config.group, error=error.message)

    def _left_s(self) -> float | None:
        """Return how long a commit may last; None: as long as any request."""
        if self.end_at is None:
            return None
        return max(self.end_at - host.monotonic_s(), 0)

    async def commit_read(
        self, places: Collection[TopicPartition], within: Within | None = None
    ) -> set[TopicPartition]:
        """Commit how far owned partitions were handed out; return those that are left out.

        Their topics are gone.

        Raises:
            MillraceError: as `commit`.
        """
        gone = await self.commit(self._positions_of(places), within)
        return gone.union(filter(self.assignment.is_gone, places))

    def _positions_of(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return how far owned partitions were handed out, as far as that is known."""
        return {
            place: position
            for place in places
            if (position := self.assignment.known_position(place)) is not None
        }

    async def commit(
        self, positions: dict[TopicPartition, Position], within: Within | None = None
    ) -> set[TopicPartition]:
        """Commit positions of owned partitions; return those that are left out, as they are gone.

        Args:
            positions: by partition.
            within: the transaction that they are part of; None: they count at once.

        Raises:
            MillraceError: they are not stored, or may not be.
        """
        gone = await self._store(positions, next(self._numbers), within)
        if within is None:  # Else it may be aborted.
            for place in positions:
                self.ends.pop(place, None)
        return gone

    async def _store(
        self,
        positions: dict[TopicPartition, Position],
        number: int,
        within: Within | None = None,
    ) -> set[TopicPartition]:
        if not positions:
            return set()
        begun = host.monotonic_s()
        try:
            async with asyncio.timeout(self._left_s()):
                gone = await self.positions.commit_as_member(
                    self.config.group,
                    positions,
                    member_id=self.heartbeats.member_id,
                    # In which it reads; a later one is not taken yet.
                    epoch=self.heartbeats.confirmed,
                    number=number,
                    within=within,
                )
        except TimeoutError as error:
            self.counters.commit_failures[RequestTimedOutError.name()] += 1
            raise RequestTimedOutError(
                "the group's coordinator did not answer in the time that "
                f"close_timeout_ms={self.config.close_timeout_ms} leaves for commits",
                appended=Appended.MAYBE,
            ) from error
        except MillraceError as error:
            self.counters.commit_failures[error.name()] += 1
            raise
        self.counters.commit_seconds.observe(host.monotonic_s() - begun)
        return gone

    def cancel(self) -> None:
        """End the commit that is under way."""
        if self._committing is not None:
            self._committing.cancel()
