"""One direction of a connection: what is sent arrives in order, and once, or not at all.

Each thing takes as long as the link says, and never overtakes the one before. A link that is held
keeps everything back. When that lasts longer than keepalive, the sender learns that the connection
is broken, and its peer somewhat later.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.machines.network import KEEPALIVE_US, Link, Network, Process


class Line:
    """What one end of a connection sends to the other.

    Attributes:
        method: whose messages go this way, for weather that hits some methods alone; empty: many.
    """

    peer: Any

    def __init__(self, network: Network, process: Process, method: str = "") -> None:
        self.network = network
        self.process = process
        self.method = method
        self._last_arrival = 0
        self._is_given_up = False
        self._held_back: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()

    def fail(self, details: str) -> None:
        """Note that the network has broken the connection, or that its other end is gone."""
        raise NotImplementedError

    def _delay(self, link: Link) -> int:
        return link.delay(self.method)

    def _post(self, action: Callable[..., None], *arguments: object) -> None:
        """Do something at the other end, after everything that was sent before."""
        if self.process.is_dead:
            return
        world, link = self.network.world, self._link()
        self._last_arrival = at = max(world.now + self._delay(link), self._last_arrival)
        world.at(at, link.label, self._carry, action, arguments)
        if at - world.now > KEEPALIVE_US and not self._is_given_up:
            self._is_given_up = True
            world.after(KEEPALIVE_US, link.label, self._give_up)

    def _give_up(self) -> None:
        """Break the connection: nothing was acknowledged within keepalive.

        The peer learns of it somewhat later: its own pings have no answers either.
        """
        self.fail("keepalive watchdog timeout")
        world = self.network.world
        at = min(self._last_arrival + 1, world.now + KEEPALIVE_US // 2)
        world.at(at, "a call breaks", self.peer.fail, "Socket closed")

    def _link(self) -> Link:
        return self.network.link(self.process.machine.name, self.peer.process.machine.name)

    def _carry(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        # TCP loses nothing of a live connection: it retransmits.
        if self._held_back or self._link().is_held:
            self._held_back.append((action, arguments))
        else:
            action(*arguments)

    def release(self) -> None:
        """Continue: the link works again."""
        if self._held_back:
            link = self._link()
            self.network.world.after(link.delay(), link.label, self._release)

    def _release(self) -> None:
        # What arrives before this event queues after what was held back.
        while self._held_back and not self._link().is_held:
            action, arguments = self._held_back.popleft()
            action(*arguments)
