"""The pages: in the language that Prometheus asks for, and for probes."""

from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.broker.telemetry.page import serve_metrics
from millrace.core.broker_config import MetricsConfig
from millrace.core.errors import NotLeaderError


@pytest.mark.parametrize(
    ("accept", "kind"),
    [("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
     ("text/plain", "text/plain"), ("*/*", "text/plain")],
)  # fmt: skip
def test_it_answers_in_openmetrics_where_that_is_asked_for(accept: str, kind: str) -> None:
    metrics = BrokerMetrics()
    metrics.refused(NotLeaderError("it moved"), "Produce")
    page = serve_metrics(MetricsConfig(port=0), metrics.registry, is_ready=bool)
    try:
        asked = Request(f"http://127.0.0.1:{page.port}/metrics", headers={"Accept": accept})
        with urlopen(asked, timeout=10) as answer:
            assert answer.headers["Content-Type"].partition(";")[0] == kind
            text = answer.read().decode()
    finally:
        page.close()
    assert 'millrace_refusals_total{error="NOT_LEADER",method="Produce"} 1.0\n' in text
    assert text.endswith("# EOF\n") == (kind != "text/plain")
    if kind != "text/plain":
        families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        assert "millrace_refusals" in {family.name for family in families}


def test_a_probe_is_told_whether_the_broker_serves_and_nothing_else() -> None:
    """G5."""
    is_serving = False
    page = serve_metrics(
        MetricsConfig(port=0), BrokerMetrics().registry, is_ready=lambda: is_serving
    )
    url = f"http://127.0.0.1:{page.port}/ready"
    try:
        with pytest.raises(HTTPError) as refused:
            urlopen(url, timeout=10)
        refused.value.close()
        assert refused.value.code == 503
        is_serving = True
        with urlopen(url, timeout=10) as answer:
            assert answer.read() == b"ready\n"
    finally:
        page.close()
