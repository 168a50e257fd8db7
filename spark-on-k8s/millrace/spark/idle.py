"""What outlives a task: Spark's Python workers, and in them the client of the last task.

So the tasks of a query share connections, and a worker holds one client of each sort at the most.
After each task a worker looks for garbage in all that it has (`pyspark.daemon`): of modules alone
that takes some 30 ms of a core. So what a process has loaded when it comes here is set aside;
tasks, planning and commits have processes of their own, and all of them do.
"""

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from millrace.client import ClosedError

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

    def take(self, kind: _K) -> _C:
        """Return a client of this kind: the one that is kept, or a new one."""
        if self._kept is None or self._kept[:2] != (os.getpid(), kind):
            return self._make(kind)
        client = self._kept[2]
        self._kept = None
        return client

    def keep(self, kind: _K, client: _C) -> None:
        """Keep a client for the next task, instead of another one, which is closed."""
        self.close()
        self._kept = os.getpid(), kind, client

    def close(self) -> None:
        """Close the client that is kept, if there is one."""
        if self._kept is not None:
            client = self._kept[2]
            self._kept = None
            with suppress(ClosedError):  # Of the process that this one was forked from.
                client.close()
