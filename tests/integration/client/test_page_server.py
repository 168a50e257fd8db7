"""Pages for Prometheus and probes stay available, whatever their peers do."""

import threading
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, Gauge
from tests.fakes.silent_peers import silent_peers
from tests.integration.running_broker import wait_until

from millrace.client.page_server import CONNECTIONS_MAX, SILENT_S_MAX, PageHandler, PageServer


@pytest.fixture
def server() -> Iterator[PageServer]:
    metrics = CollectorRegistry()
    Gauge("figure", "A figure.", registry=metrics).set(7)

    class Handler(PageHandler):
        registry = metrics

        def do_GET(self) -> None:
            if self.path == "/well":
                self.answer(503, "not well")
            else:
                super().do_GET()

    served = PageServer("127.0.0.1", 0, Handler, "pages")
    yield served
    served.close()


def get(server: PageServer, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_pages_of_a_programs_own_are_served(server: PageServer) -> None:
    assert "figure 7.0\n" in get(server, "/metrics")[1]
    assert get(server, "/well") == (503, "not well\n")


def test_silent_connections_make_room_for_the_next_one(server: PageServer) -> None:
    before = threading.active_count()
    with silent_peers("127.0.0.1", server.server_port, 10 * CONNECTIONS_MAX):
        assert get(server, "/metrics")[0] == 200
        wait_until(
            lambda: threading.active_count() - before <= CONNECTIONS_MAX,
            "only the newest connections are left",
            SILENT_S_MAX / 2,
        )


def test_nothing_is_left_of_a_server_that_is_closed(server: PageServer) -> None:
    server.close()
    assert "pages" not in {each.name for each in threading.enumerate()}
    with pytest.raises(OSError, match="refused"):
        get(server, "/metrics")
    PageServer("127.0.0.1", server.server_port, PageHandler, "pages").close()  # The port is free.
