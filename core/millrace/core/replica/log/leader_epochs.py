"""Where each leader epoch of a partition began: the basis of every truncation decision.

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
    EpochEnd,
    LeaderEpoch,
    Offset,
    TopicPartition,
)


class EpochStart(NamedTuple):
    """The first offset that a leader epoch wrote."""

    epoch: LeaderEpoch
    start_offset: Offset


UNDEFINED_EPOCH_END: Final = EpochEnd(NO_LEADER_EPOCH, UNKNOWN_OFFSET)

_EPOCH = itemgetter(0)
_START = itemgetter(1)


def wrong_epoch(
    topic_partition: TopicPartition, current: LeaderEpoch, expected: LeaderEpoch
) -> FencedLeaderEpochError | UnknownLeaderEpochError:
    """Return the error for a request of another leader epoch than the current one (P6)."""
    if expected < current:
        return FencedLeaderEpochError(
            f"the leader epoch is {current}, and the request is of epoch {expected}: refresh the "
            "metadata",
            topic_partition=topic_partition,
        )
    return UnknownLeaderEpochError(
        f"the leader epoch is {current} here, and the request knows epoch {expected}: try again "
        "shortly",
        topic_partition=topic_partition,
    )


class LeaderEpochs:
    """The epochs of one log, and the questions that truncation asks."""

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

        Entries that contradict the new one are removed: those at or after its start, as after a
        truncation, and those of a later epoch.
        """
        assert epoch >= 0
        assert start_offset >= 0
        if self.epoch_of(start_offset) == epoch:
            return False
        kept = tuple(e for e in self.entries if e.epoch <= epoch and e.start_offset < start_offset)
        is_known = bool(kept) and kept[-1].epoch == epoch
        self.entries = kept if is_known else (*kept, EpochStart(epoch, start_offset))
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
        """Return these epochs followed by one that may not have written anything yet.

        A log knows an epoch from its first batch on; its leader knows it from the election on.
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

    def end_at(self, end_offset: Offset) -> EpochEnd:
        """Return the records before `end_offset`, named by the epoch of the last of them.

        The epoch is -1 where that record is not in the log any more.
        """
        return EpochEnd(self.epoch_of(Offset(end_offset - 1)), end_offset)

    def has(self, end: EpochEnd, log_start_offset: Offset, log_end_offset: Offset) -> bool:
        """Whether a log with these epochs has all records before `end`, as another log had them.

        An offset alone does not suffice: another leader may have written other records up to it. A
        leader gives each offset once in an epoch, and each log was a prefix of its leader's. So if
        the same epoch wrote the same offset, everything before it is the same (Raft calls it log
        matching). Comparing epochs does not suffice either: a log may have a later epoch and lack
        records of an earlier one that were committed after both (Raft, figure 8).

        Args:
            end: as `end_at` of the other log returned it.
            log_start_offset: of this log: records before it were committed, and deleted by
                retention.
            log_end_offset: of this log.
        """
        if log_end_offset < end.end_offset:
            return False
        if end.epoch == NO_LEADER_EPOCH or log_start_offset >= end.end_offset:
            return True
        return self.end_at(end.end_offset) == end

    def truncate_from_end(self, end_offset: Offset) -> bool:
        """Forget what starts at or beyond `end_offset`; return whether anything changed."""
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
