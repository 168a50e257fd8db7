"""What is refused to clients: counted, and now and then named in the log, with who it was.

A client says its name once on each connection, in its `Hello`. It is kept by the connection's
address, so that during a flood of refusals the log can tell whom to talk to. Only what is the
client's own fault is named there: that a leader moved is nobody's.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote

import grpc

from millrace.broker.runtime.clock import monotonic_now
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.errors import BrokerBusyError, InvalidRequestError, MillraceError
from millrace.core.ids import MonotonicMs
from millrace.proto.v1.common_pb2 import HelloRequest

_log = logging.getLogger(__name__)

_HELLO: Final = "Hello"
_PAUSE_MS: Final = 10_000
"""Between two refusals that are named in the log."""
_TEXT_MAX: Final = 300
"""Characters of what a stranger said that the log takes."""

_Serve = Callable[[Any, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[Any]]


class Refusals:
    """See the module.

    Args:
        metrics: count them.
        callers_max: how many clients are known by name; as many as may be connected.
        clock: tells when it is time to name another.
    """

    def __init__(
        self,
        metrics: BrokerMetrics,
        *,
        callers_max: int,
        clock: Callable[[], MonotonicMs] = monotonic_now,
    ) -> None:
        self._metrics = metrics
        self._callers_max = callers_max
        self._clock = clock
        self._callers: dict[str, tuple[str, str]] = {}
        self._quiet_until = MonotonicMs(0)
        self._unnamed = 0

    def on_hello(self, peer: str, hello: HelloRequest) -> None:
        """Know a client by its name from now on."""
        self._callers.pop(peer, None)
        if len(self._callers) >= self._callers_max:
            del self._callers[next(iter(self._callers))]  # It is gone, or has been silent longest.
        software = f"{hello.software_name} {hello.software_version}"
        self._callers[peer] = (_printable(hello.client_id), _printable(software))

    def on_refused(self, error: MillraceError, peer: str, method: str) -> None:
        """Count what is refused, and name it if it is time to.

        Args:
            error: why it is refused.
            peer: whose it is, as gRPC calls it.
            method: what was called, without the service.
        """
        self._metrics.refused(error)
        if not isinstance(error, InvalidRequestError | BrokerBusyError):
            return
        now = self._clock()
        if now < self._quiet_until:
            self._unnamed += 1
            return
        client_id, software = self._callers.get(peer, ("", ""))
        _log.warning(
            "a client was refused",
            extra={
                "peer": unquote(peer),
                "client_id": client_id,
                "software": software,
                "method": method,
                "error": _printable(error.message),
                "others_since_the_last": self._unnamed,
            },
        )
        self._quiet_until = MonotonicMs(now + _PAUSE_MS)
        self._unnamed = 0

    def watching(self, handlers: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """Return handlers that do as these, and are heard of here when they end calls."""
        return _Watching(self, handlers)


class _Watching(grpc.GenericRpcHandler):
    def __init__(self, refusals: Refusals, handlers: grpc.GenericRpcHandler) -> None:
        self._refusals = refusals
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        found: Any = self._handlers.service(handler_call_details)
        if found is None:
            return None
        method = handler_call_details.method.rpartition("/")[2]
        if found.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._watch(method, found.unary_unary))
        return grpc.stream_stream_rpc_method_handler(self._watch(method, found.stream_stream))

    def _watch(self, method: str, serve: _Serve) -> _Serve:
        async def watched(request: Any, context: "grpc.aio.ServicerContext[bytes, bytes]") -> Any:
            try:
                response = await serve(request, context)
            except grpc.aio.AbortError as aborted:  # See `rpc.errors.abort`.
                if isinstance(aborted.__cause__, MillraceError):
                    self._refusals.on_refused(aborted.__cause__, context.peer(), method)
                raise
            if method == _HELLO:
                self._refusals.on_hello(context.peer(), HelloRequest.FromString(request))
            return response

        return watched


def _printable(text: str) -> str:
    """Return what a log line may hold of a stranger's text."""
    return "".join(each if each.isprintable() else "?" for each in text[:_TEXT_MAX])
