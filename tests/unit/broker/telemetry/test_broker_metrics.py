"""What the broker's registry shows of topics, calls and the build."""

from prometheus_client import generate_latest

from millrace.broker.telemetry.metrics import BrokerMetrics


def test_topics_without_replicas_here_are_shown_no_longer() -> None:
    metrics = BrokerMetrics()

    def shown(topic: str) -> float | None:
        return metrics.registry.get_sample_value("millrace_topic_log_bytes", {"topic": topic})

    metrics.on_topic_sizes({"a": 10, "b": 20})
    metrics.on_topic_sizes({"b": 21})
    assert (shown("a"), shown("b")) == (None, 21)


def test_calls_are_counted_by_method_with_their_time() -> None:
    metrics = BrokerMetrics()
    for seconds in (0.001, 0.3):
        metrics.requests.called("GetMetadata", seconds)

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"millrace_call_seconds_{name}", {"method": "GetMetadata", **labels}
        )

    assert sample("count") == 2
    assert sample("sum") == 0.301
    assert sample("bucket", le="0.005") == 1


def test_a_counter_has_one_series_and_no_second_one_of_its_creation() -> None:
    metrics = BrokerMetrics()
    metrics.fetched("t", 5)
    page = generate_latest(metrics.registry).decode()
    assert 'millrace_topic_fetched_bytes_total{topic="t"} 5.0' in page
    assert "_created" not in page


def test_the_build_is_shown() -> None:
    page = generate_latest(BrokerMetrics().registry).decode()
    assert 'millrace_build_info{python="3.' in page
