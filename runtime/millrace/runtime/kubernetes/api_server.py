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

from millrace.core.errors import InvalidConfigError
from millrace.core.numbers import parse_whole_number
from millrace.runtime import host
from millrace.runtime.kubernetes.access import ApiAccess

WHOLE: Final = "application/json"
"""Accept: objects as they are."""

_RETRY_AFTER_MAX: Final = 999_999_999
_PAUSE_S: Final = 1  # When the API server asks for one and names no time.
_PAUSE_MS_MAX: Final = 60_000
_REFUSAL_BYTES_MAX: Final = 1 << 20


class NoAnswerError(Exception):
    """A request was not sent, or its outcome is unknown."""


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
"""A function that does what `connect` does."""


class ApiServer:
    """An API server, by one login. Any number of threads may use it.

    Args:
        access: to the API server.
        connect: opens the connections.
        user_agent: the name of this program.
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
        user_agent: str,
        connections_max: int,
        request_timeout_ms: int,
        pause_ms_max: int = _PAUSE_MS_MAX,
    ) -> None:
        self._access = access
        self._user_agent = user_agent
        self._pause_s_max = pause_ms_max / 1000
        self._timeout_s = request_timeout_ms / 1000
        self._pool = connect(access, connections_max)
        self._path = (urllib3.util.parse_url(access.server).path or "").rstrip("/")
        self._lock = threading.Lock()
        self._pause_until = 0.0

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        accept: str = WHOLE,
        content_type: str = WHOLE,
    ) -> Answer:
        """Send a request and return the answer, which may be a refusal.

        Raises:
            NoAnswerError: there is none, or it is a success without an object.
        """
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": content_type})
        response = self._open(method, path, headers, body, self._timeout_s)
        answer = self._answer(response, response.data)
        if answer.is_success and not answer.document:
            raise NoAnswerError(
                f"the API server's answer to {method} {path} is no object: {answer.text}"
            )
        return answer

    @contextmanager
    def stream(
        self, path: str, accept: str, silent_s_max: float
    ) -> Iterator[urllib3.BaseHTTPResponse | Answer]:
        """Read something long: yield it, or a refusal; its connection is closed afterwards.

        Args:
            silent_s_max: for how long it may be silent, besides the time of a request.

        Raises:
            NoAnswerError: there is no answer.
        """
        timeout_s = silent_s_max + self._timeout_s
        response = self._open("GET", path, {"Accept": accept}, None, timeout_s, is_stream=True)
        try:
            is_there = response.status == 200
            yield (
                response if is_there else self._answer(response, response.read(_REFUSAL_BYTES_MAX))
            )
        finally:
            response.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def _open(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        read_timeout_s: float,
        *,
        is_stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        with self._lock:
            pause_s = self._pause_until - host.monotonic_s()
        if pause_s > 0:
            raise NoAnswerError(f"the API server asked for a pause; {pause_s:.1f} s of it are left")
        try:
            headers["User-Agent"] = self._user_agent
            if (token := self._access.token()) is not None:
                headers["Authorization"] = f"Bearer {token}"
            return self._pool.urlopen(
                method,
                self._path + path,
                body,
                headers,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=self._timeout_s, read=read_timeout_s),
                preload_content=not is_stream,
            )
        except (HTTPError, OSError) as error:
            raise NoAnswerError(
                f"the API server at {self._access.server} cannot be reached or did not answer "
                f"({method} {path}): {error}"
            ) from error

    def _answer(self, response: urllib3.BaseHTTPResponse, content: bytes) -> Answer:
        status = response.status
        if status == 429 or (status == 503 and "Retry-After" in response.headers):
            self._pause(response.headers.get("Retry-After", ""))
        try:
            document = json.loads(content)
        except ValueError:
            document = None
        if isinstance(document, dict):
            return Answer(status, document)
        return Answer(status, {}, content[:200].decode("utf-8", "replace").strip())

    def _pause(self, retry_after: str) -> None:
        seconds = parse_whole_number(retry_after, _RETRY_AFTER_MAX)
        pause_s = _PAUSE_S if seconds is None else seconds
        with self._lock:
            self._pause_until = host.monotonic_s() + min(pause_s, self._pause_s_max)
