"""The file of a partition's leader epochs: a line `epoch start_offset` for each."""

from typing import Final

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.core.ids import TopicPartition
from millrace.core.log.leader_epochs import LeaderEpochs

FILE_NAME: Final = "leader-epochs"
_KIND: Final = "leader-epochs"


def read_epochs(
    files: FileSystem, directory: str, topic_partition: TopicPartition
) -> LeaderEpochs | None:
    """Return what the file says; None when it is missing, damaged, or another partition's."""
    try:
        payload = read_sealed(files, f"{directory}/{FILE_NAME}", f"{_KIND} {topic_partition}")
        pairs = [line.split(" ") for line in payload.decode().splitlines()]
        return LeaderEpochs((int(epoch), int(start_offset)) for epoch, start_offset in pairs)
    except (FileNotFoundError, DamagedFileError, ValueError):
        return None


def write_epochs(
    files: FileSystem, directory: str, topic_partition: TopicPartition, epochs: LeaderEpochs
) -> None:
    """Make the entries durable."""
    lines = (f"{epoch} {start_offset}\n" for epoch, start_offset in epochs.entries)
    kind = f"{_KIND} {topic_partition}"
    write_sealed(files, f"{directory}/{FILE_NAME}", kind, "".join(lines).encode())
