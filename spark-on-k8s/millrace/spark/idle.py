"""What outlives a task: Spark's Python workers, and in them the client of the last task.

So the tasks of a query share connections, and a process holds one client of each sort at the most.
After each task a worker looks for garbage in all that it has (`pyspark.daemon`): of modules alone
that takes some 30 ms of a core. So what a process has loaded when it comes here is set aside, and
once more what its first task has: with the first array from numpy, Arrow loads all of pandas.
Tasks, planning and commits have processes of their own, and all of them come here.
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
        make: opens a client; what it takes tells which clients are alike.
    """

    def __init__(self, make: Callable[[_K], _C]) -> None:
        self._make = make
        self._kept: tuple[int, _K, _C] | None = None
        """With the process, as a fork does not inherit connections."""
        self._is_first = True

    @contextmanager
    def lent(self, kind: _K) -> Iterator[_C]:
        """Lend a client of this kind for the block: the one that is kept, or a new one.

        Afterwards it is kept instead of another one. Where the block is left in mid-flight, by an
        error or since Spark has enough, it is closed.
        """
        client = self._take(kind)
        try:
            yield client
        except BaseException:
            with suppress(MillraceError):  # The first failure is told already.
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
            with suppress(ClosedError):  # Of the process that this one was forked from.
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
