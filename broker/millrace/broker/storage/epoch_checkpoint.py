"""A partition's leader epochs in memory and in their file, a line `epoch start_offset` for each.

The file may have more epochs than memory: those whose first batch was not written in the end. It
never lacks an epoch of a batch in the log (P2).
"""

from collections.abc import Iterable
from typing import Final

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.core.ids import LeaderEpoch, Offset, TopicPartition
from millrace.core.replica.log.leader_epochs import LeaderEpochs

FILE_NAME: Final = "leader-epochs"
_KIND: Final = "leader-epochs"


class EpochCheckpoint:
    """The epochs, changed together with their file by one thread at a time.

    Attributes:
        current: the epochs of the log; replaced as a whole, so any thread may read them.
        is_saved: whether the file says the same.
    """

    __slots__ = ("_directory", "_files", "_topic_partition", "current", "is_saved")

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        current: LeaderEpochs,
    ) -> None:
        self._files = files
        self._directory = directory
        self._topic_partition = topic_partition
        self.current = current
        self.is_saved = True

    def begin(self, starts: Iterable[tuple[LeaderEpoch, Offset]]) -> None:
        """Make the starts of new epochs durable, before their first batches are written (P2).

        Args:
            starts: epoch and base offset of each batch that is to be written, ascending.

        Raises:
            OSError: the disk refused; nothing changed.
        """
        epochs = LeaderEpochs(self.current.entries)
        for epoch, base_offset in starts:
            epochs.append(epoch, base_offset)
        self._save(epochs)

    def take_back(self, epochs: LeaderEpochs) -> None:
        """Forget the epochs that began since, as their batches were not written.

        Batches that replace them may be of an earlier epoch, and no answer may name the new ones.
        The file still has them until the next `begin`.
        """
        self.is_saved = self.is_saved and self.current is epochs
        self.current = epochs

    def truncate_from_start(self, offset: Offset) -> None:
        """Forget the epochs that end at `offset` or before; durably.

        Raises:
            OSError: the disk refused; nothing changed.
        """
        epochs = LeaderEpochs(self.current.entries)
        if epochs.truncate_from_start(offset):
            self._save(epochs)

    def truncate_from_end(self, offset: Offset) -> None:
        """Forget the epochs that begin at `offset` or after it; the file says so after `save`."""
        epochs = LeaderEpochs(self.current.entries)
        if epochs.truncate_from_end(offset):
            self.current, self.is_saved = epochs, False

    def save(self) -> None:
        """Make the epochs durable, unless they are.

        Raises:
            OSError: the disk refused.
        """
        if not self.is_saved:
            self._save(self.current)

    def clear(self) -> None:
        """Forget all epochs of a log that is emptied; this file is removed with the others."""
        self.current, self.is_saved = LeaderEpochs(), True

    def _save(self, epochs: LeaderEpochs) -> None:
        write_epochs(self._files, self._directory, self._topic_partition, epochs)
        self.current, self.is_saved = epochs, True


def read_epochs(
    files: FileSystem, directory: str, topic_partition: TopicPartition
) -> LeaderEpochs | None:
    """Return the file's epochs; None when it is missing, damaged, or another partition's."""
    try:
        payload = read_sealed(files, f"{directory}/{FILE_NAME}", f"{_KIND} {topic_partition}")
        lines = [map(int, line.split(" ")) for line in payload.decode().splitlines()]
        pairs = [(epoch, start_offset) for epoch, start_offset in lines]
        if any(number < 0 for pair in pairs for number in pair):
            return None
        return LeaderEpochs(pairs)
    except (FileNotFoundError, DamagedFileError, ValueError):
        return None


def write_epochs(
    files: FileSystem, directory: str, topic_partition: TopicPartition, epochs: LeaderEpochs
) -> None:
    """Make the entries durable."""
    lines = (f"{epoch} {start_offset}\n" for epoch, start_offset in epochs.entries)
    kind = f"{_KIND} {topic_partition}"
    write_sealed(files, f"{directory}/{FILE_NAME}", kind, "".join(lines).encode())
