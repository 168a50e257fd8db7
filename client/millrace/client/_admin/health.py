"""The health of a cluster: the problems of its partitions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace.client._admin.brokers import BrokerAdministration
from millrace.client._admin.descriptions import (
    ClusterDescription,
    DamagedReplica,
    PartitionDescription,
    TopicDescription,
    config_from_wire,
    number_in,
    topic_from_wire,
)
from millrace.client._admin.replicas import ReplicaAdministration
from millrace.client._cluster.wire import BrokerInfo
from millrace.core.ids import BrokerId
from millrace.core.metadata.cluster_config import may_hold, replicas_by_default
from millrace.core.metadata.model import Reluctance
from millrace.core.topics import TRANSACTIONS_TOPIC
from millrace.core.words import count, listed
from millrace.proto.v1 import cluster_pb2

_MEANINGS: Final = {
    "offline": "can neither be written nor read",
    "under min ISR": "writes with acks=all are refused",
    "badly led": "the leader's disk is slow or full, and no other broker can lead",
    "recovering": "records were lost in an unclean election",
    "under-replicated": "not all replicas are in sync",
    "with few replicas": "fewer than a topic gets by default now",
}
_NAMED_MAX: Final = 5
"""Partitions that a problem names."""


@dataclass(slots=True, frozen=True)
class PartitionHealth:
    """A partition with a problem."""

    topic: str
    partition: int
    leader: BrokerId
    """-1: no leader, so that it can neither be written nor read."""
    isr: tuple[BrokerId, ...]
    missing: tuple[BrokerId, ...]
    """Replicas that should be in sync and are not."""
    min_insync_replicas: int
    """How many must be in sync for a write with `acks="all"`."""
    replicas_wanted: int = 0
    """How many replicas it would get if its topic were made now, without a replication factor; 0:
    that is unknown."""


@dataclass(slots=True, frozen=True)
class ClusterHealth:
    """The problems, the worst first; a partition may be in several of the lists."""

    has_controller: bool
    """Without one nothing changes: no election, no new topic. Partitions with a leader go on."""
    offline: tuple[PartitionHealth, ...]
    """Partitions without a leader: they can neither be written nor read."""
    under_min_isr: tuple[PartitionHealth, ...]
    """Too few replicas are in sync: writes with `acks="all"` are refused."""
    recovering: tuple[PartitionHealth, ...]
    """An unclean election is not settled yet."""
    under_replicated: tuple[PartitionHealth, ...]
    """Not all replicas are in sync: fewer brokers may fail than planned."""
    fenced_brokers: tuple[BrokerId, ...]
    """Brokers that are down. The partitions show whether that matters."""
    badly_led: tuple[PartitionHealth, ...] = ()
    """Their leader has a slow or full disk, and no better one can lead: writes wait or fail."""
    damaged: tuple[DamagedReplica, ...] = ()
    """Replicas that are offline on running brokers, and those that were fetched again since."""
    unreachable_brokers: tuple[BrokerId, ...] = ()
    """Brokers that are not fenced, and did not answer this client: they may just have died."""
    reluctant_brokers: tuple[BrokerInfo, ...] = ()
    """Brokers that are reluctant to lead, by their `reluctance`; the others lead for them."""
    controller_problem: str = ""
    """Why no controller can act, and what to do about it, where it is known."""
    usable_brokers: tuple[BrokerId, ...] = ()
    """Brokers that can take replicas: they live, and neither stop nor are drained."""
    few_replicas: tuple[PartitionHealth, ...] = ()
    """Partitions with fewer replicas than a topic gets by default now, as they were made when the
    cluster was smaller, or as somebody wanted it so: `is_healthy` does not count them."""

    @property
    def is_healthy(self) -> bool:
        """Return whether nothing is wrong; a damaged log that is only kept is not."""
        return self.has_controller and not (
            self.offline
            or self.under_min_isr
            or self.recovering
            or self.under_replicated
            or self.badly_led
            or self.unreachable_brokers
            or any(replica.error for replica in self.damaged)
        )

    @property
    def partitions_by_problem(self) -> "Mapping[str, tuple[PartitionHealth, ...]]":
        """Return the partitions of each problem, the worst first; each stands at its worst only."""
        seen: set[tuple[str, int]] = set()
        found = {}
        for problem, partitions in (
            ("offline", self.offline),
            ("under min ISR", self.under_min_isr),
            ("badly led", self.badly_led),
            ("recovering", self.recovering),
            ("under-replicated", self.under_replicated),
            ("with few replicas", self.few_replicas),
        ):
            new = tuple(
                partition
                for partition in partitions
                if (partition.topic, partition.partition) not in seen
            )
            seen |= {(partition.topic, partition.partition) for partition in new}
            if new:
                found[problem] = new
        return found

    @property
    def problems_by_topic(self) -> "Mapping[str, str]":
        """Return what is wrong with each topic that has a problem, such as `2 under-replicated`."""
        found: dict[str, list[str]] = {}
        for problem, partitions in self.partitions_by_problem.items():
            for topic, number in Counter(partition.topic for partition in partitions).items():
                found.setdefault(topic, []).append(f"{number:,} {problem}")
        return {topic: ", ".join(problems) for topic, problems in found.items()}

    @property
    def problems(self) -> list[str]:
        """Return the problems in words, the worst first; of many partitions some are named.

        for line in (await admin.describe_health()).problems:
            print(line)
        """
        lines = []
        if not self.has_controller:
            lines.append("no controller: nothing is elected or changed until a broker is one")
        for state, brokers in (
            ("unreachable", self.unreachable_brokers),
            ("down", self.fenced_brokers),
        ):
            if brokers:
                lines.append(f"{state}: broker {', '.join(map(str, sorted(brokers)))}")
        for problem, partitions in self.partitions_by_problem.items():
            places = listed(
                ((partition.topic, partition.partition) for partition in partitions), _NAMED_MAX
            )
            number = count(len(partitions), "partition")
            lines.append(f"{number} {problem}, {_MEANINGS[problem]}: {places}")
        damaged = [(replica.topic, replica.partition) for replica in self.damaged if replica.error]
        if damaged:
            lines.append(f"{count(len(damaged), 'replica')} damaged: {listed(damaged, _NAMED_MAX)}")
        return lines


@dataclass(slots=True, frozen=True)
class ReplicationDefaults:
    """How many replicas topics get by the cluster's settings; -1: as many as is usual."""

    topics: int
    positions: int
    transactions: int

    def wanted(self, cluster: ClusterDescription, topic: TopicDescription) -> int:
        """Return how many replicas a topic would get now, on the brokers that there are (P77)."""
        brokers = sum(
            may_hold(
                topic.media, broker.media, is_drained=broker.is_drained, is_fenced=broker.is_fenced
            )
            for broker in cluster.brokers
        )
        setting = self.positions if topic.is_internal else self.topics
        if topic.name == str(TRANSACTIONS_TOPIC):
            setting = self.transactions
        return min(replicas_by_default(setting, brokers), brokers)


def health_of(
    cluster: ClusterDescription,
    topics: Iterable[TopicDescription],
    damaged: Iterable[DamagedReplica] = (),
    defaults: ReplicationDefaults | None = None,
) -> ClusterHealth:
    """Return the health of a cluster from its descriptions.

    Args:
        defaults: None: unknown; then no partition has few replicas.
    """
    reluctant = tuple(
        broker for broker in cluster.brokers if broker.reluctance and not broker.is_fenced
    )
    with_bad_disks = {
        broker.broker_id for broker in reluctant if broker.reluctance != Reluctance.NEW_ADDRESS
    }
    partitions = [
        (_judge(topic, partition, wanted), partition)
        for topic in topics
        for wanted in [0 if defaults is None else defaults.wanted(cluster, topic)]
        for partition in topic.partitions
    ]
    return ClusterHealth(
        has_controller=cluster.controller_id >= 0 and not cluster.controller_problem,
        offline=tuple(health for health, _ in partitions if health.leader < 0),
        under_min_isr=tuple(
            health for health, _ in partitions if len(health.isr) < health.min_insync_replicas
        ),
        recovering=tuple(health for health, partition in partitions if partition.is_recovering),
        under_replicated=tuple(health for health, _ in partitions if health.missing),
        fenced_brokers=tuple(broker.broker_id for broker in cluster.brokers if broker.is_fenced),
        damaged=tuple(damaged),
        unreachable_brokers=cluster.unreachable,
        badly_led=tuple(health for health, _ in partitions if health.leader in with_bad_disks),
        reluctant_brokers=reluctant,
        controller_problem=cluster.controller_problem,
        usable_brokers=tuple(
            broker.broker_id
            for broker in cluster.brokers
            if not broker.is_fenced
            and not broker.is_draining
            and broker.broker_id not in cluster.unreachable
        ),
        few_replicas=tuple(
            health
            for health, partition in partitions
            if len(partition.target_replicas) < health.replicas_wanted
        ),
    )


def _judge(
    topic: TopicDescription, partition: PartitionDescription, replicas_wanted: int
) -> PartitionHealth:
    awaited = (*partition.isr, *partition.adding_replicas, *partition.removing_replicas)
    return PartitionHealth(
        topic.name,
        partition.partition,
        partition.leader,
        partition.isr,
        tuple(replica for replica in partition.replicas if replica not in awaited),
        topic.min_insync_replicas(partition),
        replicas_wanted,
    )


class HealthAdministration(BrokerAdministration, ReplicaAdministration):
    """The part of `Admin` that is about brokers, replicas, and what is wrong with them."""

    async def describe_health(self) -> ClusterHealth:
        """Return the cluster's problems, from the broker with the newest metadata.

            health = await admin.describe_health()
            for partition in health.under_min_isr:
                print(partition.topic, partition.partition, "lacks", partition.missing)

        Raises:
            TopicAuthorizationFailedError: the caller may not see all topics.
        """
        cluster = await self.describe_cluster()
        damaged, silent = await self._describe_damage(None, cluster.unreachable)
        response = await self._cluster.look_up(cluster_pb2.GetMetadataRequest(none_hidden=True))
        topics = [topic_from_wire(topic) for topic in response.topics if not topic.error.code]
        cluster = replace(cluster, unreachable=(*cluster.unreachable, *silent))
        return health_of(cluster, topics, damaged, await self._replication_defaults(cluster))

    async def _replication_defaults(
        self, cluster: ClusterDescription
    ) -> ReplicationDefaults | None:
        """Ask one broker: all go by the controller's settings. None: it does not answer."""
        alive = [
            broker
            for broker in cluster.brokers
            if not broker.is_fenced and broker.broker_id not in cluster.unreachable
        ]
        if not alive:
            return None
        asked = min(alive, key=lambda broker: broker.broker_id != cluster.controller_id)
        request = cluster_pb2.DescribeBrokerConfigRequest()
        answer = await self._ask(asked, lambda c: c.cluster.DescribeBrokerConfig(request))
        if answer is None:
            return None
        config = config_from_wire(answer.config)
        return ReplicationDefaults(
            topics=number_in(config, "cluster.default_replication_factor"),
            positions=number_in(config, "cluster.positions_replication_factor"),
            transactions=number_in(config, "cluster.transactions_replication_factor"),
        )
