"""A synchronous client is an asynchronous one on the loop thread, and has its methods.

`blocking` and `direct` make a method of a synchronous client from one of the asynchronous client:
with the same parameters and result, for type checkers as well, and the same text, without `await`.
"""

import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from importlib import import_module
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from millrace.client._settings import TracedSettings
from millrace.client._sync.loop_thread import LoopThread
from millrace.client._with_blocks import AsyncClient, raise_or_note

Client = TypeVar("Client", bound=AsyncClient)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_AWAIT: Final = re.compile(r"\bawait |\basync (?=with |for )")


class SyncClient(Generic[Client]):
    """What all of them share."""

    def __init__(self, new_client: Callable[[], Client]) -> None:
        self._thread = LoopThread.shared()
        self._client = self._thread.run(new_client)

    def __init_subclass__(cls) -> None:
        for name, method in vars(cls).items():
            if hasattr(method, "__wrapped__"):  # It is named after that of the other client.
                method.__module__, method.__qualname__ = cls.__module__, f"{cls.__name__}.{name}"

    def close(self) -> None:
        """Release everything."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            raise_or_note(failure, error)


def load(settings: TracedSettings) -> None:
    """Load what the settings need in this thread: modules make loggers, for which `logging` locks.

    The clients' thread must not wait for that lock: this one may have it, as in `dictConfig`.
    """
    if settings.get("tracing"):
        with suppress(ImportError):  # The settings are checked later, and say so.
            import_module("millrace.client.tracing")


def blocking(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Return a method that waits for a coroutine method, which runs on the loop."""

    def call(self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        result: Result = self._thread.call(method(self._client, *args, **kwargs))
        return result

    return _named_after(method, call)


def direct(
    method: Callable[Concatenate[Any, Parameters], Result], *, on_loop: bool = False
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Return a method that calls a plain one.

    Args:
        method: of the asynchronous client.
        on_loop: it may run on the loop's thread alone; else it runs in the caller's.
    """

    def call(self: Any, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if not on_loop:
            return method(self._client, *args, **kwargs)
        result: Result = self._thread.run(lambda: method(self._client, *args, **kwargs))
        return result

    return _named_after(method, call)


def _named_after(method: Callable[..., object], call: Callable[..., Any]) -> Callable[..., Any]:
    """Give a method the name, the signature and the text of another one."""
    wraps(method)(call)
    if call.__doc__ is not None:  # `python -OO` leaves none.
        call.__doc__ = _AWAIT.sub("", call.__doc__)
    return call
