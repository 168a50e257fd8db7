"""CreateTopics, DeleteTopics, CreatePartitions and DescribeTopicPartitions.

Each is one of Millrace's own calls, with its rules and its line in the audit log (`own_calls`).

Whatever Kafka's own controller refuses and ours would not see is refused here: a name that is there
twice, a number that means nothing, a number beside an assignment by hand.

Source: Kafka's `ReplicationControlManager` and `ControllerApis`; KIP-464 for the defaults, KIP-516
for topic ids, KIP-525 for the settings in the answer, KIP-966 for DescribeTopicPartitions.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafka.protocol.admin import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeTopicPartitionsResponse,
)

from millrace.broker.kafka.administration.topic_settings import ShownSetting, shown, to_ours
from millrace.broker.kafka.names import topic_id_of, uuid_of
from millrace.broker.kafka.operations import allowed_operations, as_bits
from millrace.broker.kafka.own_calls import answers_of_each, refusal_in
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Encoded, Request, Served
from millrace.broker.kafka.wire.codec import ListEncoder
from millrace.broker.kafka.wire.errors import NO_ERROR, Code, code_of, code_of_wire
from millrace.broker.rpc.resources import topic_resource
from millrace.core.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    MalformedRequestError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.ids import NO_BROKER, TopicId
from millrace.core.metadata.topic_config import SETTINGS
from millrace.core.words import count
from millrace.proto.v1 import cluster_pb2 as pb

BY_DEFAULT: Final = -1
"""Kafka's number of partitions or replicas that the cluster chooses."""
_NO_ID: Final = uuid.UUID(int=0)
_PARTITIONS_MAX: Final = 2_000
"""Partitions in an answer to DescribeTopicPartitions, as in Kafka
(`max.request.partition.size.limit`)."""


class TopicRequests:
    """Answers requests that make, change and describe topics."""

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.CREATE_TOPICS: Served(range(2, 8), self._create),
            ApiKey.DELETE_TOPICS: Served(range(1, 7), self._delete),
            ApiKey.CREATE_PARTITIONS: Served(range(4), self._create_partitions),
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(range(1), self._describe),
        }

    # --- CreateTopics ------------------------------------------------------------------------

    async def _create(self, request: Request) -> Any:
        message, names = request.message, self._parts.names
        refused: dict[str, MillraceError] = _named_twice(topic.name for topic in message.topics)
        asked: dict[str, pb.NewTopic] = {}
        for topic in message.topics:
            if topic.name not in refused:
                try:
                    asked[topic.name] = _new_topic(names.full(topic.name), topic)
                except MillraceError as error:
                    refused[topic.name] = error

        async def create(topics: Sequence[pb.NewTopic]) -> Sequence[Any]:
            call = pb.CreateTopicsRequest(topics=topics, validate_only=message.validate_only)
            response = await self._parts.local.call("CreateTopics", call, request.caller)
            return list(response.results)

        created = await answers_of_each(list(asked.values()), create)
        answers = dict(zip(asked, created, strict=True))
        work = self._parts.broker.turns.work()
        answer = ListEncoder(CreateTopicsResponse(), "topics", request.version)
        for name in dict.fromkeys(topic.name for topic in message.topics):
            await work.give_way(len(SETTINGS))
            found = answers.get(name)
            answer.add(_created(name, found, refused.get(name), message.validate_only))
        return Encoded(answer.parts())

    # --- DeleteTopics ------------------------------------------------------------------------

    async def _delete(self, request: Request) -> Any:
        message = request.message
        if message.topics:  # By name or id, from version 6 on.
            wanted = [(topic.name, topic_id_of(topic.topic_id)) for topic in message.topics]
        else:
            wanted = [(name, None) for name in message.topic_names or ()]
        wanted = [(name, key if key and any(key) else None) for name, key in wanted]
        twice = Counter(wanted)
        asked: dict[tuple[str | None, TopicId | None], pb.TopicRef] = {}
        refused: dict[tuple[str | None, TopicId | None], MillraceError] = {}
        for entry in twice:
            try:
                if twice[entry] > 1:
                    raise MalformedRequestError("the topic is named twice: name it once")
                asked[entry] = self._ref(*entry)
            except MillraceError as error:
                refused[entry] = error

        async def delete(topics: Sequence[pb.TopicRef]) -> Sequence[Any]:
            call = pb.DeleteTopicsRequest(topics=topics)
            response = await self._parts.local.call("DeleteTopics", call, request.caller)
            return list(response.results)

        answers = await answers_of_each(list(asked.values()), delete)
        results: dict[Any, Any] = {**refused, **dict(zip(asked, answers, strict=True))}
        return DeleteTopicsResponse(
            version=request.version,
            responses=[self._deleted(name, key, results[name, key]) for name, key in twice],
        )

    def _ref(self, name: str | None, topic_id: TopicId | None) -> pb.TopicRef:
        """Return the topic that a client means, by its name or by its id.

        Raises:
            MalformedRequestError: by both, or by none.
            UnknownTopicOrPartitionError: it lies in another namespace.
        """
        if (name is None) == (topic_id is None):
            raise MalformedRequestError("a topic is named by its name or by its id")
        if name is not None:
            return pb.TopicRef(name=self._parts.names.full(name))
        assert topic_id is not None
        if self._parts.topics.find(topic_id) is None and topic_id in self._parts.image.topics_by_id:
            raise UnknownTopicOrPartitionError("there is no topic of this id")
        return pb.TopicRef(topic_id=topic_id)

    def _deleted(self, name: str | None, topic_id: TopicId | None, result: Any) -> Any:
        refusal = refusal_in(result)
        code = NO_ERROR if refusal is None else code_of(refusal)
        if name is None and code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            code = Code.UNKNOWN_TOPIC_ID
        if refusal is None:
            topic_id = result.topic.topic_id
            name = self._parts.names.known(result.topic.name) if name is None else name
        return DeleteTopicsResponse.DeletableTopicResult(
            name=name,
            topic_id=_NO_ID if topic_id is None else uuid_of(topic_id),
            error_code=code,
            error_message=None if refusal is None else refusal.message,
        )

    # --- CreatePartitions --------------------------------------------------------------------

    async def _create_partitions(self, request: Request) -> Any:
        message = request.message
        refused: dict[str, MillraceError] = _named_twice(topic.name for topic in message.topics)
        asked: dict[str, pb.TopicChange] = {}
        before: dict[str, int] = {}
        for topic in message.topics:
            if topic.name in refused:
                continue
            try:
                asked[topic.name] = _more_partitions(self._parts.names.full(topic.name), topic)
                if (known := self._parts.topics.find(topic.name)) is not None:
                    before[topic.name] = len(known.partitions)
            except MillraceError as error:
                asked.pop(topic.name, None)
                refused[topic.name] = error

        async def alter(topics: Sequence[pb.TopicChange]) -> Sequence[Any]:
            call = pb.AlterTopicsRequest(topics=topics, validate_only=message.validate_only)
            response = await self._parts.local.call("AlterTopics", call, request.caller)
            return list(response.results)

        answers = await answers_of_each(list(asked.values()), alter)
        for (name, change), answer in zip(asked.items(), answers, strict=True):
            refusal = refusal_in(answer)
            if refusal is None and before.get(name) == change.partitions:
                refusal = InvalidPartitionsError(
                    f"topic {name!r} has {count(change.partitions, 'partition')} already"
                )
            if refusal is not None:
                refused[name] = refusal
        said = dict.fromkeys(topic.name for topic in message.topics)
        return CreatePartitionsResponse(
            version=request.version,
            results=[
                CreatePartitionsResponse.CreatePartitionsTopicResult(
                    name=name, **_refused(refused.get(name))
                )
                for name in said
            ],
        )

    # --- DescribeTopicPartitions -------------------------------------------------------------

    async def _describe(self, request: Request) -> Any:
        message, names = request.message, self._parts.names
        page, following = self._page(message, await self._seen(request))
        call = pb.GetMetadataRequest(
            topics=[names.full(piece.name) for piece in page], brokers_only=not page
        )
        kind = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
        described = []
        try:
            found = await self._parts.local.call("GetMetadata", call, request.caller)
        except MillraceError as error:
            described = [
                kind(error_code=code_of(error), name=name, topic_id=_NO_ID, partitions=[])
                for name, _, _ in page
            ]
        else:
            work = self._parts.broker.turns.work()
            for (name, begin, end), topic in zip(page, found.topics, strict=True):
                await work.give_way(1 + end - begin)
                if not message.topics and topic.error.code:
                    continue  # Of all, the caller is told what it sees.
                entry = _described(name, topic, topic.partitions[begin:end])
                if not topic.error.code:
                    resource = named(ResourceKind.TOPICS, topic.name)
                    allowed = await allowed_operations(request.caller, resource)
                    entry.topic_authorized_operations = as_bits(allowed)
                described.append(entry)
        return DescribeTopicPartitionsResponse(
            version=request.version, topics=described, next_cursor=following
        )

    async def _seen(self, request: Request) -> dict[str, int]:
        """Return the partitions of each topic that the caller sees, of those that it asks for."""
        asked = {topic.name for topic in request.message.topics}
        known = self._parts.topics.all()
        found = [topic for topic in known if not asked or topic.name.name in asked]
        seen = await request.caller.seen(
            Operation.DESCRIBE, found, lambda topic: topic_resource(topic.name)
        )
        return {topic.name.name: len(topic.partitions) for topic in seen}

    def _page(self, message: Any, seen: Mapping[str, int]) -> tuple[list["_Piece"], Any]:
        """Return what an answer is to have, and where the next one begins; None: there is none."""
        begin, first = "", 0
        if (cursor := message.cursor) is not None:
            begin, first = cursor.topic_name, max(cursor.partition_index, 0)
        wanted: Iterable[str] = {topic.name for topic in message.topics} or seen
        room = max(1, min(message.response_partition_limit, _PARTITIONS_MAX))
        page: list[_Piece] = []
        for name in sorted(name for name in wanted if name >= begin):
            begins = first if name == begin else 0
            if not room:
                return page, _cursor(name, begins)
            count = max(0, seen.get(name, 0) - begins)
            page.append(_Piece(name, begins, begins + min(count, room)))
            if count > room:
                return page, _cursor(name, begins + room)
            room -= max(1, count)
        return page, None


class _Piece(NamedTuple):
    """What an answer has of a topic: partitions from `begin` to before `end`."""

    name: str
    begin: int
    end: int


def _named_twice(said: Iterable[str]) -> dict[str, MillraceError]:
    return {
        name: MalformedRequestError(f"topic {name[:40]!r} is named twice: name it once")
        for name, times in Counter(said).items()
        if times > 1
    }


def _new_topic(full_name: str, topic: Any) -> pb.NewTopic:
    """Return a topic to create.

    Raises:
        MalformedRequestError: a number stands beside an assignment by hand.
        InvalidPartitionsError, InvalidReplicationFactorError: a number is none.
        InvalidReplicaAssignmentError: partitions are missing in the assignment.
        InvalidConfigError: a value is missing or wrong.
    """
    partitions, replicas = topic.num_partitions, topic.replication_factor
    new = pb.NewTopic(name=full_name)
    if topic.assignments:
        if partitions != BY_DEFAULT or replicas != BY_DEFAULT:
            raise MalformedRequestError(
                "where replicas are assigned by hand, the numbers of partitions and replicas are "
                f"{BY_DEFAULT}"
            )
        by_number = {entry.partition_index: entry.broker_ids for entry in topic.assignments}
        if sorted(by_number) != list(range(len(topic.assignments))):
            raise InvalidReplicaAssignmentError(
                "the replicas of each partition from 0 on are to be named, and once"
            )
        new.assignment.extend(
            pb.NewReplicas(replicas=by_number[number]) for number in range(len(by_number))
        )
    elif partitions != BY_DEFAULT and partitions < 1:
        raise InvalidPartitionsError(
            f"{partitions} partitions: name at least 1, or {BY_DEFAULT} for the default"
        )
    elif replicas != BY_DEFAULT and replicas < 1:
        raise InvalidReplicationFactorError(
            f"{replicas} replicas: name at least 1, or {BY_DEFAULT} for the default"
        )
    else:
        new.partitions = 0 if partitions == BY_DEFAULT else partitions
        new.replication_factor = 0 if replicas == BY_DEFAULT else replicas
    missing = [entry.name for entry in topic.configs if entry.value is None]
    if missing:
        raise InvalidConfigError(f"{missing[0][:40]}: a value is missing")
    ours = to_ours((entry.name, entry.value) for entry in topic.configs)
    new.config.update({name: value for name, value in ours.items() if value is not None})
    return new


def _created(name: str, result: Any, refused: MillraceError | None, is_validated_only: bool) -> Any:
    refusal = refused or refusal_in(result)
    kind = CreateTopicsResponse.CreatableTopicResult
    if refusal is not None:
        return kind(name=name, topic_id=_NO_ID, configs=None, **_refused(refusal))
    topic = result.topic
    return kind(
        name=name,
        topic_id=_NO_ID if is_validated_only else uuid_of(topic.topic_id),
        error_code=NO_ERROR,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=[_creatable(setting) for setting in shown(topic)],
    )


def _creatable(setting: ShownSetting) -> Any:
    return CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs(
        name=setting.name,
        value=setting.value,
        read_only=setting.is_read_only,
        config_source=setting.source,
        is_sensitive=False,
    )


def _more_partitions(full_name: str, topic: Any) -> pb.TopicChange:
    """Return the change of a topic that gets more partitions.

    Raises:
        InvalidPartitionsError: the number is none.
    """
    if topic.count < 1:
        raise InvalidPartitionsError(f"{topic.count} partitions: name the new number of them")
    assignment = [pb.NewReplicas(replicas=those.broker_ids) for those in topic.assignments or ()]
    return pb.TopicChange(name=full_name, partitions=topic.count, assignment=assignment)


def _refused(refusal: MillraceError | None) -> dict[str, Any]:
    if refusal is None:
        return {"error_code": NO_ERROR, "error_message": None}
    return {"error_code": code_of(refusal), "error_message": refusal.message}


def _cursor(name: str, partition: int) -> Any:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=partition)


def _described(
    name: str, topic: pb.TopicMetadata, partitions: Sequence[pb.PartitionMetadata]
) -> Any:
    kind = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    return kind(
        error_code=code_of_wire(topic.error),
        name=name,
        topic_id=uuid_of(topic.topic_id) if topic.topic_id else _NO_ID,
        is_internal=topic.internal,
        partitions=[
            kind.DescribeTopicPartitionsResponsePartition(
                error_code=(
                    Code.LEADER_NOT_AVAILABLE
                    if partition.leader.broker_id == NO_BROKER
                    else NO_ERROR
                ),
                partition_index=partition.partition,
                leader_id=partition.leader.broker_id,
                leader_epoch=partition.leader.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=[],
                offline_replicas=list(partition.offline_replicas),
            )
            for partition in partitions
        ],
    )
