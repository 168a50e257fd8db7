"""Producers that a program leaves open: their records are delivered at its end, or counted.

At the end of a process the records of each producer whose loop still runs are delivered, for a
short time. That is every synchronous producer, whose loop runs in a daemon thread. What is not
delivered then, and what a producer holds whose loop was closed, is told by an event with the number
of records.

The hook is registered when the library is imported. Python calls such hooks in the opposite order:
those of the program come first, and may still send.
"""

import asyncio
import atexit
import os
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Protocol
from weakref import WeakSet

from millrace.client import events
from millrace.client._threads.logs import Log
from millrace.core.errors import MillraceError
from millrace.runtime import host

_log = Log(__name__)

_AT_EXIT_S: Final = 10.0
"""How long the end of a process waits for the records of all open producers."""
_LOOP_IS_CLOSED: Final = "its event loop was closed before"


class Open(Protocol):
    """A producer, as far as this module uses it."""

    loop: asyncio.AbstractEventLoop
    is_closed: bool
    made_in: "tuple[host.Host, int]"
    """What `here()` returned when it was made: the copy in the child of a fork is not its own."""

    def untold_records(self) -> int:
        """Return how many records have no outcome yet, or an error that nobody has seen."""

    def acknowledged_records(self) -> int:
        """Return how many were acknowledged so far."""

    def flush(self) -> Coroutine[Any, Any, None]:
        """Deliver them."""


_open: Final[WeakSet[Open]] = WeakSet()


def here() -> tuple[host.Host, int]:
    """Return which process this is."""
    return host.current, os.getpid()


def watch(producer: Open) -> None:
    """Take care of a producer at the end of the process."""
    _open.add(producer)


def on_collected(producer: Open) -> None:
    """Count the records that a collected producer still held: nothing delivers them any more."""
    if producer.is_closed or _Process.has_ended or producer.made_in != here():
        return
    if producer.loop.is_closed() and (count := producer.untold_records()):
        events.RECORDS_LOST.log(_log, records=count, reason=_LOOP_IS_CLOSED)


class _Process:
    """The state of this process."""

    has_ended = False
    """All that is to be told was told."""


def deliver(producers: Iterable[Open]) -> None:
    """Deliver the records of producers for a short time; log for each how many were not delivered.

    A failure of one producer, or Ctrl-C during its turn, does not keep the others from theirs.
    """
    deadline = host.monotonic_s() + _AT_EXIT_S
    for producer in producers:
        if producer.is_closed or producer.made_in != here():
            continue
        untold, acknowledged = producer.untold_records(), producer.acknowledged_records()
        if untold:
            why = _LOOP_IS_CLOSED
            if producer.loop.is_running():
                why = _flush(producer, deadline)
                untold -= producer.acknowledged_records() - acknowledged
            if untold > 0:
                events.RECORDS_LOST.log(_log, records=untold, reason=why)


def _flush(producer: Open, deadline: float) -> str:
    """Deliver the records of a producer; return why some were not."""
    try:
        flushing = asyncio.run_coroutine_threadsafe(producer.flush(), producer.loop)
        try:
            flushing.result(max(0.0, deadline - host.monotonic_s()))
        finally:
            flushing.cancel()
    except TimeoutError:
        return f"no acknowledgement in {_AT_EXIT_S:g} s at the end of the process"
    except KeyboardInterrupt:
        return "the end of the process was interrupted"
    except MillraceError as error:
        return error.message
    except BaseException as error:  # Nobody is left who could handle it.
        return repr(error)
    return ""


def _at_exit() -> None:
    deliver(list(_open))
    _Process.has_ended = True


atexit.register(_at_exit)
