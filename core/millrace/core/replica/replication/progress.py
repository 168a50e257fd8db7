"""What followers report about their logs, the only thing on which their leader counts.

A follower is *caught up* at a time if it had everything then that its leader had. Reports come
pipelined, so the leader sets a mark at its current end; when the follower has passed the mark, it
was caught up at the time of the mark. One that has everything stays caught up while nothing is
written, without a check; `observe` notes that before anything
changes it. All times are monotonic.

A follower that falls behind again and again, soon after it joined, waits longer each time before it
may come back: a change of the in-sync replicas is not free. The first time it does not wait.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from millrace.core.ids import (
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
)
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.topic_config import Durability
from millrace.core.replica.replication.isr_states import (
    FOLLOWER_TRANSITIONS,
    FollowerEvent,
    FollowerState,
)
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.core.transitions import after

_FLAP_WINDOW_PAUSES: Final = 4
"""A follower that falls behind within so many `isr_rejoin_pause_ms` is held back."""
_LONGEST_PAUSE_PAUSES: Final = 10
"""The longest that it is held back, in `isr_rejoin_pause_ms`."""


class FollowerProgress(NamedTuple):
    """A follower's log at one moment.

    The report is complete in itself: from the epoch of the last batch the leader sees whether the
    log is a prefix of its own (P4), in any order of reports.
    """

    log_end_offset: Offset
    """After the last batch that is written."""
    flushed_offset: Offset
    """After the last batch that survives a power cut."""
    log_start_offset: Offset
    """All before it is deleted, also after a power cut (P71)."""
    last_fetched_epoch: LeaderEpoch
    """Of the last batch that is written; -1 when there is none."""
    compacted_offset: Offset = Offset(0)
    """All before it is compacted, also after a power cut (P57)."""

    def kept(self, durability: Durability) -> Offset:
        """Return the end of the records that count as durable (P13)."""
        if durability is Durability.FSYNC:
            return min(self.flushed_offset, self.log_end_offset)
        return self.log_end_offset


NO_PROGRESS: Final = FollowerProgress(
    UNKNOWN_OFFSET, UNKNOWN_OFFSET, UNKNOWN_OFFSET, NO_LEADER_EPOCH
)
"""Of a follower that is silent: below every offset, so that it holds the high watermark back."""


@dataclass(slots=True)
class Follower:
    """A leader's knowledge of one other replica, all of it from this leader epoch (P9, P22).

    Until the follower has caught up for the first time, `caught_up_at` is the start of the epoch.
    """

    broker_id: BrokerId
    caught_up_at: MonotonicMs
    life: BrokerLife | None = None
    progress: FollowerProgress = NO_PROGRESS
    state: FollowerState = FollowerState.SILENT

    _mark: tuple[Offset, MonotonicMs] | None = None  # The leader's end at a time.
    _joined_at: MonotonicMs | None = None
    _removals: int = 0
    _held_until: MonotonicMs | None = None

    def on_report(
        self,
        life: BrokerLife,
        progress: FollowerProgress,
        leader_end: Offset,
        durability: Durability,
        now: MonotonicMs,
    ) -> None:
        """Take a report; the latest one counts, even if it is lower than the one before."""
        self.observe(leader_end, durability, now)
        if life != self.life:
            self.life = life
            self._on(FollowerEvent.BEGAN)
            self._mark = None
        self.progress = progress
        kept = progress.kept(durability)
        if kept >= leader_end:
            self._caught_up(now, leader_end, now)
        elif self._mark is None:
            self._mark = leader_end, now
        elif kept >= self._mark[0]:
            self._caught_up(self._mark[1], leader_end, now)

    def _caught_up(self, at: MonotonicMs, leader_end: Offset, now: MonotonicMs) -> None:
        if self.state is not FollowerState.CAUGHT_UP:
            self._on(FollowerEvent.CAUGHT_UP)
        self.caught_up_at = max(self.caught_up_at, at)
        self._mark = leader_end, now

    def _on(self, event: FollowerEvent) -> None:
        self.state = after(FOLLOWER_TRANSITIONS, self.state, event)

    def has_all(self, leader_end: Offset, durability: Durability) -> bool:
        """Whether it has everything, by its reports."""
        return self.life is not None and self.progress.kept(durability) >= leader_end

    def observe(self, leader_end: Offset, durability: Durability, now: MonotonicMs) -> None:
        """Note that a follower which has everything is caught up, although it does not report."""
        if self.has_all(leader_end, durability):
            self._caught_up(now, leader_end, now)

    def on_pause(self, leader_end: Offset, now: MonotonicMs) -> None:
        """Restart the measurement."""
        self.caught_up_at = now
        if self._mark is not None:
            self._mark = leader_end, now

    def on_joined(self, now: MonotonicMs) -> None:
        """Note that it is in sync from now on."""
        self._joined_at = now

    def on_fell_behind(self, config: ReplicationConfig, now: MonotonicMs) -> None:
        """Note that it left because it lagged, and hold it back if that happens often."""
        joined_at, self._joined_at = self._joined_at, None
        first = config.isr_rejoin_pause_ms
        if joined_at is None or now - joined_at >= _FLAP_WINDOW_PAUSES * first:
            self._removals = 0
            return
        pause = min(first << self._removals, _LONGEST_PAUSE_PAUSES * first)
        self._removals = min(self._removals + 1, 32)
        self._held_until = MonotonicMs(now + pause)

    def held_until(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when it may join again; None: now."""
        return None if self._held_until is None or self._held_until <= now else self._held_until
