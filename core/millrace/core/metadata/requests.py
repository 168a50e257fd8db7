"""Requests to the controller. Every answer waits until the state that it reports is stored."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from millrace.core.ids import (
    NOTHING_WRITTEN,
    BrokerEpoch,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.media import Media
from millrace.core.metadata.broker_levels import BROKER_LEVEL
from millrace.core.metadata.model import (
    NOT_BY_KAFKA,
    NOWHERE,
    BrokerLife,
    KafkaAddresses,
    Reluctance,
    SideAddresses,
)
from millrace.core.quotas.quota import Quota
from millrace.core.quotas.shares import BucketShare, BucketUse


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create.

    Attributes:
        name: `name` or `namespace/name`.
        partitions: 0 is the cluster's default.
        replication_factor: 0 is the cluster's default.
        config: settings by Kafka's names.
        assignment: the replicas of each partition, the preferred leader first; empty: the
            controller chooses them.
    """

    name: str
    partitions: int = 0
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=dict)
    assignment: Sequence[Sequence[BrokerId]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRef:
    """A topic by name, by id, or by both, which must then name the same topic."""

    name: str = ""
    topic_id: TopicId | None = None

    def __str__(self) -> str:
        return self.name or f"with id {(self.topic_id or b'').hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """Changes of one topic, done all or not at all.

    Attributes:
        set_config: settings by Kafka's names.
        unset_config: names of settings that shall follow the default again.
        partitions: the new number, which can only be larger; 0 leaves it.
        assignment: the replicas of each added partition, the preferred leader first; empty: the
            controller chooses them.
    """

    topic: TopicRef
    set_config: Mapping[str, str] = field(default_factory=dict)
    unset_config: Sequence[str] = ()
    partitions: int = 0
    assignment: Sequence[Sequence[BrokerId]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    """Answer: for each topic, in order, a `Topic` or a `MillraceError`.

    Attributes:
        topics: what to create.
        topic_ids: a random id for each of them, which a repeated request names again: the core
            draws no random numbers.
        validate_only: check everything and change nothing.
    """

    topics: Sequence[NewTopic]
    topic_ids: Sequence[TopicId]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePositionsTopic:
    """Answer: `__positions`, created if necessary, or a `MillraceError`.

    Attributes:
        topic_id: a random id for it.
    """

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTransactionsTopic:
    """Answer: `__transactions`, created if necessary, or a `MillraceError`.

    Attributes:
        topic_id: a random id for it.
    """

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopics:
    """Answer: for each change, in order, the changed `Topic` or a `MillraceError`."""

    changes: Sequence[TopicChange]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics:
    """Delete topics; they can be brought back for `deleted_topic_retention_ms`.

    Answer: for each topic, in order, the deleted `Topic` or a `MillraceError`.

    Attributes:
        deleted_at: now, as people are told it.
    """

    topics: Sequence[TopicRef]
    deleted_at: WallMs
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeleteTopics:
    """Bring deleted topics back, with their records and settings.

    Answer: for each topic, in order, the `Topic` or a `MillraceError`.
    """

    topics: Sequence[TopicRef]


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeTopics:
    """Let deleted topics be gone for good, before their time.

    Answer: for each topic, in order, the `Topic` or a `MillraceError`.
    """

    topics: Sequence[TopicRef]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmDeletions:
    """A broker no longer has data of these topics, which are gone for good. Answer: None."""

    broker_id: BrokerId
    topic_ids: Sequence[TopicId]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Answer: a `range` of producer ids that are given only once."""


class LogEnd(NamedTuple):
    """Where a replica's log ends, as it lies on disk.

    Attributes:
        leader_epoch: of the last batch; -1 when the log is empty.
        end_offset: the next offset.
        committed_offset: offset of the partition's `committed_end` if the log has everything before
            it; -1 if it lacks some.
    """

    topic_partition: TopicPartition
    leader_epoch: LeaderEpoch
    end_offset: Offset
    committed_offset: Offset


class AcceptedCopy(NamedTuple):
    """An older copy of a broker's log directories, and what it is accepted in place of.

    Both lives are named, so that the same copy is not accepted again once the broker has run with
    it: what it has written since would be lost.

    Attributes:
        epoch: the latest life that the copy remembers.
        lost_epoch: of the newest directories, which are lost.
    """

    epoch: BrokerEpoch
    lost_epoch: BrokerEpoch

    def __str__(self) -> str:
        return f"{self.epoch}/{self.lost_epoch}"

    @property
    def as_setting(self) -> str:
        """The broker's setting that accepts this copy, as messages name it."""
        return f"{_ACCEPTING}'{self}'"


_ACCEPTING: Final = "node.accept_older_copy = "
_EPOCHS: Final = "([0-9]{1,18})/([0-9]{1,18})"


def parse_accepted_copy(text: str) -> AcceptedCopy:
    """Return the older copy that a text such as `17/20` names.

    Raises:
        ValueError: the text is not two broker epochs.
    """
    found = re.fullmatch(_EPOCHS, text)
    if found is None:
        raise ValueError(
            "must be the two broker epochs that the refusal of the older copy names, as 17/20"
        )
    return _copy(found)


def copy_to_accept(message: str) -> AcceptedCopy | None:
    """Return the older copy of which a message has `as_setting`; None: it names no copy."""
    found = re.search(f"{re.escape(_ACCEPTING)}'{_EPOCHS}'", message)
    return None if found is None else _copy(found)


def _copy(epochs: re.Match[str]) -> AcceptedCopy:
    return AcceptedCopy(BrokerEpoch(int(epochs[1])), BrokerEpoch(int(epochs[2])))


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker's process has started.

    Answer: its `BrokerRegistration`, fenced until it has sent heartbeats, or a `MillraceError`: the
    directories are another broker's, or another process with its name is alive (P28).

    Attributes:
        name: the broker's stable name.
        host: where clients connect.
        incarnation_id: random for each start of the process; a retry has the same one.
        directory_ids: of all its log directories.
        broker_id: the broker id in its log directories; None when all are new.
        replica_host: where other brokers fetch from it.
        previous_broker_epoch: of the life that was shut down cleanly, by the markers in all its log
            directories. None when one has no marker (P27).
        directory_epoch: the latest life that all its log directories remember, new ones excepted;
            None when one of them remembers no life.
        accepted_copy: a person accepts directories that are this older copy: they count as a lost
            disk.
        level: that its session speaks: see `broker_levels`.
    """

    name: str
    rack: str
    host: str
    port: int
    incarnation_id: str
    directory_ids: Sequence[str]
    broker_id: BrokerId | None
    replica_host: str = ""
    replica_port: int = 0
    previous_broker_epoch: BrokerEpoch | None = None
    directory_epoch: BrokerEpoch | None = None
    accepted_copy: AcceptedCopy | None = None
    level: int = BROKER_LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker lives. Answer: `HeartbeatAnswer`, or `StaleBrokerEpochError`: the process must stop.

    Attributes:
        metadata_epoch: of the image that the broker has applied.
        wants_shutdown: the broker wants a controlled shutdown; in every heartbeat until it may stop
            (P32).
        log_ends: the answer to `AskLogEnds`, in as many heartbeats as it takes (P31).
        offline: damaged or lost replicas of this broker that the metadata counts on; repeated until
            it does not (P63, P65).
        reluctance: why the broker is reluctant to lead; repeated while that lasts.
        media: of its working log directories, each once, in the order of `Media`.
        outside_address: where clients of its outside listener connect; empty: nowhere.
        drpc_addresses: where it is reached by DRPC.
        tls_addresses: where it is reached by TLS and gRPC.
        kafka_addresses: where it is reached by clients of Kafka.
        quota_uses: all that its clients use of quotas that all brokers share, at present.
        level: that its session speaks: see `broker_levels`.
    """

    life: BrokerLife
    metadata_epoch: int
    wants_shutdown: bool = False
    log_ends: Sequence[LogEnd] = ()
    offline: Sequence[TopicPartition] = ()
    reluctance: Reluctance = Reluctance.NONE
    media: tuple[Media, ...] = ()
    outside_address: str = ""
    drpc_addresses: SideAddresses = NOWHERE
    tls_addresses: SideAddresses = NOWHERE
    kafka_addresses: KafkaAddresses = NOT_BY_KAFKA
    quota_uses: Sequence[BucketUse] = ()
    level: int = BROKER_LEVEL


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The state of a broker, as the controller sees it.

    Attributes:
        is_fenced: it must serve nothing.
        may_stop: it is no longer needed: flush, leave the marker, exit (P27, P32).
        quota_shares: its share of each of `quota_uses`.
    """

    is_fenced: bool
    may_stop: bool
    quota_shares: Sequence[BucketShare] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """A leader changes the in-sync replicas of a partition (P19).

    Attributes:
        leader: the broker that asks, with its broker epoch.
        leader_epoch: in which it leads.
        partition_epoch: of the state that the change rests on.
        isr: all in-sync replicas from then on, the leader among them.
        is_recovering: whether the leader still recovers from an unclean election (P30); if so, it
            must be alone in sync. False ends the recovery.
        is_unflushed: whether some member of `isr` may not have flushed all committed records,
            because the topic's durability was `replicated` before. False: all have.
        committed_end: all records before it are committed, as far as the leader knows: replicas
            that are eligible then must have them (P26).
    """

    topic_id: TopicId
    partition: int
    leader: BrokerLife
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerLife, ...]
    is_recovering: bool = False
    is_unflushed: bool = False
    committed_end: EpochEnd = NOTHING_WRITTEN


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitions:
    """Answer: for each change, in order, the new `PartitionState` or a `MillraceError`."""

    changes: Sequence[AlterPartition]


class ReplicaRenewal(NamedTuple):
    """A damaged replica that should start over.

    Attributes:
        partition_epoch: of the state that the request rests on, in which another replica leads.
    """

    topic_partition: TopicPartition
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewReplicas:
    """A broker wants to start damaged replicas of its own over, each with an empty log (P65).

    Answer: for each, in order, the new `PartitionState`, which no longer counts on the replica, or
    a `MillraceError`. No log may be emptied before the answer.
    """

    replica: BrokerLife
    renewals: Sequence[ReplicaRenewal]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBroker:
    """An operator takes a broker out of service, or back (P32).

    A drained broker hands over its leaderships, is not elected and gets no replicas, until it is
    taken back; it goes on replicating. Answer: its `BrokerRegistration`, or a `MillraceError`.
    """

    broker_id: BrokerId
    is_drained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """An operator has the cluster forget a broker that is gone for good.

    Refused while it is alive or holds replicas. Its id is never given again, and a broker with its
    log directories cannot register any more. Answer: the former `BrokerRegistration`, or a
    `MillraceError`.
    """

    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """New replicas of a partition, the preferred leader first; None cancels what is under way."""

    topic_id: TopicId
    partition: int
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartitions:
    """Change the replicas of partitions (P33). The answer comes when this has begun, not ended.

    Answer: for each, in order, the new `PartitionState` or a `MillraceError`. The metadata shows
    the progress: `PartitionState.adding`, and which of them are in sync.
    """

    reassignments: Sequence[Reassignment]


class ElectionKind(Enum):
    """Which leader is wanted."""

    PREFERRED = 1
    """The first of the replicas, if it is in sync."""
    UNCLEAN = 2
    """Any live replica, if there is no leader: records that only others have are lost (P30)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Answer: for each partition, in order, the new `PartitionState` or a `MillraceError`.

    A partition that has the wanted leader stays as it is.
    """

    kind: ElectionKind
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuotas:
    """Make quotas, or replace those of the same names.

    Answer: for each, in order, the `Quota`, or a `MillraceError`.
    """

    quotas: Sequence[Quota]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteQuotas:
    """Answer: for each name, in order, the deleted `Quota`, or a `MillraceError`."""

    names: Sequence[str]
    validate_only: bool = False


Request = (
    CreateTopics
    | CreatePositionsTopic
    | CreateTransactionsTopic
    | AlterTopics
    | DeleteTopics
    | UndeleteTopics
    | PurgeTopics
    | ConfirmDeletions
    | AllocateProducerIds
    | RegisterBroker
    | Heartbeat
    | AlterPartitions
    | RenewReplicas
    | DrainBroker
    | UnregisterBroker
    | ReassignPartitions
    | ElectLeaders
    | SetQuotas
    | DeleteQuotas
)
