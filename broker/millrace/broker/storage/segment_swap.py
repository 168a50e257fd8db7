"""Replaces segments of a log in a row by one cleaned segment, atomically over crashes (P57).

    00000000000000004711.log.new                         the cleaned segment is being written
    00000000000000004711-00000000000000009000.swap       it is complete, and counts from here on
    00000000000000004711.log                             it has replaced the others

The name of the second step says which offsets the cleaned segment covers. Once that name is
durable, the segments of these offsets do not count any more: they are removed, the later ones
first, and then the cleaned one takes the name of the first. Opening a log with such a file repeats
the last step. Before the second step nothing has changed, and opening the log removes the file.

The index of the first segment is removed before the cleaned one takes its name: an index that
belongs to other bytes must not be found beside a segment.

Source: Kafka's `.cleaned` and `.swap` files (LocalLog.replaceSegments, KAFKA-6264).
"""

import re
from typing import Final, NamedTuple

from millrace.broker.storage import segment, sparse_index
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import TEMPORARY_SUFFIX
from millrace.broker.storage.segment import offset_name, parse_offset_name
from millrace.core.ids import Offset

SUFFIX: Final = ".swap"
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.swap", re.ASCII)


class Swap(NamedTuple):
    """A cleaned segment of the offsets `[base_offset, end_offset)`."""

    base_offset: Offset
    end_offset: Offset

    def covers(self, base_offset: Offset) -> bool:
        """Whether a segment that begins there is replaced."""
        return self.base_offset <= base_offset < self.end_offset

    @property
    def name(self) -> str:
        """The file's name while it replaces the others."""
        return f"{offset_name(self.base_offset)}-{offset_name(self.end_offset)}{SUFFIX}"

    @property
    def target(self) -> str:
        """The file's name once it has replaced them."""
        return offset_name(self.base_offset) + segment.SUFFIX

    @property
    def temporary(self) -> str:
        """The file's name while it is being written."""
        return self.target + TEMPORARY_SUFFIX


def parse_swap(name: str) -> Swap | None:
    """Return what a file's name says; None for any other name."""
    match = _NAME.fullmatch(name)
    return Swap(Offset(int(match[1])), Offset(int(match[2]))) if match else None


def decide(files: FileSystem, directory: str, swap: Swap) -> None:
    """Let the cleaned segment count, durably; it is written and flushed.

    Raises:
        OSError: the disk refused; `take_back` before anything else.
    """
    files.rename(f"{directory}/{swap.temporary}", f"{directory}/{swap.name}")
    files.fsync_directory(directory)


def take_back(files: FileSystem, directory: str, swap: Swap) -> None:
    """Remove the cleaned segment, however far it came before it counted.

    Raises:
        OSError: the disk refused.
    """
    for name in (swap.name, swap.temporary):
        if files.exists(f"{directory}/{name}"):
            files.unlink(f"{directory}/{name}")
    files.fsync_directory(directory)


def carry_out(files: FileSystem, directory: str, swap: Swap, indexes: str | None = None) -> None:
    """Replace the segments; to be repeated after an error or a crash.

    Args:
        files: where.
        directory: of the segments.
        swap: the cleaned one, and what it replaces.
        indexes: the directory of their indexes; None: the same.

    Raises:
        OSError: the disk refused.
    """
    indexes = indexes or directory
    for folder, suffix in ((directory, segment.SUFFIX), (indexes, sparse_index.SUFFIX)):
        for name in reversed(files.list(folder)):
            base = parse_offset_name(name, suffix)
            is_target = name == swap.target
            if base is not None and swap.covers(base) and not is_target:
                files.unlink(f"{folder}/{name}")
    for folder in {directory: None, indexes: None}:
        files.fsync_directory(folder)
    if files.exists(f"{directory}/{swap.name}"):  # Else only the last step is to be repeated.
        files.rename(f"{directory}/{swap.name}", f"{directory}/{swap.target}")
    files.fsync_directory(directory)
