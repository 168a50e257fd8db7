"""Keeps the client of the last task in Spark's Python workers, which outlive a task.

So the tasks of a query share connections, and a process holds at most one client of each sort.

After each task a worker collects garbage among all its objects (`pyspark.daemon`): for modules
alone that takes about 30 ms of a core. So the objects that a process has loaded when it comes here
are frozen, and once more those after its first task: with the first array from numpy, Arrow loads
all of pandas. Tasks, planning and commits have processes of their own, and all of them use this
module.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from millrace.client import ClosedError, MillraceError

gc.freeze()


class _Client(Protocol):
    def close(self) -> None: ...


_K = TypeVar("_K")
_C = TypeVar("_C", bound=_Client)


class IdleClient(Generic[_K, _C]):
    """Keeps a client between two tasks.

    Args:
        make: opens a client; equal arguments mean equal clients.
    """

    def __init__(self, make: Callable[[_K], _C]) -> None:
        self._make = make
        self._kept: tuple[int, _K, _C] | None = None
        """With the process id, as a fork does not inherit connections."""
        self._is_first = True

    @contextmanager
    def lent(self, kind: _K) -> Iterator[_C]:
        """Lend a client of this kind for the block: the kept one, or a new one.

        Afterwards it is kept instead of another one. If the block ends early, by an error or
        because Spark has enough, it is closed.
        """
        client = self._take(kind)
        try:
            yield client
        except BaseException:
            with suppress(MillraceError):  # The first failure was reported.
                client.close()
            raise
        self._keep(kind, client)
        if self._is_first:
            self._is_first = False
            gc.collect()
            gc.freeze()

    def close(self) -> None:
        """Close the client that is kept, if there is one."""
        if self._kept is not None:
            client = self._kept[2]
            self._kept = None
            with suppress(ClosedError):  # It belongs to the process that this one was forked from.
                client.close()

    def _take(self, kind: _K) -> _C:
        if self._kept is None or self._kept[:2] != (os.getpid(), kind):
            return self._make(kind)
        client = self._kept[2]
        self._kept = None
        return client

    def _keep(self, kind: _K, client: _C) -> None:
        self.close()
        self._kept = os.getpid(), kind, client
