"""Brokers, topics and partitions as immutable values, and the rules by which one follows another.

The state is kept in one `ClusterState` (epochs, broker registrations, quotas) and a fixed number of
`StateShard`s, each with the topics whose id falls to it. Each is one object of the coordination
store, so that all elections after a broker has died cost one write for each shard
(docs/design/metadata.md).

Epochs never go back (P36):

- controller epoch: grows by one with each controller, by compare-and-swap on ClusterState (P35);
- broker epoch: grows with each start of any broker. In-sync entries carry it, and an entry of an
  earlier life of a broker counts for nothing (P37);
- leader epoch: grows iff the leader, its life, or the replica set changes; a replica that starts
  over with an empty log counts as another one;
- partition epoch: grows with every change of the partition.

Sources: KIP-966 for eligible leader replicas, KIP-704 for the recovery state, KIP-455 for
reassignments, KIP-903 for broker epochs in the ISR.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple, overload

from millrace.core.addresses import host_port
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NOTHING_WRITTEN,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EpochEnd,
    LeaderEpoch,
    PartitionEpoch,
    ProducerId,
    TopicId,
    WallMs,
)
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.topic_config import TopicConfig, parse_overrides
from millrace.core.quotas.quota import Quota
from millrace.core.topics import TopicName

SHARDS: Final = 32  # For ever: a topic's shard follows from its id and this number.
CLUSTER_KEY: Final = "cluster"
SHARD_KEYS: Final = tuple(f"shards/{number:02}" for number in range(SHARDS))

FIRST_BROKER_ID: Final = BrokerId(0)
PRODUCER_ID_BLOCK: Final = 1000

_end_offset: Final = attrgetter("end_offset")


class BrokerLife(NamedTuple):
    """One life of a broker's process, from its registration on."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Replicas and leader of one partition."""

    # The preferred leader first. During a reassignment the new replicas in the requested order,
    # then those that will be removed.
    replicas: tuple[BrokerId, ...]
    leader: BrokerId  # In the ISR, or NO_BROKER.
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerLife, ...]  # In-sync replicas.
    elr: tuple[BrokerLife, ...] = ()  # Eligible leader replicas (KIP-966); none is in the ISR.
    # What each of the ELR must have: all records before it were committed, by a leader's report
    # since too few are in sync. More may have been committed; see `committed_end` of `elections`.
    committed_end: EpochEnd = NOTHING_WRITTEN
    # Were in ISR or ELR when these became too few, but may have lost records since (P26).
    last_known_elr: tuple[BrokerId, ...] = ()
    last_known_leader: BrokerId = NO_BROKER  # The last leader; NO_BROKER while there is one.
    # The leader was elected although it may lack committed records, and has not reported the end of
    # its recovery yet (KIP-704, P30).
    is_recovering: bool = False
    # Of the last such leader, or -1. A follower may cut its log below its own high watermark only
    # on the way to this epoch or a later one (P5).
    unclean_epoch: LeaderEpoch = NO_LEADER_EPOCH
    # The topic's durability was `replicated` before, and its leader has not reported yet that all
    # committed records are flushed. Until then an unclean restart may lose records.
    is_unflushed: bool = False
    adding: tuple[BrokerId, ...] = ()  # A reassignment under way adds these replicas (P33),
    removing: tuple[BrokerId, ...] = ()  # and in the end removes these.

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
            and (self.elr or self.committed_end == NOTHING_WRITTEN)
            and (self.leader == NO_BROKER or self.leader in in_sync)
            and self.leader_epoch >= 0
            and self.partition_epoch >= 0
            and NO_LEADER_EPOCH <= self.unclean_epoch <= self.leader_epoch
            and self._is_history_sound(replicas, in_sync | eligible)
            and self._is_reassignment_sound(replicas)
        )
        if not holds:
            raise ValueError(f"no partition can be so: {self}")

    def _is_history_sound(self, replicas: set[BrokerId], safe: set[BrokerId]) -> bool:
        if self.last_known_leader != NO_BROKER and (
            self.leader != NO_BROKER or self.last_known_leader not in replicas
        ):
            return False
        known = set(self.last_known_elr)
        return len(known) == len(self.last_known_elr) and known <= replicas - safe

    def _is_reassignment_sound(self, replicas: set[BrokerId]) -> bool:
        moving = {*self.adding, *self.removing}
        return (
            len(moving) == len(self.adding) + len(self.removing)
            and moving <= replicas
            and replicas > {*self.removing}
            and replicas > {*self.adding}
        )

    @property
    def leader_life(self) -> BrokerLife | None:
        """The leader with its broker epoch; None when there is no leader."""
        return next((life for life in self.isr if life.broker_id == self.leader), None)

    @property
    def is_counted_on(self) -> bool:
        """Whether the ELR must have some records."""
        return self.committed_end.end_offset > 0

    @property
    def is_unproven(self) -> bool:
        """Whether no replica can lead before logs are known: of eligible ones, or of all (P31)."""
        if self.leader != NO_BROKER or self.isr:
            return False
        return not self.elr or self.is_counted_on

    @property
    def is_reassigning(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas once the reassignment is done, if there is one; else the replicas."""
        if not self.removing:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def missing(self) -> tuple[BrokerId, ...]:
        """Replicas that should be in sync and are not; added and removed ones do not count."""
        present = {life.broker_id for life in self.isr}.union(self.adding, self.removing)
        return tuple(replica for replica in self.replicas if replica not in present)

    @property
    def replication_factor(self) -> int:
        """How many replicas count for min ISR: during a reassignment the smaller number.

        Otherwise a partition that gets more replicas could not be written to until it had them.
        """
        if not self.adding and not self.removing:  # As nearly always.
            return len(self.replicas)
        return len(self.replicas) - max(len(self.adding), len(self.removing))

    def successor(
        self,
        *,
        leader: BrokerId,
        isr: tuple[BrokerLife, ...],
        elr: tuple[BrokerLife, ...] = (),
        last_known_elr: tuple[BrokerId, ...] = (),
        committed_end: EpochEnd = NOTHING_WRITTEN,
        replicas: tuple[BrokerId, ...] | None = None,
        adding: tuple[BrokerId, ...] | None = None,
        removing: tuple[BrokerId, ...] | None = None,
        is_recovering: bool | None = None,
        is_unflushed: bool | None = None,
        is_unclean: bool = False,
        is_renewed: bool = False,
    ) -> "PartitionState":
        """Return the next state. This alone counts the epochs.

        Args:
            committed_end: by a leader's report. The later of the two ends counts, as records stay
                committed; without an ELR there is none.
            replicas, adding, removing, is_recovering, is_unflushed: None: unchanged.
            is_unclean: the leader was elected although it may lack committed records (P30).
            is_renewed: a replica starts over: its earlier reports do not count (P33).
        """
        replicas = self.replicas if replicas is None else replicas
        life = next((broker for broker in isr if broker.broker_id == leader), None)
        moves = is_renewed or life != self.leader_life or set(replicas) != set(self.replicas)
        leader_epoch = LeaderEpoch(self.leader_epoch + moves)
        led_last = self.last_known_leader if self.leader == NO_BROKER else self.leader
        return PartitionState(
            replicas=replicas,
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=PartitionEpoch(self.partition_epoch + 1),
            isr=isr,
            elr=elr,
            last_known_elr=last_known_elr,
            committed_end=max(self.committed_end, committed_end, key=_end_offset)
            if elr
            else NOTHING_WRITTEN,
            last_known_leader=led_last
            if leader == NO_BROKER and led_last in replicas
            else NO_BROKER,
            is_recovering=is_unclean
            or (self.is_recovering if is_recovering is None else is_recovering),
            unclean_epoch=leader_epoch if is_unclean else self.unclean_epoch,
            is_unflushed=self.is_unflushed if is_unflushed is None else is_unflushed,
            adding=self.adding if adding is None else adding,
            removing=self.removing if removing is None else removing,
        )


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic."""

    topic_id: TopicId
    name: TopicName
    partitions: tuple[PartitionState, ...]  # By number, none missing.
    # Settings of the user, by Kafka's names in canonical text; all others follow the defaults.
    overrides: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def config(self) -> TopicConfig:
        """Every setting of the topic."""
        return parse_overrides(self.overrides)

    @property
    def replication_factor(self) -> int:
        """Replicas of each partition; of the first, if the partitions differ."""
        return self.partitions[0].replication_factor

    @property
    def target_replication_factor(self) -> int:
        """Replicas of each partition once moves are done; the most, if the partitions differ."""
        return max(len(partition.target) for partition in self.partitions)

    def replica_holders(self) -> Iterator[BrokerId]:
        """Yield the broker of each replica of each partition."""
        for partition in self.partitions:
            yield from partition.replicas


@dataclass(frozen=True, kw_only=True)
class DeletedTopic:
    """A deleted topic that can be brought back: brokers keep its files, and open none of them.

    No partition has a leader or an ISR: see `core/controller/partitions/closing.py`.

    Attributes:
        topic: as it was.
        deleted_at: by the time of day of the controller, which may have been wrong.
        kept_ms: how long controllers have kept it since, as far as they have stored that.
    """

    topic: Topic
    deleted_at: WallMs
    kept_ms: int = 0


class Listener(StrEnum):
    """The listeners of a broker: the listener of a call decides which addresses it gets."""

    CLIENTS = "clients"
    OUTSIDE = "outside"
    BROKERS = "brokers"
    CLIENTS_TLS = "clients_tls"
    OUTSIDE_TLS = "outside_tls"

    @property
    def has_tls(self) -> bool:
        """Whether its callers speak TLS, and are told where others do."""
        return self in (Listener.CLIENTS_TLS, Listener.OUTSIDE_TLS)

    @property
    def is_outside(self) -> bool:
        """Whether its callers are outside of the brokers' network."""
        return self in (Listener.OUTSIDE, Listener.OUTSIDE_TLS)

    @property
    def with_tls(self) -> "Listener":
        """The listener of the same clients with TLS."""
        return Listener.OUTSIDE_TLS if self.is_outside else Listener.CLIENTS_TLS


class SideAddresses(NamedTuple):
    """Where a broker is reached in one way, `host:port` for each side; empty: nowhere."""

    clients: str = ""
    outside: str = ""
    brokers: str = ""

    def at(self, listener: Listener) -> str:
        """Return the address for the callers of a side."""
        if listener is Listener.BROKERS:
            return self.brokers
        return self.outside if listener.is_outside else self.clients


NOWHERE: Final = SideAddresses()


class KafkaAddresses(NamedTuple):
    """Where clients of Kafka reach a broker, `host:port`, by `Listener`; empty: nowhere."""

    clients: str = ""
    outside: str = ""
    clients_tls: str = ""
    outside_tls: str = ""

    def at(self, listener: Listener) -> str:
        """Return the address for the callers of a listener for clients."""
        addresses: dict[str, str] = self._asdict()
        return addresses[listener.value]


NOT_BY_KAFKA: Final = KafkaAddresses()


class Reluctance(StrEnum):
    """Why a living broker is reluctant to lead (F22, F33, F53), in words for people."""

    NONE = ""
    SLOW_DISK = "slow disk"
    FULL_DISK = "full disk"
    NEW_ADDRESS = "new address"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """One broker, by its latest start."""

    broker_id: BrokerId
    name: str  # Stable; one id for each name.
    rack: str  # Kafka's name for its zone.
    host: str  # Where clients connect.
    port: int
    incarnation_id: str  # Random for each start of the process; tells a retry from a new start.
    directory_ids: tuple[str, ...]  # Of its log directories, ascending; no other broker's (P28).
    broker_epoch: BrokerEpoch
    is_fenced: bool  # No heartbeats, or not caught up: leads nothing and is in no ISR (P29).
    replica_host: str = ""  # Where other brokers fetch from it.
    replica_port: int = 0
    # Shuts down, or was drained: leads only what no other can, joins no ISR and gets no replicas
    # (P32).
    is_draining: bool = False
    is_drained: bool = False  # By an operator; then `is_draining` outlasts restarts.
    # By its own report, in this life: leads only what no other can; nothing else changes.
    reluctance: Reluctance = Reluctance.NONE
    # Of its working log directories, by its own report; an earlier release reports none.
    media: tuple[Media, ...] = ()
    # `host:port` for clients of the outside listener, by its own report;
    # empty: none. It can change while the broker lives, as others assign its public address.
    outside_address: str = ""
    # Likewise; of this life alone, since another process may have the ports of an earlier one.
    drpc_addresses: SideAddresses = NOWHERE
    # Likewise, by TLS and gRPC (G4). Where that is the broker's only address, DRPC has TLS, too.
    tls_addresses: SideAddresses = NOWHERE
    # Likewise, for clients of Kafka; each side's listener has one namespace.
    kafka_addresses: KafkaAddresses = NOT_BY_KAFKA
    # The latest life that all its log directories are known to remember; 0: unknown.
    directory_epoch: BrokerEpoch = field(default=BrokerEpoch(0))
    # Of the protocol between brokers, by its session: see `broker_levels`. A controller of an
    # earlier release keeps none; the next heartbeat says it again.
    level: int = 1

    @property
    def is_there(self) -> bool:
        """Whether it can be in sync now: it lives, and does not stop."""
        return not self.is_fenced and not self.is_draining

    @property
    def is_willing(self) -> bool:
        """Whether neither the broker nor an operator objects to its leading."""
        return not self.is_draining and not self.reluctance

    @property
    def life(self) -> BrokerLife:
        """The broker with its current epoch."""
        return BrokerLife(self.broker_id, self.broker_epoch)

    @property
    def address(self) -> str:
        """`host:port` of the client listener, an IPv6 host in brackets."""
        return host_port(self.host, self.port)

    def address_at(self, listener: Listener) -> str:
        """Return where clients of a listener connect; empty: they cannot."""
        own = self._own_address(listener)
        by_tls = self.tls_addresses.at(listener)
        if listener.has_tls:
            return by_tls
        return "" if by_tls and by_tls == own else own

    def drpc_address_at(self, listener: Listener) -> str:
        """Return where the callers of a listener connect by DRPC; empty: they cannot."""
        by_tls = self.tls_addresses.at(listener)
        # Beside plain text there is TLS by gRPC alone.
        is_tls_alone = bool(by_tls) and by_tls == self._own_address(listener)
        return self.drpc_addresses.at(listener) if is_tls_alone is listener.has_tls else ""

    def _own_address(self, listener: Listener) -> str:
        return self.outside_address if listener.is_outside else self.address

    @property
    def replica_address(self) -> str:
        """`host:port` of the replica listener; empty when it is not known."""
        return host_port(self.replica_host, self.replica_port) if self.replica_port else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Epochs, broker registrations and quotas. Version 0 is not stored yet."""

    cluster_id: str
    version: int = 0
    controller_epoch: ControllerEpoch = field(default=ControllerEpoch(0))
    brokers: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    next_broker_id: BrokerId = FIRST_BROKER_ID
    last_broker_epoch: BrokerEpoch = field(default=BrokerEpoch(0))
    next_producer_id: ProducerId = field(default=ProducerId(0))
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # By name.
    # The first brokers have registered (`cluster.initial_brokers`). It stays true, also when the
    # cluster is to grow (P77).
    has_begun: bool = False

    def broker_named(self, name: str) -> BrokerRegistration | None:
        """Return the registration of a name."""
        return next((broker for broker in self.brokers.values() if broker.name == name), None)

    def is_registered(self, life: BrokerLife) -> bool:
        """Whether this is the latest life of a broker that is still registered."""
        broker = self.brokers.get(life.broker_id)
        return broker is not None and broker.life == life

    def members(self, media: TopicMedia = TopicMedia.ANY) -> list[BrokerRegistration]:
        """Return the brokers that are to hold replicas of a topic with this media, by id (P77).

        A broker that is away or restarts is among them: it will be back, and replicas stay where
        they are put. A drained one is not.
        """
        return [
            broker
            for _, broker in sorted(self.brokers.items())
            if not broker.is_drained and media.is_among(broker.media)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShard:
    """The topics of one shard. Version 0 is not stored yet."""

    number: int
    version: int = 0
    controller_epoch: ControllerEpoch = field(default=ControllerEpoch(0))
    topics: Mapping[TopicId, Topic] = field(default_factory=dict)
    deleted: Mapping[TopicId, DeletedTopic] = field(default_factory=dict)  # Can be brought back.
    # Topics that are gone for good, with the brokers that have yet to confirm that they deleted the
    # data. A broker deletes data of topics that are listed here, never of topics that it does not
    # find (P39).
    deletions: Mapping[TopicId, frozenset[BrokerId]] = field(default_factory=dict)


def shard_of(topic_id: TopicId) -> int:
    """Return the number of the shard that holds a topic. Ids are random, so any bits will do."""
    return int.from_bytes(topic_id[:4], "big") % SHARDS


def next_cluster(
    old: ClusterState, new: ClusterState, controller_epoch: ControllerEpoch
) -> ClusterState:
    """Return `new` as the version that follows `old`, which is the only way to make one."""
    after = replace(new, version=old.version + 1, controller_epoch=controller_epoch)
    assert follows(old, after)
    return after


def next_shard(
    old: StateShard,
    topics: Mapping[TopicId, Topic],
    deleted: Mapping[TopicId, DeletedTopic],
    deletions: Mapping[TopicId, frozenset[BrokerId]],
    controller_epoch: ControllerEpoch,
) -> StateShard:
    """Return the version that follows `old`, which is the only way to make one."""
    after = StateShard(
        number=old.number,
        version=old.version + 1,
        controller_epoch=controller_epoch,
        topics=topics,
        deleted=deleted,
        deletions=deletions,
    )
    # A topic does not vanish: it is deleted. Once it is gone for good its id never comes back.
    known = topics.keys() | deleted.keys() | deletions.keys()
    assert old.topics.keys() | old.deleted.keys() <= known
    assert len(known) == len(topics) + len(deleted) + len(deletions)
    assert follows(old, after)
    return after


@overload
def follows(old: ClusterState, new: ClusterState) -> bool: ...
@overload
def follows(old: StateShard, new: StateShard) -> bool: ...
def follows(old: ClusterState | StateShard, new: ClusterState | StateShard) -> bool:
    """Whether an object can be a later version of another: nothing in it goes back (P36).

    One write may contain several changes, so epochs may have grown by more than one; and a reader
    may have missed versions, so topics may be gone.
    """
    if new.version <= old.version or new.controller_epoch < old.controller_epoch:
        return False
    if isinstance(old, ClusterState):
        assert isinstance(new, ClusterState)
        return _cluster_follows(old, new)
    assert isinstance(new, StateShard)
    return all(
        topic is (before := _topic_in(old, topic.topic_id) or topic)
        or _topic_follows(before, topic)
        for topic in (
            *new.topics.values(),
            *(deleted_topic.topic for deleted_topic in new.deleted.values()),
        )
    )


def _topic_in(shard: StateShard, topic_id: TopicId) -> Topic | None:
    """Return a topic of a shard, also if it is deleted and can be brought back."""
    deleted = shard.deleted.get(topic_id)
    return shard.topics.get(topic_id) if deleted is None else deleted.topic


def _cluster_follows(old: ClusterState, new: ClusterState) -> bool:
    return (
        new.cluster_id == old.cluster_id
        and new.next_broker_id >= old.next_broker_id
        and new.last_broker_epoch >= old.last_broker_epoch
        and new.next_producer_id >= old.next_producer_id
        # A missing broker was unregistered, and its id is never given again.
        and all(
            broker.broker_id >= old.next_broker_id
            if (before := old.brokers.get(broker_id)) is None
            else broker.name == before.name and broker.broker_epoch >= before.broker_epoch
            for broker_id, broker in new.brokers.items()
        )
    )


def _topic_follows(old: Topic, new: Topic) -> bool:
    return (
        (new.topic_id, new.name) == (old.topic_id, old.name)
        and len(new.partitions) >= len(old.partitions)
        and all(
            after is before or _partition_follows(before, after)
            for before, after in zip(old.partitions, new.partitions, strict=False)
        )
    )


def _partition_follows(old: PartitionState, new: PartitionState) -> bool:
    if new.partition_epoch <= old.partition_epoch:
        return new == old
    moved = (new.leader_life, {*new.replicas}) != (old.leader_life, {*old.replicas})
    return new.leader_epoch >= old.leader_epoch + moved
