"""A relay in front of an API server, which breaks what passes through it as a test asks.

Clients speak plain HTTP/1.1 to it; it speaks to the server with its own TLS and token. It runs on a
loop in a thread of its own, so that tests may block. Faults hit the next requests that fit, each so
many of them; what happens to the events of watches holds until it is changed.
"""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

Event = dict[str, Any]

_T = TypeVar("_T")

_LINE_BYTES_MAX = 8 << 20


@dataclass(frozen=True)
class Refuse:
    """Answers with a status of its own.

    Attributes:
        is_done: whether the request is passed on all the same, and only its answer replaced.
    """

    status: int
    retry_after: str | None = None
    is_done: bool = False


@dataclass(frozen=True)
class Hang:
    """Never answers, and keeps the connection."""

    is_done: bool


@dataclass(frozen=True)
class Drop:
    """Closes the connection instead of answering."""

    is_done: bool


@dataclass(frozen=True)
class Delay:
    """Passes the request on only once `until` is set."""

    until: threading.Event


Fault = Refuse | Hang | Drop | Delay


@dataclass
class _Injected:
    fault: Fault
    method: str
    path: str
    times: int


@dataclass
class _Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    fault: Fault | None = None

    @property
    def is_watch(self) -> bool:
        return "watch=" in self.path


@dataclass
class _Watch:
    """One watch that passes through."""

    path: str
    client: asyncio.StreamWriter
    pending: list[Event] = field(default_factory=list)  # Held back.


class ApiServerRelay:
    """The relay, and the faults that it was told.

    Attributes:
        url: to give to clients.
        requests: method and path of each request that came, in order.
        in_flight_max: the most requests that were open at a time, watches left out.
    """

    def __init__(self, server: str, tls: ssl.SSLContext | None = None, token: str = "") -> None:
        upstream = urlsplit(server)
        assert upstream.hostname is not None
        self._upstream = (upstream.hostname, upstream.port, tls, token)
        self.requests: list[tuple[str, str]] = []
        self.in_flight_max = 0
        self._in_flight = 0
        self._lock = threading.Lock()
        self._faults: list[_Injected] = []
        self._pass_event: Callable[[Event], list[Event]] = lambda event: [event]
        self._are_watches_held = False
        self._watches: list[_Watch] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()
        self._server = self._call(self._listen)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def inject(self, fault: Fault, *, method: str = "", path: str = "", times: int = 1) -> None:
        """Let the next requests fail.

        Args:
            method: of those that are meant; empty: all but those that open a watch.
            path: a part of theirs; with `watch=` in it, watches are meant.
            times: how many.
        """
        with self._lock:
            self._faults.append(_Injected(fault, method, path, times))

    @contextlib.contextmanager
    def outage(self, fault: Fault) -> Iterator[None]:
        """Let every request fail while the block runs, watches included; open ones break off."""
        injected = _Injected(fault, "", "", 1 << 60)
        opening = _Injected(fault, "", "watch=", 1 << 60)
        with self._lock:
            self._faults[:0] = [injected, opening]
        self.cut_watches()
        try:
            yield
        finally:
            with self._lock:
                self._faults.remove(injected)
                self._faults.remove(opening)

    def change_events(self, change: Callable[[Event], list[Event]]) -> None:
        """Let watches pass on what `change` makes of each event: nothing, others, more of them."""
        self._pass_event = change

    def hold_watches(self) -> None:
        """Pass no event on from now on; watches stay open."""
        self._are_watches_held = True

    def release_watches(self) -> None:
        """Pass on what was held back, and what comes."""

        async def release() -> None:
            self._are_watches_held = False
            for watch in self._watches:
                held, watch.pending = watch.pending, []
                for event in held:
                    await _send_event(watch.client, event)

        self._call(release)

    def send_to_watches(self, event: Event) -> int:
        """Put an event of our own into every watch; return how many there are."""

        async def send() -> int:
            for watch in self._watches:
                await _send_event(watch.client, event)
            return len(self._watches)

        return self._call(send)

    def cut_watches(self) -> int:
        """Break off every watch; return how many there were."""

        async def cut() -> int:
            watches, self._watches = self._watches, []
            for watch in watches:
                watch.client.transport.abort()
            return len(watches)

        return self._call(cut)

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    def close(self) -> None:
        """End everything."""

        async def end() -> None:
            self._server.close()
            while connections := dict(self._connections):  # What was accepted meanwhile, too.
                for task in connections:
                    task.cancel()
                await asyncio.gather(*connections, return_exceptions=True)
                for client in connections.values():  # A task may not even have begun.
                    await _cut(client)

        self._call(end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, function: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(60)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_LINE_BYTES_MAX)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve_client(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                request.fault = self._fault_for(request)
                if not request.is_watch:
                    self._in_flight += 1
                    self.in_flight_max = max(self.in_flight_max, self._in_flight)
                try:
                    if not await self._serve(request, reader, writer):
                        break
                finally:
                    self._in_flight -= not request.is_watch
        except (OSError, asyncio.IncompleteReadError):
            pass  # One of the two sides went away, which the other is told by the end below.
        finally:
            await _cut(writer)

    def _fault_for(self, request: _Request) -> Fault | None:
        with self._lock:
            self.requests.append((request.method, request.path))
            for injected in self._faults:
                is_for_watches = "watch=" in injected.path
                if (
                    injected.times > 0
                    and injected.method in ("", request.method)
                    and injected.path in request.path
                    and (is_for_watches or not request.is_watch)
                ):
                    injected.times -= 1
                    return injected.fault
        return None

    async def _serve(
        self, request: _Request, reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> bool:
        """Serve one request; return whether another may follow on the connection."""
        fault = request.fault
        if fault is None and request.is_watch:
            await self._relay_watch(request, reader, client)
            return False
        if isinstance(fault, Delay):
            while not fault.until.is_set():  # noqa: ASYNC110 - it is set by another thread.
                await asyncio.sleep(0.002)
        if fault is None or isinstance(fault, Delay) or fault.is_done:
            head, body = await self._ask(request)
        match fault:
            case None | Delay():
                client.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            case Refuse():
                client.write(_refusal(fault))
            case Hang():
                await reader.read()  # Until the client has had enough.
                return False
            case Drop():
                return False
        await client.drain()
        return True

    async def _open(
        self, request: _Request
    ) -> tuple[bytes, bool, asyncio.StreamReader, asyncio.StreamWriter]:
        """Pass a request on; return the answer's head without its framing, whether its body comes
        in chunks, and the connection.
        """
        host, port, tls, _ = self._upstream
        opening = asyncio.ensure_future(
            asyncio.open_connection(host, port, ssl=tls, limit=_LINE_BYTES_MAX)
        )
        try:
            # One that is cancelled in TLS's handshake would leave its transport to the garbage
            # collector.
            reader, writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            _, writer = await opening
            await _cut(writer)
            raise
        try:
            return *await self._pass_on(request, reader, writer), reader, writer
        except BaseException:
            await _cut(writer)
            raise

    async def _pass_on(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[bytes, bool]:
        host, port, _, token = self._upstream
        headers = request.headers | {"host": f"{host}:{port}", "connection": "close"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        lines = [f"{request.method} {request.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + request.body)
        await writer.drain()
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        framing = (b"content-length", b"transfer-encoding", b"connection")
        kept = [line for line in rest if line and not line.lower().startswith(framing)]
        is_chunked = any(line.lower().startswith(b"transfer-encoding") for line in rest)
        return b"\r\n".join([first, *kept, b""]), is_chunked

    async def _ask(self, request: _Request) -> tuple[bytes, bytes]:
        """Pass a request on; return the answer's head and body."""
        head, is_chunked, reader, writer = await self._open(request)
        try:
            if is_chunked:
                return head, b"".join([chunk async for chunk in _chunks(reader)])
            return head, await reader.read(-1)
        finally:
            await _cut(writer)

    async def _relay_watch(
        self, request: _Request, reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        head, _, upstream, writer = await self._open(request)
        watch = _Watch(request.path, client)
        self._watches.append(watch)
        client.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        gone = asyncio.ensure_future(reader.read())  # A client says nothing more until it leaves.
        passing = asyncio.ensure_future(self._pass_events(watch, upstream))
        try:
            await asyncio.wait((gone, passing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Nothing is waited for before all of it is ended: this may be cancelled once more.
            writer.transport.abort()
            for task in (gone, passing):
                task.cancel()
            if watch in self._watches:
                self._watches.remove(watch)
            await asyncio.gather(gone, passing, return_exceptions=True)
            await _cut(writer)

    async def _pass_events(self, watch: _Watch, upstream: asyncio.StreamReader) -> None:
        pending = b""
        async for chunk in _chunks(upstream):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                for event in self._pass_event(json.loads(line)):
                    if self._are_watches_held:
                        watch.pending.append(event)
                    else:
                        await _send_event(watch.client, event)
        watch.client.write(b"0\r\n\r\n")
        await watch.client.drain()


async def _cut(writer: asyncio.StreamWriter) -> None:
    """End a connection at once; return when its transport is gone."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        # Who waits may be cancelled; the end itself, which others wait for, is not.
        await asyncio.shield(writer.wait_closed())


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    try:
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None  # The client closed the connection between two requests.
    method, path, _ = first.split(" ")
    fields = (line.partition(":") for line in rest if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return _Request(method, path, headers, body)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the parts of a body in chunks."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _send_event(client: asyncio.StreamWriter, event: Event) -> None:
    line = json.dumps(event).encode() + b"\n"
    client.write(b"%x\r\n%b\r\n" % (len(line), line))
    await client.drain()


def _refusal(fault: Refuse) -> bytes:
    body = json.dumps(
        {"kind": "Status", "apiVersion": "v1", "code": fault.status, "message": "by the relay"}
    ).encode()
    retry = "" if fault.retry_after is None else f"Retry-After: {fault.retry_after}\r\n"
    head = f"HTTP/1.1 {fault.status} Refused\r\nContent-Type: application/json\r\n{retry}"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
