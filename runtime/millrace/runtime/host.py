"""The machine's services for a process: clocks, threads, randomness, connections.

Client and broker use only `host.current` for these. It is the machine itself, unless a simulator
has replaced it: then the same code runs in virtual time, and one seed is one run. A broker gets its
files and its coordination store as arguments: these are its only other access to the outside.

Both ends of a connection take their credentials here, and nowhere else: `channel` and `listen` of
gRPC, `connect` and `accept` of DRPC. `transport.credentials` makes them.
"""

import asyncio
import os
import queue
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio

from millrace.core.addresses import split_address
from millrace.runtime.handshakes import ServerTls, TlsAcceptor
from millrace.runtime.listening import listen
from millrace.runtime.look_ups import LookUps

ChannelOptions = Sequence[tuple[str, int | str]]

_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It runs while the machine sleeps, if there is such a clock."""
_BACKLOG = 1024
"""Connections that wait until they are accepted."""


class Thread(Protocol):
    """A thread that runs."""

    def join(self) -> None:
        """Return when it has ended."""


class Queue(Protocol):
    """What `queue.SimpleQueue` has."""

    def put(self, item: Any) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> Any: ...
    def get_nowait(self) -> Any: ...


class Event(Protocol):
    """What `threading.Event` has."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


ProtocolFactory = Callable[[], asyncio.BufferedProtocol]
"""Makes what takes the bytes of a connection."""


class Accepting(Protocol):
    """A port whose connections are taken."""

    def close(self) -> None:
        """Take no more connections; those that are there stay."""


class Listening(Protocol):
    """A port that is bound.

    Attributes:
        port: its number.
    """

    port: int

    async def accept(self, factory: ProtocolFactory, tls: ServerTls | None = None) -> Accepting:
        """Take connections from now on; without `tls` they are in plain text."""

    def close(self) -> None:
        """Give the port back, also where no connections are taken yet."""


class Host(Protocol):
    """What a process asks its machine for."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds that never jump and go on while the machine sleeps."""

    def wall_ns(self) -> int:
        """Return nanoseconds UTC since 1970."""

    def random_bytes(self, count: int) -> bytes:
        """Return bytes that cannot be guessed."""

    def dice(self) -> random.Random:
        """Return a generator for what may be guessed."""

    def start_thread(self, name: str, run: Callable[[], None]) -> Thread:
        """Run a function on a thread of its own."""

    def start_loop(self, name: str) -> asyncio.AbstractEventLoop:
        """Return an event loop that runs on a thread of its own, and never ends."""

    def new_queue(self) -> Queue:
        """Return a queue between threads."""

    def new_event(self) -> Event:
        """Return an event that threads may wait for."""

    def channel(
        self,
        address: str,
        options: ChannelOptions,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> grpc.aio.Channel:
        """Return a connection to a server; nothing is sent before the first call."""

    def server(self, interceptors: Sequence[Any], options: ChannelOptions) -> grpc.aio.Server:
        """Return a server without services or ports."""

    def listen(
        self, server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None
    ) -> int:
        """Have a server listen; return its port.

        Raises:
            RuntimeError: the address cannot be bound.
        """

    def bind(self, address: str) -> Listening:
        """Bind a port for connections of bytes.

        Raises:
            OSError: the address cannot be bound.
        """

    async def connect(
        self, address: str, factory: ProtocolFactory, tls: ssl.SSLContext | None = None
    ) -> Any:
        """Open a connection of bytes; return its protocol.

        Raises:
            OSError: nobody listens there, or the other end cannot be reached.
        """


class RealHost:
    """The machine that the process runs on; implements `Host`."""

    # Not methods: the clocks are read several times a request.
    monotonic_ns = staticmethod(partial(time.clock_gettime_ns, _MONOTONIC))
    wall_ns = staticmethod(time.time_ns)

    def __init__(self) -> None:
        self._look_ups = LookUps()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def dice(self) -> random.Random:
        return random.Random()

    def start_thread(self, name: str, run: Callable[[], None]) -> Thread:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def start_loop(self, name: str) -> asyncio.AbstractEventLoop:
        loop = _new_loop()

        def run() -> None:
            asyncio.set_event_loop(loop)
            while True:
                try:
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    # Loops end with these alone. Many share this one: `sys.exit()` in what one of
                    # them calls is no end of the others.
                    context = {"message": f"the thread {name} goes on", "exception": error}
                    loop.call_soon(loop.call_exception_handler, context)
                else:
                    return

        self.start_thread(name, run)
        return loop

    def new_queue(self) -> Queue:
        return queue.SimpleQueue()

    def new_event(self) -> Event:
        return threading.Event()

    def channel(
        self,
        address: str,
        options: ChannelOptions,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> grpc.aio.Channel:
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def server(self, interceptors: Sequence[Any], options: ChannelOptions) -> grpc.aio.Server:
        return grpc.aio.server(interceptors=interceptors, options=options)

    def listen(
        self, server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None
    ) -> int:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)

    def bind(self, address: str) -> Listening:
        return _RealListening(listen(*split_address(address), backlog=_BACKLOG))

    async def connect(
        self, address: str, factory: ProtocolFactory, tls: ssl.SSLContext | None = None
    ) -> Any:
        loop = asyncio.get_running_loop()
        try:
            name, port = split_address(address)
            places = await self._look_ups.places(name)
        except ValueError as error:  # Others name addresses, and any text can come.
            raise OSError(f"{address[:80]!r} is no address: {error}") from error
        refusals: list[OSError] = []
        for host, _, *others in places:
            scope = others[1] if len(others) > 1 else 0  # Of an IPv6 address for one link.
            try:
                _, protocol = await loop.create_connection(
                    factory,
                    f"{host}%{scope}" if scope else str(host),
                    port,
                    ssl=tls,
                    server_hostname=name if tls else None,
                )
            except OSError as error:
                refusals.append(error)
            else:
                return protocol
        raise refusals[0]


class _RealListening:
    def __init__(self, bound: socket.socket) -> None:
        self._socket = bound
        self.port: int = bound.getsockname()[1]

    async def accept(self, factory: ProtocolFactory, tls: ServerTls | None = None) -> Accepting:
        if tls is not None:
            return TlsAcceptor(self._socket, factory, tls)
        loop = asyncio.get_running_loop()
        return await loop.create_server(factory, sock=self._socket, backlog=_BACKLOG)

    def close(self) -> None:
        self._socket.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop, or of asyncio where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


current: Host = RealHost()


def monotonic_s() -> float:
    """Return seconds of the monotonic clock."""
    return current.monotonic_ns() / 1e9
