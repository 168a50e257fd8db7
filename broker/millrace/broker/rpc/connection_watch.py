"""Watches the connections of one listener: counts them, and closes idle ones.

`connection_rules` decides which. gRPC reports only calls, through an interceptor; the connections
are found among the process's own descriptors (`ListenerSockets`).

Every call of every service passes this interceptor last, and with it every error that ends a call.
gRPC keeps the error of an aborted call with the call, so here the error lets go of it
(`without_call`).
"""

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from typing import Any, Final

import grpc

from millrace.broker import events
from millrace.broker.rpc.connection_rules import ConnectionRules
from millrace.broker.rpc.errors import without_call
from millrace.broker.rpc.listener_sockets import ListenerSockets, peer_name
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.ids import MonotonicMs
from millrace.core.metadata.model import Listener
from millrace.runtime.clock import monotonic_now

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
"""Pause between two looks at the connections."""
_HASTY_SECONDS: Final = 0.1
"""Likewise, where one should be closed at once, or sends much before its caller is known."""
_SHARE: Final = 20
"""A pause is so many times as long as the look before."""
_MUCH_BYTES: Final = 64 << 10
_METADATA_ENTRIES_MAX: Final = 200
_METADATA_BYTES_MAX: Final = 64 << 10
"""Of a call. gRPC bounds them by 16 MiB while a peer has not acknowledged its settings, and only
then by those; a byte that came may stand for a field of 4 KB."""
_QUIET_MS: Final = 10_000
"""Pause between two lines in the log."""


class ConnectionWatch(grpc.aio.ServerInterceptor):
    """The interceptor of a listener's server, which also closes the connections that the rules
    name.

    Args:
        listener: which one of the broker it is, for the log and the metrics.
        limits: of its connections.
        metrics: count them.
    """

    def __init__(self, listener: Listener, limits: LimitsConfig, metrics: BrokerMetrics) -> None:
        self._listener = listener
        self._connections_max = limits.connections_max
        self._rules = ConnectionRules(limits)
        self._metrics = metrics
        self._hasty = asyncio.Event()  # The next look should be soon.
        self._at_once = asyncio.Event()
        self._refusing: Any = grpc.stream_stream_rpc_method_handler(self._refuse_bomb)
        self._open = metrics.connections.labels(listener)
        self._closed = metrics.connections_closed.labels(listener)
        self._quiet_until = MonotonicMs(0)
        self._closed_since = 0
        self._pause_s = _HASTY_SECONDS

    async def run(self, ports: Iterable[int]) -> None:
        """Look at the connections to the listener's ports for as long as the broker runs."""
        sockets = ListenerSockets(ports)
        while True:
            await self._pause()
            try:
                await self._look(sockets)
            except OSError as error:  # No descriptor is left: storage reports that, too.
                events.CONNECTIONS_UNKNOWN.log(_log, error=str(error))

    async def _pause(self) -> None:
        """Wait for the next look; not for long where a connection should be closed at once."""
        for event, seconds in (
            (self._at_once, self._pause_s),
            (self._hasty, _LOOK_SECONDS - self._pause_s),
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
            if self._at_once.is_set():
                break
        self._at_once.clear()
        self._hasty.clear()

    async def _look(self, sockets: ListenerSockets) -> None:
        begun = monotonic_now()
        peers = await asyncio.to_thread(sockets.peers)
        self._open.set(len(peers))
        received = dict[str, int]()
        if strangers := self._rules.strangers(peers):
            received.update(await asyncio.to_thread(sockets.received, strangers))
        now = monotonic_now()
        closed = self._rules.judge(peers, now, received)
        if closed or any(size > _MUCH_BYTES for size in received.values()):
            self._hasty.set()  # Who is closed may come again.
        took_s = (now - begun) / 1000
        self._pause_s = min(_LOOK_SECONDS, max(_HASTY_SECONDS, took_s * _SHARE))
        reached, self._rules.reached = self._rules.reached, Counter()
        for limit, times in reached.items():
            self._metrics.limit_reached(limit, times)
        if closed:
            await asyncio.to_thread(sockets.shut_down, frozenset(closed))
            self._closed.inc(len(closed))
            self._closed_since += len(closed)
        if closed or len(peers) >= self._connections_max:
            self._tell(peers, now)

    def _tell(self, peers: Mapping[str, str], now: MonotonicMs) -> None:
        if now < self._quiet_until:
            return
        host, count = Counter(peer.split()[0] for peer in peers.values()).most_common(1)[0]
        is_full = len(peers) >= self._connections_max
        event = events.CONNECTIONS_EXHAUSTED if is_full else events.CONNECTIONS_CLOSED
        event.log(
            _log,
            listener=self._listener,
            connections=len(peers),
            connections_max=self._connections_max,
            closed=self._closed_since,
            most_from=host,
            of_these=count,
        )
        self._quiet_until = MonotonicMs(now + _QUIET_MS)
        self._closed_since = 0

    def on_known(self, peer: str) -> None:
        """The caller of a call is known; the peer is as gRPC names it."""
        self._rules.on_known(peer_name(peer), monotonic_now())

    def _on_aborted(self, context: Any) -> None:
        if self._rules.on_refused(peer_name(context.peer())):
            self._hasty.set()

    # --- Calls -------------------------------------------------------------------------------

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Implement `ServerInterceptor`: record every call while it lasts."""
        if _is_bomb(handler_call_details.invocation_metadata):
            return self._refusing  # It reads no request, whatever kind of call it is.
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = next(kind for kind in _KINDS if getattr(handler, kind) is not None)
        serve = getattr(handler, kind)
        noted = self._noted_stream if inspect.isasyncgenfunction(serve) else self._noted
        return handler._replace(**{kind: noted(serve)})

    @contextmanager
    def _call_of(self, context: Any) -> Iterator[None]:
        peer = peer_name(context.peer())
        self._rules.on_call(peer)
        try:
            yield
        finally:
            self._rules.on_call_ended(peer, monotonic_now())

    async def _refuse_bomb(self, _: object, context: Any) -> None:
        """End a call whose headers were small, and are large (HPACK)."""
        self._rules.condemn(peer_name(context.peer()), monotonic_now())
        self._at_once.set()
        try:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much metadata")
        except grpc.aio.AbortError as aborted:
            del context  # The raise puts this frame into the traceback again.
            raise without_call(aborted) from None

    def _noted(self, serve: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def noted(request: Any, context: Any) -> Any:
            try:
                with self._call_of(context):
                    return await serve(request, context)
            except grpc.aio.AbortError as aborted:
                self._on_aborted(context)
                del request, context  # The raise puts this frame into the traceback again.
                raise without_call(aborted) from None

        return noted

    def _noted_stream(self, serve: Callable[[Any, Any], AsyncIterator[Any]]) -> Any:
        async def noted(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                with self._call_of(context):
                    async for response in serve(request, context):
                        yield response
            except grpc.aio.AbortError as aborted:
                self._on_aborted(context)
                del request, context
                raise without_call(aborted) from None

        return noted


def _is_bomb(metadata: Sequence[tuple[str, str | bytes]]) -> bool:
    """Return whether the metadata of a call exceed what gRPC bounds only by the peer's leave."""
    return (
        len(metadata) > _METADATA_ENTRIES_MAX
        or sum(len(value) for _, value in metadata) > _METADATA_BYTES_MAX
    )


_KINDS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
