"""What the broker's registry shows of topics, calls and the build."""

import pytest
from prometheus_client import generate_latest

from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.broker.telemetry.replication import ReplicaCounts
from millrace.broker.telemetry.topic_labels import OTHERS, TopicLabels
from millrace.core.broker_config import NodeConfig
from millrace.core.errors import InvalidTopicError
from millrace.core.ids import BrokerId
from millrace.core.topics import parse_topic_name


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


def test_phases_of_requests_are_counted_in_each_bucket_that_holds_them() -> None:
    metrics = BrokerMetrics()
    for seconds in (0.0, 0.001, 0.002, 7.0):
        metrics.requests.produce_check.observe(seconds)

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"millrace_produce_seconds_{name}", {"phase": "check", **labels}
        )

    bounds = ("0.0005", "0.001", "0.0025", "5.0", "+Inf")
    assert [sample("bucket", le=bound) for bound in bounds] == [1, 2, 3, 3, 4]
    assert (sample("count"), sample("sum")) == (4, 7.003)


def test_what_topics_get_is_counted_in_bytes_and_records() -> None:
    metrics = BrokerMetrics()
    for size in (10, 20):
        metrics.appended("t", size, 3)

    def sample(name: str) -> float | None:
        return metrics.registry.get_sample_value(f"millrace_topic_{name}_total", {"topic": "t"})

    assert (sample("appended_bytes"), sample("appended_records")) == (30, 6)
    metrics.forget_topic("t")
    assert sample("appended_bytes") is None


def test_a_counter_has_one_series_and_no_second_one_of_its_creation() -> None:
    metrics = BrokerMetrics()
    metrics.fetched("t", 5)
    page = generate_latest(metrics.registry).decode()
    assert 'millrace_topic_fetched_bytes_total{topic="t"} 5.0' in page
    assert "_created" not in page


def test_the_build_is_shown() -> None:
    page = generate_latest(BrokerMetrics().registry).decode()
    assert 'millrace_build_info{python="3.' in page


def test_a_broker_says_who_it_is_once_it_is_registered() -> None:
    metrics = BrokerMetrics()
    metrics.on_registered(BrokerId(3), NodeConfig(name="b-3", rack="z"))
    labels = {"broker_id": "3", "name": "b-3", "zone": "z"}
    assert metrics.registry.get_sample_value("millrace_broker_info", labels) == 1


def test_topics_beyond_the_bound_are_counted_together() -> None:
    metrics = BrokerMetrics(topics_max=2)

    def shown(name: str) -> dict[str, float]:
        return {
            sample.labels["topic"]: sample.value
            for family in metrics.registry.collect()
            if family.name == f"millrace_topic_{name}"
            for sample in family.samples
        }

    for size, topic in enumerate("abcd", start=1):
        metrics.fetched(topic, size)
    metrics.on_topic_sizes({"a": 1, "b": 2, "c": 3, "d": 4})
    metrics.replication.on_counted(ReplicaCounts(isr_size={"a": 3, "b": 3, "c": 3, "d": 1}))
    assert shown("fetched_bytes") == {"a": 1, "b": 2, OTHERS: 7}
    assert shown("log_bytes") == {"a": 1, "b": 2, OTHERS: 7}
    assert shown("isr_size_min") == {"a": 3, "b": 3, OTHERS: 1}
    metrics.forget_topic("a")
    metrics.fetched("e", 5)
    assert shown("fetched_bytes") == {"b": 2, "e": 5, OTHERS: 7}


def test_a_topic_keeps_its_label_until_it_is_gone() -> None:
    labels = TopicLabels(1)
    assert [labels.label(topic) for topic in "ab"] == ["a", OTHERS]
    labels.forget("a")
    assert [labels.label(topic) for topic in "bc"] == [OTHERS, "c"]
    labels.forget("b")
    assert labels.label("d") == OTHERS
    labels.keep_only({"d"})
    assert labels.label("e") == "e"


def test_no_topic_is_called_as_the_others_are() -> None:
    with pytest.raises(InvalidTopicError):
        parse_topic_name(OTHERS)
