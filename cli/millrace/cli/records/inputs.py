"""The files of a command line, one after another, and how far they have been read."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO, Self

from millrace.cli.files.patient_input import standard_input

if TYPE_CHECKING:
    from millrace.cli.records.sources import RecordColumns, RecordMapping

STDIN = "-"


class Inputs:
    """Files to read in order, `-` for standard input; a context manager that closes them.

    Entering it raises `Failure` for a file that cannot be read, before any other has been.

    Args:
        file_format: their format; None: by the name of each.
        first: the first row, line or element of the first file that is read.
    """

    def __init__(self, names: Sequence[str], file_format: str | None, first: int = 1) -> None:
        self.names, self._format, self._first = names, file_format, first
        self._streams: list[BinaryIO] = []
        self._contents: list[BinaryIO] = []
        self._closing = ExitStack()
        self.bytes_total: int | None = None
        """Size of all files, None when one is a pipe."""
        self.left = self.names
        """The files that are not read to their end."""

    def __enter__(self) -> Self:
        from millrace.cli.records.file_names import inflated

        with ExitStack() as closing:
            for name in self.names:
                if name == STDIN:
                    self._streams.append(standard_input())
                else:
                    self._streams.append(closing.enter_context(open(name, "rb")))
                self._contents.append(inflated(self._streams[-1], name))
            self._closing = closing.pop_all()
        sizes = [_size(stream) for stream in self._streams]
        if None not in sizes:
            self.bytes_total = sum(size for size in sizes if size is not None)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def is_typed(self) -> bool:
        """Return whether a person types at least one of them."""
        return any(stream.isatty() for stream in self._streams)

    @property
    def bytes_read(self) -> int:
        """Bytes of the files read so far; 0 when one is a pipe."""
        if self.bytes_total is None:
            return 0
        return sum(stream.tell() for stream in self._streams)

    def records(self, mapping: "RecordMapping") -> Iterator["RecordColumns"]:
        """Yield the records of all files.

        Raises:
            Failure: a file does not have its format.
        """
        from millrace.cli.records.file_names import format_of
        from millrace.cli.records.sources import read_records

        first = self._first
        for i, (name, contents) in enumerate(zip(self.names, self._contents, strict=True)):
            self.left = self.names[i:]
            shown = shown_name(name)
            file_format = self._format or format_of(name)
            yield from read_records(contents, shown, file_format, mapping, first)
            first = 1


def shown_name(name: str) -> str:
    """Return how messages call a file."""
    return "standard input" if name == STDIN else name


def is_regular(stream: BinaryIO) -> bool:
    """Return whether a stream is a file, and no pipe or terminal."""
    return _size(stream) is not None


def _size(stream: BinaryIO) -> int | None:
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # It is no file, as in a test.
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
