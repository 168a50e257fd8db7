"""Calls that block, several at a time, on threads of their own."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.runtime import host

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")

_NOT_MADE: Final = object()


class SideBySide:
    """A few threads for blocking calls. One thread at a time uses it.

    Args:
        name: of the threads.
        calls_max: how many calls are made at a time.
    """

    def __init__(self, name: str, calls_max: int) -> None:
        self._jobs: host.Queue = host.current.new_queue()
        self._threads = [
            host.current.start_thread(f"{name}-{number}", self._run) for number in range(calls_max)
        ]

    def make(self, call: Callable[[_Given], _Result], given: Iterable[_Given]) -> list[_Result]:
        """Call for each, several at a time; return when no call is running any more.

        After a failure no further call begins.

        Raises:
            Exception: that of a call; a permanent one rather than a passing one.
        """
        given = list(given)
        if len(given) == 1:
            return [call(given[0])]
        done: host.Queue = host.current.new_queue()
        errors: list[Exception] = []

        def job(index: int) -> None:
            result: Any = _NOT_MADE
            try:
                if not errors:
                    result = call(given[index])
            except Exception as error:
                errors.append(error)
            done.put((index, result))

        for index in range(len(given)):
            self._jobs.put((job, index))
        results = dict(done.get() for _ in given)
        # A permanent error is more useful than a passing one.
        errors.sort(key=lambda error: isinstance(error, CoordinationUnavailableError))
        for error in errors:
            raise error
        return [results[index] for index in range(len(given))]

    def close(self) -> None:
        """End the threads; blocks meanwhile."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, index = work
            job(index)
