"""A bound on the bytes that have arrived and that no handler has taken yet.

A connection is charged for what has arrived, and never for what is announced: many idle connections
that announce a large message each must not use up the pool. A connection that holds bytes asks for
room before it reads on. Where there is none it waits, without reading. One that holds nothing may
always read a little: so small messages pass while large ones wait. The connections of one address
have a bound of their own, so that one machine cannot take the whole pool.

Waiting connections that each hold a part of a message could wait for one another for ever. So the
connection that has waited longest completes its message beyond the bound, one at a time. The most
that is held is then the bound, one message, and what each connection may read without asking
(`FREE_BYTES`).

A handler may leave messages in the pool for minutes, as when a quota delays its client. Others must
not wait for that. So, while room is short, a connection is read only when its next message leaves
at once: its messages were taken, and its handler waits for another one (`Holder.is_awaited`).
"""

from collections.abc import Callable
from typing import Final

STEP_BYTES: Final = 64 << 10
"""How much room there is when a connection may read on that holds bytes."""
FREE_BYTES: Final = 16 << 10
"""How much a connection may read that holds nothing, or whose room others have used meanwhile."""


class _Bound:
    """A bound on bytes, and the connections that wait for it."""

    __slots__ = ("bytes_max", "holders", "overdrawn", "used", "waiting")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.holders = 0
        self.waiting: dict[Holder, None] = {}  # In order of arrival.
        self.overdrawn: Holder | None = None

    def admits(self, holder: "Holder") -> bool:
        """Whether a connection may read; if not, it has its place among the waiting ones."""
        if holder is self.overdrawn:
            return True
        waiting = self.waiting
        if not holder.used:  # Its messages were taken while it waited: it holds up nobody.
            waiting.pop(holder, None)
            return True
        if not waiting or next(iter(waiting)) is holder:
            has_room = self.bytes_max - self.used >= STEP_BYTES
            if has_room or self.overdrawn is None:
                waiting.pop(holder, None)
                if not has_room:
                    self.overdrawn = holder
                return True
        waiting[holder] = None
        return False

    def withdraw(self, holder: "Holder") -> bool:
        """Forget that a connection waits, or exceeds the bound; return whether others may gain.

        One that exceeds it with a complete message does so until that is taken.
        """
        was_waiting = holder in self.waiting
        self.waiting.pop(holder, None)
        if self.overdrawn is holder and not holder.complete_bytes:
            self.overdrawn = None
            return True
        return was_waiting

    def wake(self) -> None:
        """Let those that wait read on, in order, as far as there is room."""
        while self.waiting:
            first = next(iter(self.waiting))
            first.on_room()
            if next(iter(self.waiting), None) is first:
                return


class Holder:
    """What one connection holds of the pool.

    Args:
        memory: the pool.
        on_room: called when the connection, which waited, should ask for room again.

    Attributes:
        used: bytes of the connection that are charged.
        complete_bytes: of them, those of complete messages.
        is_awaited: whether the next message is taken as soon as it is complete.
    """

    __slots__ = (
        "_host",
        "_host_name",
        "_memory",
        "complete_bytes",
        "is_awaited",
        "on_room",
        "used",
    )

    def __init__(self, memory: "ReceiveMemory", on_room: Callable[[], None]) -> None:
        self._memory = memory
        self._host: _Bound | None = None
        self._host_name = ""
        self.on_room = on_room
        self.used = 0
        self.complete_bytes = 0
        self.is_awaited = True

    def belong_to(self, host: str) -> None:
        """Count with the other connections of an address from now on."""
        assert self._host is None
        assert not self.used
        self._host_name = host
        self._host = self._memory.enter(host)

    def charge(self, size: int) -> None:
        """Take bytes that have arrived."""
        self.used += size
        self._memory.used += size
        if self._host is not None:
            self._host.used += size

    def complete(self, size: int) -> None:
        """Of the charged bytes, so many became a message: it leaves without further ones."""
        self.complete_bytes += size

    def charge_message(self, size: int) -> None:
        """Take a whole message that has arrived at once."""
        self.charge(size)
        self.complete_bytes += size

    def release(self, size: int) -> None:
        """Give back a complete message, or a part of it, that somebody else counts from now on."""
        memory, host = self._memory, self._host
        self.used -= size
        self.complete_bytes -= size
        assert self.complete_bytes >= 0
        memory.used -= size
        if memory.overdrawn is self:
            memory.overdrawn = None
        if host is not None:
            host.used -= size
            if host.overdrawn is self:
                host.overdrawn = None
            if host.waiting:
                host.wake()
        if memory.waiting:
            memory.wake()

    def room(self) -> int:
        """Return how many bytes may be read now; 0: none.

        `on_room` is called later if the connection's next message would leave at once. If not, the
        connection asks again when its messages were taken, or when another one is awaited.
        """
        memory, host = self._memory, self._host
        plenty = memory.plenty_bytes - memory.used
        if plenty >= STEP_BYTES and not memory.waiting and (host is None or not host.waiting):
            return plenty  # The usual case, quickly.
        if self.complete_bytes or not self.is_awaited:
            return 0
        if host is not None and not host.admits(self):
            if memory.withdraw(self):  # It is not the one to hold up the others.
                memory.wake()
            return 0
        return self.allowance() if memory.admits(self) else 0

    def allowance(self) -> int:
        """Return how many bytes a connection reads at once that may read."""
        memory, host = self._memory, self._host
        plenty = memory.plenty_bytes - memory.used
        if plenty >= STEP_BYTES:
            return plenty
        room, least = memory.bytes_max - memory.used, FREE_BYTES
        if memory.overdrawn is self:
            least = STEP_BYTES
        if host is not None:
            room = min(room, host.bytes_max - host.used)
            if host.overdrawn is self:
                least = STEP_BYTES
        return max(room, least)  # Others may have used the room that it was promised.

    @property
    def others_wait(self) -> bool:
        """Whether connections wait for room that this one may hold."""
        return bool(self._memory.waiting) or (self._host is not None and bool(self._host.waiting))

    def withdraw(self) -> None:
        """Ask for room no longer: the connection does not read now."""
        host = self._host
        if host is not None and host.withdraw(self):
            host.wake()
        if self._memory.withdraw(self):
            self._memory.wake()

    def close(self) -> None:
        """Give everything back: the connection is gone."""
        self.withdraw()
        self.complete(self.used - self.complete_bytes)
        self.release(self.used)
        if self._host is not None:
            self._memory.leave(self._host_name)
            self._host = None


class ReceiveMemory(_Bound):
    """The pool of one listener, or of one client's connections. Belongs to one event loop.

    Args:
        bytes_max: the bound, which one message may exceed.
        host_bytes_max: the same for the connections of one address; None: as `bytes_max`.

    Attributes:
        used: bytes that have arrived and that no handler has taken.
        plenty_bytes: while fewer are used, there is room, whatever each address has.
    """

    __slots__ = ("_host_bytes_max", "_hosts", "plenty_bytes")

    def __init__(self, bytes_max: int, host_bytes_max: int | None = None) -> None:
        super().__init__(bytes_max)
        self._host_bytes_max = bytes_max if host_bytes_max is None else host_bytes_max
        self._hosts: dict[str, _Bound] = {}
        self.plenty_bytes = min(bytes_max, self._host_bytes_max)

    def enter(self, host: str) -> _Bound:
        """Return the bound of an address, for one more connection of it."""
        bound = self._hosts.setdefault(host, _Bound(self._host_bytes_max))
        bound.holders += 1
        return bound

    def leave(self, host: str) -> None:
        """A connection of an address is gone."""
        bound = self._hosts[host]
        bound.holders -= 1
        if not bound.holders:
            del self._hosts[host]
