"""Files of tokens and rules, which simulated processes read by their paths: they are in memory."""

import contextlib
import io
from collections.abc import Iterator
from typing import Final
from unittest import mock

_READERS: Final = ("millrace.broker.guard.access_files", "millrace.runtime.transport.tokens")
"""The modules that read them."""


class SmallFiles:
    """Files by their paths."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._written: dict[str, int] = {}

    def write(self, path: str, text: str) -> None:
        """Replace a file at once."""
        self._contents[path] = text.encode()
        self._written[path] = self._written.get(path, 0) + 1

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is none.
        """
        if path not in self._contents:
            raise FileNotFoundError(path)
        return self._contents[path]

    def stamp(self, path: "_Path") -> int:
        """Return what differs when a file has changed.

        Raises:
            FileNotFoundError: there is none.
        """
        self.read(path.name)
        return self._written[path.name]

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Let the product read them for the length of the block."""
        with contextlib.ExitStack() as patches:
            for reader in _READERS:
                make = mock.patch(f"{reader}.Path", lambda path: _Path(self, path))
                patches.enter_context(make)
                patches.enter_context(mock.patch(f"{reader}.file_stamp", self.stamp))
            yield


class _Path:
    """The part of a path that the product uses."""

    def __init__(self, files: SmallFiles, name: str) -> None:
        self._files = files
        self.name = name

    def __str__(self) -> str:
        return self.name

    def open(self, mode: str) -> io.BytesIO:
        """Open the file to read it."""
        assert mode == "rb"
        return io.BytesIO(self._files.read(self.name))
