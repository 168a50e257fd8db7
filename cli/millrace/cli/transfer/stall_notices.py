"""Reports on standard error that records wait, or are awaited, and when they go on."""

import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Protocol, Self

from millrace.cli.console.output import say
from millrace.core.topics import PartitionName
from millrace.core.words import listed

if TYPE_CHECKING:
    from millrace.client import SyncProducer

STALL_SECONDS: Final = 1.0
"""Time without progress before it is reported."""
_LOOK_SECONDS: Final = 0.2


class _Producer(Protocol):
    def metrics(self) -> dict[str, int]: ...

    def awaited_brokers(self) -> list[str]: ...

    def producer_id_problem(self) -> str | None: ...


class Watched(Protocol):
    """Work that may stall."""

    again: str
    """The message when it goes on."""

    def progress(self) -> int | None:
        """Return a number that grows as it goes on; None: there is nothing to wait for."""

    def awaited(self) -> tuple[str, bool]:
        """Return what it waits for, and whether that includes the reason."""


class Sending:
    """A producer: it waits when it has records and none of them has its outcome."""

    again = "the broker takes records again"

    def __init__(self, producer: _Producer) -> None:
        self._producer = producer

    def progress(self) -> int | None:
        """Return how many records have their outcome; None: it has no others."""
        metrics = self._producer.metrics()
        if metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]:
            return None
        return metrics["acknowledged_records"] + metrics["failed_records"]

    def awaited(self) -> tuple[str, bool]:
        """Name the controller if an id is missing, else the brokers if they are known."""
        problem = self._producer.producer_id_problem()
        if problem is not None:
            why = f": {problem}" if problem else ""
            return f"a producer id, which the controller gives{why} ...", bool(problem)
        brokers = " and ".join(self._producer.awaited_brokers())
        whom = f"the broker at {brokers}" if brokers else "a broker that leads the partition"
        return f"{whom} ...", False


class Reading:
    """A reader: it waits when nothing comes, and there is more to read.

    Args:
        left: the partitions that are not read to their end, or, without an end, those that no
            broker sends. The reader keeps it up to date, and counts the records.
    """

    again = "records come again"

    def __init__(self, left: Collection[PartitionName]) -> None:
        self.left = left
        self.count = 0

    def progress(self) -> int | None:
        """Return how much came; None: nothing is left."""
        return self.count if self.left else None

    def awaited(self) -> tuple[str, bool]:
        """Name the partitions, and the command that shows more."""
        places = listed(sorted(self.left))
        return f"{places} ...: `millrace cluster health` says what is missing", False


class Stall:
    """Notices when work stalls.

    Args:
        tell: takes a sentence: once when it stands still, once more when it is known why, and once
            when it goes on.
    """

    def __init__(self, watched: Watched, tell: Callable[[str], None]) -> None:
        self._watched = watched
        self._tell = tell
        self._progress = 0
        self._since: float | None = None
        """When it went on last, or had something to wait for first; None: it has nothing."""
        self._is_told = False
        self._is_explained = False

    def look(self, now: float) -> None:
        """Compare with the last look; `now` is in seconds of a clock that never jumps."""
        progress = self._watched.progress()
        if progress is None or self._since is None or progress != self._progress:
            self._progress = progress or 0
            self._since = None if progress is None else now
            if self._is_told:
                self._is_told = self._is_explained = False
                self._tell(self._watched.again)
        elif not self._is_explained and now - self._since >= STALL_SECONDS:
            awaited, is_explained = self._watched.awaited()
            if not self._is_told or is_explained:
                self._is_told, self._is_explained = True, is_explained
                self._tell(f"waiting for {awaited}")


class StallNotices:
    """Looks at a producer from a thread of its own, since sending may wait; a context manager."""

    def __init__(self, producer: "SyncProducer") -> None:
        self._stall = Stall(Sending(producer), say)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millrace-stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._ended.set()
        self._thread.join()
        if error is None:
            self._stall.look(time.monotonic())

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._stall.look(time.monotonic())
