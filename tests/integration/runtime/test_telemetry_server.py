"""Pages for Prometheus and probes stay available, whatever their peers do."""

import gzip
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from email.message import Message
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from tests.fakes.certificate_files import CertificateFiles
from tests.fakes.silent_peers import is_closed, silent_peers
from tests.integration.running_broker import wait_until

from millrace.core.errors import InvalidConfigError
from millrace.runtime import page_guard
from millrace.runtime.page_guard import PageFiles, PageGuard
from millrace.runtime.page_messages import HEAD_BYTES_MAX
from millrace.runtime.page_server import HEAD_S_MAX
from millrace.runtime.telemetry_server import CONNECTIONS_MAX, TelemetryServer, is_own_host


@pytest.fixture
def server() -> Iterator[TelemetryServer]:
    served = serve()
    yield served
    served.close()


def serve(
    port: int = 0, names_setting: str = "", guard: PageGuard | None = None
) -> TelemetryServer:
    metrics = CollectorRegistry()
    Gauge("figure", "A figure.", registry=metrics).set(7)

    def well() -> tuple[HTTPStatus, str]:
        return HTTPStatus.SERVICE_UNAVAILABLE, "not well"

    return TelemetryServer(
        ("127.0.0.1", port),
        metrics,
        thread_name="pages",
        names_setting=names_setting,
        pages={"/well": well},
        guard=guard,
    )


def get(server: TelemetryServer, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_pages_of_a_programs_own_are_served(server: TelemetryServer) -> None:
    assert "figure 7.0\n" in get(server, "/metrics")[1]
    assert get(server, "/well") == (503, "not well\n")


def ask(
    server: TelemetryServer, method: str, path: str, host: str | None = None
) -> tuple[int, Message, bytes]:
    """Make a request; return status, header and body of the answer."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    with closing(connection):
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/", "/well/more", "/..", "/x/metrics"])
def test_there_is_nothing_at_other_paths(server: TelemetryServer, path: str) -> None:
    assert ask(server, "GET", path)[0] == HTTPStatus.NOT_FOUND


def test_metrics_are_compressed_for_who_can_read_that(server: TelemetryServer) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    with closing(connection):
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "deflate, GZip;q=0.5"})
        answer = connection.getresponse()
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"figure 7.0" in gzip.decompress(answer.read())
    assert ask(server, "GET", "/metrics")[1]["Content-Encoding"] is None


def test_parameters_choose_no_other_page(server: TelemetryServer) -> None:
    assert b"figure 7.0" in ask(server, "GET", "/metrics?name[]=figure")[2]
    assert ask(server, "GET", "/well?x=1")[0] == HTTPStatus.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("path", ["/metrics", "/well", "/nothing"])
def test_head_is_answered_like_get_without_the_page(server: TelemetryServer, path: str) -> None:
    status, _, _ = ask(server, "GET", path)
    answer = ask(server, "HEAD", path)
    assert (answer[0], answer[2]) == (status, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_not_allowed(server: TelemetryServer, method: str) -> None:
    status, header, _ = ask(server, method, "/metrics")
    assert (status, header["Allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD")


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1:7093",
            "10.244.1.7:7093",
            "[::1]:7093",
            "[fd00::7]",
            "localhost",
            "LOCALHOST:1",
        ),
        *("broker-0:7093", "orders-0.orders.billing.svc:7093", "orders-0.x.svc.cluster.local."),
        socket.gethostname(),
    ],
)
def test_addresses_and_names_that_only_this_network_has_are_its_own(
    server: TelemetryServer, host: str
) -> None:
    assert ask(server, "GET", "/metrics", host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example:7093", "localhost.evil.example", "127.0.0.1.evil.example", "svc.example", "1.2"],
)
@pytest.mark.parametrize("path", ["/metrics", "/well"])
def test_another_sites_name_is_refused_and_shows_nothing(
    server: TelemetryServer, host: str, path: str
) -> None:
    status, _, body = ask(server, "GET", path, host)
    assert status == HTTPStatus.MISDIRECTED_REQUEST
    assert b"IP address" in body
    assert b"figure" not in body


def test_a_refused_name_is_told_where_names_are_set_if_they_are_set_anywhere(
    server: TelemetryServer,
) -> None:
    _, _, body = ask(server, "GET", "/metrics", "evil.example")
    assert b"add the name" not in body
    with closing(serve(names_setting="the setting `names`")) as told:
        _, _, body = ask(told, "GET", "/metrics", "evil.example")
    assert b"or add the name to the setting `names`" in body


def test_names_that_are_configured_are_its_own() -> None:
    assert is_own_host("metrics.example.org", ["metrics.example.ORG"])
    assert not is_own_host("other.example.org", ["metrics.example.org"])


def test_silent_connections_make_room_for_the_next_one(server: TelemetryServer) -> None:
    before = set(threading.enumerate())  # Of other tests some may end meanwhile.
    with silent_peers("127.0.0.1", server.port, 10 * CONNECTIONS_MAX) as peers:
        assert get(server, "/metrics")[0] == 200
        wait_until(
            lambda: sum(map(is_closed, peers)) >= 9 * CONNECTIONS_MAX,
            "only the newest connections are left",
            HEAD_S_MAX / 2,
        )
    assert set(threading.enumerate()) <= before


def test_a_long_request_is_refused_before_it_is_read_to_its_end(server: TelemetryServer) -> None:
    path = "/metrics?" + "x" * HEAD_BYTES_MAX
    assert get(server, path)[0] == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


def test_a_port_that_is_taken_is_told_without_the_address_which_the_caller_knows(
    server: TelemetryServer,
) -> None:
    with pytest.raises(OSError, check=lambda error: error.strerror == "Address already in use"):
        serve(server.port)


def test_nothing_is_left_of_a_server_that_is_closed(server: TelemetryServer) -> None:
    server.close()
    assert "pages" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(OSError, match="refused"):
        get(server, "/metrics")
    serve(server.port).close()  # The port is free.


TOKEN, OTHER = "t" * 32, "o" * 32
LOCAL = "127.0.0.1"


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page_guard, "_LOOK_SECONDS", 0.0)
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


def shown(server: TelemetryServer, token: str, path: str = "/metrics") -> tuple[int, bytes]:
    """Return status and body of the answer to who shows a token."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": token} if token else {})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_metrics_are_for_who_shows_the_token_and_probes_get_a_status_alone(token: Path) -> None:
    with closing(serve(guard=PageGuard(PageFiles(token=str(token)), LOCAL))) as server:
        for wrong in ("", OTHER, f"Basic {TOKEN}", f"Bearer {OTHER}", "Bearer", f"Bearer {TOKEN}x"):
            status, body = shown(server, wrong)
            assert status == HTTPStatus.UNAUTHORIZED
            assert b"figure" not in body
        assert shown(server, f"Bearer {TOKEN}")[0] == HTTPStatus.OK
        assert shown(server, "", "/well") == (503, b"Service Unavailable\n")
        assert shown(server, f"Bearer {TOKEN}", "/well") == (503, b"not well\n")


def test_another_token_counts_once_it_is_in_the_file_and_a_broken_file_leaves_the_last(
    token: Path,
) -> None:
    said: list[str] = []
    guard = PageGuard(PageFiles(token=str(token)), LOCAL, said.append)
    with closing(serve(guard=guard)) as server:
        for broken in ("", "two words of which none is a token"):
            token.write_text(broken)
            assert shown(server, f"Bearer {TOKEN}")[0] == HTTPStatus.OK
        token.unlink()
        assert shown(server, f"Bearer {TOKEN}")[0] == HTTPStatus.OK
        token.write_text(OTHER)
        assert shown(server, f"Bearer {TOKEN}")[0] == HTTPStatus.UNAUTHORIZED
        assert shown(server, f"Bearer {OTHER}")[0] == HTTPStatus.OK
        token.unlink()
    assert len(said) == 2, said
    assert all(str(token) in problem and TOKEN not in problem for problem in said)


def test_a_token_that_others_could_read_on_its_way_goes_with_tls_alone(token: Path) -> None:
    for host in ("0.0.0.0", "10.0.0.1", "page.example.org"):
        with pytest.raises(InvalidConfigError, match="others could read it on its way"):
            PageGuard(PageFiles(token=str(token)), host)


@pytest.mark.parametrize("content", [None, "", "short"])
def test_a_page_does_not_begin_without_the_token_that_it_is_to_ask_for(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises(InvalidConfigError, match="token"):
        PageGuard(PageFiles(token=str(tmp_path / "token")), LOCAL)


def test_a_page_speaks_tls_with_the_certificate_of_the_moment(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path)
    own = files.make("b", "localhost", "127.0.0.1")
    context = ssl.create_default_context(cafile=own.ca)
    with closing(serve(guard=PageGuard(PageFiles(own.certificate, own.key), LOCAL))) as page:
        before = certificate_of(page, context)
        files.make("b", "localhost", "127.0.0.1")
        wait_until(lambda: certificate_of(page, context) != before, "the new one is shown")
        with socket.create_connection(("127.0.0.1", page.port), 10) as plain:
            plain.sendall(ASKED)
            assert b"figure" not in plain.recv(4096), "in plain text there is nothing"


ASKED = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


def certificate_of(page: TelemetryServer, context: ssl.SSLContext) -> object:
    """Return the serial number of the certificate with which metrics were served."""
    with (
        socket.create_connection(("127.0.0.1", page.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as peer,
    ):
        assert peer.version() == "TLSv1.3"
        peer.sendall(ASKED)
        received = b""
        while part := peer.recv(65_536):
            received += part
        assert b"figure 7.0" in received
        found = peer.getpeercert()
        assert found is not None
        return found["serialNumber"]


def test_handshakes_that_stop_keep_nobody_else_out(tmp_path: Path) -> None:
    own = CertificateFiles(tmp_path).make("b", "localhost", "127.0.0.1")
    context = ssl.create_default_context(cafile=own.ca)
    with closing(serve(guard=PageGuard(PageFiles(own.certificate, own.key), LOCAL))) as server:
        stopped = [
            socket.create_connection(("127.0.0.1", server.port), 10)
            for _ in range(3 * CONNECTIONS_MAX)
        ]
        address = f"https://localhost:{server.port}/metrics"
        with urlopen(address, timeout=5, context=context) as answer:
            assert b"figure 7.0" in answer.read()
        for peer in stopped:
            peer.close()
