"""Space that is taken from the disk in advance, for small files when the disk is full (P64).

Recovery points, the other small files of a log directory, and the ends of transactions must be
written even then. So the ballast is removed when one of them finds no room, and appends wait until
it is taken again.

A file that an earlier process left may have another size, or be sparse, as copies are: so each
process takes its space once, whatever is there.
"""

from collections.abc import Callable

from millrace.broker.storage.file_system import FileSystem, is_full
from millrace.broker.storage.refusals import refusal
from millrace.core.errors import StorageFullError


class Ballast:
    """The file that takes the space. Any thread may call.

    Args:
        files: where.
        directory: the log directory.
        size: bytes to take; 0 takes none.
    """

    def __init__(self, files: FileSystem, directory: str, size: int) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/ballast"
        self._size = size
        self._lock = files.new_mutex()
        self._is_missing = False
        self._was_taken = False  # By this process.

    def take(self) -> bool:
        """Take the space unless it is taken, and no more; return whether it is.

        To be called now and then, as a full disk uses it up.

        Raises:
            LogDirFailedError: the disk refused.
        """
        with self._lock:
            try:
                if not self._size:
                    self._remove()
                elif not self._is_there():
                    self._allocate()
            except OSError as error:
                if not is_full(error):
                    raise refusal(error, f"taking the ballast of {self._directory}") from error
                self._remove()
            else:
                self._is_missing = False
            return not self._is_missing

    @property
    def is_missing(self) -> bool:
        """Whether it was used up: `check` has something to do."""
        return self._is_missing

    def check(self) -> None:
        """Take the ballast again before an append, if it was used up.

        The small files will need it again: appends must not take the room.

        Raises:
            StorageFullError: there is no room for it.
            LogDirFailedError: the disk refused.
        """
        if self._is_missing and not self.take():
            raise StorageFullError(
                f"appending in {self._directory}: the disk is full, but for less than the "
                f"{self._size} bytes that are kept for checkpoints (storage.ballast_bytes); "
                "nothing was changed. Free some space or lower the retention"
            )

    def write(self, write: Callable[[], None]) -> None:
        """Write a small file, with the ballast's room if there is no other.

        Raises:
            OSError: the disk refused.
        """
        try:
            write()
        except OSError as error:
            if not is_full(error):
                raise
            with self._lock:
                self._remove()
            write()

    def give_up(self) -> None:
        """Free the room of the ballast, for markers; other appends wait until it is taken again.

        Raises:
            StorageFullError, LogDirFailedError: the disk refused.
        """
        with self._lock:
            try:
                self._remove()
            except OSError as error:
                raise refusal(error, f"giving up the ballast of {self._directory}") from error

    def _is_there(self) -> bool:
        return self._was_taken and self._size_now() >= self._size

    def _size_now(self) -> int:
        return self._files.size(self._path) if self._files.exists(self._path) else 0

    def _allocate(self) -> None:
        if self._size_now() > self._size:
            file = self._files.open(self._path, writable=True)
            try:
                file.truncate(self._size)
            finally:
                file.close()
        self._files.allocate(self._path, self._size)
        self._was_taken = True

    def _remove(self) -> None:
        if self._size:
            self._is_missing = True
        if self._files.exists(self._path):
            self._files.unlink(self._path)
