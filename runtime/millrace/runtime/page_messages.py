"""Requests and responses of HTTP/1.1, as far as pages need them: pure.

A connection carries one request with a short head. It has no body, but for the few paths that take
a form, which only the page's own site may send: another site could make a browser send one in its
user's name (CSRF). Its `Host` must be one of this machine's. Another name there means DNS
rebinding: a page of another site lets a name of its own point to this address, and makes the
browser ask here. Source: RFC 9110, RFC 9112, Fetch Metadata.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

HEAD_BYTES_MAX: Final = 16 * 1024
"""Bytes of a request's head."""
FORM_BYTES_MAX: Final = 16 * 1024
"""Bytes of a form: a token of Kubernetes has a thousand, and 8192 at the most."""
METHODS: Final = ("GET", "HEAD")
_FORM: Final = "application/x-www-form-urlencoded"
_SECRETS: Final = ("authorization", "cookie")
"""Fields whose values count as they are written."""
_FIELDS_MAX: Final = 100
_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.[01]", re.ASCII)
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:,\[\]]*)(?::\d{1,5})?", re.ASCII)
_LENGTH: Final = re.compile(r"\d{1,9}", re.ASCII)
_LINKED: Final = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
"""What browsers say when their user follows a link (Fetch Metadata)."""
_SECURITY: Final = {
    # No script, no frame, nothing from elsewhere; forms ask here.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RefusedError(Exception):
    """A request is not served.

    Attributes:
        status: of the response.
        why: what is wrong with it, and what to do, for a person.
    """

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(slots=True, frozen=True)
class OwnHosts:
    """The hosts under which this machine is asked.

    Attributes:
        has: whether a host is one of them; it is in lower case and without its port, as `kubectl
            port-forward` chooses any. Empty: the request has none.
        advice: tells a person who asked for another host what to do.
    """

    has: Callable[[str], bool]
    advice: str


@dataclass(slots=True, frozen=True)
class Request:
    """A request for a page."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    """The last value counts of a name that is given several times."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Header fields, in lower case; but those with secrets are as they were written."""
    form_bytes: int = 0
    """Bytes of a form that follow the head."""
    form: Mapping[str, str] = field(default_factory=dict)

    def with_form(self, body: bytes) -> "Request":
        """Return the request with the form that came behind its head.

        Raises:
            RefusedError: it is none.
        """
        try:
            text = body.decode("ascii")
        except UnicodeDecodeError as error:
            raise _bad("the form is not ASCII") from error
        return replace(self, form=_query(text))


@dataclass(slots=True, frozen=True)
class Response:
    """A response with everything that it says."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/html; charset=utf-8"
    fields: Mapping[str, str] = field(default_factory=dict)

    def encode(self, method: str) -> bytes:
        """Return it as bytes; the answer to HEAD has no body."""
        fields = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Connection": "close",
            **_SECURITY,
            **self.fields,
        }
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            fields["Allow"] = ", ".join(METHODS)
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in fields.items()]
        head = "\r\n".join([*lines, "", ""]).encode("ascii")
        return head if method == "HEAD" else head + self.body


def no_forms(_: str) -> bool:
    """Whether a path takes a form, where none does."""
    return False


def parse_request(
    head: bytes, hosts: OwnHosts, takes_form: Callable[[str], bool] = no_forms
) -> Request:
    """Return the request with this head.

    Args:
        takes_form: whether a form may be sent to a path.

    Raises:
        RefusedError: it is none, or none for this machine.
    """
    try:
        first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    except UnicodeDecodeError as error:
        raise _bad("the head of the request is not ASCII") from error
    if len(lines) > _FIELDS_MAX:
        raise RefusedError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {_FIELDS_MAX} header fields"
        )
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise _bad("that is no request of HTTP/1.1")
    method, target = found.groups()
    fields = _fields(lines)
    path, _, query = target.partition("?")
    path = _text(path)
    form_bytes = 0
    if method == "POST" and takes_form(path):
        form_bytes = _length_of_form(fields)
        _check(fields, hosts)
        _check_sender(fields)
    else:
        if "transfer-encoding" in fields or fields.get("content-length", ["0"]) != ["0"]:
            raise _bad("a request for a page has no body")
        _check(fields, hosts)
        if method not in METHODS:
            raise RefusedError(
                HTTPStatus.METHOD_NOT_ALLOWED, "a page is only shown: it answers GET and HEAD"
            )
    joined = {name: ", ".join(values) for name, values in fields.items()}
    return Request(method, path, _query(query), joined, form_bytes)


def _fields(lines: list[str]) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _bad("a header field is malformed")
        known, value = name.lower(), value.strip()
        fields.setdefault(known, []).append(value if known in _SECRETS else value.lower())
    return fields


def _length_of_form(fields: Mapping[str, list[str]]) -> int:
    """Return how many bytes the form has that follows.

    Raises:
        RefusedError: it is no form, or too long.
    """
    lengths = fields.get("content-length", [])
    if "transfer-encoding" in fields or len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]):
        raise _bad("a form has a length")
    if fields.get("content-type", [""])[0].partition(";")[0].strip() != _FORM:
        raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a form is sent as {_FORM}")
    if (length := int(lengths[0])) > FORM_BYTES_MAX:
        raise RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a form has {FORM_BYTES_MAX:,} bytes at the most"
        )
    return length


def _check_sender(fields: Mapping[str, list[str]]) -> None:
    """Refuse a form that was not sent by a page of this site.

    Browsers say by `Sec-Fetch-Site` whose page sends it, and older ones by `Origin`.

    Raises:
        RefusedError: says why.
    """
    host = fields["host"][0]
    if "sec-fetch-site" in fields:
        is_own = fields["sec-fetch-site"] == ["same-origin"]
    else:
        is_own = fields.get("origin") in ([f"http://{host}"], [f"https://{host}"])
    if not is_own:
        raise RefusedError(HTTPStatus.FORBIDDEN, "only a page of this site may send a form")


def _check(fields: Mapping[str, list[str]], hosts: OwnHosts) -> None:
    """Refuse a request for another host, or made by a page of another site.

    Raises:
        RefusedError: says why.
    """
    host = _HOST.fullmatch(", ".join(fields.get("host", ())))
    if host is None or not hosts.has(host[1]):
        raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, hosts.advice)
    # A link may lead here from anywhere. An image, a script or a frame of another site has no
    # business here, nor one of another port of this machine, which browsers call the same site.
    if {"cross-site", "same-site"} & set(fields.get("sec-fetch-site", ())) and any(
        fields.get(name) != [wanted] for name, wanted in _LINKED.items()
    ):
        raise RefusedError(HTTPStatus.FORBIDDEN, "no other site may ask for this page")


def _text(part: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError as error:
        raise _bad("the address is not UTF-8") from error


def _query(text: str) -> dict[str, str]:
    try:
        return dict(
            parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
        )
    except ValueError as error:  # Of UnicodeDecodeError, too.
        raise _bad("the address is not UTF-8, or asks for too much") from error


def _bad(why: str) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, why)
