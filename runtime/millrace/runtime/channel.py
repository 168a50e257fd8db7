"""A connection whose calls carry the client id and the library's name."""

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Final, Self

from millrace.proto.callers import client_id_to_metadata
from millrace.runtime import host


def _software_version() -> str:
    try:
        return version("millrace")
    except PackageNotFoundError:  # Run from a bare clone.
        return "0"


SOFTWARE_NAME: Final = "millrace-python"
SOFTWARE_VERSION: Final = _software_version()
"""The release that is installed."""


OnCalled = Callable[[str, float], None]
"""Takes the name of a method, without its service, and seconds."""


class Channel:
    """The part of `grpc.aio.Channel` that the product uses, with the caller's name in each call.

    gRPC's interceptors could name the caller, too, but put a task and a queue into every stream.

    Args:
        address: `host:port` of the server; nothing is sent before the first call.
        options: of gRPC.
        client_id: of the caller.
        on_called: called with the method and the seconds of each call with one request and one
            response, whether it was answered or not.
    """

    def __init__(
        self,
        address: str,
        options: host.ChannelOptions,
        *,
        client_id: str,
        on_called: OnCalled | None = None,
    ) -> None:
        user_agent = ("grpc.primary_user_agent", f"{SOFTWARE_NAME}/{SOFTWARE_VERSION}")
        self._channel = host.current.channel(address, [*options, user_agent])
        self._metadata = client_id_to_metadata(client_id)
        self._on_called = on_called

    def unary_unary(self, method: str, *coders: Any, **more: Any) -> Callable[..., Any]:
        """Return a function that calls a method with one request and one response."""
        call = partial(self._channel.unary_unary(method, *coders, **more), metadata=self._metadata)
        if self._on_called is None:
            return call
        return partial(_timed, self._on_called, method.rpartition("/")[2], call)

    def stream_stream(self, method: str, *coders: Any, **more: Any) -> Callable[..., Any]:
        """Return a function that calls a method with a stream in each direction."""
        call = self._channel.stream_stream(method, *coders, **more)
        return partial(call, metadata=self._metadata)

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _timed(
    on_called: OnCalled,
    method: str,
    call: Callable[..., Awaitable[Any]],
    *request: Any,
    **more: Any,
) -> Any:
    begun = host.monotonic_s()
    try:
        return await call(*request, **more)
    finally:
        on_called(method, host.monotonic_s() - begun)
