"""The controller: the one machine that changes the cluster's metadata.

It takes over (below), then answers requests from its draft and writes every object that a change
touches with compare-and-swap. One write of an object is in flight at a time; what changes meanwhile
goes into the next one. An answer is released when all objects that it rests on are stored as it
saw them, so nobody is told of a state that a crash could undo; nor does the image show one.

Taking over, so that a predecessor who does not know yet can do no harm (P34-P36):

1. read the ClusterState and write it again with a controller epoch of one more;
2. read every shard and write it again under that epoch. A predecessor's write that comes after
   fails by its version; one that came before is read and kept;
3. only then look at requests.

Once active, a write can be refused only because a successor did the same to us, or because the
answer to our own write was lost. The object is read to find out which: the same bytes mean that it
is stored; the old version, that it is not, and it is written again; anything else ends this
machine. The process goes on without it and may start another, with a higher epoch.

In this release a broker's liveness is its registration: taking over fences all brokers, and each
that registers again is unfenced. Pure: the shell performs the effects in their order.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeVar

from millrace.core.errors import (
    Appended,
    InvalidConfigError,
    MalformedRequestError,
    MillraceError,
    NotControllerError,
)
from millrace.core.ids import BrokerEpoch, BrokerId, ControllerEpoch, ProducerId, TopicId
from millrace.core.metadata import topic_changes
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.draft import Draft
from millrace.core.metadata.encoding import (
    decode_cluster,
    decode_shard,
    encode_cluster,
    encode_shard,
)
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    PRODUCER_ID_BLOCK,
    SHARD_KEYS,
    SHARDS,
    BrokerRegistration,
    ClusterState,
    StateShard,
    Topic,
    next_cluster,
    next_shard,
    shard_of,
)
from millrace.core.metadata.requests import (
    AllocateProducerIds,
    AlterTopics,
    ConfirmDeletions,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    RegisterBroker,
    Request,
    TopicChange,
    TopicRef,
)
from millrace.core.metadata.stored import StoredObject

_T = TypeVar("_T")

_SHARD_NUMBERS: Final = {key: number for number, key in enumerate(SHARD_KEYS)}


@dataclass(slots=True)
class ReadObject:
    """Effect: read the object and call `on_object_read`."""

    key: str


@dataclass(slots=True)
class WriteObject:
    """Effect: write the object if its stored version is one less than this one's (0: none).

    Then call `on_object_written`, or `on_write_refused` when it was refused or the outcome is
    unknown.
    """

    key: str
    stored: StoredObject


@dataclass(slots=True)
class PublishImage:
    """Effect: this is the confirmed metadata now. The first one says that requests are welcome."""

    image: MetadataImage


@dataclass(slots=True)
class Respond:
    """Effect: answer a request. What the result is stands with each request."""

    request_id: int
    result: object


@dataclass(slots=True)
class Resigned:
    """Effect, the last one: this machine is over."""

    reason: str


Effect = ReadObject | WriteObject | PublishImage | Respond | Resigned


class Phase(Enum):
    """Where in its life the machine is."""

    TAKING_OVER = 1
    ACTIVE = 2
    RESIGNED = 3


@dataclass(slots=True)
class _Answer:
    """An answer and how many objects must still be stored before it is released."""

    request_id: int
    result: object
    objects: int = 0


@dataclass(slots=True)
class _Write:
    """The writes of one object: the one in flight, and who waits for it or for the next."""

    in_flight: StoredObject | None = None
    confirms: Callable[[], MetadataImage] | None = None
    answers: list[_Answer] = field(default_factory=list)
    next_answers: list[_Answer] = field(default_factory=list)


class Controller:
    """See the module.

    Args:
        config: rules for topics.
        new_cluster_id: the id to give when the store is empty: a new cluster.
        known_cluster_id: the id that this process knows its cluster by, if it does.
    """

    def __init__(
        self, config: ClusterConfig, *, new_cluster_id: str, known_cluster_id: str | None
    ) -> None:
        self.phase = Phase.TAKING_OVER
        self._config = config
        self._new_cluster_id = new_cluster_id
        self._known_cluster_id = known_cluster_id
        self._controller_epoch = ControllerEpoch(0)
        self._draft = Draft(ClusterState(cluster_id=new_cluster_id))
        self._image = MetadataImage.empty(self._draft.cluster)  # Of confirmed writes only.
        self._writes = {key: _Write() for key in (CLUSTER_KEY, *SHARD_KEYS)}
        self._unclaimed = set(range(SHARDS))
        self._handlers: dict[type, Callable[..., tuple[object, list[str]]]] = {
            CreateTopics: self._create_topics,
            AlterTopics: self._alter_topics,
            DeleteTopics: self._delete_topics,
            ConfirmDeletions: self._confirm_deletions,
            AllocateProducerIds: self._allocate_producer_ids,
            RegisterBroker: self._register_broker,
        }

    def take_over(self) -> list[Effect]:
        """Start; the caller has just acquired the lease."""
        return [ReadObject(CLUSTER_KEY)]

    def handle(self, request_id: int, request: Request) -> list[Effect]:
        """Decide on a request.

        Args:
            request_id: names the request in its answer; no two open ones may be the same.
        """
        if self.phase is not Phase.ACTIVE:
            return [Respond(request_id, _not_controller("is not the controller now"))]
        if (problem := _size_problem(request, self._config)) is not None:
            return [Respond(request_id, MalformedRequestError(problem))]
        result, keys = self._handlers[type(request)](request)
        answer = _Answer(request_id, result)
        effects: list[Effect] = []
        for key in dict.fromkeys(keys):
            write = self._writes[key]
            if key in self._draft.changed:
                write.next_answers.append(answer)
                answer.objects += 1
            elif write.in_flight is not None:
                write.answers.append(answer)
                answer.objects += 1
        if not answer.objects:
            effects.append(Respond(request_id, result))
        return effects + self._write_changed()

    def on_object_read(self, key: str, stored: StoredObject | None) -> list[Effect]:
        """Go on with an object as it is stored; None when it is not.

        Raises:
            CorruptMetadataError: the object is damaged.
            InvalidConfigError: the store is of another cluster than this process knows.
        """
        if self.phase is Phase.RESIGNED:
            return []
        if self.phase is Phase.TAKING_OVER:
            if key == CLUSTER_KEY:
                return self._claim_cluster(stored)
            return self._claim_shard(_SHARD_NUMBERS[key], stored)
        write = self._writes[key]
        assert write.in_flight is not None
        if stored == write.in_flight:
            return self.on_object_written(key)
        if (0 if stored is None else stored.version) == write.in_flight.version - 1:
            return [WriteObject(key, write.in_flight)]
        return self.resign(f"{key!r} was written by another controller")

    def on_object_written(self, key: str) -> list[Effect]:
        """A write was confirmed."""
        if self.phase is Phase.RESIGNED:
            return []
        write = self._writes[key]
        assert write.confirms is not None
        self._image = write.confirms()
        answers = write.answers
        write.in_flight, write.confirms, write.answers = None, None, []
        if self.phase is Phase.TAKING_OVER:
            return self._go_on_taking_over(key)
        effects: list[Effect] = [PublishImage(self._image)]
        for answer in answers:
            answer.objects -= 1
            if not answer.objects:
                effects.append(Respond(answer.request_id, answer.result))
        return effects + self._write_changed()

    def on_write_refused(self, key: str) -> list[Effect]:
        """A write was refused, or nobody knows whether it was done: look."""
        return [] if self.phase is Phase.RESIGNED else [ReadObject(key)]

    def resign(self, reason: str) -> list[Effect]:
        """End this machine, as when the lease is lost. Waiting requests are told so."""
        if self.phase is Phase.RESIGNED:
            return []
        self.phase = Phase.RESIGNED
        waiting = {
            answer.request_id: None
            for write in self._writes.values()
            for answer in (*write.answers, *write.next_answers)
        }
        error = _not_controller("stopped being the controller meanwhile", appended=Appended.MAYBE)
        responses: list[Effect] = [Respond(request_id, error) for request_id in waiting]
        return [*responses, Resigned(reason)]

    def _claim_cluster(self, stored: StoredObject | None) -> list[Effect]:
        if stored is not None:
            cluster = decode_cluster(stored)
        elif self._known_cluster_id is None:
            cluster = ClusterState(cluster_id=self._new_cluster_id)
        else:
            raise InvalidConfigError(
                "the coordination store is empty, but the log directories belong to the cluster "
                f"{self._known_cluster_id}: the store was lost or its path changed. Restore it; "
                "nothing was changed"
            )
        if self._known_cluster_id not in (None, cluster.cluster_id):
            raise InvalidConfigError(
                f"the coordination store belongs to the cluster {cluster.cluster_id}, but the log "
                f"directories to {self._known_cluster_id}: correct the path of one of them"
            )
        self._controller_epoch = ControllerEpoch(cluster.controller_epoch + 1)
        self._image = MetadataImage.empty(cluster)
        self._draft = Draft(cluster)
        self._draft.cluster = replace(
            cluster,
            brokers={
                broker_id: replace(each, is_fenced=True)
                for broker_id, each in cluster.brokers.items()
            },
        )
        return self._write_changed()

    def _claim_shard(self, number: int, stored: StoredObject | None) -> list[Effect]:
        shard = StateShard(number=number) if stored is None else decode_shard(number, stored)
        if shard.controller_epoch > self._controller_epoch:
            return self.resign(f"{SHARD_KEYS[number]!r} belongs to a later controller")
        self._image = self._image.with_shard(shard)
        self._draft.take_shard(shard)
        self._draft.changed[SHARD_KEYS[number]] = None
        return self._write_changed()

    def _go_on_taking_over(self, written: str) -> list[Effect]:
        if written == CLUSTER_KEY:
            return [ReadObject(key) for key in SHARD_KEYS]
        self._unclaimed.discard(_SHARD_NUMBERS[written])
        if self._unclaimed:
            return []
        self.phase = Phase.ACTIVE
        return [PublishImage(self._image)]

    def _write_changed(self) -> list[Effect]:
        """Write every changed object that has no write in flight."""
        effects: list[Effect] = []
        for key in list(self._draft.changed):
            write = self._writes[key]
            if write.in_flight is None or self.phase is Phase.TAKING_OVER:
                del self._draft.changed[key]
                write.in_flight, write.confirms = self._next_version(key)
                write.answers, write.next_answers = write.next_answers, []
                effects.append(WriteObject(key, write.in_flight))
        return effects

    def _next_version(self, key: str) -> tuple[StoredObject, Callable[[], MetadataImage]]:
        """Return the object's next version, and what the image becomes once it is stored."""
        if key == CLUSTER_KEY:
            cluster = next_cluster(self._image.cluster, self._draft.cluster, self._controller_epoch)
            return encode_cluster(cluster), lambda: self._image.with_cluster(cluster)
        number = _SHARD_NUMBERS[key]
        content = self._draft.shard_content(number)
        shard = next_shard(self._image.shards[number], *content, self._controller_epoch)
        return encode_shard(shard), lambda: self._image.with_shard(shard)

    # Requests. Each returns its answer and the keys of the objects that the answer rests on.

    def _create_topics(self, request: CreateTopics) -> tuple[object, list[str]]:
        def create(asked: tuple[NewTopic, TopicId]) -> Topic:
            topic = topic_changes.created(self._draft, self._config, *asked)
            if not request.validate_only:
                self._draft.put(topic)
            return topic

        return self._change_each(create, zip(request.topics, request.topic_ids, strict=True))

    def _alter_topics(self, request: AlterTopics) -> tuple[object, list[str]]:
        def alter(asked: TopicChange) -> Topic:
            topic = topic_changes.altered(self._draft, self._config, asked)
            if not request.validate_only:
                self._draft.put(topic)
            return topic

        return self._change_each(alter, request.changes)

    def _delete_topics(self, request: DeleteTopics) -> tuple[object, list[str]]:
        def delete(asked: TopicRef) -> Topic:
            topic = topic_changes.found(self._draft, asked)
            if not request.validate_only:
                self._draft.delete(topic)
            return topic

        return self._change_each(delete, request.topics)

    def _change_each(
        self, change: Callable[[_T], Topic], asked: Iterable[_T]
    ) -> tuple[object, list[str]]:
        results: list[Topic | MillraceError] = []
        keys: list[str] = []
        for each in asked:
            try:
                topic = change(each)
            except MillraceError as error:
                results.append(error)
                keys += self._unstored()
            else:
                results.append(topic)
                keys.append(_key_of(topic))
        return results, keys

    def _confirm_deletions(self, request: ConfirmDeletions) -> tuple[object, list[str]]:
        for topic_id in request.topic_ids:
            self._draft.confirm_deletion(topic_id, request.broker_id)
        return None, [SHARD_KEYS[shard_of(topic_id)] for topic_id in request.topic_ids]

    def _allocate_producer_ids(self, _: AllocateProducerIds) -> tuple[object, list[str]]:
        cluster = self._draft.cluster
        next_block = ProducerId(cluster.next_producer_id + PRODUCER_ID_BLOCK)
        self._draft.cluster = replace(cluster, next_producer_id=next_block)
        return range(cluster.next_producer_id, next_block), [CLUSTER_KEY]

    def _register_broker(self, request: RegisterBroker) -> tuple[object, list[str]]:
        cluster = self._draft.cluster
        known = cluster.broker_named(request.name)
        if (problem := _registration_problem(cluster, known, request)) is not None:
            return InvalidConfigError(problem), self._unstored()
        broker_epoch = BrokerEpoch(cluster.last_broker_epoch + 1)
        if known is not None and known.incarnation_id == request.incarnation_id:
            broker_epoch = known.broker_epoch  # A retry, or it outlived a controller.
        registration = BrokerRegistration(
            broker_id=cluster.next_broker_id if known is None else known.broker_id,
            name=request.name,
            rack=request.rack,
            host=request.host,
            port=request.port,
            incarnation_id=request.incarnation_id,
            directory_ids=tuple(sorted(request.directory_ids)),
            broker_epoch=broker_epoch,
            is_fenced=False,
        )
        self._draft.cluster = replace(
            cluster,
            brokers={**cluster.brokers, registration.broker_id: registration},
            next_broker_id=BrokerId(max(cluster.next_broker_id, registration.broker_id + 1)),
            last_broker_epoch=max(cluster.last_broker_epoch, broker_epoch),
        )
        return registration, [CLUSTER_KEY, *self._lead_own_partitions(registration)]

    def _lead_own_partitions(self, registration: BrokerRegistration) -> list[str]:
        """Give a broker the partitions that it alone holds, in a new leader epoch for a new life.

        The epoch is new although the leader is the same broker: what it acknowledged in its
        earlier life without a flush may be gone, and readers must be able to tell.
        """
        keys = []
        for topic in self._draft.topics():
            partitions = tuple(
                each.successor(leader=registration.broker_id, isr=(registration.life,))
                if each.replicas == (registration.broker_id,)
                and each.leader_life != registration.life
                else each
                for each in topic.partitions
            )
            if partitions != topic.partitions:
                self._draft.put(replace(topic, partitions=partitions))
                keys.append(_key_of(topic))
        return keys

    def _unstored(self) -> list[str]:
        """Return all objects with changes that are not stored yet, on which a refusal may rest."""
        return [
            key
            for key, write in self._writes.items()
            if write.in_flight is not None or key in self._draft.changed
        ]


def _size_problem(request: Request, config: ClusterConfig) -> str | None:
    """Say why a request is too large to be looked at: each is decided without a break."""
    match request:
        case CreateTopics(topics=topics):
            count, partitions = len(topics), sum(each.partitions for each in topics)
        case AlterTopics(changes=changes):
            count, partitions = len(changes), sum(each.partitions for each in changes)
        case DeleteTopics(topics=refs):
            count, partitions = len(refs), 0
        case _:
            return None
    # One topic may be as large as it likes: what is wrong with it is said by its own answer.
    if count > config.request_topics_max or (
        count > 1 and partitions > config.topic_partitions_max
    ):
        return (
            f"{count} topics with {partitions} partitions are too many for one request, which may "
            f"have {config.request_topics_max} topics and {config.topic_partitions_max} partitions "
            "(the settings cluster.request_topics_max and cluster.topic_partitions_max): send "
            "several requests"
        )
    return None


def _registration_problem(
    cluster: ClusterState, known: BrokerRegistration | None, request: RegisterBroker
) -> str | None:
    """Say why a broker cannot be registered (P28)."""
    if request.broker_id is not None and (known is None or known.broker_id != request.broker_id):
        owner = cluster.brokers.get(request.broker_id)
        whose = "the cluster does not know" if owner is None else f"is named {owner.name!r}"
        return (
            f"broker {request.name!r}: its log directories belong to broker {request.broker_id}, "
            f"which {whose}: correct node.name, or give the broker its own log_dirs"
        )
    for other in cluster.brokers.values():
        shared = set(other.directory_ids) & set(request.directory_ids)
        if other is not known and shared:
            return (
                f"broker {request.name!r}: its log directory {min(shared)} is also one of broker "
                f"{other.name!r}: a copied directory cannot be used by two"
            )
    return None


def _key_of(topic: Topic) -> str:
    return SHARD_KEYS[shard_of(topic.topic_id)]


def _not_controller(what: str, *, appended: Appended = Appended.NO) -> NotControllerError:
    return NotControllerError(f"this broker {what}: try again", appended=appended)
