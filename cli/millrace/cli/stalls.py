"""Says on standard error that records wait for a broker, and when they go on, terminal or not."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from millrace.cli.output import say

if TYPE_CHECKING:
    from millrace.client import SyncProducer

STALL_SECONDS: Final = 1.0
"""How long nothing may be acknowledged before a person is told."""
_LOOK_SECONDS: Final = 0.2


class _Producer(Protocol):
    def metrics(self) -> dict[str, int]: ...

    def awaited_brokers(self) -> list[str]: ...

    def producer_id_problem(self) -> str | None: ...


class Stall:
    """Notices when a producer has records and none of them has its outcome.

    Args:
        producer: whose.
        tell: takes a sentence: once when records begin to wait, once more when it is known why
            there is no producer id for them, and once when they go on.
    """

    def __init__(self, producer: _Producer, tell: Callable[[str], None]) -> None:
        self._producer = producer
        self._tell = tell
        self._outcomes = 0
        self._since: float | None = None
        """When records were on their way first, or had an outcome last; None: there are none."""
        self._is_told = False
        self._is_explained = False

    def look(self, now: float) -> None:
        """Compare with the last look; `now` is in seconds of a clock that never jumps."""
        metrics = self._producer.metrics()
        outcomes = metrics["acknowledged_records"] + metrics["failed_records"]
        is_idle = metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]
        if is_idle or self._since is None or outcomes != self._outcomes:
            self._outcomes = outcomes
            self._since = None if is_idle else now
            if self._is_told:
                self._is_told = self._is_explained = False
                self._tell("the broker takes records again")
        elif not self._is_explained and now - self._since >= STALL_SECONDS:
            problem = self._producer.producer_id_problem()
            if not self._is_told or problem:
                self._is_told, self._is_explained = True, bool(problem)
                self._tell(f"waiting for {self._awaited(problem)} ...")

    def _awaited(self, id_problem: str | None) -> str:
        if id_problem is not None:
            why = f": {id_problem}" if id_problem else ""
            return f"a producer id, which the controller gives{why}"
        brokers = " and ".join(self._producer.awaited_brokers())
        return f"the broker at {brokers}" if brokers else "a broker that leads the partition"


class StallNotices:
    """Looks at a producer from a thread of its own, as sending itself may wait; a context manager.

    Args:
        producer: the producer, open for as long as this is.
    """

    def __init__(self, producer: "SyncProducer") -> None:
        self._stall = Stall(producer, say)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millrace-stalls", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        if error is None:
            self._stall.look(time.monotonic())

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._stall.look(time.monotonic())
