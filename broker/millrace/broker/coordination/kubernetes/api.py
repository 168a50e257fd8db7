"""Requests to the API server: bounded in time, over connections that are kept.

Nothing is sent twice from here. Without a clear answer the caller gets an error, reads again and
decides (F43): a write whose answer was lost may have been done. The API server may ask for a pause
(429, or 503 with Retry-After): until it is over, requests fail here and are not sent.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import urllib3
from urllib3.exceptions import HTTPError

from millrace.broker.coordination.kubernetes.access import ApiAccess
from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.core.errors import InvalidConfigError
from millrace.core.numbers import parse_whole_number
from millrace.runtime import host

WHOLE: Final = "application/json"
"""Accept: objects as they are."""

METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept: of each object only its metadata, so that states do not travel back with every write."""

_USER_AGENT: Final = "millrace-broker"
_RETRY_AFTER_MAX: Final = 999_999_999
_PAUSE_S: Final = 1  # When the API server asks for one and names no time.
_PAUSE_MS_MAX: Final = 60_000
_EVENT_BYTES_MAX: Final = 4 << 20

_UNAVAILABLE: Final = {
    401: "our token was not accepted",
    403: "we are not allowed to; the broker's service account needs a Role and a RoleBinding",
    408: "it timed out",
    429: "it has too many requests",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server answered.

    Attributes:
        status: of HTTP.
        document: the object, or a `Status` with the reason; empty when it was no JSON object.
        text: of an answer that is no JSON object, shortened.
    """

    status: int
    document: dict[str, Any]
    text: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the request was done."""
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The message of a `Status`, for a person."""
        return str(self.document.get("message") or self.text or f"status {self.status}")


def connect(access: ApiAccess, connections_max: int) -> urllib3.HTTPConnectionPool:
    """Return connections to the API server; the first is opened with the first request.

    Args:
        access: to the API server.
        connections_max: that are kept open; more requests at a time make connections of their own.

    Raises:
        InvalidConfigError: its URL is none.
    """
    try:
        url = urllib3.util.parse_url(access.server)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("it must begin with https:// and a host")
    except (HTTPError, ValueError) as error:
        raise InvalidConfigError(
            f"{access.server!r} is not the URL of an API server: {error}"
        ) from error
    if access.tls is None:
        return urllib3.HTTPConnectionPool(url.host, url.port, maxsize=connections_max)
    return urllib3.HTTPSConnectionPool(
        url.host,
        url.port,
        maxsize=connections_max,
        ssl_context=access.tls,
        server_hostname=access.tls_server_name,
    )


Connect = Callable[[ApiAccess, int], urllib3.HTTPConnectionPool]
"""As `connect`."""


class KubernetesApi:
    """See the module. Any number of threads may use it.

    Args:
        access: to the API server.
        connect: opens the connections.
        connections_max: as in `connect`.
        request_timeout_ms: for connecting and the answer's beginning together, and for each wait
            for more of it.
        pause_ms_max: the longest pause that is kept; after it requests are sent again.
    """

    def __init__(
        self,
        access: ApiAccess,
        connect: Connect = connect,
        *,
        connections_max: int,
        request_timeout_ms: int,
        pause_ms_max: int = _PAUSE_MS_MAX,
    ) -> None:
        self._access = access
        self._pause_s_max = pause_ms_max / 1000
        self._timeout_s = request_timeout_ms / 1000
        self._pool = connect(access, connections_max)
        self._server = access.server
        self._path = (urllib3.util.parse_url(access.server).path or "").rstrip("/")
        self._lock = threading.Lock()
        self._pause_until = 0.0

    def request(
        self, method: str, path: str, body: bytes | None = None, *, accept: str = WHOLE
    ) -> Answer:
        """Send a request and return the answer, which may be a refusal (404, 409, 410, 422, ...).

        Raises:
            CoordinationUnavailableError: it could not be sent, or its outcome is unknown.
        """
        response = self._send(method, path, accept, body, read_timeout_s=self._timeout_s)
        return self._judged(method, path, response, response.data)

    @contextmanager
    def watch(self, path: str, seconds: int) -> Iterator[urllib3.BaseHTTPResponse]:
        """Open a stream of events, to be read with `events`; its connection is closed afterwards.

        Args:
            path: with the parameters of a watch, but for its time-out.
            seconds: after which the API server ends it. A watch that is silent for longer is dead.

        Raises:
            CoordinationUnavailableError: it could not be opened.
        """
        response = self._send(
            "GET",
            f"{path}&timeoutSeconds={seconds}",
            METADATA,
            read_timeout_s=seconds + self._timeout_s,
            is_stream=True,
        )
        try:
            if response.status != 200:
                answer = self._judged("GET", path, response, response.read(_EVENT_BYTES_MAX))
                raise CoordinationUnavailableError(f"no watch: {answer.message}")
            yield response
        finally:
            response.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _send(
        self,
        method: str,
        path: str,
        accept: str,
        body: bytes | None = None,
        *,
        read_timeout_s: float,
        is_stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        with self._lock:
            pause_s = self._pause_until - host.monotonic_s()
        if pause_s > 0:
            raise CoordinationUnavailableError(
                f"the API server asked for a pause; {pause_s:.1f} s of it are left"
            )
        timeout = urllib3.Timeout(connect=self._timeout_s, read=read_timeout_s)
        try:
            return self._pool.urlopen(
                method,
                self._path + path,
                body,
                self._headers(accept, body),
                retries=False,
                redirect=False,
                timeout=timeout,
                preload_content=not is_stream,
            )
        except (HTTPError, OSError) as error:
            raise CoordinationUnavailableError(
                f"the API server at {self._server} cannot be reached or did not answer "
                f"({method} {path}): {error}"
            ) from error

    def _headers(self, accept: str, body: bytes | None) -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": _USER_AGENT}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if (token := self._access.token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _judged(
        self, method: str, path: str, response: urllib3.BaseHTTPResponse, content: bytes
    ) -> Answer:
        """Return an answer about the object; raise for the others."""
        status = response.status
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if isinstance(document, dict):
            answer = Answer(status, document)
        else:
            answer = Answer(status, {}, content[:200].decode("utf-8", "replace").strip())
            if 200 <= status < 300:
                raise CoordinationUnavailableError(
                    f"the API server's answer to {method} {path} is no object: {answer.text}"
                )
        if status == 429 or (status == 503 and "Retry-After" in response.headers):
            self._pause(response.headers.get("Retry-After", ""))
        if status in _UNAVAILABLE or status >= 500 or 300 <= status < 400:
            because = _UNAVAILABLE.get(status, "it failed")
            raise CoordinationUnavailableError(
                f"the API server answered {status} to {method} {path}: {because} ({answer.message})"
            )
        return answer

    def _pause(self, retry_after: str) -> None:
        seconds = parse_whole_number(retry_after, _RETRY_AFTER_MAX)
        pause_s = _PAUSE_S if seconds is None else seconds
        with self._lock:
            self._pause_until = host.monotonic_s() + min(pause_s, self._pause_s_max)


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
