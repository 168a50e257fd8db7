"""What is asked of the controller. Every answer is held back until what it says is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.core.ids import BrokerId, TopicId


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
        topic_ids: a new random id for each of them; the core draws no random numbers.
        validate_only: check everything and change nothing.
    """

    topics: Sequence[NewTopic]
    topic_ids: Sequence[TopicId]
    validate_only: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker's process has started. Answer: its `BrokerRegistration`, or the `MillraceError`.

    Attributes:
        name: the broker's stable name.
        host: where clients connect.
        incarnation_id: random for each start of the process; the same one again is a retry.
        directory_ids: of all its log directories.
        broker_id: what its log directories say that it is; None when they are all new.
    """

    name: str
    rack: str
    host: str
    port: int
    incarnation_id: str
    directory_ids: Sequence[str]
    broker_id: BrokerId | None


Request = (
    CreateTopics
    | AlterTopics
    | DeleteTopics
    | ConfirmDeletions
    | AllocateProducerIds
    | RegisterBroker
)
