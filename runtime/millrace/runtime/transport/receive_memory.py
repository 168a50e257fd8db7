"""A bound on the bytes that have arrived and that no handler has taken yet.

A connection is charged for what has arrived, and never for what is announced: many idle connections
that announce a large message each must not use up the pool. Before it reads on, it asks for room.
Where there is none it waits, without reading. The connection that has waited longest may complete
its message beyond the bound, one at a time: so waiting connections, each with a part of a message,
cannot wait for one another for ever.
"""

from collections.abc import Callable
from typing import Final

STEP_BYTES: Final = 64 << 10
"""How much a connection may read at least when it may read."""


class Holder:
    """What one connection holds of the pool.

    Args:
        memory: the pool.
        on_room: called when the connection, which waited, may read on.
    """

    __slots__ = ("_memory", "on_room", "used")

    def __init__(self, memory: "ReceiveMemory", on_room: Callable[[], None]) -> None:
        self._memory = memory
        self.on_room = on_room
        self.used = 0

    def charge(self, size: int) -> None:
        """Take bytes that have arrived."""
        self.used += size
        self._memory.used += size

    def release(self, size: int) -> None:
        """Give bytes back that somebody else counts from now on, or that are gone."""
        self.used -= size
        assert self.used >= 0
        self._memory.release(size)

    def room(self) -> int:
        """Return how many bytes may be read now; 0: none, and `on_room` is called later."""
        return self._memory.room_for(self)

    def on_message(self) -> None:
        """A message is complete: this one needs no room beyond the bound any more."""
        self._memory.end_overdraft(self)

    def close(self) -> None:
        """Give everything back: the connection is gone."""
        self._memory.forget(self)
        used, self.used = self.used, 0
        self._memory.release(used)


class ReceiveMemory:
    """The pool of one listener, or of one client's connections. Belongs to one event loop.

    Attributes:
        bytes_max: the bound, which one message may exceed.
        used: bytes that have arrived and that no handler has taken.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._waiting: dict[Holder, None] = {}  # In order of arrival.
        self._overdrawn: Holder | None = None

    @property
    def is_contended(self) -> bool:
        """Whether connections wait for room."""
        return bool(self._waiting)

    def room_for(self, holder: Holder) -> int:
        """Return how many bytes a connection may read now; 0: it waits."""
        if holder is self._overdrawn:
            return STEP_BYTES
        room = self.bytes_max - self.used
        if room >= STEP_BYTES and not self._waiting:
            return room
        self._waiting[holder] = None
        if self._overdrawn is None and holder is next(iter(self._waiting)):
            del self._waiting[holder]
            self._overdrawn = holder
            return STEP_BYTES
        return 0

    def release(self, size: int) -> None:
        """Take bytes out of the account, and let waiting connections read on."""
        self.used -= size
        assert self.used >= 0
        self._admit()

    def end_overdraft(self, holder: Holder) -> None:
        """Let the next connection complete its message, if this one did so."""
        if self._overdrawn is holder:
            self._overdrawn = None
            self._admit()

    def forget(self, holder: Holder) -> None:
        """Forget a connection that is gone."""
        self._waiting.pop(holder, None)
        self.end_overdraft(holder)

    def _admit(self) -> None:
        while self._waiting:
            holder = next(iter(self._waiting))
            if self.bytes_max - self.used < STEP_BYTES:
                if self._overdrawn is not None:
                    return
                self._overdrawn = holder
            del self._waiting[holder]
            holder.on_room()
