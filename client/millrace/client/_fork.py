"""What a fork makes of clients: copies that nobody serves, and that say so at once.

The child has no thread but the one that forked. So no loop runs there that would send what a copied
producer takes, a lock may be held that nobody gives back, and a copied consumer would hand out once
more what the parent has. Every copy is closed, and who has a handle of the parent's hears that.

Neither do new clients work in the child of a process that has connected: gRPC has threads of its
own, which are not started again, and would be waited for for ever. Its objects wait for them, too,
when they are collected; so the child collects nothing of what the parent had.

Nothing of this costs anything before a process forks.
"""

import gc
import os
from typing import Final, Protocol
from weakref import WeakSet

from millrace.core.errors import ClosedError

FORKED: Final = (
    "a client does not survive fork(): fork first and make clients afterwards, or start processes "
    'by "spawn"'
)


class Copied(Protocol):
    """What has to be told that it is a copy."""

    def on_forked(self) -> None:
        """Refuse everything from now on; called in the child, by its only thread."""
        ...


class _Process:
    """What is known of this one."""

    has_connected = False
    is_cut_off = False
    """The parent had connected: gRPC does not work here."""


_clients: Final[WeakSet[Copied]] = WeakSet()


def watch(client: Copied) -> None:
    """Have a client told when it is a copy."""
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
