"""Where each leader's reign over a partition began: the basis of every truncation decision.

Entries are `(epoch, start_offset)`, both strictly increasing. An epoch ends where the next known
one starts; the latest ends at the log end offset. An epoch that wrote nothing leaves no trace once
the next one starts at the same offset.

The list is replaced, never changed, so that another thread may read while one writes.

Invariant for the shell: an entry is durable before the first batch of its epoch is written (P2).
Source: KIP-101, KIP-279.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Final, NamedTuple

from millrace.core.errors import FencedLeaderEpochError, UnknownLeaderEpochError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    Offset,
    TopicPartition,
)


class EpochStart(NamedTuple):
    """The first offset that a leader epoch wrote."""

    epoch: LeaderEpoch
    start_offset: Offset


class EpochEnd(NamedTuple):
    """A leader epoch and the exclusive end of what it wrote."""

    epoch: LeaderEpoch
    end_offset: Offset


UNDEFINED_EPOCH_END: Final = EpochEnd(NO_LEADER_EPOCH, UNKNOWN_OFFSET)

_EPOCH = itemgetter(0)
_START = itemgetter(1)


def wrong_epoch(
    topic_partition: TopicPartition, current: LeaderEpoch, expected: LeaderEpoch
) -> FencedLeaderEpochError | UnknownLeaderEpochError:
    """Return what refuses a request of another leader epoch than the current one (P6)."""
    if expected < current:
        return FencedLeaderEpochError(
            f"{topic_partition} is in leader epoch {current}, the request is of epoch {expected}: "
            "refresh the metadata"
        )
    return UnknownLeaderEpochError(
        f"{topic_partition} is in leader epoch {current} here, the request already knows epoch "
        f"{expected}: try again shortly"
    )


class LeaderEpochs:
    """See the module."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries: tuple[EpochStart, ...] = ()
        for epoch, start_offset in entries:
            self.append(LeaderEpoch(epoch), Offset(start_offset))

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The newest epoch, or -1."""
        return self.entries[-1].epoch if self.entries else NO_LEADER_EPOCH

    def append(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Note that `epoch` wrote `start_offset`; return whether that is news.

        Entries that the new one contradicts go: those at or behind its start, as after a
        truncation, and those of a later epoch.
        """
        assert epoch >= 0
        assert start_offset >= 0
        if self.epoch_of(start_offset) == epoch:
            return False
        kept = tuple(e for e in self.entries if e.epoch < epoch and e.start_offset < start_offset)
        self.entries = (*kept, EpochStart(epoch, start_offset))
        return True

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> EpochEnd:
        """Return the greatest known epoch that is not above `epoch`, and where it ends (P3).

        An epoch above the latest, or an empty list, gives `UNDEFINED_EPOCH_END`; an epoch below the
        first gives itself and the first one's start.
        """
        entries = self.entries
        if not entries or epoch < 0 or epoch > entries[-1].epoch:
            return UNDEFINED_EPOCH_END
        if epoch == entries[-1].epoch:
            return EpochEnd(epoch, log_end_offset)
        at = bisect_right(entries, epoch, key=_EPOCH)
        if at == 0:
            return EpochEnd(epoch, entries[0].start_offset)
        return EpochEnd(entries[at - 1].epoch, entries[at].start_offset)

    def diverging(
        self, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch, log_end_offset: Offset
    ) -> EpochEnd | None:
        """Return where to look back to when a reader's log is no prefix of this one (P4).

        Args:
            fetch_offset: the reader has everything before it.
            last_fetched_epoch: of the reader's last batch; -1 when it has none.
            log_end_offset: of this log.

        Returns:
            None when the reader may go on. Otherwise the greatest epoch here that is not above the
            reader's, and its end; undefined when this log has never heard of the reader's epoch.
        """
        if last_fetched_epoch == NO_LEADER_EPOCH:
            return None
        end = self.end_offset_for(last_fetched_epoch, log_end_offset)
        if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return end
        return None

    def with_reign(self, epoch: LeaderEpoch, start_offset: Offset) -> "LeaderEpochs":
        """Return these epochs followed by a reign that may not have written anything yet.

        A log knows an epoch from its first batch on, its leader from its election on.
        """
        if self.latest_epoch >= epoch:
            return self
        epochs = LeaderEpochs()
        epochs.entries = self.entries
        epochs.append(epoch, start_offset)
        return epochs

    def epoch_of(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch that wrote `offset`, or -1 when it lies before the first entry."""
        at = bisect_right(self.entries, offset, key=_START)
        return self.entries[at - 1].epoch if at else NO_LEADER_EPOCH

    def truncate_from_end(self, end_offset: Offset) -> bool:
        """Forget what starts at or behind `end_offset`; return whether anything changed."""
        kept = self.entries[: bisect_left(self.entries, end_offset, key=_START)]
        changed = len(kept) != len(self.entries)
        self.entries = kept
        return changed

    def truncate_from_start(self, start_offset: Offset) -> bool:
        """Forget what ended before `start_offset`; return whether anything changed.

        The epoch that `start_offset` itself lies in is kept and now starts there.
        """
        at = bisect_right(self.entries, start_offset, key=_START)
        if at == 0:
            return False
        kept = (EpochStart(self.entries[at - 1].epoch, start_offset), *self.entries[at:])
        changed = kept != self.entries
        self.entries = kept
        return changed
