"""A call as its two ends see it, whichever protocol carries it.

Handlers and clients know only these: a stream of messages in each direction, that ends well or with
a status. A message is sent in parts, which DRPC does not join; it is received as one buffer.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from millrace.core.errors import MillraceError
from millrace.core.records.header import Buffer

Metadata = Mapping[str, str]
"""What goes with a call beside its messages."""

Message = bytes | memoryview
"""A received message."""


class Status(IntEnum):
    """Why a call failed as a whole; gRPC's numbers, which DRPC's errors use as well."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A call failed as a whole, or its connection broke.

    Attributes:
        status: why.
        details: in words.
        refusal: the error that the other side names; None: it names none.
    """

    def __init__(self, status: Status, details: str, refusal: MillraceError | None = None) -> None:
        super().__init__(f"{status.name}: {details}")
        self.status = status
        self.details = details
        self.refusal = refusal


class Origin(Protocol):
    """Where a call comes from: what its connection and its metadata tell of who calls."""

    @property
    def metadata(self) -> Collection[tuple[str, str | bytes]]:
        """The metadata of the call; gRPC's may have a key twice."""

    @property
    def address(self) -> str:
        """`host:port` of the other end."""

    @property
    def principal(self) -> str:
        """Whom the connection's credentials prove; empty: nobody."""

    def on_known(self) -> None:
        """Its caller is known, as far as that is asked for: the connection is no stranger's."""


class ServerCall(Origin, Protocol):
    """A call at the side that serves it.

    A handler ends the call well by returning, and with an error by raising `MillraceError`.
    """

    async def read(self) -> Message | None:
        """Return the next message; None: the caller sends no more."""

    async def write(self, *parts: Buffer) -> None:
        """Send a message; return when the transport has taken it."""

    def try_write(self, *parts: Buffer) -> bool:
        """Send a message if the transport takes it at once; return whether it did."""


class ClientStream(Protocol):
    """A call with a stream in each direction, at the side that makes it.

    Attributes:
        on_draining: called when the other side begins to drain.
    """

    on_draining: Callable[[], None]

    @property
    def is_draining(self) -> bool:
        """Whether the other side asks to end this stream, and to open another one.

        It answers what it was sent.
        """

    async def read(self) -> Message | None:
        """Return the next message; None: the call has ended well.

        Raises:
            CallError: it has failed.
        """

    async def write(self, *parts: Buffer) -> None:
        """Send a message; return when the transport has taken it.

        Raises:
            CallError: the call has ended.
        """

    def try_write(self, *parts: Buffer) -> bool:
        """Send a message if the transport takes it at once; return whether it did.

        Where it did not, `write` sends it. The message is with the transport when this returns.
        """

    async def end_writing(self) -> None:
        """Send no more messages; the other side's may still come."""

    def cancel(self) -> None:
        """Give the call up."""


async def until_draining(stream: ClientStream) -> None:
    """Return once a stream should end, and another one be opened."""
    asked = asyncio.Event()
    stream.on_draining = asked.set
    if not stream.is_draining:
        await asked.wait()


def joined(parts: Sequence[Buffer]) -> bytes:
    """Return the parts of a message as one."""
    if len(parts) == 1 and isinstance(parts[0], bytes):
        return parts[0]
    return b"".join(parts)


def do_nothing() -> None:
    """Do nothing: where nobody wants to be called."""
