"""A file that replaces another one only when it is complete.

It is written beside its place, under a name of this process, and renamed at the end. A pipe, or a
device such as `/dev/null`, is written directly.
"""

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Self


class WholeFile:
    """A context manager whose file gets its name when it is complete.

    Args:
        path: the place. A link stays, and the file that it names is replaced.
    """

    stream: BinaryIO
    """Where to write."""

    def __init__(self, path: str) -> None:
        self._place = Path(path).resolve()
        self._beside: Path | None = None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        written = self._place
        if self._place.is_file() or not self._place.exists():
            written = self._place.with_name(f"{self._place.name}.{os.getpid()}.part")
            self._beside = written
        self.stream = self._closing.enter_context(open(written, "wb"))
        return self

    def finish(self) -> None:
        """Put the file into its place, with everything that was written, durably."""
        self.stream.flush()
        if self._beside is not None:
            os.fsync(self.stream.fileno())
            if self._place.exists():
                shutil.copymode(self._place, self._beside)
            self._beside.replace(self._place)
            self._beside = None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self._closing.close()
        except OSError as failed:  # A full disk is noticed by a flush, which knows no name.
            failed.filename = failed.filename or str(self._place)
            if error is None:  # Else the file is given up, and its reader wants to know why.
                raise
        finally:
            if isinstance(error, OSError):
                error.filename = error.filename or str(self._place)
            if self._beside is not None:
                self._beside.unlink(missing_ok=True)
