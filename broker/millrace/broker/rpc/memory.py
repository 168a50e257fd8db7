"""A bound on the bytes of requests that the broker holds, in all and for each connection.

A request's bytes are taken before it is decoded, and given back when all of its batches are
acknowledged or refused, which may be after an answer that its time is up. When the pool is empty, a
stream waits and reads nothing more: gRPC's flow control carries the pressure to the client. Waiters
are served in order of arrival, except that one whose connection is at its own bound does not hold
up the others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class ConnectionMemory:
    """One connection's share."""

    used: int = 0


@dataclass(slots=True)
class MemoryPool:
    """Bytes to be shared by all connections.

    A request larger than a bound is admitted when nothing else is held under that bound, so that it
    cannot wait for ever; the size of one message is bounded elsewhere.
    """

    bytes_max: int
    connection_bytes_max: int
    used: int = 0
    _waiting: deque[tuple[int, ConnectionMemory, asyncio.Future[None]]] = field(
        default_factory=deque
    )

    def try_take(self, size: int, connection: ConnectionMemory) -> bool:
        """Take bytes if they are free and there is no earlier waiter."""
        if self._waiting or not self._fits(size, connection):
            return False
        self.used += size
        connection.used += size
        return True

    async def take(self, size: int, connection: ConnectionMemory) -> None:
        """Take bytes, waiting until they are free."""
        if self.try_take(size, connection):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, connection, future)
        self._waiting.append(entry)
        self._serve()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give_back(size, connection)
            elif entry in self._waiting:
                self._waiting.remove(entry)
                self._serve()  # It may have held up the next ones.
            raise

    def give_back(self, size: int, connection: ConnectionMemory) -> None:
        """Give bytes back."""
        self.used -= size
        connection.used -= size
        assert self.used >= 0
        assert connection.used >= 0
        if self._waiting:
            self._serve()

    def _fits(self, size: int, connection: ConnectionMemory) -> bool:
        in_pool = self.used + size <= self.bytes_max or not self.used
        in_connection = connection.used + size <= self.connection_bytes_max or not connection.used
        return in_pool and in_connection

    def _serve(self) -> None:
        passed: deque[tuple[int, ConnectionMemory, asyncio.Future[None]]] = deque()
        while self._waiting:
            size, connection, future = self._waiting.popleft()
            if future.cancelled():
                continue
            if self._fits(size, connection):
                self.used += size
                connection.used += size
                future.set_result(None)
            else:
                passed.append((size, connection, future))
                if self.used and self.used + size > self.bytes_max:
                    break  # The pool is the obstacle: no waiter may overtake.
        passed.extend(self._waiting)
        self._waiting = passed


@dataclass(slots=True)
class LargeCalls:
    """The bytes of large calls whose clients have quotas of request time, which may wait for long.

    They may not be read later, as a stream's: they are here already. So one that would have to wait
    is refused where too many bytes are held. One quota may have half of them, and so may one
    caller: who exceeds its own, or makes up names with a quota each, does not have others refused.
    A call is admitted where no other one is held.
    """

    bytes_max: int
    used: int = 0
    _used_by: Counter[Hashable] = field(default_factory=Counter)

    def fits(self, size: int, owners: Sequence[Hashable]) -> bool:
        """Return whether another call may wait.

        Args:
            owners: its quota, and its caller.
        """
        of_one = max(self._used_by.get(owner, 0) for owner in owners)
        return (not of_one or of_one + size <= self.bytes_max // 2) and (
            not self.used or self.used + size <= self.bytes_max
        )

    @contextmanager
    def held(self, size: int, owners: Sequence[Hashable]) -> Iterator[None]:
        """Count the bytes of a call while it lasts."""
        self.used += size
        self._used_by.update(dict.fromkeys(owners, size))
        try:
            yield
        finally:
            self.used -= size
            for owner in owners:
                self._used_by[owner] -= size
                if not self._used_by[owner]:
                    del self._used_by[owner]
