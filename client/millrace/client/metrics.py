"""A program's clients on its own page for Prometheus.

    from prometheus_client import REGISTRY, start_http_server

    from millrace.client.metrics import ClientCollector

    REGISTRY.register(ClientCollector(producer, consumer))
    start_http_server(9000)

A client counts per batch, request or call, whether it is shown or not. The collector reads the
counts when Prometheus asks, so it costs the program nothing in between.

Labels are bounded by what the program opens: `client_id`, methods and errors by those that there
are, and topics by `topics_max`. Clients with the same `client_id` are one: their counts are summed
up. With `tracing=True` the buckets of `millrace_producer_delivery_seconds` have exemplars: the
trace of a `send()` that took so long. A page has them where Prometheus asks for OpenMetrics.
"""

import platform
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import add, attrgetter
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from millrace.client._admin.admin import Admin
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.latencies import BOUNDS_S, Example, Latencies
from millrace.client._consumer.consumer import Consumer
from millrace.client._consumer.reading import ConsumerCore
from millrace.client._producer.pipeline import Pipeline
from millrace.client._producer.producer import Producer
from millrace.client._sync.admin import SyncAdmin
from millrace.client._sync.consumer import SyncConsumer
from millrace.client._sync.producer import SyncProducer
from millrace.core.errors import InvalidRequestError
from millrace.runtime import host
from millrace.runtime.software import SOFTWARE_VERSION

Client = Producer | SyncProducer | Consumer | SyncConsumer | Admin | SyncAdmin

TOPICS_MAX_DEFAULT: Final = 100
OTHERS: Final = "(others)"
"""The label of all topics beyond `topics_max`; it is no topic's name."""

_Source = TypeVar("_Source")
_MS: Final = 1000
_BUCKETS: Final = (*map(floatToGoString, BOUNDS_S), "+Inf")


@dataclass(slots=True)
class _Latencies:
    """Latencies of one or more clients, as of one moment."""

    counts: list[int]
    sum_s: float
    examples: list[Example | None]

    def __add__(self, other: "_Latencies") -> "_Latencies":
        return _Latencies(
            [mine + its for mine, its in zip(self.counts, other.counts, strict=True)],
            self.sum_s + other.sum_s,
            [its or mine for mine, its in zip(self.examples, other.examples, strict=True)],
        )


_Found = float | Latencies | Mapping[str, float] | Mapping[str, Latencies]
"""What a client has of a family: a value, or one for each value of its label."""


@dataclass(frozen=True, eq=False)
class _Family(Generic[_Source]):
    """A metric: its name and meaning for Prometheus, and how it is read from a client."""

    kind: ClassVar[type[Metric]]
    name: str
    meaning: str
    read: Callable[[_Source], _Found]
    label: str = ""
    together: Callable[[Any, Any], Any] = add
    """Makes one value of those of two clients."""

    def new(self) -> Any:
        labels = ["client_id", self.label] if self.label else ["client_id"]
        return self.kind(f"millrace_{self.name}", self.meaning, labels=labels)  # type: ignore[call-arg]


class _Counter(_Family[_Source]):
    kind = CounterMetricFamily


class _Gauge(_Family[_Source]):
    kind = GaugeMetricFamily


class _Histogram(_Family[_Source]):
    kind = HistogramMetricFamily


_PRODUCER_COUNTS: Final = {
    "records": "Records that were given to partitions.",
    "record_bytes": "Bytes of them, before compression.",
    "batches": "Batches that were sent, each attempt counted.",
    "batch_bytes": "Bytes of them.",
    "repeated_batches": "Those of them that had been sent before. Worry when they are a large "
    "part for minutes: brokers are lost or slow.",
    "requests": "Requests that were sent; each has batches of many partitions.",
    "acknowledged_records": "Records that the brokers have acknowledged; with acks=0, that the "
    "transport has taken.",
    "begun_transactions": "Transactions that were begun.",
    "committed_transactions": "Those of them that were committed. Worry when many are not: they "
    "were aborted, and their work is done again.",
    "refused_requests": "With acks=0, requests that a broker refused at least in part. Worry about "
    "any: records are lost.",
}
_CONSUMER_COUNTS: Final = {
    "records": "Records that were taken, in whole batches.",
    "batches": "Batches that were taken.",
    "batch_bytes": "Bytes of them, as they are stored.",
    "assignments": "Assignments that the group made. Worry when it grows without members that come "
    "or go: some are taken for dead.",
    "skipped_records": "Offsets that jumps of positions have passed over. Worry when it grows.",
}
"""The counts of each client, by the names of its counters."""


def _counted(client: str, meanings: Mapping[str, str]) -> Iterator[_Family[Any]]:
    """Yield a family for each count that a client keeps under this name."""
    for name, meaning in meanings.items():
        yield _Counter(f"{client}_{name}", meaning, attrgetter(f"counters.{name}"))


_PRODUCER: Final[tuple[_Family[Pipeline], ...]] = (
    *_counted("producer", _PRODUCER_COUNTS),
    _Counter(
        "producer_failed_records",
        "Records that failed for good, by error. Worry about any: the program has to send them "
        "again, or they are lost.",
        lambda it: it.counters.failures.copy(),
        "error",
    ),
    _Counter(
        "producer_failed_streams",
        "Streams to brokers that broke, or could not be opened. Worry when they grow for minutes.",
        lambda it: it.streams.failures,
    ),
    _Counter(
        "producer_throttled_seconds",
        "For how long quotas have delayed requests, each broker's counted by itself. Worry when "
        "it grows and the program falls behind: see `millrace quota list`.",
        lambda it: it.counters.throttled_ms / _MS,
    ),
    _Histogram(
        "producer_delivery_seconds",
        "Time of acknowledged batches from the send() of the first record to the acknowledgement: "
        "lingering, compression, waiting and repeats included. Worry when it nears "
        "delivery_timeout_ms.",
        lambda it: it.counters.delivery_seconds,
    ),
    _Histogram(
        "producer_request_seconds",
        "Time of requests until the broker's answer. Worry when most of the delivery time is "
        "here: the brokers or the network are slow.",
        lambda it: it.counters.request_seconds,
    ),
    _Histogram(
        "producer_commit_seconds",
        "Time of commits of transactions: until all is delivered, and decided. Worry when it nears "
        "the time between commits.",
        lambda it: it.counters.commit_seconds,
    ),
    _Gauge(
        "producer_buffer_bytes", "The setting buffer_memory.", lambda it: it.intakes.buffer_memory
    ),
    _Gauge(
        "producer_buffer_available_bytes",
        "The part of it that is free. Worry when it stays near 0: send() waits, or fails.",
        lambda it: it.intakes.available,
    ),
)


def _poll_age(core: ConsumerCore) -> _Found:
    polled_at = core.counters.polled_at
    return {} if core.is_closed or polled_at is None else host.monotonic_s() - polled_at


_CONSUMER: Final[tuple[_Family[ConsumerCore], ...]] = (
    *_counted("consumer", _CONSUMER_COUNTS),
    _Gauge(
        "consumer_lag_records",
        "Offsets that are still to be handed out, by topic, as of the last answers of the brokers. "
        "Absent as long as the lag in a partition is unknown. Worry when it grows for longer than "
        "the program may be late.",
        lambda it: it.known_lags(),
        "topic",
    ),
    _Histogram(
        "consumer_age_seconds",
        "Age of the last record of each batch when it was taken, by the clocks of the producer and "
        "of this machine: from send() to here. Worry when it exceeds what the program may be late.",
        lambda it: it.counters.age_seconds,
    ),
    _Gauge(
        "consumer_last_poll_age_seconds",
        "Since the program asked for records last. Worry when it nears max_poll_interval_ms: the "
        "group takes the partitions away.",
        _poll_age,
        together=max,
    ),
    _Gauge(
        "consumer_assigned_partitions",
        "Partitions that are read.",
        lambda it: it.partition_counts()[0],
    ),
    _Gauge(
        "consumer_awaited_partitions",
        "Those of them that no broker sends at present. Worry when it stays above 0.",
        lambda it: it.partition_counts()[1],
    ),
    _Counter(
        "consumer_jumps",
        "Positions that were moved without the program, by reason: `records_deleted` before they "
        "were read, `beyond_end` of the log, `topic_gone`, `topic_made_again`. Worry when it "
        "grows: records may be lost to the program.",
        lambda it: it.counters.jumps.copy(),
        "reason",
    ),
    _Histogram(
        "consumer_commit_seconds",
        "Time of commits that were stored.",
        lambda it: it.counters.commit_seconds,
    ),
    _Counter(
        "consumer_failed_commits",
        "Commits that failed, by error. Worry when they grow for minutes: after a restart the "
        "records since the last commit come again.",
        lambda it: it.counters.commit_failures.copy(),
        "error",
    ),
    _Counter(
        "consumer_failed_streams",
        "Streams to brokers that broke, or could not be opened. Worry when they grow for minutes.",
        lambda it: it.fetching.streams.failures,
    ),
    _Counter(
        "consumer_throttled_seconds",
        "For how long quotas have delayed answers, each broker's counted by itself. Worry when it "
        "grows and the lag, too.",
        lambda it: it.counters.throttled_ms / _MS,
    ),
)
_CALLS: Final[tuple[_Family[Cluster], ...]] = (
    _Histogram(
        "client_call_seconds",
        "Time of calls with one request and one response, by method, of producers, consumers and "
        "administration; some wait for news.",
        lambda it: it.call_seconds.copy(),
        "method",
    ),
    _Counter(
        "client_failed_calls",
        "Calls that got no answer, or were refused as a whole, by error; most are tried again. "
        "Worry when they grow for minutes.",
        lambda it: it.call_failures.copy(),
        "error",
    ),
)
_FAMILIES: Final[tuple[_Family[Any], ...]] = (*_PRODUCER, *_CONSUMER, *_CALLS)
_Samples = dict[tuple[str, ...], Any]
"""Numbers or histograms, by the values of the labels."""


class ClientCollector(Collector):
    """Shows clients to Prometheus, summed up by their `client_id`.

    Args:
        clients: producers, consumers and administration clients; later ones by `add`.
        topics_max: topics that are named; all others are summed up as `(others)`.

    Raises:
        InvalidRequestError: one is no client.
    """

    def __init__(self, *clients: Client, topics_max: int = TOPICS_MAX_DEFAULT) -> None:
        self._topics_max = topics_max
        self._topics: set[str] = set()
        self._lock = threading.Lock()
        self._clients: dict[Client, None] = {}
        self._removed: dict[_Family[Any], _Samples] = {}
        for client in clients:
            self.add(client)

    def add(self, client: Client) -> None:
        """Show another client.

        Raises:
            InvalidRequestError: it is no client.
        """
        if not isinstance(client, Client):
            raise InvalidRequestError(
                f"{client!r} is no client: give a Producer, Consumer or Admin, or a Sync one"
            )
        with self._lock:
            self._clients[client] = None

    def remove(self, client: Client) -> None:
        """Let go of a client that is closed; what it has counted stays in the sums."""
        with self._lock:
            if client in self._clients:
                del self._clients[client]
                self._count(client, self._removed, is_gone=True)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples: a registry asks for their names."""
        return [_build_info(), *(family.new() for family in _FAMILIES)]

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, as of now."""
        with self._lock:
            totals = {family: dict(samples) for family, samples in self._removed.items()}
            for client in self._clients:
                self._count(client, totals)
        return [_build_info(), *map(_shown, totals, totals.values())]

    def _count(
        self, client: Client, totals: dict[_Family[Any], _Samples], *, is_gone: bool = False
    ) -> None:
        """Add the values of a client."""
        cluster, families, source = _parts(client)
        read = [
            *((family, source) for family in families),
            *((family, cluster) for family in _CALLS),
        ]
        for family, place in read:
            if is_gone and isinstance(family, _Gauge):
                continue
            samples = totals.setdefault(family, {})
            found = family.read(place)
            for label, value in found.items() if isinstance(found, Mapping) else [("", found)]:
                label = self._topic(label) if family.label == "topic" else label
                labels = (cluster.client_id, label) if family.label else (cluster.client_id,)
                number = _taken(value) if isinstance(value, Latencies) else value
                before = samples.get(labels)
                samples[labels] = number if before is None else family.together(before, number)

    def _topic(self, topic: str) -> str:
        """Return the label of a topic: the first ones are named, for good."""
        if topic not in self._topics and len(self._topics) >= self._topics_max:
            return OTHERS
        self._topics.add(topic)
        return topic


def _parts(client: Client) -> tuple[Cluster, tuple[_Family[Any], ...], Any]:
    """Return a client's cluster, the families that it has, and what they are read from."""
    match client:
        case Producer() | SyncProducer():
            return client._pipeline.cluster, _PRODUCER, client._pipeline
        case Consumer() | SyncConsumer():
            return client._core.cluster, _CONSUMER, client._core
        case Admin():
            return client._cluster, (), client
        case SyncAdmin():
            return _parts(client._client)


def _taken(latencies: Latencies) -> _Latencies:
    return _Latencies(latencies.counts.copy(), latencies.sum_s, latencies.examples.copy())


def _shown(family: _Family[Any], samples: _Samples) -> Metric:
    metric: Any = family.new()
    for labels, value in samples.items():
        if isinstance(value, _Latencies):
            exemplars = [
                example and Exemplar({"trace_id": example.trace_id}, example.seconds, example.at_s)
                for example in value.examples
            ]
            buckets = list(zip(_BUCKETS, accumulate(value.counts), exemplars, strict=True))
            metric.add_metric(labels, buckets, value.sum_s)
        else:
            metric.add_metric(labels, value)
    return cast(Metric, metric)


def _build_info() -> Metric:
    info = GaugeMetricFamily(
        "millrace_client_build_info",
        "1; its labels are the release of Millrace that the program uses, and the version of "
        "Python.",
        labels=["version", "python"],
    )
    info.add_metric([SOFTWARE_VERSION, platform.python_version()], 1)
    return info
