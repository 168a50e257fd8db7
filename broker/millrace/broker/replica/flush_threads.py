"""Threads that flush the files of one round at the same time.

ext4 flushes files by a commit of its journal, which is for all files. Of files that are flushed one
after the other each may wait for a commit of its own; those that are flushed at the same time share
one.

The thread that asks flushes, too, and waits for all: so nobody appends to a log that is being
flushed. Each file has its own outcome. Threads begin when they are needed first.
"""

from collections.abc import Callable, Iterator, Sequence
from queue import Empty
from typing import Final, Generic, TypeVar

from millrace.runtime import host

THREADS_MAX: Final = 3
"""Beside the one that asks."""

_T = TypeVar("_T")
_Result = TypeVar("_Result")


class FlushThreads(Generic[_T, _Result]):
    """The threads of one log directory. One thread at a time asks.

    Args:
        name: of the threads.
        flush: flushes one; from several threads at a time, but one at a time for each.
    """

    def __init__(self, name: str, flush: Callable[[_T], _Result]) -> None:
        self._name = name
        self._flush = flush
        self._threads: list[host.Thread] = []
        self._jobs: host.Queue = host.current.new_queue()
        self._outcomes: host.Queue = host.current.new_queue()

    def flush_all(self, wanted: Sequence[_T]) -> Iterator[tuple[_T, _Result | BaseException]]:
        """Flush all of these; yield each with the outcome, as soon as it is known here.

        The caller takes all of them.
        """
        for other in wanted[1:]:
            self._jobs.put(other)
        for number in range(len(self._threads), min(len(wanted) - 1, THREADS_MAX)):
            self._threads.append(
                host.current.start_thread(f"{self._name}-flush-{number}", self._run)
            )
        one: _T | None = wanted[0] if wanted else None
        left = len(wanted)
        while one is not None:
            yield one, self._outcome(one)
            left -= 1
            try:
                one = self._jobs.get_nowait()
            except Empty:
                one = None
        for _ in range(left):
            yield self._outcomes.get()

    def close(self) -> None:
        """End the threads; blocks meanwhile."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (one := self._jobs.get()) is not None:
            self._outcomes.put((one, self._outcome(one)))
            one = None

    def _outcome(self, one: _T) -> _Result | BaseException:
        try:
            return self._flush(one)
        except BaseException as error:
            return error
