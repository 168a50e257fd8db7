"""The metrics of streaming queries, from their states; importable without Spark.

Labels are bounded: queries by those of one session, topics by those that they read.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from millrace.spark.watching.query_states import QueryState

_PREFIX: Final = "millrace_spark"
_GAUGES: Final[tuple[tuple[str, str, Callable[[QueryState], float]], ...]] = (
    ("active", "1 while the query runs.", lambda query: query.is_active),
    ("failed", "1 for a query that has ended with an error.", lambda query: bool(query.failure)),
    (
        "input_rows_per_second",
        "Rows that came, by the last micro-batch; 0 when there was nothing to do.",
        lambda query: query.input_rows_per_second,
    ),
    (
        "processed_rows_per_second",
        "Rows that were processed, by the last micro-batch; 0 when there was nothing to do.",
        lambda query: query.processed_rows_per_second,
    ),
    ("state_rows", "Rows in the query's state.", lambda query: query.state_rows),
    ("state_memory_bytes", "Memory of the query's state.", lambda query: query.state_bytes),
)


def query_metrics(states: Iterable[QueryState], now: float) -> Iterator[Metric]:
    """Yield the metrics of all queries.

    Args:
        now: the time, in seconds of the states' clock.
    """
    known = list(states)
    for name, meaning, value in _GAUGES:
        gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", meaning, labels=["query"])
        for query in known:
            gauge.add_metric([query.name], value(query))
        yield gauge
    rows = CounterMetricFamily(f"{_PREFIX}_rows", "Rows read.", labels=["query"])
    written = CounterMetricFamily(
        f"{_PREFIX}_written_rows",
        "Rows written, as far as the sink tells.",
        labels=["query"],
    )
    written_bytes = CounterMetricFamily(
        f"{_PREFIX}_written_bytes",
        "Bytes of written keys and values. Absent for queries without `with_written_bytes`.",
        labels=["query"],
    )
    batches = CounterMetricFamily(f"{_PREFIX}_batches", "Micro-batches done.", labels=["query"])
    age = GaugeMetricFamily(
        f"{_PREFIX}_last_progress_age_seconds",
        "Since a running query ended a micro-batch, or found nothing to do.",
        labels=["query"],
    )
    took = GaugeMetricFamily(
        f"{_PREFIX}_batch_duration_seconds",
        "Of the last micro-batch, by phase; `triggerExecution` is all of it.",
        labels=["query", "phase"],
    )
    lag = GaugeMetricFamily(
        f"{_PREFIX}_lag_records",
        "Records of a topic that the last micro-batch left unread.",
        labels=["query", "topic"],
    )
    for query in known:
        rows.add_metric([query.name], query.rows)
        written.add_metric([query.name], query.written_rows)
        if query.written_bytes is not None:
            written_bytes.add_metric([query.name], query.written_bytes)
        batches.add_metric([query.name], query.batches)
        if query.is_active:
            age.add_metric([query.name], now - query.heard_at)
        for phase, seconds in query.phases_s.items():
            took.add_metric([query.name, phase], seconds)
        for topic, records in query.lag.items():
            lag.add_metric([query.name, topic], records)
    yield from (rows, written, written_bytes, batches, age, took, lag)


def report_failures(failures: int) -> Metric:
    """Return the metric of position reports that failed."""
    return CounterMetricFamily(
        f"{_PREFIX}_position_report_failures",
        "Reports of positions to the brokers that failed.",
        failures,
    )
