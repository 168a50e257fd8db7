"""Small files that are replaced as a whole, and that are read back unchanged or not at all.

One line of text, then the payload: `millrace KIND VERSION LENGTH CRC-32C`, so that a person can
look at it. Written beside, flushed, renamed, and the directory flushed: a crash leaves the old file
or the new one (P69). The kind of a partition's file names the partition, so that a file copied
beside another log is refused, like any other wrong file (P66).
"""

import errno
import os.path
from typing import Final

import crc32c

from millrace.broker.storage.file_system import FileSystem

VERSION: Final = 1
TEMPORARY_SUFFIX: Final = ".new"

_HEAD_BYTES_MAX: Final = 128


class DamagedFileError(Exception):
    """The content of a sealed file is not what was written. Its reader can do without it."""


def write_sealed(
    files: FileSystem, path: str, kind: str, payload: bytes, *, durable: bool = True
) -> None:
    """Replace the file at `path`.

    Args:
        files: where.
        path: which file.
        kind: its content, and its partition if it belongs to one; a file of another kind is refused
            when it is read.
        payload: its contents.
        durable: whether it must survive a power cut. A cache need not: a torn one is recognised.
    """
    head = f"millrace {kind} {VERSION} {len(payload)} {crc32c.crc32c(payload):08x}\n".encode()
    replace_file(files, path, head + payload, durable=durable)


def replace_file(files: FileSystem, path: str, contents: bytes, *, durable: bool) -> None:
    """Replace the file at `path` by one with these contents."""
    temporary = path + TEMPORARY_SUFFIX
    file = files.open(temporary, create=True, writable=True)
    try:
        file.truncate(0)
        if file.append([contents]) != len(contents):
            raise OSError(errno.ENOSPC, "short write", temporary)
        if durable:
            file.fdatasync()
    finally:
        file.close()
    files.rename(temporary, path)
    if durable:
        files.fsync_directory(os.path.dirname(path))


def read_whole(files: FileSystem, path: str) -> bytes:
    """Return a file's bytes.

    Raises:
        FileNotFoundError: there is none.
    """
    size = files.size(path)
    file = files.open(path)
    try:
        return file.pread(size, 0)
    finally:
        file.close()


def read_sealed(files: FileSystem, path: str, kind: str) -> bytes:
    """Return the payload of the file at `path`.

    Raises:
        FileNotFoundError: there is none.
        DamagedFileError: it is of another kind or version, or its bytes changed.
    """
    contents = read_whole(files, path)
    head, newline, payload = contents.partition(b"\n")
    if not newline or len(head) > _HEAD_BYTES_MAX:
        raise DamagedFileError(f"{path} does not begin with a line that says what it is")
    expected = f"millrace {kind} {VERSION} {len(payload)} {crc32c.crc32c(payload):08x}".encode()
    if head != expected:
        raise DamagedFileError(f"{path} says {head!r}, but its contents are {expected!r}")
    return payload
