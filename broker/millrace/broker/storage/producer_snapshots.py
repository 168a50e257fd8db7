"""Snapshots of a partition's producer states, each named by the offset that it is as of.

A damaged one is replaced by an earlier one, and batches are replayed from there (P45). So a
snapshot made while a segment grows is a cache, and need not survive a power cut. One made when a
segment is closed must: once that segment is deleted, nothing else knows its producers. And they are
witnesses: the batches of a snapshot were flushed before it was written.
"""

from contextlib import suppress
from typing import Final

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.broker.storage.segment import offset_name, parse_offset_name
from millrace.core.errors import CorruptBatchError
from millrace.core.ids import Offset, TopicPartition
from millrace.core.replica.log.producer_states import ProducerStates

SUFFIX: Final = ".snapshot"
_KIND: Final = "producer-states"


class ProducerSnapshots:
    """The snapshots of one partition.

    Attributes:
        offsets: of the snapshots that are there, ascending.
    """

    __slots__ = ("_directory", "_files", "_topic_partition", "offsets")

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        names: list[str],
    ) -> None:
        self._files = files
        self._directory = directory
        self._topic_partition = topic_partition
        found = (parse_offset_name(name, SUFFIX) for name in names)
        self.offsets = tuple(sorted(offset for offset in found if offset is not None))

    def load(self, states: ProducerStates, offset_max: Offset | None = None) -> Offset | None:
        """Restore the newest sound snapshot, at most as of `offset_max`; return its offset.

        Damaged ones on the way are removed.
        """
        for offset in reversed(self.offsets):
            if offset_max is None or offset <= offset_max:
                if self._restore(states, offset):
                    return offset
                self._remove(offset)
        return None

    def damaged(self) -> list[str]:
        """Return the paths of those that are damaged, or another partition's."""
        paths = []
        for offset in self.offsets:
            with suppress(FileNotFoundError):  # Removed meanwhile, as it is outdated.
                if not self._restore(ProducerStates(), offset):
                    paths.append(self.path(offset))
        return paths

    def save(self, offset: Offset, snapshot: bytes, *, durable: bool) -> None:
        """Write a snapshot as of `offset`; the log is flushed up to there.

        Args:
            offset: how far it reaches.
            snapshot: of the states.
            durable: whether it must survive a power cut.
        """
        write_sealed(self._files, self.path(offset), self._kind(offset), snapshot, durable=durable)
        if offset not in self.offsets:
            self.offsets = tuple(sorted((*self.offsets, offset)))

    def keep(self, offsets: set[Offset]) -> None:
        """Remove all but the newest snapshot and those of `offsets`."""
        for offset in self.offsets[:-1]:
            if offset not in offsets:
                self._remove(offset)

    def remove_after(self, offset: Offset) -> None:
        """Remove the snapshots as of later than `offset`."""
        for later in self.offsets:
            if later > offset:
                self._remove(later)

    def remove_before(self, offset: Offset) -> None:
        """Remove the snapshots as of earlier than `offset`, except the newest."""
        for earlier in self.offsets[:-1]:
            if earlier < offset:
                self._remove(earlier)

    def path(self, offset: Offset) -> str:
        """Return where the snapshot as of `offset` is."""
        return f"{self._directory}/{offset_name(offset)}{SUFFIX}"

    def _restore(self, states: ProducerStates, offset: Offset) -> bool:
        try:
            states.restore(read_sealed(self._files, self.path(offset), self._kind(offset)))
        except (DamagedFileError, CorruptBatchError):
            return False
        return True

    def _remove(self, offset: Offset) -> None:
        self._files.unlink(self.path(offset))
        self.offsets = tuple(kept for kept in self.offsets if kept != offset)

    def _kind(self, offset: Offset) -> str:
        return f"{_KIND} {self._topic_partition} {offset}"
