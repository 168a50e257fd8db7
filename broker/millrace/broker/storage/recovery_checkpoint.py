"""One file per log directory: where each partition's log starts, and up to where it is flushed.

After a crash only batches beyond the recovery point must be scanned, and only there may a damaged
tail be cut off. The points are lower bounds: a log is flushed before its point advances, and a
point is durably lowered before its log is truncated.

The high watermark is stored with them, as far as it is flushed: it may be far behind, and never
ahead (P68), as each cut of the log below it lowers the recovery point first.

A partition has a line from when its directory is durable, so a line without files means that they
are lost. One that begins after offset 0 always has a line (see `log_start.py`).

A line per partition: `topic id-partition log_start_offset recovery_point high_watermark`. If a line
lacks the last number, nothing is known to be committed.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.core.ids import Offset, TopicPartition, parse_topic_partition

FILE_NAME: Final = "recovery-checkpoint"
_KIND: Final = "recovery-checkpoint"


class RecoveryPoint(NamedTuple):
    """Of one partition; `log_start_offset <= high_watermark <= recovery_point`."""

    log_start_offset: Offset
    recovery_point: Offset
    high_watermark: Offset


class RecoveryCheckpoint:
    """The lines of one log directory, in memory and in the file. Any thread may call.

    Attributes:
        is_lost: whether the file was missing or damaged when it was read.
        with_room: runs a write of a small file, and once more with room if the disk is full.

    Args:
        files: where.
        directory: the log directory.
        with_room: runs a write, and once more with room if the disk is full.
    """

    __slots__ = (
        "_files",
        "_is_dirty",
        "_lock",
        "_path",
        "_points",
        "_write_lock",
        "is_lost",
        "with_room",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        with_room: Callable[[Callable[[], None]], None] = lambda write: write(),
    ) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"
        self.with_room = with_room
        self._points: dict[TopicPartition, RecoveryPoint] = {}
        self._is_dirty = False
        self.is_lost = False
        self._lock = files.new_mutex()
        self._write_lock = files.new_mutex()

    def read(self) -> bytes | None:
        """Load the file; return its payload, None when it is missing or damaged."""
        try:
            payload = read_sealed(self._files, self._path, _KIND)
            points = dict(map(_parse, payload.decode().splitlines()))
        except (FileNotFoundError, DamagedFileError, ValueError):
            self.is_lost = True
            return None
        with self._lock:
            self._points = points
        return payload

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that have a point."""
        with self._lock:
            return list(self._points)

    def get(self, topic_partition: TopicPartition) -> RecoveryPoint | None:
        """Return a partition's point; None when it has none."""
        return self._points.get(topic_partition)

    def put(self, topic_partition: TopicPartition, point: RecoveryPoint) -> None:
        """Set a partition's point, to be written with the next `write`."""
        assert point.log_start_offset <= point.high_watermark <= point.recovery_point
        with self._lock:
            if self._points.get(topic_partition) != point:
                self._points[topic_partition] = point
                self._is_dirty = True

    def remove(self, topic_partition: TopicPartition) -> None:
        """Forget a partition."""
        with self._lock:
            self._is_dirty |= self._points.pop(topic_partition, None) is not None

    def require(self) -> None:
        """Make the next `write` write even if nothing has changed."""
        with self._lock:
            self._is_dirty = True

    def write(self) -> None:
        """Make all points durable.

        Raises:
            OSError: the disk refused.
        """
        with self._write_lock:
            with self._lock:
                if not self._is_dirty:
                    return
                payload = self._payload()
                self._is_dirty = False
            try:
                self.with_room(partial(write_sealed, self._files, self._path, _KIND, payload))
            except OSError:
                self._is_dirty = True
                raise

    def payload(self) -> bytes:
        """Return the content that `write` writes."""
        with self._lock:
            return self._payload()

    def _payload(self) -> bytes:
        lines = (f"{name} {' '.join(map(str, point))}\n" for name, point in self._points.items())
        return "".join(lines).encode()


def _parse(line: str) -> tuple[TopicPartition, RecoveryPoint]:
    name, *offsets = line.split(" ")
    start, point, *known = (Offset(int(offset)) for offset in offsets)
    (high_watermark,) = known or (start,)
    topic_partition = parse_topic_partition(name)
    if topic_partition is None:
        raise ValueError(name)
    return topic_partition, RecoveryPoint(start, point, high_watermark)
