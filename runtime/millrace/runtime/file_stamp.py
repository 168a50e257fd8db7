"""What tells that a file has changed: files of tokens, rules and certificates are read again then.

A Secret or ConfigMap of Kubernetes changes by a symbolic link, so what counts is the file behind
it. One that is written in place twice in a moment, with as many bytes, is taken for the same.
"""

import os
from pathlib import Path
from typing import NamedTuple


class FileStamp(NamedTuple):
    """As the system has it of one state of a file."""

    device: int
    inode: int
    modified_ns: int
    size: int


def file_stamp(path: Path) -> FileStamp:
    """Return what differs when a file has changed.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    found = os.stat(path)
    return FileStamp(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
