"""The end of a `with` block over a client.

The program has to see the error that ended its block. So an error of `close()` never takes its
place: it becomes a note of that error. Without such an error, the one of `close()` is raised. An
exit, Ctrl-C and a cancellation end a program or a task without a trace, so notes of theirs are
logged, too.
"""

from types import TracebackType
from typing import Self

from millrace.client import events
from millrace.client._threads.logs import Log

_log = Log(__name__)


class AsyncClient:
    """A client that an `async with` block closes."""

    async def close(self) -> None:
        """Release everything."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except Exception as failure:
            raise_or_note(failure, error)


def raise_or_note(failure: Exception, error: BaseException | None) -> None:
    """Note at the error that ended a block why `close()` has failed; raise that without one."""
    if error is None:
        raise failure
    what = note(failure, error, "close() of the client")
    if not isinstance(error, Exception):
        events.CLOSING_FAILED.log(_log, error=what)


def note(failure: Exception, error: BaseException, call: str) -> str:
    """Note at the error that ended a block that a call at its end has failed; return how."""
    what = f"{type(failure).__name__}: {failure}"
    error.add_note(f"{call} has failed, too: {what}")
    return what
