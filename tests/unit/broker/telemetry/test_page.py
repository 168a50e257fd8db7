"""The pages: in the language that Prometheus asks for, and for probes."""

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.broker.telemetry.page import serve_metrics
from millrace.core.broker_config import MetricsConfig
from millrace.core.errors import InvalidConfigError, NotLeaderError


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


def test_a_page_that_asks_for_a_token_tells_probes_without_one_and_nobody_else(
    tmp_path: Path,
) -> None:
    """G5."""
    (tmp_path / "token").write_text("t" * 32)
    config = MetricsConfig(port=0, token_file=str(tmp_path / "token"))
    page = serve_metrics(config, BrokerMetrics().registry, is_ready=lambda: True)
    address = f"http://127.0.0.1:{page.port}"
    try:
        with urlopen(f"{address}/ready", timeout=10) as answer:
            assert answer.read() == b"OK\n"
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{address}/metrics", timeout=10)
        refused.value.close()
        assert refused.value.code == 401
        shown = Request(f"{address}/metrics", headers={"Authorization": f"Bearer {'t' * 32}"})
        with urlopen(shown, timeout=10) as answer:
            assert b"millrace_build_info" in answer.read()
    finally:
        page.close()


def test_a_token_that_others_could_read_on_its_way_is_no_setting(tmp_path: Path) -> None:
    said = list(MetricsConfig(host="0.0.0.0", token_file="t").validate())
    assert said == [
        "token_file: it needs tls_certificate_file and tls_key_file, as others could read the "
        "token on its way to 0.0.0.0"
    ]
    assert list(MetricsConfig(tls_key_file="k").validate()) == [
        "tls_certificate_file: it must be set, as tls_key_file is"
    ]
    guarded = MetricsConfig(
        host="0.0.0.0", tls_certificate_file="c", tls_key_file="k", token_file="t"
    )
    assert list(guarded.validate()) == []
    with pytest.raises(InvalidConfigError, match=r"metrics: .*none"):
        serve_metrics(
            MetricsConfig(port=0, token_file=str(tmp_path / "none")),
            BrokerMetrics().registry,
            is_ready=lambda: True,
        )
