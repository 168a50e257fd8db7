"""The page speaks the language that Prometheus asks for."""

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
    page = serve_metrics(MetricsConfig(port=0), metrics.registry)
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
