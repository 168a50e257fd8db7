"""Metrics of replication: in-sync replicas, followers' lag, leaders.

Changes of in-sync replicas and of leaders are counted as the metadata shows them, each by the
broker that leads then, so that sums over brokers are right. The rest is updated once a second.

Labels are bounded: topics by `metrics.topics_max`, followers by the number of brokers.
"""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge

from millrace.broker.telemetry.topic_labels import TopicLabels
from millrace.broker.telemetry.transactions import UndecidedCounts
from millrace.core.controller.topic_changes import (
    brokers_for_replicas,
    default_replication_factor,
    internal_replication_factor,
)
from millrace.core.ids import BrokerId
from millrace.core.media import TopicMedia
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataChanges, MetadataImage
from millrace.core.metadata.model import PartitionState
from millrace.core.topics import POSITIONS_TOPIC, TRANSACTIONS_TOPIC


@dataclass(slots=True)
class ReplicaCounts:
    """Counts over all replicas of a broker.

    Attributes:
        led: partitions that it leads; the next four count some of these.
        under_replicated: those that lack an in-sync replica.
        under_min_isr: those with fewer in-sync replicas than `min.insync.replicas`.
        at_min_isr: those with just as many, of several replicas.
        reassigning: those under reassignment.
        halted: followers that stopped, as going on would lose committed records.
        incomplete: replicas that could lead, but lack committed records.
        isr_size: the fewest in-sync replicas of led partitions, by topic.
        lag_records: by how many records a follower is behind at the most.
        lag_ms: for how long at the most.
        undecided: transactions in led partitions.
    """

    led: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    reassigning: int = 0
    halted: int = 0
    incomplete: int = 0
    isr_size: dict[str, int] = field(default_factory=dict)
    lag_records: dict[BrokerId, int] = field(default_factory=dict)
    lag_ms: dict[BrokerId, int] = field(default_factory=dict)
    undecided: UndecidedCounts = field(default_factory=UndecidedCounts)


class ReplicationMetrics:
    """Counters and gauges by their Prometheus names.

    Args:
        registry: that they join.
        topic_labels: the values of the label `topic`.
        cluster: the settings by which this broker acts as the controller.
    """

    def __init__(
        self, registry: CollectorRegistry, topic_labels: TopicLabels, cluster: ClusterConfig
    ) -> None:
        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"millrace_{name}", meaning, labels, registry=registry)

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"millrace_{name}", meaning, labels, registry=registry)

        self._led = gauge("led_partitions", "Partitions that this broker leads.")
        self._under_replicated = gauge(
            "under_replicated_partitions",
            "Led partitions that lack an in-sync replica. Watch this one.",
        )
        self._under_min_isr = gauge(
            "under_min_isr_partitions",
            "Led partitions with fewer in-sync replicas than min.insync.replicas: acks=all fails.",
        )
        self._at_min_isr = gauge(
            "at_min_isr_partitions",
            "Led partitions with just min.insync.replicas, of several: one more loss stops writes.",
        )
        self._reassigning = gauge(
            "reassigning_partitions", "Led partitions whose replicas are being changed."
        )
        self._isr_size = gauge(
            "topic_isr_size_min", "Fewest in-sync replicas of led partitions, by topic.", "topic"
        )
        self._halted = gauge(
            "halted_replicas",
            "Replicas here that stopped because going on would lose committed records.",
        )
        self._incomplete = gauge(
            "incomplete_replicas",
            "Replicas here of partitions without a leader, which could lead, but lack committed "
            "records: an older copy of the disk was put back, or damage cut the log off.",
        )
        self._lag_records = gauge(
            "follower_lag_records_max",
            "Records that a follower (broker id) is behind, in the led partition with the most.",
            "follower",
        )
        self._lag_seconds = gauge(
            "follower_lag_seconds_max",
            "For how long a follower (broker id) has not been at the end of a led partition.",
            "follower",
        )
        self._catch_up_bytes = counter(
            "catch_up_bytes", "Bytes sent to followers that are not in sync with their partition."
        )
        self._isr_shrinks = counter("isr_shrinks", "Replicas that left the ISR of led partitions.")
        self._isr_expands = counter(
            "isr_expands", "Replicas that joined the ISR of led partitions."
        )
        self._elections = counter(
            "leader_elections", "Times that this broker was made leader of a partition."
        )
        self._unclean_elections = counter(
            "unclean_leader_elections",
            "Those of them in which acknowledged records may have been lost.",
        )
        self._lost_records = counter(
            "topic_lost_records",
            "Records that an unclean election removed, by topic. Acknowledged ones are lost. Each "
            "replica that had them counts them when it follows the new leader.",
            "topic",
        )
        self._controller_active = gauge(
            "controller_active", "1 on the broker that is the controller, 0 on the others."
        )
        self._controller_epoch = gauge(
            "controller_epoch", "The controller epoch that this broker knows."
        )
        self._offline = gauge(
            "offline_partitions",
            "Partitions that can neither be written nor read: the controller counts those without "
            "a leader, each broker those that it should lead and whose log is damaged or gone.",
        )
        self._fenced = gauge(
            "fenced_brokers",
            "Registered brokers that are down; reported only by the controller.",
        )
        self._few_replicas = gauge(
            "few_replicas_partitions",
            "Partitions with fewer replicas than a topic gets by default now; reported only by the "
            "controller. Worry where nobody chose so few: `millrace cluster health` names them.",
        )
        self._cluster = cluster
        self._topic_labels = topic_labels
        self._topics: set[str] = set()
        self._followers: set[BrokerId] = set()
        self._shown: tuple[MetadataImage, bool] | None = None
        self._leaderless = 0

    def caught_up(self, size: int) -> None:
        """Count bytes sent to a follower that is not in sync."""
        self._catch_up_bytes.inc(size)

    def on_lost(self, topic: str, records: int) -> None:
        """Count records that an unclean election took back."""
        self._lost_records.labels(self._topic_labels.label(topic)).inc(records)

    def on_changes(self, changes: MetadataChanges, broker_id: BrokerId) -> None:
        """Count the changes of the partitions that this broker leads now."""
        for old, new in changes.altered:
            for before, after in zip(old.partitions, new.partitions, strict=False):
                if after is not before and after.leader == broker_id:
                    self._count(before, after)
        for topic in changes.created:
            led = sum(partition.leader == broker_id for partition in topic.partitions)
            self._elections.inc(led)
        for topic in changes.deleted:
            self._forget(str(topic.name))

    def _count(self, before: PartitionState, after: PartitionState) -> None:
        in_sync_before = {life.broker_id for life in before.isr}
        in_sync = {life.broker_id for life in after.isr}
        self._isr_shrinks.inc(len(in_sync_before - in_sync))
        self._isr_expands.inc(len(in_sync - in_sync_before))
        self._elections.inc(after.leader_life != before.leader_life)
        self._unclean_elections.inc(after.unclean_epoch > before.unclean_epoch)

    def _forget(self, topic: str) -> None:
        self._lost_records.remove(topic)
        if topic in self._topics:
            self._topics.discard(topic)
            self._isr_size.remove(topic)

    def on_image(
        self, image: MetadataImage, *, is_controller: bool, leaderships_failed: int
    ) -> None:
        """Update the metrics of the cluster; an unchanged image costs nothing.

        Args:
            image: the metadata.
            is_controller: this broker is the controller.
            leaderships_failed: partitions that this broker should lead, but whose log is offline.
        """
        if self._shown is None or self._shown[0] is not image or self._shown[1] != is_controller:
            self._shown = (image, is_controller)
            self._show(image, is_controller=is_controller)
        self._offline.set(self._leaderless + leaderships_failed)

    def _show(self, image: MetadataImage, *, is_controller: bool) -> None:
        self._controller_active.set(is_controller)
        self._controller_epoch.set(image.cluster.controller_epoch)
        if not is_controller:
            self._leaderless = 0
            self._fenced.set(0)
            self._few_replicas.set(0)
            return
        self._fenced.set(sum(broker.is_fenced for broker in image.cluster.brokers.values()))
        self._leaderless = sum(
            partition.leader < 0
            for topic in image.topics_by_id.values()
            for partition in topic.partitions
        )
        self._few_replicas.set(self._with_few_replicas(image))

    def _with_few_replicas(self, image: MetadataImage) -> int:
        """Count partitions; what they should have is found once for all topics."""
        cluster = image.cluster
        usual = {
            media: min(
                default_replication_factor(self._cluster, cluster, media),
                brokers_for_replicas(cluster, media),
            )
            for media in TopicMedia
        }
        most = brokers_for_replicas(cluster, TopicMedia.ANY)
        of_coordinators = {
            name: min(internal_replication_factor(self._cluster, cluster, name), most)
            for name in (POSITIONS_TOPIC, TRANSACTIONS_TOPIC)
        }
        return sum(
            len(partition.target) < wanted
            for topic in image.topics_by_id.values()
            for wanted in [of_coordinators.get(topic.name, usual[topic.config.media])]
            for partition in topic.partitions
        )

    def on_counted(self, counts: ReplicaCounts) -> None:
        """Update the metrics of this broker's replicas."""
        self._led.set(counts.led)
        self._under_replicated.set(counts.under_replicated)
        self._under_min_isr.set(counts.under_min_isr)
        self._at_min_isr.set(counts.at_min_isr)
        self._reassigning.set(counts.reassigning)
        self._halted.set(counts.halted)
        self._incomplete.set(counts.incomplete)
        sizes: dict[str, int] = {}
        for topic, size in counts.isr_size.items():
            label = self._topic_labels.label(topic)
            sizes[label] = min(size, sizes.get(label, size))
        for label in self._topics - sizes.keys():
            self._isr_size.remove(label)
        self._topics = set(sizes)
        for label, size in sizes.items():
            self._isr_size.labels(label).set(size)
        for follower in self._followers - counts.lag_records.keys():
            self._lag_records.remove(follower)
            self._lag_seconds.remove(follower)
        self._followers = set(counts.lag_records)
        for follower, records in counts.lag_records.items():
            self._lag_records.labels(follower).set(records)
            self._lag_seconds.labels(follower).set(counts.lag_ms[follower] / 1000)
