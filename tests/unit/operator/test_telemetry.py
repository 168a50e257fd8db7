"""What probes and Prometheus are told."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest
from tests.fakes.certificate_files import CertificateFiles

from millrace.core.errors import InvalidConfigError
from millrace.operator.app import config_from_environment
from millrace.operator.telemetry import OperatorMetrics, Signs, serve_telemetry
from millrace.runtime.telemetry_server import TelemetryServer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def signs(clock: Clock) -> Signs:
    return Signs(clock)


@pytest.fixture
def page(signs: Signs) -> Iterator[TelemetryServer]:
    served = serve_telemetry(OperatorMetrics(), signs, port=0)
    yield served
    served.close()


def get(page: TelemetryServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page.port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_part_that_is_silent_for_longer_than_it_may_be_is_named(
    page: TelemetryServer, signs: Signs, clock: Clock
) -> None:
    signs.give("watches", 600)
    signs.give("event loop", 60)
    clock.now = 59
    assert get(page, "/livez") == (200, "ok\n")
    clock.now = 61
    assert get(page, "/livez") == (503, "silent for too long: event loop\n")
    signs.forget("event loop")
    assert get(page, "/livez") == (200, "ok\n"), "no sign is expected of it any more"


def test_the_operator_is_ready_once_it_reached_the_api_server(
    page: TelemetryServer, signs: Signs
) -> None:
    assert get(page, "/readyz")[0] == 503
    signs.is_ready = True
    assert get(page, "/readyz")[0] == 200


@pytest.mark.parametrize(
    ("name", "status"), [("mine.example.org", 200), ("other.example.org", 421)]
)
def test_the_page_is_there_under_the_names_that_a_pod_s_environment_has(
    monkeypatch: pytest.MonkeyPatch, name: str, status: int
) -> None:
    monkeypatch.setenv("MILLRACE_OPERATOR_METRICS_NAMES", "some.example.org, mine.example.org")
    names = config_from_environment("millrace", "default").page_names
    page = serve_telemetry(OperatorMetrics(), Signs(), port=0, further_names=names)
    with closing(page), closing(HTTPConnection("127.0.0.1", page.port, timeout=10)) as connection:
        connection.request("GET", "/metrics", headers={"Host": name})
        answer = connection.getresponse()
        assert answer.status == status
        said = b"add the name to MILLRACE_OPERATOR_METRICS_NAMES"
        assert (said in answer.read()) is (status == 421)


def test_the_page_asks_for_the_token_that_a_pod_s_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("t" * 32)
    own = CertificateFiles(tmp_path).make("operator", "localhost", "127.0.0.1")
    prefix = "MILLRACE_OPERATOR_METRICS"
    monkeypatch.setenv(f"{prefix}_TOKEN_FILE", str(tmp_path / "token"))
    alone = config_from_environment("millrace", "default").page_files
    with pytest.raises(InvalidConfigError, match="needs a certificate"):
        serve_telemetry(OperatorMetrics(), Signs(), port=0, files=alone)
    monkeypatch.setenv(f"{prefix}_TLS_CERTIFICATE_FILE", own.certificate)
    monkeypatch.setenv(f"{prefix}_TLS_KEY_FILE", own.key)
    files = config_from_environment("millrace", "default").page_files
    context = ssl.create_default_context(cafile=own.ca)
    with closing(serve_telemetry(OperatorMetrics(), Signs(), port=0, files=files)) as page:
        for path, status, text in (
            ("/metrics", 401, b"show the token"),
            ("/readyz", 503, b"Service Unavailable\n"),
        ):
            with closing(HTTPSConnection("localhost", page.port, timeout=10, context=context)) as c:
                c.request("GET", path)
                answer = c.getresponse()
                assert answer.status == status
                assert answer.read().startswith(text)


def test_metrics_are_there_for_prometheus(page: TelemetryServer) -> None:
    status, text = get(page, "/metrics")
    assert status == 200
    assert "# TYPE millrace_operator_acts gauge" in text


def test_the_age_of_a_success_is_shown_for_as_long_as_the_cluster_is_looked_after() -> None:
    metrics = OperatorMetrics()

    def shown(work: str) -> float | None:
        return metrics.registry.get_sample_value(
            "millrace_operator_last_success_timestamp_seconds",
            {"work": work, "namespace": "n", "name": "c"},
        )

    metrics.succeeded("cluster", "n", "c", 5.0)
    metrics.succeeded("topics", "n", "c", 6.0)
    metrics.keep_only([("cluster", "n", "c")])
    assert (shown("cluster"), shown("topics")) == (5.0, None)
    metrics.keep_only(())
    assert shown("cluster") is None
    metrics.succeeded("cluster", "n", "c", 7.0)
    assert shown("cluster") == 7.0


def test_a_cluster_is_shown_as_formed_for_as_long_as_it_is_looked_after() -> None:
    metrics = OperatorMetrics()

    def shown(name: str) -> float | None:
        return metrics.registry.get_sample_value(
            "millrace_operator_cluster_formed", {"namespace": "n", "name": name}
        )

    metrics.show_formed("n", "old", True)
    metrics.show_formed("n", "new", False)
    assert (shown("old"), shown("new")) == (1, 0)
    metrics.show_formed("n", "old", None)
    metrics.show_formed("n", "old", None)
    assert (shown("old"), shown("new")) == (None, 0)
    metrics.show_formed("n", "new", True)
    metrics.keep_only([("cluster", "n", "new"), ("topics", "n", "old")])
    assert shown("new") == 1
    metrics.keep_only([("topics", "n", "new")])
    assert shown("new") is None


def test_failures_are_counted_from_0_on() -> None:
    value = OperatorMetrics().registry.get_sample_value(
        "millrace_operator_reconcile_failures_total", {"work": "quotas"}
    )
    assert value == 0
