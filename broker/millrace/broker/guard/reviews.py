"""Questions to the API server about callers: few at a time, and none for longer than it may take.

A review costs the API server a request of its own. So callers must not make brokers ask without
end: at most `UNDER_WAY_MAX` questions are under way, `WAITING_MAX` wait, and what comes
then has no answer at once.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, Protocol, TypeVar

from millrace.broker import events
from millrace.broker.guard.guard import AuthorityAwayError, NotAskedError
from millrace.runtime.kubernetes.access import ApiAccess
from millrace.runtime.kubernetes.api_server import (
    WHOLE,
    Answer,
    ApiServer,
    Connect,
    NoAnswerError,
    connect,
)
from millrace.runtime.kubernetes.resources import Kind

_log = logging.getLogger(__name__)

TOKEN_REVIEW: Final = Kind("authentication.k8s.io/v1", "TokenReview", "tokenreviews", False)
ACCESS_REVIEW: Final = Kind(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", False
)

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

UNDER_WAY_MAX: Final = 16
WAITING_MAX: Final = 512

_USER_AGENT: Final = "millrace-broker-guard"


class SingleFlight(Generic[KeyT, ValueT]):
    """Tasks that find something out, of which there is one at a time for each key.

    Several callers may wait for one task. Each of them shields it, so that none can cancel it.
    """

    def __init__(self) -> None:
        self._tasks: dict[KeyT, asyncio.Task[ValueT]] = {}

    def run(
        self, key: KeyT, find_out: Callable[[], Coroutine[Any, Any, ValueT]]
    ) -> "asyncio.Task[ValueT]":
        """Return the task for a key; begin it if there is none."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(find_out())
            task.add_done_callback(lambda done: self._on_done(key, done))
        return task

    def is_under_way(self, key: KeyT) -> bool:
        """Return whether there is a task for a key."""
        return key in self._tasks

    def _on_done(self, key: KeyT, task: "asyncio.Task[ValueT]") -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # Else asyncio complains: nobody may be waiting any more.


class Reviewer(Protocol):
    """Answers questions about callers."""

    async def review(self, kind: Kind, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask a question; return the `status` of the review.

        Raises:
            AuthorityAwayError: there is no answer.
        """

    async def read(self, path: str, accept: str = WHOLE) -> Mapping[str, Any]:
        """Return what is published under a path.

        Raises:
            AuthorityAwayError: there is no answer.
        """


class Reviews:
    """The API server as the authority on callers; implements `Reviewer`.

    It belongs to the event loop.

    Args:
        access: to the API server, as the broker's own ServiceAccount.
        connect: opens the connections.
        request_timeout_ms: as of `ApiServer`.
    """

    def __init__(
        self, access: ApiAccess, connect: Connect = connect, *, request_timeout_ms: int
    ) -> None:
        self._server = ApiServer(
            access,
            connect,
            user_agent=_USER_AGENT,
            connections_max=UNDER_WAY_MAX,
            request_timeout_ms=request_timeout_ms,
        )
        self._threads = ThreadPoolExecutor(UNDER_WAY_MAX, thread_name_prefix="reviews")
        self._asked = 0
        self._is_away = False

    async def review(self, kind: Kind, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        question = {"apiVersion": kind.api_version, "kind": kind.name, "spec": spec}
        answer = await self._send("POST", kind.path(), json.dumps(question).encode("ascii"))
        status = answer.document.get("status")
        if not isinstance(status, dict):
            raise AuthorityAwayError(f"the API server's {kind.name} has no status")
        return status

    async def read(self, path: str, accept: str = WHOLE) -> Mapping[str, Any]:
        return (await self._send("GET", path, None, accept)).document

    def close(self) -> None:
        """Ask nothing more. Questions that are under way have no answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._server.close()

    async def _send(
        self, method: str, path: str, body: bytes | None, accept: str = WHOLE
    ) -> Answer:
        if self._asked >= UNDER_WAY_MAX + WAITING_MAX:
            raise NotAskedError(f"{self._asked} questions to the API server are not answered")

        def send() -> Answer:
            return self._server.send(method, path, body, accept=accept)

        self._asked += 1
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, send)
        except NoAnswerError as error:
            raise self._away(str(error)) from error
        finally:
            self._asked -= 1
        if not answer.is_success:
            # Also 401 and 403: it is the broker that may not ask, and not the caller who is wrong.
            raise self._away(
                f"the API server answered {answer.status} to {method} {path}: {answer.message}"
            )
        if self._is_away:
            self._is_away = False
            events.AUTHORITY_BACK.log(_log)
        return answer

    def _away(self, error: str) -> AuthorityAwayError:
        """Log that there is no answer, for people the first time only; return the error."""
        events.AUTHORITY_AWAY.log(_log, error=error, is_repeat=self._is_away)
        self._is_away = True
        return AuthorityAwayError(error)
