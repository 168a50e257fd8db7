"""Measures the processor's time that a coroutine takes: of its steps, not of what it waits for.

It is the thread's own time: that of others, which run meanwhile, is not counted.
"""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import thread_time_ns
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class LoopTime(Generic[_T]):
    """A coroutine whose steps are timed. Awaiting it runs the coroutine.

    Attributes:
        nanoseconds: taken so far.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._coroutine = coroutine
        self.nanoseconds = 0

    def __await__(self) -> Generator[Any, None, _T]:
        clock = thread_time_ns
        steps = self._coroutine.__await__()
        go_on: Callable[[], Any] = partial(steps.send, None)
        step = go_on
        while True:
            begun = clock()
            try:
                waited_for = step()
            except StopIteration as end:
                result: _T = end.value
                return result
            finally:
                self.nanoseconds += clock() - begun
            try:
                yield waited_for
                step = go_on
            except BaseException as error:  # Such as the cancellation of the task.
                step = partial(steps.throw, error)
