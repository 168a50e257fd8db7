"""The marker of a log directory in which everything was closed cleanly.

It is bound to this directory and to the recovery checkpoint written with it, so that a stale one
does not count. It names the life of the broker that ended cleanly (P27), and is removed, durably,
before the first append. It also names the logs that it does not cover: those that are not the
broker's, and were not opened.
"""

from dataclasses import dataclass
from typing import Final

import crc32c

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.core.ids import BrokerEpoch, TopicPartition, parse_topic_partition

FILE_NAME: Final = "clean-shutdown"
_NO_EPOCH: Final = -1


@dataclass(slots=True, frozen=True)
class CleanShutdown:
    """The content of a marker.

    Attributes:
        closed_by: the life of the broker that ended cleanly; None when it had none.
        unjudged: the logs that it does not cover.
    """

    closed_by: BrokerEpoch | None
    unjudged: frozenset[TopicPartition]


def read_marker(
    files: FileSystem, path: str, directory_id: str, checkpoint: bytes
) -> CleanShutdown | None:
    """Return the content of a directory's marker; None when there is none for the present state.

    Args:
        files: where.
        path: of the log directory.
        directory_id: its own id.
        checkpoint: the content of its recovery checkpoint.
    """
    try:
        marker = read_sealed(files, f"{path}/{FILE_NAME}", FILE_NAME)
        first, *names = marker.decode().splitlines()
        broker_epoch = int(first.split()[-1])
    except (FileNotFoundError, DamagedFileError, ValueError, IndexError):
        return None
    unjudged = {found for name in names if (found := parse_topic_partition(name)) is not None}
    closed_by = BrokerEpoch(broker_epoch) if broker_epoch >= 0 else None
    said = CleanShutdown(closed_by, frozenset(unjudged))
    return said if marker == _payload(directory_id, checkpoint, said) else None


def write_marker(
    files: FileSystem, path: str, directory_id: str, checkpoint: bytes, said: CleanShutdown
) -> None:
    """Write the marker, durably, after all else; arguments as for `read_marker`.

    Raises:
        OSError: the disk refused.
    """
    payload = _payload(directory_id, checkpoint, said)
    write_sealed(files, f"{path}/{FILE_NAME}", FILE_NAME, payload)


def _payload(directory_id: str, checkpoint: bytes, said: CleanShutdown) -> bytes:
    broker_epoch = _NO_EPOCH if said.closed_by is None else said.closed_by
    first = f"{directory_id} {crc32c.crc32c(checkpoint):08x} {broker_epoch}"
    return "".join(f"{line}\n" for line in (first, *sorted(map(str, said.unjudged)))).encode()
