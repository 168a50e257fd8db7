"""Fake clusters for the operator: their descriptions, and the requests that they get.

They do every request at once; only moves of replicas wait for `arrive`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from millrace.client import (
    Admin,
    BrokerInfo,
    ClusterDescription,
    ConfigValue,
    LogDescription,
    PartitionDescription,
    QuotaDescription,
    QuotaUse,
    TierDescription,
    TopicDescription,
)
from millrace.client._admin.quotas import described
from millrace.core.controller import quota_changes
from millrace.core.errors import (
    BrokerIdNotRegisteredError,
    BrokerInUseError,
    ConnectionFailedError,
    DeletionProtectedError,
    MillraceError,
    ReassignmentRefusedError,
)
from millrace.core.ids import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
)
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.cluster_config import usual_replication_factor
from millrace.core.quotas.quota import Quota, QuotaEntity
from millrace.operator.model.cluster import Cluster
from millrace.operator.reconcile.brokers import Brokers, Found

QUOTAS_MAX = 5
"""How many a fake cluster has room for."""


@dataclass
class FakeTopic:
    config: dict[str, str]
    replicas: list[tuple[BrokerId, ...]]
    adding: dict[int, tuple[BrokerId, ...]] = field(default_factory=dict)


class FakeCluster:
    """One cluster of the operator, without processes.

    Attributes:
        uses: what brokers tell of the use of quotas, by their names.
        measurements: how often they were asked for it.
        knows_tiers: whether brokers have heard which topics are tiered.
        hdd_problem: why segments do not move to the brokers' HDDs; empty: they do.
        disks: the media on which a topic's replicas lie, by its name.
        shows_late: the broker that is asked shows changes of topics only after `arrive`.
        on_write: called before each requested change.
        moves_problem: why the controller refuses all moves of replicas; empty: it does not.
        tokens: that the operator has shown.
    """

    def __init__(self) -> None:
        self._ids_given = 0
        self.brokers: dict[str, BrokerInfo] = {}
        self.topics: dict[str, FakeTopic] = {}
        self.quotas: dict[str, Quota] = {}
        self.measurements = 0
        self.knows_tiers = True
        self.hdd_problem = ""
        self.disks: dict[str, Media] = {}
        self.shows_late = False
        self.shown: dict[str, TopicDescription] = {}
        self.uses: dict[str, tuple[QuotaUse, ...]] = {}
        self.tokens: list[str] = []
        self.on_write: Callable[[str], None] = lambda what: None
        self.moves_problem = ""

    @property
    def is_alive(self) -> bool:
        """Whether any broker answers."""
        return not all(broker.is_fenced for broker in self.brokers.values())

    def join(self, name: str, *, zone: str = "", media: Iterable[Media] = (Media.SSD,)) -> None:
        """Let a broker start."""
        known = self.brokers.get(name)
        if known is None:
            self._ids_given += 1  # Ids are never reused, even after a broker has gone.
        number = self._ids_given - 1 if known is None else known.broker_id
        self.brokers[name] = BrokerInfo(
            broker_id=BrokerId(number),
            name=name,
            address=f"{name}:7092",
            rack=zone,
            is_fenced=False,
            is_drained=known is not None and known.is_drained,
            media=tuple(media),
        )

    def leave(self, name: str) -> None:
        """Let a broker disappear."""
        self.brokers[name] = replace(self.brokers[name], is_fenced=True)

    def arrive(self) -> None:
        """Complete all moves of replicas, except of those with no live source."""
        self.shown.clear()
        for name, topic in self.topics.items():
            asked = TopicMedia(topic.config.get("media", TopicMedia.ANY))
            there = self.disks.setdefault(name, Media.SSD)
            if not asked.is_home_on(there):
                self.disks[name] = Media.HDD if there is Media.SSD else Media.SSD
        alive = {broker.broker_id for broker in self.brokers.values() if not broker.is_fenced}
        for topic in self.topics.values():
            for number, replicas in list(topic.adding.items()):
                if alive & {*topic.replicas[number]}:
                    topic.replicas[number] = replicas
                    del topic.adding[number]

    def describe(self) -> ClusterDescription:
        """Return the brokers' description of the cluster."""
        alive = [broker.broker_id for broker in self.brokers.values() if not broker.is_fenced]
        return ClusterDescription(
            cluster_id="fake",
            controller_id=min(alive, default=BrokerId(-1)),
            controller_epoch=ControllerEpoch(1),
            brokers=tuple(sorted(self.brokers.values(), key=lambda broker: broker.broker_id)),
        )

    def describe_topics(self) -> dict[str, TopicDescription]:
        """Return all topics."""
        alive = {broker.broker_id for broker in self.brokers.values() if not broker.is_fenced}
        found = {}
        for number, (name, topic) in enumerate(sorted(self.topics.items())):
            partitions = []
            for index, old in enumerate(topic.replicas):
                new = topic.adding.get(index, old)
                both = (*new, *(broker for broker in old if broker not in new))
                in_sync = tuple(broker for broker in old if broker in alive)
                partitions.append(
                    PartitionDescription(
                        partition=index,
                        leader=in_sync[0] if in_sync else BrokerId(-1),
                        leader_epoch=LeaderEpoch(1),
                        leader_address="",
                        partition_epoch=PartitionEpoch(1),
                        replicas=both,
                        isr=in_sync,
                        elr=(),
                        offline_replicas=(),
                        adding_replicas=tuple(broker for broker in new if broker not in old),
                        removing_replicas=tuple(broker for broker in old if broker not in new),
                    )
                )
            config = {key: ConfigValue(value, "topic", "") for key, value in topic.config.items()}
            config.setdefault("min.insync.replicas", ConfigValue("2", "default", ""))
            found[name] = TopicDescription(
                name=name,
                topic_id=TopicId(number.to_bytes(16)),
                is_internal=name.startswith("__"),
                partitions=tuple(partitions),
                config=config,
            )
        return found


class _FakeAdmin:
    """The part of `Admin` that the operator uses."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        found = {**self._cluster.describe_topics(), **self._cluster.shown}
        return {name: found[name] for name in names}

    async def describe_logs(self, topic: str) -> list[LogDescription]:
        if not self._cluster.is_alive:
            raise ConnectionFailedError("no broker answers")
        away = {broker.broker_id for broker in self._cluster.brokers.values() if broker.is_fenced}
        zero = Offset(0)
        tier = TierDescription("", zero, 0, self._cluster.hdd_problem)
        return [
            LogDescription(
                *(topic, number, broker, zero, zero, zero, zero, 0, 1, "/log"),
                media=self._cluster.disks.get(topic),
                tier=tier if self._cluster.knows_tiers else None,
            )
            for number, replicas in enumerate(self._cluster.topics[topic].replicas)
            for broker in replicas
            if broker not in away
        ]

    async def drain_broker(self, broker: BrokerId) -> None:
        self._mark(broker, is_drained=True)

    async def undrain_broker(self, broker: BrokerId) -> None:
        self._mark(broker, is_drained=False)

    async def unregister_broker(self, broker: BrokerId) -> None:
        names = {known.broker_id: known.name for known in self._cluster.brokers.values()}
        if broker not in names:  # To ask for it changes nothing.
            raise BrokerIdNotRegisteredError(f"there is no broker {broker}")
        self._cluster.on_write("unregister")
        if not self._cluster.brokers[names[broker]].is_fenced:
            raise BrokerInUseError(f"broker {broker} is alive")
        del self._cluster.brokers[names[broker]]

    async def reassign_partitions(
        self, moves: Mapping[tuple[str, int], Sequence[BrokerId] | None]
    ) -> dict[tuple[str, int], MillraceError | None]:
        if moves:
            self._cluster.on_write("reassign")
        if problem := self._cluster.moves_problem:
            return {place: ReassignmentRefusedError(problem) for place in moves}
        for (name, number), replicas in moves.items():
            adding = self._cluster.topics[name].adding
            if replicas is None:
                del adding[number]
            else:
                adding[number] = tuple(replicas)
        return dict.fromkeys(moves)

    async def create_topic(
        self,
        name: str,
        partitions: int | None,
        replication_factor: int | None,
        config: Mapping[str, str],
    ) -> None:
        self._cluster.on_write("create")
        brokers = [
            broker.broker_id
            for broker in self._cluster.brokers.values()
            if not broker.is_drained
            and TopicMedia(config.get("media", TopicMedia.ANY)).is_among(broker.media)
        ]
        count = replication_factor or usual_replication_factor(len(brokers))
        self._cluster.topics[name] = FakeTopic(
            dict(config),
            [
                tuple(brokers[(number + index) % len(brokers)] for index in range(count))
                for number in range(partitions or 1)
            ],
        )

    async def alter_topic(
        self,
        name: str,
        *,
        set_config: Mapping[str, str] | None = None,
        unset_config: Sequence[str] = (),
        partitions: int | None = None,
    ) -> None:
        self._cluster.on_write("alter")
        if self._cluster.shows_late:
            self._cluster.shown.setdefault(name, self._cluster.describe_topics()[name])
        topic = self._cluster.topics[name]
        topic.config.update(set_config or {})
        for setting in unset_config:
            topic.config.pop(setting, None)
        while partitions is not None and len(topic.replicas) < partitions:
            topic.replicas.append(topic.replicas[0])

    async def delete_topic(self, name: str) -> None:
        if self._cluster.topics[name].config.get("deletion.protection") == "true":
            raise DeletionProtectedError("it is protected")
        self._cluster.on_write("delete")
        del self._cluster.topics[name]

    async def set_quota(
        self,
        name: str,
        *,
        principal: str | None,
        client_id: str | None,
        topic: str | None,
        namespace: str | None,
        produce_bytes_per_second: int | None,
        fetch_bytes_per_second: int | None,
        request_percent: int | None,
        per_broker: bool,
    ) -> None:
        asked = Quota(
            name=name,
            entity=QuotaEntity(
                principal=principal, client_id=client_id, topic=topic, namespace=namespace
            ),
            produce_bytes_per_second=produce_bytes_per_second,
            fetch_bytes_per_second=fetch_bytes_per_second,
            request_percent=request_percent,
            is_per_broker=per_broker,
        )
        quotas = self._cluster.quotas
        checked = quota_changes.checked_new(quotas, asked, QUOTAS_MAX)
        self._cluster.on_write("set quota")
        quotas[name] = checked

    async def delete_quota(self, name: str) -> None:
        quota_changes.found(self._cluster.quotas, name)
        self._cluster.on_write("delete quota")
        del self._cluster.quotas[name]

    async def list_quotas(self) -> list[QuotaDescription]:
        if not self._cluster.is_alive:
            raise ConnectionFailedError("no broker answers")
        return [described(quota) for _, quota in sorted(self._cluster.quotas.items())]

    async def describe_quotas(self, names: Iterable[str]) -> dict[str, QuotaDescription]:
        self._cluster.measurements += 1
        return {
            name: described(
                quota_changes.found(self._cluster.quotas, name), self._cluster.uses.get(name, ())
            )
            for name in names
        }

    def _mark(self, broker: BrokerId, *, is_drained: bool) -> None:
        self._cluster.on_write("drain")
        for name, known in self._cluster.brokers.items():
            if known.broker_id == broker:
                self._cluster.brokers[name] = replace(known, is_drained=is_drained)


class FakeBrokers(Brokers):
    """Maps each cluster to its fake."""

    def __init__(self) -> None:
        super().__init__()
        self.clusters: dict[tuple[str, str], FakeCluster] = {}

    def of(self, namespace: str, name: str) -> FakeCluster:
        """Return a cluster."""
        return self.clusters.setdefault((namespace, name), FakeCluster())

    def trust(self, cluster: Cluster, bundle: bytes) -> None:
        """See `Brokers`; nobody connects."""

    def show(self, cluster: Cluster, token: str) -> None:
        """See `Brokers`."""
        self.of(cluster.namespace, cluster.name).tokens.append(token)

    def admin(self, cluster: Cluster) -> Admin:
        """See `Brokers`."""
        return cast(Admin, _FakeAdmin(self.of(cluster.namespace, cluster.name)))

    async def find(self, cluster: Cluster) -> Found | None:
        """See `Brokers`."""
        fake = self.of(cluster.namespace, cluster.name)
        if not fake.is_alive:
            return None
        return Found(fake.describe(), fake.describe_topics())
