"""Controlled shutdown of a broker: it may stop when it is no longer needed (P32).

A broker that wants to stop says so with its heartbeats. It is *draining* from then on: others take
over its leaderships, and it leaves each ISR in which the others are still min ISR. If they are not,
it waits for a living replica that may still join; if there is none, it does not wait. Once the
metadata shows all this, and every other live broker has seen it, it may stop: so clients can learn
of the new leader before the old one is gone.

The wait is bounded: after `controlled_shutdown_wait_ms` it may stop in any case. The end of its
session removes it from the remaining ISRs, and it stays eligible there (P26).

The controller checks with each heartbeat, and looks at the partitions again when something changed.
It remembers only since when a broker wants to stop: another controller starts a new wait.
"""

from collections.abc import Iterable

from millrace.core.controller.brokers.sessions import Sessions
from millrace.core.controller.partitions import elections
from millrace.core.controller.partitions.elections import Rules
from millrace.core.ids import BrokerId, MonotonicMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import PartitionState


def left(partition: PartitionState, rules: Rules, broker_id: BrokerId) -> PartitionState:
    """Return a partition whose ISR a broker has left, if the others are enough.

    A leader stays: an election hands leaderships over first.
    """
    if partition.leader == broker_id:
        return partition
    others = [life for life in partition.isr if life.broker_id != broker_id]
    if len(others) == len(partition.isr) or len(others) < rules.min_isr(partition):
        return partition
    return elections.with_isr(partition, rules, others)


def is_awaited(partition: PartitionState, rules: Rules, broker_id: BrokerId) -> bool:
    """Whether a broker should wait: it is in sync, and another replica may still replace it."""
    in_sync = {life.broker_id for life in partition.isr}
    if broker_id not in in_sync:
        return False
    leads = partition.leader == broker_id
    if not leads and len(in_sync) > rules.min_isr(partition):
        return True  # It can leave, and has yet to.
    # Others that are in sync could take over; those that are not could join.
    others = [life for life in partition.isr if leads and life.broker_id != broker_id]
    absent = map(
        rules.life_of, (replica for replica in partition.replicas if replica not in in_sync)
    )
    return any(map(rules.may_lead, others)) or any(
        life is not None and rules.can_join(life) for life in absent
    )


class Shutdowns:
    """The brokers that want to stop."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._since: dict[BrokerId, MonotonicMs] = {}
        self._released_at: dict[BrokerId, int] = {}  # Epoch of the first image without them.
        self._seen: dict[BrokerId, int] = {}  # Count of changes at the last look.
        self._awaited: dict[BrokerId, tuple[int, bool]] = {}  # By the image of which epoch.

    def begin(self, broker_id: BrokerId, now: MonotonicMs) -> None:
        """A broker wants to stop; to be called with each of its heartbeats."""
        self._since.setdefault(broker_id, now)

    def forget(self, broker_id: BrokerId) -> None:
        """The broker is gone, or has begun another life."""
        self._since.pop(broker_id, None)
        self._released_at.pop(broker_id, None)
        self._seen.pop(broker_id, None)
        self._awaited.pop(broker_id, None)

    def is_wanted(self, broker_id: BrokerId) -> bool:
        """Whether the broker wants to stop."""
        return broker_id in self._since

    def is_news(self, broker_id: BrokerId, changes: int) -> bool:
        """Whether the metadata has changed since the last call."""
        seen = self._seen.get(broker_id)
        self._seen[broker_id] = changes
        return seen != changes

    def may_stop(
        self,
        broker_id: BrokerId,
        image: MetadataImage,
        sessions: Sessions,
        now: MonotonicMs,
    ) -> bool:
        """Whether a broker may stop now.

        Args:
            image: of what is stored.
        """
        if now - self._since[broker_id] >= self._config.controlled_shutdown_wait_ms:
            return True
        if self._is_awaited(broker_id, image):
            self._released_at.pop(broker_id, None)
            return False
        released_at = self._released_at.setdefault(broker_id, image.epoch)
        return all(
            sessions.metadata_epoch(other) >= released_at for other in _others(image, broker_id)
        )

    def _is_awaited(self, broker_id: BrokerId, image: MetadataImage) -> bool:
        known = self._awaited.get(broker_id)
        if known is None or known[0] != image.epoch:
            known = self._awaited[broker_id] = (image.epoch, self._look(broker_id, image))
        return known[1]

    def _look(self, broker_id: BrokerId, image: MetadataImage) -> bool:
        if not image.cluster.brokers[broker_id].is_draining:
            return True  # Not stored yet.
        for topic in image.topics_by_id.values():
            rules = Rules.of(topic, image.cluster.brokers, self._config)
            if any(is_awaited(partition, rules, broker_id) for partition in topic.partitions):
                return True
        return False


def _others(image: MetadataImage, broker_id: BrokerId) -> Iterable[BrokerId]:
    return (
        other
        for other, broker in image.cluster.brokers.items()
        if other != broker_id and not broker.is_fenced
    )
