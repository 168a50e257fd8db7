"""Metrics of the broker's own work: one registry, served at `/metrics`.

Labels are bounded by design: topics by `metrics.topics_max`, errors and methods by how many there
are.
"""

import platform
from collections.abc import Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.process_collector import ProcessCollector

from millrace.broker.telemetry.compaction import CompactionMetrics
from millrace.broker.telemetry.group_lags import GroupLagMetrics
from millrace.broker.telemetry.loop_metrics import TopicTraffic, TrafficCounters
from millrace.broker.telemetry.quotas import QuotaMetrics
from millrace.broker.telemetry.replication import ReplicationMetrics
from millrace.broker.telemetry.requests import RequestMetrics
from millrace.broker.telemetry.tiers import TierMetrics
from millrace.broker.telemetry.topic_labels import TopicLabels
from millrace.broker.telemetry.transactions import TransactionMetrics
from millrace.core.broker_config import MetricsConfig, NodeConfig
from millrace.core.errors import MillraceError
from millrace.core.ids import BrokerId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.runtime.software import SOFTWARE_VERSION


class BrokerMetrics:
    """Counters and gauges by their Prometheus names; topics' label children are looked up once.

    Args:
        topics_max: topics that are named.
        cluster: the settings by which this broker acts as the controller; None: the usual ones.
    """

    def __init__(
        self,
        topics_max: int = MetricsConfig().topics_max,
        cluster: ClusterConfig | None = None,
    ) -> None:
        # They would double the series of each counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry = self.registry
        build = Gauge(
            "millrace_build_info",
            "1; its labels are the release of Millrace and the version of Python.",
            ["version", "python"],
            registry=registry,
        )
        build.labels(SOFTWARE_VERSION, platform.python_version()).set(1)
        self._broker = Gauge(
            "millrace_broker_info",
            "1; its labels are the broker's id, name and zone. Other metrics name brokers by id.",
            ["broker_id", "name", "zone"],
            registry=registry,
        )
        self._traffic = TrafficCounters(registry)
        self._refusals = Counter(
            "millrace_refusals",
            "Calls, requests or batches refused, by error and by method, without its service. The "
            "log names some of the clients.",
            ["error", "method"],
            registry=registry,
        )  # fmt: skip
        self.rehearsed_refusals = Counter(
            "millrace_access_would_be_refused",
            "Calls and decisions that access control would refuse, and that were let through since "
            "`access.enforced` is false.",
            registry=registry,
        )
        self._access_file_refused = Gauge(
            "millrace_access_file_refused",
            "1 while a file of access control has a mistake, or is away: what it said before goes "
            "on. By the file's setting.",
            ["file"],
            registry=registry,
        )
        self.produce_streams = Gauge(
            "millrace_produce_streams", "Open Produce streams.", registry=registry
        )
        self.fetch_streams = Gauge(
            "millrace_fetch_streams", "Open Fetch streams.", registry=registry
        )
        self.connections = Gauge(
            "millrace_connections",
            "Open connections, by listener: of clients, of those outside, and of brokers.",
            ["listener"],
            registry=registry,
        )
        self.connections_closed = Counter(
            "millrace_connections_closed",
            "Connections that made no call in time, or had none while room was short.",
            ["listener"],
            registry=registry,
        )
        self._limits_reached = Counter(
            "millrace_limits_reached",
            "Calls refused and connections closed as a caller or an address has as many as it may, "
            "by the setting of `limits`.",
            ["limit"],
            registry=registry,
        )
        self.certificate_seconds = Gauge(
            "millrace_certificate_seconds",
            "Seconds until the certificate of a listener ends; below 0, it has ended, and new "
            "connections fail. Only listeners with TLS.",
            ["listener"],
            registry=registry,
        )
        self.certificate_lifetime_seconds = Gauge(
            "millrace_certificate_lifetime_seconds",
            "Seconds from the beginning to the end of that certificate. While more than a tenth of "
            "them is left, it may yet be renewed in time.",
            ["listener"],
            registry=registry,
        )
        self.request_memory_bytes = Gauge(
            "millrace_request_memory_bytes",
            "Bytes of requests held. Worry when it stays near millrace_request_memory_max_bytes: "
            "producers wait.",
            registry=registry,
        )
        self.request_memory_max_bytes = Gauge(
            "millrace_request_memory_max_bytes",
            "The setting limits.request_memory_bytes_max.",
            registry=registry,
        )
        self.arrow_memory_bytes = Gauge(
            "millrace_arrow_memory_bytes",
            "Memory of Arrow: of batches that are checked, inflated or cleaned just now.",
            registry=registry,
        )
        self.partitions = Gauge(
            "millrace_partitions",
            "Partitions of which this broker holds a replica.",
            registry=registry,
        )
        self.offline_log_dirs = Gauge(
            "millrace_offline_log_dirs", "Log directories that failed.", registry=registry
        )
        self.offline_replicas = Gauge(
            "millrace_offline_replicas",
            "Replicas here that are damaged, or on a log directory that failed.",
            registry=registry,
        )
        self.misplaced_replicas = Gauge(
            "millrace_misplaced_replicas",
            "Replicas here that lie on another media than their topic asks for.",
            registry=registry,
        )
        self.moving_replicas = Gauge(
            "millrace_moving_replicas",
            "Those of them that move to a log directory of the right media now.",
            registry=registry,
        )
        self.damaged_logs = Gauge(
            "millrace_damaged_logs",
            "Damaged logs that were set aside when their replicas were fetched again.",
            ["log_dir"],
            registry=registry,
        )
        self.log_dir_free_bytes = Gauge(
            "millrace_log_dir_free_bytes",
            "Free space, by log directory and its media; absent while its disk does not answer.",
            ["log_dir", "media"],
            registry=registry,
        )
        self.log_dir_size_bytes = Gauge(
            "millrace_log_dir_size_bytes",
            "Size of the file system, by log directory and its media.",
            ["log_dir", "media"],
            registry=registry,
        )
        self.log_dir_log_bytes = Gauge(
            "millrace_log_dir_log_bytes",
            "Bytes of batches of the replicas here, by log directory and its media.",
            ["log_dir", "media"],
            registry=registry,
        )
        self._topic_log_bytes = Gauge(
            "millrace_topic_log_bytes",
            "Bytes of batches of the replicas here, by topic.",
            ["topic"],
            registry=registry,
        )
        self.retention_deleted_segments = Counter(
            "millrace_retention_deleted_segments",
            "Segments that retention deleted in partitions that this broker leads.",
            registry=registry,
        )
        self.controller_session = Gauge(
            "millrace_controller_session",
            "1 while this broker has a session with the controller. 0 on all brokers: there is "
            "none.",
            registry=registry,
        )
        self.differing_cluster_settings = Gauge(
            "millrace_differing_cluster_settings",
            "Settings of [cluster] that differ here from the controller's. Should be 0.",
            registry=registry,
        )
        self.reluctance = Gauge(
            "millrace_reluctance",
            "1 while this broker lets others lead for this reason.",
            ["reason"],
            registry=registry,
        )
        self.positions = Gauge(
            "millrace_positions",
            "Positions kept in led partitions of __positions, initial and committed ones.",
            registry=registry,
        )
        self.positions_unready = Gauge(
            "millrace_positions_unready_partitions",
            "Led partitions of __positions whose log is not read yet, or cannot be.",
            registry=registry,
        )
        self.loop_lag_seconds = Histogram(
            "millrace_loop_lag_seconds",
            "How late the event loop runs its timers.",
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2),
            registry=registry,
        )
        self.requests = RequestMetrics(registry)
        self._topic_labels = TopicLabels(topics_max)
        self.replication = ReplicationMetrics(
            registry, self._topic_labels, cluster or ClusterConfig()
        )
        self.quotas = QuotaMetrics(registry)
        self.group_lags = GroupLagMetrics(registry)
        self.compaction = CompactionMetrics(registry)
        self.tiers = TierMetrics(registry)
        self.transactions = TransactionMetrics(registry, self._topic_labels)
        self._refused: dict[tuple[type[MillraceError], str], Counter] = {}
        self._topics: dict[str, TopicTraffic] = {}
        self._sized_topics: set[str] = set()

    def on_registered(self, broker_id: BrokerId, node: NodeConfig) -> None:
        """Show who this broker is."""
        self._broker.labels(broker_id, node.name, node.rack).set(1)

    def appended(self, topic: str, size: int, records: int) -> None:
        """Count a batch that was given offsets."""
        traffic = self._topics.get(topic) or self._topic(topic)
        traffic.appended_bytes += size
        traffic.appended_records += records

    def fetched(self, topic: str, size: int) -> None:
        """Count bytes of batches sent."""
        traffic = self._topics.get(topic) or self._topic(topic)
        traffic.fetched_bytes += size

    def limit_reached(self, limit: str, times: int = 1) -> None:
        """Count that a limit on callers was reached, by the name of its setting."""
        self._limits_reached.labels(limit).inc(times)

    def refused(self, error: MillraceError, method: str) -> None:
        """Count a refusal of a method, which is named without its service."""
        kind = type(error), method
        counter = self._refused.get(kind)
        if counter is None:
            counter = self._refused[kind] = self._refusals.labels(error.name(), method)
        counter.inc()

    def show_access_file(self, file: str, refused: int) -> None:
        """Show whether a file of access control, by its setting, has a mistake: 1, else 0."""
        self._access_file_refused.labels(file).set(refused)

    def on_topic_sizes(self, sizes: Mapping[str, int]) -> None:
        """Show the bytes that each topic takes here, and no others."""
        self._topic_labels.keep_only(sizes.keys() | self._topics.keys())
        sums: dict[str, int] = {}
        for topic, size in sizes.items():
            label = self._topic_labels.label(topic)
            sums[label] = sums.get(label, 0) + size
        for label in self._sized_topics - sums.keys():
            self._topic_log_bytes.remove(label)
        self._sized_topics = set(sums)
        for label, size in sums.items():
            self._topic_log_bytes.labels(label).set(size)

    def forget_topic(self, topic: str) -> None:
        """Drop a deleted topic's series; what `OTHERS` has counted stays."""
        self._topic_labels.forget(topic)
        if self._topics.pop(topic, None) is not None:
            self._traffic.remove(topic)

    def _topic(self, topic: str) -> TopicTraffic:
        traffic = self._topics[topic] = self._traffic.labels(self._topic_labels.label(topic))
        return traffic
