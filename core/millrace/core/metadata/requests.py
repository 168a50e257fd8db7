"""What is asked of the controller. Every answer is held back until what it says is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)
from millrace.core.media import Media
from millrace.core.metadata.model import BrokerLife, Reluctance


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create.

    Attributes:
        name: `name` or `namespace/name`.
        partitions: 0 is the cluster's default.
        replication_factor: 0 is the cluster's default.
        config: settings by Kafka's names.
    """

    name: str
    partitions: int = 0
    replication_factor: int = 0
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRef:
    """A topic by name, by id, or by both, which must then be the same one."""

    name: str = ""
    topic_id: TopicId | None = None

    def __str__(self) -> str:
        return self.name or f"with id {(self.topic_id or b'').hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """Changes of one topic, done all or not at all.

    Attributes:
        set_config: settings by Kafka's names.
        unset_config: names of settings that are to follow the default again.
        partitions: the new number, which can only be larger; 0 leaves it.
    """

    topic: TopicRef
    set_config: Mapping[str, str] = field(default_factory=dict)
    unset_config: Sequence[str] = ()
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    """Answer: for each topic, in order, a `Topic` or the `MillraceError` why not.

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
    """Answer: `__positions`, made if it was not there, or the `MillraceError` why not.

    Attributes:
        topic_id: a random id for it.
    """

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopics:
    """Answer: for each change, in order, the `Topic` as it is then or the `MillraceError`."""

    changes: Sequence[TopicChange]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics:
    """Answer: for each topic, in order, the `Topic` as it was or the `MillraceError`."""

    topics: Sequence[TopicRef]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmDeletions:
    """A broker has no data of these deleted topics any more. Answer: None."""

    broker_id: BrokerId
    topic_ids: Sequence[TopicId]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Answer: a `range` of producer ids that nobody else gets."""


class LogEnd(NamedTuple):
    """Where a replica's log ends, as it lies on disk.

    Attributes:
        leader_epoch: of the last batch; -1 when the log is empty.
        end_offset: the next offset.
    """

    topic_partition: TopicPartition
    leader_epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker's process has started.

    Answer: its `BrokerRegistration`, fenced until it has sent heartbeats, or the `MillraceError`:
    the directories are another's, or another process with its name is alive (P28).

    Attributes:
        name: the broker's stable name.
        host: where clients connect.
        incarnation_id: random for each start of the process; the same one again is a retry.
        directory_ids: of all its log directories.
        broker_id: what its log directories say that it is; None when they are all new.
        replica_host: where other brokers fetch from it.
        previous_broker_epoch: by the clean-shutdown marker, which all its log directories have: of
            the life that was shut down cleanly. None when one has no marker (P27).
        directory_epoch: the latest life that all its log directories remember, but for new ones;
            None when one of them does not say.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker lives. Answer: `HeartbeatAnswer`, or `StaleBrokerEpochError`: the process must stop.

    Attributes:
        metadata_epoch: of the image that the broker has applied.
        wants_shutdown: the broker is to be stopped in good order; to be said with every heartbeat
            until it may stop (P32).
        log_ends: what `AskLogEnds` asked for, in as many heartbeats as it takes (P31).
        offline: where the metadata counts on a replica of this broker that is damaged or gone; to
            be said until it does not any more (P63, P65).
        reluctance: why the broker would rather not lead; said as long as that is so.
        media: of its log directories that work, each once, in the order of `Media`.
        outside_address: where clients of its outside listener connect; empty: nowhere.
    """

    life: BrokerLife
    metadata_epoch: int
    wants_shutdown: bool = False
    log_ends: Sequence[LogEnd] = ()
    offline: Sequence[TopicPartition] = ()
    reluctance: Reluctance = Reluctance.NONE
    media: tuple[Media, ...] = ()
    outside_address: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a broker has to know of itself.

    Attributes:
        is_fenced: it is to serve nothing.
        may_stop: nobody needs it any more: flush, leave the marker, exit (P27, P32).
    """

    is_fenced: bool
    may_stop: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """A leader changes the in-sync replicas of a partition (P19).

    Attributes:
        leader: who asks, with its broker epoch.
        leader_epoch: in which it leads.
        partition_epoch: of the state that the change rests on.
        isr: all in-sync replicas from then on, the leader among them.
        is_recovering: whether the leader still recovers from an unclean election (P30); if so, it
            must be alone in sync. False ends the recovery.
        is_unflushed: whether something that is committed may not be flushed by all of `isr`, since
            the topic's durability was `replicated` before. False says that it is.
    """

    topic_id: TopicId
    partition: int
    leader: BrokerLife
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerLife, ...]
    is_recovering: bool = False
    is_unflushed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitions:
    """Answer: for each change, in order, the `PartitionState` then or the `MillraceError`."""

    changes: Sequence[AlterPartition]


class ReplicaRenewal(NamedTuple):
    """A damaged replica that is to begin anew.

    Attributes:
        partition_epoch: of the state that the request rests on, in which somebody else leads.
    """

    topic_partition: TopicPartition
    partition_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewReplicas:
    """A broker wants to begin damaged replicas of its own anew, each with an empty log (P65).

    Answer: for each, in order, the `PartitionState` then, in which nobody counts on the replica any
    more, or the `MillraceError`. Nothing may be emptied before.
    """

    replica: BrokerLife
    renewals: Sequence[ReplicaRenewal]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBroker:
    """An operator takes a broker out of service, or back (P32).

    Drained, it hands over what it leads, is elected nowhere and gets no replicas, until it is taken
    back; it goes on replicating. Answer: its `BrokerRegistration`, or the `MillraceError`.
    """

    broker_id: BrokerId
    is_drained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """An operator has the cluster forget a broker that is gone for good.

    Refused while it is alive or holds replicas. Its id is never given again, and whoever has its
    log directories cannot register with them any more. Answer: the `BrokerRegistration` that was,
    or the `MillraceError`.
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

    Answer: for each, in order, the `PartitionState` then or the `MillraceError`. How far they are
    is in the metadata: `PartitionState.adding`, and who of them is in sync.
    """

    reassignments: Sequence[Reassignment]


class ElectionKind(Enum):
    """Which leader is wanted."""

    PREFERRED = 1
    """The first of the replicas, where it is in sync."""
    UNCLEAN = 2
    """Any live replica, where nobody leads: records that only others have are lost (P30)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Answer: for each partition, in order, the `PartitionState` then or the `MillraceError`.

    A partition whose leader is as it is wanted stays as it is.
    """

    kind: ElectionKind
    partitions: Sequence[TopicPartition]


Request = (
    CreateTopics
    | CreatePositionsTopic
    | AlterTopics
    | DeleteTopics
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
)
