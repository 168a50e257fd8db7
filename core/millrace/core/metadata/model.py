"""Brokers, topics and partitions as immutable values, and the rules by which one follows another.

The state is kept in one `ClusterState` (epochs and broker registrations) and a fixed number of
`StateShard`s, each with the topics whose id falls to it. Each is one object of the coordination
store, so that the whole of a dead broker's elections costs one write for each shard (design D8).

Epochs never go back (P36):

- controller epoch: grows by one with each controller, by compare-and-swap on ClusterState (P35);
- broker epoch: grows with each start of any broker. In-sync entries carry it, and an entry of an
  earlier life of a broker counts for nothing (P37);
- leader epoch: grows iff the leader, its life, or the replica set changes;
- partition epoch: grows with every change of the partition.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from millrace.core.ids import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionEpoch,
    ProducerId,
    TopicId,
)
from millrace.core.metadata.topic_config import TopicConfig, parse_overrides
from millrace.core.topics import TopicName

SHARDS: Final = 32  # For ever: a topic's shard follows from its id and this number.
CLUSTER_KEY: Final = "cluster"
SHARD_KEYS: Final = tuple(f"shards/{number:02}" for number in range(SHARDS))

FIRST_BROKER_ID: Final = BrokerId(0)
PRODUCER_ID_BLOCK: Final = 1000


class BrokerLife(NamedTuple):
    """One life of a broker's process, from its registration on."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Who holds and who leads one partition."""

    replicas: tuple[BrokerId, ...]  # The preferred leader first.
    leader: BrokerId  # In the ISR, or NO_BROKER.
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerLife, ...]  # In-sync replicas.
    elr: tuple[BrokerLife, ...] = ()  # Eligible leader replicas (KIP-966); none is in the ISR.
    is_recovering: bool = False  # After an unclean election (KIP-704).

    def __post_init__(self) -> None:
        replicas = set(self.replicas)
        in_sync = {life.broker_id for life in self.isr}
        eligible = {life.broker_id for life in self.elr}
        holds = (
            0 < len(replicas) == len(self.replicas)
            and len(in_sync) == len(self.isr)
            and len(eligible) == len(self.elr)
            and in_sync.isdisjoint(eligible)
            and in_sync | eligible <= replicas
            and (self.leader == NO_BROKER or self.leader in in_sync)
            and self.leader_epoch >= 0
            and self.partition_epoch >= 0
        )
        if not holds:
            raise ValueError(f"no partition can be so: {self}")

    @property
    def leader_life(self) -> BrokerLife | None:
        """The leader with its broker epoch; None when there is no leader."""
        return next((life for life in self.isr if life.broker_id == self.leader), None)

    def successor(
        self,
        *,
        leader: BrokerId,
        isr: tuple[BrokerLife, ...],
        elr: tuple[BrokerLife, ...] = (),
        replicas: tuple[BrokerId, ...] | None = None,
    ) -> "PartitionState":
        """Return the next state. This alone counts the epochs."""
        replicas = self.replicas if replicas is None else replicas
        life = next((each for each in isr if each.broker_id == leader), None)
        moves = life != self.leader_life or set(replicas) != set(self.replicas)
        return PartitionState(
            replicas=replicas,
            leader=leader,
            leader_epoch=LeaderEpoch(self.leader_epoch + moves),
            partition_epoch=PartitionEpoch(self.partition_epoch + 1),
            isr=isr,
            elr=elr,
        )


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic."""

    topic_id: TopicId
    name: TopicName
    partitions: tuple[PartitionState, ...]  # By number, none missing.
    # What somebody set, by Kafka's names in canonical text; everything else follows the defaults.
    overrides: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def config(self) -> TopicConfig:
        """Every setting of the topic."""
        return parse_overrides(self.overrides)

    @property
    def replication_factor(self) -> int:
        """Replicas of each partition."""
        return len(self.partitions[0].replicas)

    def replica_holders(self) -> Iterator[BrokerId]:
        """Yield the broker of each replica of each partition."""
        for partition in self.partitions:
            yield from partition.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """One broker, by its latest start."""

    broker_id: BrokerId
    name: str  # Stable; one id for each name.
    rack: str
    host: str  # Where clients connect.
    port: int
    incarnation_id: str  # Random for each start of the process; tells a retry from a new start.
    directory_ids: tuple[str, ...]  # Of its log directories, ascending; no other broker's (P28).
    broker_epoch: BrokerEpoch
    is_fenced: bool  # Gets no partitions and leads none that it does not lead already.

    @property
    def life(self) -> BrokerLife:
        """The broker with its current epoch."""
        return BrokerLife(self.broker_id, self.broker_epoch)

    @property
    def address(self) -> str:
        """`host:port` of the client listener, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Epochs and broker registrations. Version 0 is not stored yet."""

    cluster_id: str
    version: int = 0
    controller_epoch: ControllerEpoch = field(default=ControllerEpoch(0))
    brokers: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    next_broker_id: BrokerId = FIRST_BROKER_ID
    last_broker_epoch: BrokerEpoch = field(default=BrokerEpoch(0))
    next_producer_id: ProducerId = field(default=ProducerId(0))

    def broker_named(self, name: str) -> BrokerRegistration | None:
        """Return the registration of a name."""
        return next((each for each in self.brokers.values() if each.name == name), None)

    def usable_brokers(self) -> list[BrokerRegistration]:
        """Return the brokers that can be given partitions, by id."""
        return [each for _, each in sorted(self.brokers.items()) if not each.is_fenced]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShard:
    """The topics of one shard. Version 0 is not stored yet."""

    number: int
    version: int = 0
    controller_epoch: ControllerEpoch = field(default=ControllerEpoch(0))
    topics: Mapping[TopicId, Topic] = field(default_factory=dict)
    # Deleted topics with the brokers that have yet to confirm that they deleted the data. A broker
    # deletes data of topics that are listed here, never of topics that it does not find (P39).
    deletions: Mapping[TopicId, frozenset[BrokerId]] = field(default_factory=dict)


def shard_of(topic_id: TopicId) -> int:
    """Return the number of the shard that holds a topic. Ids are random, so any bits will do."""
    return int.from_bytes(topic_id[:4], "big") % SHARDS


def next_cluster(
    old: ClusterState, new: ClusterState, controller_epoch: ControllerEpoch
) -> ClusterState:
    """Return `new` as the version that follows `old`, which is the only way to make one."""
    assert controller_epoch >= old.controller_epoch
    assert new.cluster_id == old.cluster_id
    assert new.next_broker_id >= old.next_broker_id
    assert new.last_broker_epoch >= old.last_broker_epoch
    assert new.next_producer_id >= old.next_producer_id
    for broker_id, registration in old.brokers.items():
        successor = new.brokers[broker_id]
        assert successor.name == registration.name
        assert successor.broker_epoch >= registration.broker_epoch
    return replace(new, version=old.version + 1, controller_epoch=controller_epoch)


def next_shard(
    old: StateShard,
    topics: Mapping[TopicId, Topic],
    deletions: Mapping[TopicId, frozenset[BrokerId]],
    controller_epoch: ControllerEpoch,
) -> StateShard:
    """Return the version that follows `old`, which is the only way to make one.

    Several changes may have become one write, so epochs may have grown by more than one (P36).
    """
    assert controller_epoch >= old.controller_epoch
    for topic_id, topic in topics.items():
        before = old.topics.get(topic_id)
        if before is not None and before is not topic:
            _assert_follows(before, topic)
    # A topic does not vanish: it is deleted, and its id never comes back.
    assert all(topic_id in topics or topic_id in deletions for topic_id in old.topics)
    assert not topics.keys() & deletions.keys()
    return StateShard(
        number=old.number,
        version=old.version + 1,
        controller_epoch=controller_epoch,
        topics=topics,
        deletions=deletions,
    )


def _assert_follows(old: Topic, new: Topic) -> None:
    assert (new.topic_id, new.name) == (old.topic_id, old.name)
    assert len(new.partitions) >= len(old.partitions)
    for before, after in zip(old.partitions, new.partitions, strict=False):
        if after is not before:
            moved = (after.leader_life, set(after.replicas)) != (
                before.leader_life,
                set(before.replicas),
            )
            assert after.partition_epoch > before.partition_epoch or after == before
            assert after.leader_epoch >= before.leader_epoch + moved
