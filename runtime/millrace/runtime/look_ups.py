"""Addresses of names, also while the DNS answers nobody.

Brokers know each other by names. When the controller's broker is lost, the others must find the new
controller, with or without the DNS. So a look-up that takes long, or fails without an answer, gives
what the last one of the name has given. Something else may have that address by now. That can
happen with answers of the DNS, too, and protocols check who is there. Where the DNS answers that
there is no such name, that counts.
"""

import asyncio
import socket
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

PATIENCE_SECONDS: Final = 0.1
"""How long a look-up may take before the last one's addresses count."""
NAMES_MAX: Final = 1_024
"""Of which addresses are remembered: those that were asked for last. Others name addresses."""

_Place = Sequence[Any]
"""Of a socket: host and port, and for IPv6 flow and scope."""
_NO_ANSWER: Final = frozenset({socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM})


class LookUps:
    """Looks names up; from any loop."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, Sequence[_Place]] = OrderedDict()
        self._lock = threading.Lock()
        # A silent DNS holds a thread for each of them, of which there are few: one for a name.
        self._running: dict[
            tuple[asyncio.AbstractEventLoop, str], asyncio.Task[Sequence[_Place]]
        ] = {}

    async def places(self, name: str) -> Sequence[_Place]:
        """Return where sockets of a name are, the best one first; their ports are 0.

        Raises:
            OSError: nobody knows.
            ValueError: that can be no name.
        """
        last = self._last.get(name)
        running = self._look_up(name)
        # It goes on when this call is given up: uvloop hands the failure of a look-up that was
        # cancelled to the loop's exception handler.
        await asyncio.wait((running,), timeout=None if last is None else PATIENCE_SECONDS)
        if last is not None and (not running.done() or _has_no_answer(running.exception())):
            return last
        return running.result()

    def _look_up(self, name: str) -> "asyncio.Task[Sequence[_Place]]":
        loop = asyncio.get_running_loop()
        running = self._running.get((loop, name))
        if running is None:
            running = self._running[loop, name] = loop.create_task(self._found(loop, name))
            running.add_done_callback(partial(self._ended, loop, name))
        return running

    async def _found(self, loop: asyncio.AbstractEventLoop, name: str) -> Sequence[_Place]:
        found = await loop.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
        places = [place for *_, place in found]
        with self._lock:
            self._last[name] = places
            self._last.move_to_end(name)
            if len(self._last) > NAMES_MAX:
                self._last.popitem(last=False)
        return places

    def _ended(
        self, loop: asyncio.AbstractEventLoop, name: str, task: "asyncio.Task[Sequence[_Place]]"
    ) -> None:
        del self._running[loop, name]
        if not task.cancelled():
            task.exception()  # Nobody may wait for it any more.


def _has_no_answer(error: BaseException | None) -> bool:
    return isinstance(error, socket.gaierror) and error.errno in _NO_ANSWER
