"""Replicas on another media than their topic asks for, and which of them move now.

A topic may get another media after its replicas exist, and so may a log directory. If the replica's
own broker has a directory of the right media, the broker moves the replica there by itself: a few
at a time, as a copy slows the disks down for all others. If it has none, the replica stays and
serves until an operator reassigns it.

The shell makes the move, and cleans up after a crash: `storage/log_directory/log_moves.py`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from millrace.core.ids import MonotonicMs, TopicPartition
from millrace.core.media import Media, TopicMedia

RETRY_MS: Final = 60_000
"""Pause before the retry of a refused move, for example when the target disk was full."""

_AT_ONCE: Final = MonotonicMs(-1)


@dataclass(slots=True)
class _Misplaced:
    wanted: TopicMedia
    not_before: MonotonicMs = _AT_ONCE


class ReplicaMoves:
    """Chooses what moves. Iterates over the misplaced replicas.

    Args:
        moves_max: how many move at the same time; 0: none ever does.
    """

    def __init__(self, moves_max: int) -> None:
        self._moves_max = moves_max
        self._misplaced: dict[TopicPartition, _Misplaced] = {}
        self._under_way: set[TopicPartition] = set()

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._misplaced)

    def __len__(self) -> int:
        return len(self._misplaced)

    @property
    def under_way(self) -> int:
        """How many move now."""
        return len(self._under_way)

    def on_placed(self, topic_partition: TopicPartition, there: Media, wanted: TopicMedia) -> None:
        """A replica is open on a media; its topic asks for a media, which may have changed."""
        if wanted.is_home_on(there):
            self._misplaced.pop(topic_partition, None)
            return
        known = self._misplaced.get(topic_partition)
        if known is None or known.wanted is not wanted:
            self._misplaced[topic_partition] = _Misplaced(wanted)

    def on_closed(self, topic_partition: TopicPartition) -> None:
        """A replica is no longer open."""
        self._misplaced.pop(topic_partition, None)

    def is_wanted_on(self, topic_partition: TopicPartition, media: Media) -> bool:
        """Return whether a replica is misplaced, and would not be on this media."""
        known = self._misplaced.get(topic_partition)
        return known is not None and known.wanted.is_home_on(media)

    def begin(self, working: Collection[Media], now: MonotonicMs) -> list[TopicPartition]:
        """Return the replicas that begin to move now; `on_ended` must follow for each.

        Args:
            working: media of this broker's working directories.
            now: the time.
        """
        begun: list[TopicPartition] = []
        for topic_partition, known in self._misplaced.items():
            if len(self._under_way) >= self._moves_max:
                break
            if (
                topic_partition not in self._under_way
                and now >= known.not_before
                and known.wanted.is_among(working)
            ):
                self._under_way.add(topic_partition)
                begun.append(topic_partition)
        return begun

    def on_ended(
        self, topic_partition: TopicPartition, now: MonotonicMs, *, is_refused: bool = False
    ) -> None:
        """A move is over; one that was refused is tried again after a while."""
        self._under_way.discard(topic_partition)
        known = self._misplaced.get(topic_partition)
        if is_refused and known is not None:
            known.not_before = MonotonicMs(now + RETRY_MS)
