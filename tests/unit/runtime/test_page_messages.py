"""What is no request for a page of this machine is refused; answers say that they are safe."""

from collections.abc import Callable
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime import page_messages
from millrace.runtime.page_messages import OwnHosts, RefusedError, Request, Response

HOST = b"Host: localhost:7098\r\n"
OWN = OwnHosts({"localhost", "127.0.0.1", "[::1]"}.__contains__, "ask for localhost")


def parse_request(data: bytes) -> Request:
    return page_messages.parse_request(data, OWN)


def head(line: bytes = b"GET / HTTP/1.1", fields: bytes = HOST) -> bytes:
    return line + b"\r\n" + fields + b"\r\n"


def test_a_request_has_a_path_and_values() -> None:
    request = parse_request(head(b"GET /topic?name=a%2Fb+c&first=&name=z%C3%A9 HTTP/1.1"))
    fields = {"host": "localhost:7098"}
    assert request == Request("GET", "/topic", {"name": "zé", "first": ""}, fields)
    assert parse_request(head(b"HEAD /a%20b HTTP/1.0")) == Request("HEAD", "/a b", {}, fields)


def test_fields_are_in_lower_case_and_joined() -> None:
    fields = b"Accept: Text/Plain\r\naccept: */*\r\n"
    assert parse_request(head(fields=HOST + fields)).fields["accept"] == "text/plain, */*"


def test_a_request_without_a_host_is_served_where_that_is_allowed() -> None:
    anyone = OwnHosts("".__eq__, "leave the host out")
    assert page_messages.parse_request(head(fields=b""), anyone).path == "/"
    with pytest.raises(RefusedError):
        page_messages.parse_request(head(), anyone)


@pytest.mark.parametrize(
    "host",
    [b"localhost", b"LOCALHOST:1", b"127.0.0.1:65535", b"[::1]:7098", b" localhost "],
)
def test_a_request_for_this_machine_is_served(host: bytes) -> None:
    assert parse_request(head(fields=b"Host:" + host + b"\r\n")).path == "/"


@pytest.mark.parametrize(
    "fields",
    [
        b"",
        b"Host:\r\n",
        b"Host: evil.example\r\n",
        b"Host: localhost.evil.example\r\n",
        b"Host: localhost@evil.example\r\n",
        b"Host: 127.0.0.1.nip.io:7098\r\n",
        b"Host: 0.0.0.0\r\n",
        b"Host: 192.168.0.7:7098\r\n",
        b"Host: [::1]evil\r\n",
        b"Host: localhost\r\nHost: evil.example\r\n",
        b"Host: localhost\r\nhost: localhost\r\n",
    ],
)
def test_a_request_for_another_host_is_misdirected(fields: bytes) -> None:
    assert refused(head(fields=fields)) is HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize("site", [b"cross-site", b"same-site"])  # Another port is the same site.
def test_another_site_may_link_to_a_page_and_not_load_it(site: bytes) -> None:
    asked = HOST + b"Sec-Fetch-Site: " + site + b"\r\n"
    linked = b"Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
    assert parse_request(head(fields=asked + linked)).path == "/"
    for loaded in (
        b"",
        b"Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n",
        b"Sec-Fetch-Mode: navigate\r\n",
        b"Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n",
        b"Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: object\r\n",
        b"Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: document\r\n",
        linked + b"Sec-Fetch-Dest: iframe\r\n",
    ):
        assert refused(head(fields=asked + loaded)) is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("site", [b"same-origin", b"none"])
def test_a_page_loads_what_it_is_made_of(site: bytes) -> None:
    own = b"Sec-Fetch-Site: " + site + b"\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: style\r\n"
    assert parse_request(head(fields=HOST + own)).path == "/"


@pytest.mark.parametrize("method", [b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT"])
def test_a_request_that_does_not_only_read_is_refused(method: bytes) -> None:
    assert refused(head(method + b" / HTTP/1.1")) is HTTPStatus.METHOD_NOT_ALLOWED


FORM = b"Content-Type: application/x-www-form-urlencoded; charset=UTF-8\r\nContent-Length: 9\r\n"
SENT = b"Sec-Fetch-Site: same-origin\r\n"
POST = b"POST /form HTTP/1.1"


def parse_form(data: bytes) -> Request:
    return page_messages.parse_request(data, OWN, "/form".__eq__)


@pytest.mark.parametrize(
    "sender",
    [SENT, b"Origin: http://localhost:7098\r\n", b"Origin: https://localhost:7098\r\n"],
)
def test_a_page_of_the_own_site_may_send_a_form(sender: bytes) -> None:
    request = parse_form(head(POST, HOST + FORM + sender))
    assert (request.method, request.path, request.form_bytes) == ("POST", "/form", 9)
    assert request.with_form(b"a=b%20c&d").form == {"a": "b c", "d": ""}


@pytest.mark.parametrize(
    "sender",
    [
        b"",
        b"Origin: null\r\n",
        b"Origin: https://evil.example\r\n",
        b"Origin: http://localhost:8000\r\n",
        b"Sec-Fetch-Site: none\r\n",
        b"Sec-Fetch-Site: cross-site\r\nOrigin: http://localhost:7098\r\n",
        b"Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
        SENT + b"Sec-Fetch-Site: cross-site\r\n",
    ],
)
def test_a_form_that_another_site_makes_a_browser_send_is_refused(sender: bytes) -> None:
    assert refused(head(POST, HOST + FORM + sender), parse_form) is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"", HTTPStatus.BAD_REQUEST),
        (FORM + b"Content-Length: 9\r\n", HTTPStatus.BAD_REQUEST),
        (FORM + b"Transfer-Encoding: chunked\r\n", HTTPStatus.BAD_REQUEST),
        (FORM.replace(b"9", b"-9"), HTTPStatus.BAD_REQUEST),
        (FORM.replace(b"9", b"99999"), HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
        (b"Content-Length: 9\r\n", HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
        (
            FORM.replace(b"x-www-form-urlencoded", b"json"),
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        ),
    ],
)
def test_what_is_no_form_or_a_long_one_is_refused(fields: bytes, status: HTTPStatus) -> None:
    assert refused(head(POST, HOST + SENT + fields), parse_form) is status


def test_a_form_is_taken_by_its_own_path_and_from_this_machine_alone() -> None:
    other = head(b"POST /other HTTP/1.1", HOST + SENT)
    assert refused(other, parse_form) is HTTPStatus.METHOD_NOT_ALLOWED
    elsewhere = head(POST, b"Host: evil.example\r\n" + FORM + SENT)
    assert refused(elsewhere, parse_form) is HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize("body", [b"a=%ff", "a=é".encode(), b"a&" * 200])
def test_a_form_that_is_no_text_or_has_too_much_is_refused(body: bytes) -> None:
    with pytest.raises(RefusedError):
        Request("POST", "/form").with_form(body)


def test_secrets_count_as_they_are_written() -> None:
    fields = HOST + b"Authorization: Bearer AbC\r\nCookie: a=Bc\r\n"
    found = parse_request(head(fields=fields)).fields
    assert (found["authorization"], found["cookie"]) == ("Bearer AbC", "a=Bc")


@pytest.mark.parametrize(
    "data",
    [
        head(b"GET / HTTP/2"),
        head(b"GET /"),
        head(b"get / HTTP/1.1"),
        head(b"GET  / HTTP/1.1"),
        head(b"GET http://localhost/ HTTP/1.1"),
        head(b"GET /\x00 HTTP/1.1"),
        head("GET /é HTTP/1.1".encode()),
        head(b"GET /%ff HTTP/1.1"),
        head(b"GET /?a=%ff HTTP/1.1"),
        head(b"GET /?" + b"a&" * 200 + b" HTTP/1.1"),
        head(fields=HOST + b"Content-Length: 5\r\n"),
        head(fields=HOST + b"Transfer-Encoding: chunked\r\n"),
        head(fields=HOST + b" folded\r\n"),
        head(fields=HOST + b"no colon\r\n"),
        head(fields=HOST + b"Space : x\r\n"),
        b"\r\n\r\n",
    ],
)
def test_what_is_no_request_for_a_page_is_refused(data: bytes) -> None:
    assert refused(data) is HTTPStatus.BAD_REQUEST


def test_a_request_with_too_many_fields_is_refused() -> None:
    fields = HOST + b"X: y\r\n" * 200
    assert refused(head(fields=fields)) is HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for request in (data, head(b"GET /" + data + b" HTTP/1.1"), head(fields=HOST + data + b"\r\n")):
        try:
            found = parse_request(request).method
        except RefusedError as error:
            found = error.why
        assert found


def test_an_answer_forbids_scripts_frames_and_guesses() -> None:
    encoded = Response(b"<p>").encode("GET").decode()
    fields, _, body = encoded.partition("\r\n\r\n")
    assert body == "<p>"
    policy = next(line for line in fields.splitlines() if "Content-Security-Policy" in line)
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "X-Content-Type-Options: nosniff" in fields
    assert "Cache-Control: no-store" in fields


def test_the_answer_to_head_has_the_length_and_no_body() -> None:
    encoded = Response(b"12345").encode("HEAD")
    assert b"Content-Length: 5\r\n" in encoded
    assert encoded.endswith(b"\r\n\r\n")


def refused(data: bytes, parse: Callable[[bytes], Request] = parse_request) -> HTTPStatus:
    with pytest.raises(RefusedError) as found:
        parse(data)
    return found.value.status
