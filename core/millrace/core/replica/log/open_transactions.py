"""Where the records of a log end whose outcome is certain: the last stable offset (P52).

A reader of committed records is told of nothing from the first record of an open transaction on.
Nor from the first record of one that has ended, as long as its marker is not below the high
watermark: another leader may not have that marker. So the last stable offset is the smallest of

- the first offsets of the open transactions,
- the first offsets of those whose marker is not below the high watermark,
- and the high watermark.

What is not written yet lies above the high watermark, and does not lower it. Thus the log's own
transactions, as of its last written batch, suffice for leaders and followers alike, and a log that
is a few batches ahead of what its replica knows gives the same answer.

`OpenTransactions` belongs to the thread that appends. `Undecided` is its immutable summary, for any
thread.

Source: KIP-98; safety.md P52; redpanda#29796 (an end that moves on before a begin is applied).
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

from millrace.core.ids import Offset, ProducerId

_END: Final = Offset(2**63 - 1)


class Ended(NamedTuple):
    """A transaction that has ended, and whose marker is perhaps not committed."""

    marker_offset: Offset
    first_offset: Offset
    """Of its first record here."""


class Undecided(NamedTuple):
    """What keeps the last stable offset back.

    Attributes:
        open_offset: first offset of the oldest open transaction.
        marker_offsets: of the transactions that have ended, ascending.
        first_offsets: for each of these, the smallest first offset from it on.
    """

    open_offset: Offset = _END
    marker_offsets: tuple[Offset, ...] = ()
    first_offsets: tuple[Offset, ...] = ()

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the end of the records whose outcome is certain."""
        end = min(self.open_offset, high_watermark)
        at = bisect_left(self.marker_offsets, high_watermark)
        return end if at == len(self.marker_offsets) else min(end, self.first_offsets[at])


NOTHING_UNDECIDED: Final = Undecided()


class OpenTransactions:
    """The transactions of one log that are open, or whose end may not be committed."""

    __slots__ = ("_ended", "_first_offsets")

    def __init__(self) -> None:
        # By first offset, ascending: transactions begin in the order of the log.
        self._first_offsets: dict[ProducerId, Offset] = {}
        self._ended: list[Ended] = []  # Ascending by marker.

    def __len__(self) -> int:
        """How many are open."""
        return len(self._first_offsets)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, OpenTransactions)
            and self._first_offsets == other._first_offsets
            and self._ended == other._ended
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def oldest(self) -> ProducerId | None:
        """The producer of the open one that began first."""
        return next(iter(self._first_offsets), None)

    @property
    def ended(self) -> tuple[Ended, ...]:
        """Those that have ended, ascending by marker."""
        return tuple(self._ended)

    def begin(self, producer_id: ProducerId, first_offset: Offset) -> None:
        """A producer's transaction begins, after all others."""
        self._first_offsets[producer_id] = first_offset

    def end(self, producer_id: ProducerId, marker_offset: Offset, first_offset: Offset) -> None:
        """A producer's transaction ends; its records begin at `first_offset`, -1: it has none."""
        self._first_offsets.pop(producer_id, None)
        if first_offset >= 0:
            self._ended.append(Ended(marker_offset, first_offset))

    def settle(self, high_watermark: Offset) -> None:
        """Forget those that have ended below the high watermark."""
        if self._ended and self._ended[0].marker_offset < high_watermark:
            self._ended = [kept for kept in self._ended if kept.marker_offset >= high_watermark]

    def replace_open(self, first_offsets: Iterable[tuple[ProducerId, Offset]]) -> None:
        """Let exactly these be open."""
        self._first_offsets = dict(sorted(first_offsets, key=lambda found: found[1]))

    def replace_ended(self, ended: Iterable[Ended]) -> None:
        """Let exactly these have ended; ascending by marker."""
        self._ended = list(ended)

    def undecided(self) -> Undecided:
        """Return the summary, as of now."""
        if not self._first_offsets and not self._ended:
            return NOTHING_UNDECIDED
        smallest = _END
        first_offsets = []
        for ended in reversed(self._ended):
            smallest = min(smallest, ended.first_offset)
            first_offsets.append(smallest)
        return Undecided(
            next(iter(self._first_offsets.values()), _END),
            tuple([ended.marker_offset for ended in self._ended]),
            tuple(reversed(first_offsets)),
        )

    def copy(self) -> "OpenTransactions":
        """Return transactions that change independently from now on."""
        twin = OpenTransactions()
        twin._first_offsets = dict(self._first_offsets)
        twin._ended = list(self._ended)
        return twin
