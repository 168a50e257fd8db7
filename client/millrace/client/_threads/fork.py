"""Clients after a fork: the child's copies cannot work, and raise an error at once.

The child has only the thread that forked. So no loop sends the records of a copied producer, a lock
may be held for ever, and a copied consumer would hand out the parent's records again. Every copy is
closed, and the parent's handles raise an error in the child.

New clients do not work either in the child of a process that has connected: gRPC has threads of its
own, which are not started again, and its calls would wait for them for ever. So would the
destructors of its objects; so the child never collects the parent's objects.

Nothing of this costs anything before a process forks.

A program that is started by a fork, as Spark's Java is, needs nothing of this. But from grpcio 1.80
on, gRPC's own handlers of forks abort one in four of such children while calls are under way
(grpc/grpc issue 43055). They would let a child use gRPC, which a child cannot do here anyway, so
they are switched off, unless the environment says otherwise.
"""

import gc
import os
from typing import Final, Protocol
from weakref import WeakSet

from millrace.core.errors import ClosedError

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # gRPC reads it as it is imported.

FORKED: Final = (
    "a client does not survive fork(): fork first and make clients afterwards, or start processes "
    'by "spawn"'
)


class Copied(Protocol):
    """A client that must know when it is a copy."""

    def on_forked(self) -> None:
        """Refuse everything from now on; called in the child, by its only thread."""
        ...


class _Process:
    """The state of this process."""

    has_connected = False
    is_cut_off = False
    """The parent had connected: gRPC does not work here."""


_clients: Final[WeakSet[Copied]] = WeakSet()


def watch(client: Copied) -> None:
    """Call a client's `on_forked` in a child."""
    _clients.add(client)


def on_connect() -> None:
    """GRPC is in use from now on."""
    _Process.has_connected = True


def check() -> None:
    """Make sure that a client can work in this process.

    Raises:
        ClosedError: it was forked from one that had connected.
    """
    if _Process.is_cut_off:
        raise ClosedError(f"the process was forked from one that used a client: {FORKED}")


def _on_forked() -> None:
    _Process.is_cut_off = _Process.has_connected
    if _Process.is_cut_off:
        gc.freeze()
    for client in list(_clients):
        client.on_forked()


os.register_at_fork(after_in_child=_on_forked)
