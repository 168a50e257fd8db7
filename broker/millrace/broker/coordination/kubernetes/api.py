"""A broker's requests to the API server: what its answers mean for a coordination store."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import urllib3
from urllib3.exceptions import HTTPError

from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.runtime.kubernetes.access import ApiAccess
from millrace.runtime.kubernetes.api_server import (
    WHOLE,
    Answer,
    ApiServer,
    Connect,
    NoAnswerError,
    connect,
)

METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept: of each object only its metadata, so that states do not travel back with every write."""

_USER_AGENT: Final = "millrace-broker"
_EVENT_BYTES_MAX: Final = 4 << 20

_UNAVAILABLE: Final = {
    401: "our token was not accepted",
    403: "we are not allowed to; the broker's service account needs a Role and a RoleBinding",
    408: "it timed out",
    429: "it has too many requests",
}


class KubernetesApi:
    """The API server for one use, with pauses of its own. Any number of threads may use it.

    Args:
        access: to the API server.
        connect: opens the connections.
        bounds: as of `ApiServer`.
    """

    def __init__(self, access: ApiAccess, connect: Connect = connect, **bounds: int) -> None:
        self._server = ApiServer(access, connect, user_agent=_USER_AGENT, **bounds)

    def request(
        self, method: str, path: str, body: bytes | None = None, *, accept: str = WHOLE
    ) -> Answer:
        """Send a request and return the answer, which may be a refusal (404, 409, 410, 422, ...).

        Raises:
            CoordinationUnavailableError: it could not be sent, or its outcome is unknown.
        """
        try:
            answer = self._server.send(method, path, body, accept=accept)
        except NoAnswerError as error:
            raise CoordinationUnavailableError(str(error)) from error
        return _judged(method, path, answer)

    @contextmanager
    def watch(self, path: str, seconds: int) -> Iterator[urllib3.BaseHTTPResponse]:
        """Open a stream of events, to be read with `events`; its connection is closed afterwards.

        Args:
            path: with the parameters of a watch, but for its time-out.
            seconds: after which the API server ends it. A watch that is silent for longer is dead.

        Raises:
            CoordinationUnavailableError: it could not be opened.
        """
        path = f"{path}&timeoutSeconds={seconds}"
        try:
            with self._server.stream(path, METADATA, seconds) as stream:
                if isinstance(stream, Answer):
                    refused = _judged("GET", path, stream)
                    raise CoordinationUnavailableError(f"no watch: {refused.message}")
                yield stream
        except NoAnswerError as error:
            raise CoordinationUnavailableError(str(error)) from error

    def close(self) -> None:
        """Close the connections."""
        self._server.close()


def events(stream: urllib3.BaseHTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the type and the object of each event until the stream ends.

    Raises:
        CoordinationUnavailableError: it broke off, or is no stream of events.
    """
    pending = b""
    try:
        for chunk in stream.stream(1 << 16):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                yield event["type"], event["object"]
            if len(pending) > _EVENT_BYTES_MAX:
                raise ValueError("an event without an end")
    except (HTTPError, OSError, ValueError, KeyError, TypeError) as error:
        raise CoordinationUnavailableError(f"the watch broke off: {error!r}") from error


def _judged(method: str, path: str, answer: Answer) -> Answer:
    """Return an answer about the object; raise for the others."""
    status = answer.status
    if status in _UNAVAILABLE or status >= 500 or 300 <= status < 400:
        because = _UNAVAILABLE.get(status, "it failed")
        raise CoordinationUnavailableError(
            f"the API server answered {status} to {method} {path}: {because} ({answer.message})"
        )
    return answer
