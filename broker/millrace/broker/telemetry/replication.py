"""What is to be watched of replication: who is in sync, how far followers are, who leads.

Changes of in-sync replicas and of leaders are counted as the metadata shows them, each by the
broker that leads then, so that sums over brokers are right. The rest is looked at once a second.

Labels are bounded: topics by the number of topics, followers by the number of brokers.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from millrace.broker.runtime.partition import Partition
from millrace.core.ids import BrokerId, MonotonicMs
from millrace.core.metadata.image import MetadataChanges, MetadataImage
from millrace.core.metadata.model import PartitionState
from millrace.core.replication.follower import Phase
from millrace.core.replication.leader import PartitionLeader

_AT_ONCE: Final = 200
"""Partitions that are looked at before others have a turn on the event loop."""


class ReplicationMetrics:
    """Counters and gauges by their Prometheus names.

    Args:
        registry: that they join.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
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
            "Records that an unclean election took back, by topic. Those that were acknowledged "
            "are lost. Each replica that had them counts them once it follows the new leader.",
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
            "Partitions that can neither be written nor read: the controller tells of those that "
            "nobody leads, each broker of those that it should lead and whose log is damaged or "
            "gone.",
        )
        self._fenced = gauge(
            "fenced_brokers",
            "Registered brokers that are not there; told by the controller only.",
        )
        self._topics: set[str] = set()
        self._followers: set[BrokerId] = set()
        self._shown: tuple[MetadataImage, bool] | None = None
        self._leaderless = 0

    def caught_up(self, size: int) -> None:
        """Count bytes sent to a follower that is not in sync."""
        self._catch_up_bytes.inc(size)

    def on_lost(self, topic: str, records: int) -> None:
        """Count records that an unclean election took back."""
        self._lost_records.labels(topic).inc(records)

    def on_changes(self, changes: MetadataChanges, broker_id: BrokerId) -> None:
        """Count what became of the partitions that this broker leads now."""
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
        """Show what the metadata says of the cluster; an image that was shown costs nothing.

        Args:
            image: the metadata.
            is_controller: this broker is the controller.
            leaderships_failed: partitions led here according to it, and whose log is offline.
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
            return
        self._fenced.set(sum(each.is_fenced for each in image.cluster.brokers.values()))
        self._leaderless = sum(
            partition.leader < 0
            for topic in image.topics_by_id.values()
            for partition in topic.partitions
        )

    async def observe(
        self, partitions: Iterable[Partition], clock: Callable[[], MonotonicMs]
    ) -> None:
        """Look at every replica of this broker; the event loop has others to serve between."""
        seen = _Seen()
        for number, partition in enumerate(partitions):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            seen.look_at(partition, clock())
        self._led.set(seen.led)
        self._under_replicated.set(seen.under_replicated)
        self._under_min_isr.set(seen.under_min_isr)
        self._at_min_isr.set(seen.at_min_isr)
        self._reassigning.set(seen.reassigning)
        self._halted.set(seen.halted)
        for topic in self._topics - seen.isr_size.keys():
            self._isr_size.remove(topic)
        self._topics = set(seen.isr_size)
        for topic, size in seen.isr_size.items():
            self._isr_size.labels(topic).set(size)
        for follower in self._followers - seen.lag_records.keys():
            self._lag_records.remove(follower)
            self._lag_seconds.remove(follower)
        self._followers = set(seen.lag_records)
        for follower, records in seen.lag_records.items():
            self._lag_records.labels(follower).set(records)
            self._lag_seconds.labels(follower).set(seen.lag_ms[follower] / 1000)


class _Seen:
    """What one look at all replicas adds up to."""

    def __init__(self) -> None:
        self.led = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.reassigning = 0
        self.halted = 0
        self.isr_size: dict[str, int] = {}
        self.lag_records: dict[BrokerId, int] = {}
        self.lag_ms: dict[BrokerId, int] = {}

    def look_at(self, partition: Partition, now: MonotonicMs) -> None:
        """Add a replica."""
        follower, leader = partition.replica.follower, partition.replica.leader
        if follower is not None:
            self.halted += follower.phase is Phase.HALTED
        elif leader is not None and not leader.is_resigned:
            self._look_at_led(partition, leader, now)

    def _look_at_led(self, partition: Partition, leader: PartitionLeader, now: MonotonicMs) -> None:
        state = leader.state
        size, factor = len(state.isr), state.replication_factor
        fewest = partition.config.effective_min_insync_replicas(factor)
        self.led += 1
        self.under_replicated += size < len(state.replicas) and bool(state.missing)
        self.under_min_isr += size < fewest
        self.at_min_isr += size == fewest < factor
        self.reassigning += bool(state.adding or state.removing)
        self.isr_size[partition.topic] = min(size, self.isr_size.get(partition.topic, size))
        end = leader.written_offset
        for each in leader.followers:
            # One that has not reported in this epoch yet has at least nothing.
            behind = end - max(each.progress.log_end_offset, partition.log.log_start_offset)
            since = now - each.caught_up_at if behind > 0 else 0
            broker_id = each.broker_id
            self.lag_records[broker_id] = max(behind, self.lag_records.get(broker_id, 0))
            self.lag_ms[broker_id] = max(since, self.lag_ms.get(broker_id, 0))
