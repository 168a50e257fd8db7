"""Replicas, leaders and log directories: reassignments, elections, DescribeLogDirs.

Moves and elections are Millrace's own calls, for those who may administer the cluster. Kafka's name
a topic, and ours its id, so that a topic of the same name that is made meanwhile is another one.

DescribeLogDirs tells of the broker that is asked, DescribeProducers of partitions that it leads.

Source: KIP-113, KIP-455, KIP-460, KIP-664, KIP-827 (bytes of a log directory).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import (
    AlterPartitionReassignmentsResponse,
    DescribeLogDirsResponse,
    DescribeProducersResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.kafka.known_topics import has_partition
from millrace.broker.kafka.operations import check
from millrace.broker.kafka.own_calls import refusal_in
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code, code_of
from millrace.broker.replica.open_directory import OpenDirectory
from millrace.broker.rpc.resources import topic_resource
from millrace.core.errors import (
    InvalidReplicationFactorError,
    MalformedRequestError,
    MillraceError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace.core.guard.access import CLUSTER, Operation
from millrace.core.ids import NO_BROKER, NO_TIMESTAMP, TopicId, TopicPartition
from millrace.core.metadata.model import PartitionState, Topic
from millrace.core.replica.log.producer_states import PRODUCERS_MAX
from millrace.proto.v1 import cluster_pb2 as pb
from millrace.proto.v1 import common_pb2

_UNCLEAN: Final = 1
"""Kafka's number of an election of any live replica; 0 is that of the preferred leader."""
_NO_SEQUENCE: Final = -1
_UNKNOWN_BYTES: Final = -1

_Named = tuple[str, int]
"""Name of a topic, as clients know it, and number of a partition."""
_Outcome = tuple[int, str | None]
"""Code and message of an error."""


class ReplicaRequests:
    """Answers requests about replicas."""

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._topics = parts.topics

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.DESCRIBE_LOG_DIRS: Served(range(1, 6), self._describe_log_dirs),
            ApiKey.ELECT_LEADERS: Served(range(3), self._elect_leaders),
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: Served(range(2), self._reassign),
            ApiKey.LIST_PARTITION_REASSIGNMENTS: Served(range(1), self._list_reassignments),
            ApiKey.DESCRIBE_PRODUCERS: Served(range(1), self._describe_producers),
        }

    # --- Partitions by name ------------------------------------------------------------------

    def _partition(self, named: _Named) -> tuple[Topic, PartitionState]:
        """Return a partition.

        Raises:
            UnknownTopicOrPartitionError: there is none.
        """
        name, number = named
        topic = self._topics.find(name)
        if topic is None or not has_partition(topic, number):
            raise UnknownTopicOrPartitionError(f"there is no partition {number} of {name[:40]!r}")
        return topic, topic.partitions[number]

    def _all(self) -> Iterator[tuple[_Named, PartitionState]]:
        """Yield the partitions of all topics that clients of the listener know."""
        for topic in self._topics.all():
            for number, state in enumerate(topic.partitions):
                yield (topic.name.name, number), state

    async def _ask(
        self,
        method: str,
        request: Any,
        entries: Mapping[_Named, Any],
        caller: GuardedCaller,
        results: dict[_Named, _Outcome],
    ) -> _Outcome:
        """Make a call about partitions, and add what became of each to the results.

        Returns:
            What became of the call as a whole.
        """
        if not entries:
            return _outcome(None)
        try:
            response = await self._parts.local.call(method, request, caller)
        except MillraceError as error:
            results.update(dict.fromkeys(entries, _outcome(error)))
            return _outcome(error)
        outcomes = (_outcome(refusal_in(result)) for result in response.results)
        results.update(zip(entries, outcomes, strict=True))
        return _outcome(None)

    async def _check(self, request: Request) -> None:
        """Refuse who may not move leaders and replicas: some answers are made without a call.

        Raises:
            MillraceError: says why.
        """
        await check(self._parts, request, Operation.ADMINISTER, [CLUSTER])

    # --- Elections ---------------------------------------------------------------------------

    async def _elect_leaders(self, request: Request) -> Any:
        message = request.message
        try:
            await self._check(request)
        except MillraceError as error:
            return ElectLeadersResponse(
                version=request.version, error_code=code_of(error), replica_election_results=[]
            )
        is_unclean = message.election_type == _UNCLEAN and request.version > 0
        results: dict[_Named, _Outcome] = {}
        wanted: dict[_Named, common_pb2.TopicPartition] = {}
        is_all = message.topic_partitions is None
        named: Iterable[_Named] = (
            (name for name, _ in self._all())
            if is_all
            else (
                (topic.topic, number)
                for topic in message.topic_partitions
                for number in topic.partitions
            )
        )
        for entry in dict.fromkeys(named):
            try:
                topic, state = self._partition(entry)
            except MillraceError as error:
                results[entry] = code_of(error), error.message
                continue
            if state.leader == state.target[0] or (is_unclean and state.leader != NO_BROKER):
                if not is_all:
                    results[entry] = Code.ELECTION_NOT_NEEDED, "it has the wanted leader"
                continue
            wanted[entry] = _wire(topic, entry)
        kind = pb.ELECTION_KIND_UNCLEAN if is_unclean else pb.ELECTION_KIND_PREFERRED
        call = pb.ElectLeadersRequest(kind=kind, partitions=wanted.values())
        code, _ = await self._ask("ElectLeaders", call, wanted, request.caller, results)
        kind_of_result = ElectLeadersResponse.ReplicaElectionResult
        return ElectLeadersResponse(
            version=request.version,
            error_code=code,
            replica_election_results=[
                kind_of_result(
                    topic=topic,
                    partition_result=[
                        kind_of_result.PartitionResult(
                            partition_id=number, error_code=found[0], error_message=found[1]
                        )
                        for number, found in partitions
                    ],
                )
                for topic, partitions in _by_topic(results).items()
            ],
        )

    # --- Reassignments -----------------------------------------------------------------------

    async def _reassign(self, request: Request) -> Any:
        message = request.message
        try:
            await self._check(request)
        except MillraceError as error:
            return AlterPartitionReassignmentsResponse(
                version=request.version,
                error_code=code_of(error),
                error_message=error.message,
                responses=[],
            )
        results: dict[_Named, _Outcome] = {}
        wanted: dict[_Named, pb.Reassignment] = {}
        for topic in message.topics:
            for partition in topic.partitions:
                entry = topic.name, partition.partition_index
                try:
                    if entry in wanted or entry in results:
                        wanted.pop(entry, None)
                        raise MalformedRequestError("it is named twice: name it once")
                    wanted[entry] = self._reassignment(entry, partition.replicas, message)
                except MillraceError as error:
                    results[entry] = code_of(error), error.message
        call = pb.ReassignPartitionsRequest(reassignments=wanted.values())
        code, text = await self._ask("ReassignPartitions", call, wanted, request.caller, results)
        kind = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
        return AlterPartitionReassignmentsResponse(
            version=request.version,
            error_code=code,
            error_message=text,
            allow_replication_factor_change=message.allow_replication_factor_change,
            responses=[
                kind(
                    name=name,
                    partitions=[
                        kind.ReassignablePartitionResponse(
                            partition_index=number, error_code=found[0], error_message=found[1]
                        )
                        for number, found in partitions
                    ],
                )
                for name, partitions in _by_topic(results).items()
            ],
        )

    def _reassignment(
        self, entry: _Named, replicas: Sequence[int] | None, message: Any
    ) -> pb.Reassignment:
        """Return what is asked of a partition.

        Raises:
            UnknownTopicOrPartitionError: there is none.
            InvalidReplicationFactorError: it would have more or fewer replicas.
        """
        topic, state = self._partition(entry)
        asked = pb.Reassignment(topic_partition=_wire(topic, entry))
        if replicas is None:
            asked.cancel = True
            return asked
        before = len(state.target)
        if not message.allow_replication_factor_change and len(replicas) != before:
            raise InvalidReplicationFactorError(
                f"{len(replicas)} replicas instead of {before}, which the request itself forbids"
            )
        asked.replicas.extend(replicas)
        return asked

    async def _list_reassignments(self, request: Request) -> Any:
        message, names = request.message, self._parts.names
        asked = message.topics
        numbers = {topic.name: set(topic.partition_indexes) for topic in asked or ()}
        call = pb.GetMetadataRequest(topics=map(names.full, numbers))
        topics: Iterable[pb.TopicMetadata] = ()
        refusal: MillraceError | None = None
        if asked is None or numbers:
            try:
                found = await self._parts.local.call("GetMetadata", call, request.caller)
                topics = found.topics
            except MillraceError as error:
                refusal = error
        kind = ListPartitionReassignmentsResponse.OngoingTopicReassignment
        work = self._parts.broker.turns.work()
        listed = []
        for topic in topics:
            await work.give_way(1 + len(topic.partitions))
            name = names.known(topic.name)
            if name is None or topic.error.code:
                continue
            ongoing = [
                kind.OngoingPartitionReassignment(
                    partition_index=partition.partition,
                    replicas=list(partition.replicas),
                    adding_replicas=list(partition.adding_replicas),
                    removing_replicas=list(partition.removing_replicas),
                )
                for partition in topic.partitions
                if (partition.adding_replicas or partition.removing_replicas)
                and (asked is None or partition.partition in numbers[name])
            ]
            if ongoing:
                listed.append(kind(name=name, partitions=ongoing))
        return ListPartitionReassignmentsResponse(
            version=request.version,
            error_code=NO_ERROR if refusal is None else code_of(refusal),
            error_message=None if refusal is None else refusal.message,
            topics=listed,
        )

    # --- Log directories ---------------------------------------------------------------------

    async def _describe_log_dirs(self, request: Request) -> Any:
        asked = request.message.topics
        wanted: set[_Named] | None = None
        if asked is not None:
            wanted = {(topic.topic, number) for topic in asked for number in topic.partitions}
        try:
            # A request that names no partitions demands to see the cluster, as Kafka's does.
            call = pb.DescribeLogsRequest()
            found = await self._parts.local.call("DescribeLogs", call, request.caller)
        except MillraceError as error:
            return DescribeLogDirsResponse(
                version=request.version, error_code=code_of(error), results=[]
            )
        by_directory: dict[str, dict[str, list[Any]]] = {}
        work = self._parts.broker.turns.work()
        kind = DescribeLogDirsResponse.DescribeLogDirsResult
        for log in found.logs:
            await work.give_way()
            name = self._topics.name_of(TopicId(log.topic_partition.topic_id))
            number = log.topic_partition.partition
            if (
                name is None
                or log.error.code
                or (wanted is not None and (name, number) not in wanted)
            ):
                continue
            directory = log.log_dir.rpartition("/")[0]
            by_directory.setdefault(directory, {}).setdefault(name, []).append(
                kind.DescribeLogDirsTopic.DescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=log.size_bytes,
                    offset_lag=max(0, log.high_watermark - log.log_end_offset),
                    is_future_key=False,
                )
            )
        results = []
        for opened in self._parts.broker.partitions.directories:
            code, free, total = await self._space(opened)
            topics = by_directory.get(opened.directory.path, {})
            results.append(
                kind(
                    error_code=code,
                    log_dir=opened.directory.path,
                    topics=[
                        kind.DescribeLogDirsTopic(name=name, partitions=partitions)
                        for name, partitions in sorted(topics.items())
                    ],
                    total_bytes=total,
                    usable_bytes=free,
                )
            )
        return DescribeLogDirsResponse(version=request.version, results=results)

    async def _space(self, opened: OpenDirectory) -> tuple[int, int, int]:
        """Return an error code, and the bytes that a directory has left and in all."""
        try:
            opened.check()
            directory = opened.directory
            free, total = await self._parts.broker.reader.call(directory.path, directory.space)
        except StorageError as error:
            return code_of(error), _UNKNOWN_BYTES, _UNKNOWN_BYTES
        return NO_ERROR, free, total

    # --- Producers ---------------------------------------------------------------------------

    async def _describe_producers(self, request: Request) -> Any:
        message = request.message
        kind = DescribeProducersResponse.TopicResponse
        await request.caller.learn(
            Operation.DESCRIBE,
            (
                topic_resource(topic.name)
                for asked in message.topics
                if (topic := self._topics.find(asked.name)) is not None
            ),
        )
        work = self._parts.broker.turns.work()
        topics, room = [], PRODUCERS_MAX
        for asked in {topic.name: topic for topic in message.topics}.values():
            partitions = []
            for number in dict.fromkeys(asked.partition_indexes):
                active: list[Any] = []
                code, text = NO_ERROR, None
                await work.give_way()
                try:
                    active = self._producers((asked.name, number), request.caller, room)
                except MillraceError as error:
                    code, text = code_of(error), error.message
                room -= len(active)
                await work.give_way(len(active))
                partitions.append(
                    kind.PartitionResponse(
                        partition_index=number,
                        error_code=code,
                        error_message=text,
                        active_producers=active,
                    )
                )
            topics.append(kind(name=asked.name, partitions=partitions))
        return DescribeProducersResponse(version=request.version, topics=topics)

    def _producers(self, entry: _Named, caller: GuardedCaller, count_max: int) -> list[Any]:
        """Return the producers of a partition that this broker leads.

        Raises:
            MillraceError: it does not, the caller may not see them, or they are too many.
        """
        name = self._parts.names.topic(entry[0])
        if (refused := caller.refusal(Operation.DESCRIBE, topic_resource(name))) is not None:
            raise refused
        topic, _ = self._partition(entry)
        place = TopicPartition(topic.topic_id, entry[1])
        producers = self._parts.broker.partitions.get(place).leader.producers
        if len(producers) > count_max:
            raise MalformedRequestError(
                f"the answer would have more than {PRODUCERS_MAX} producers: ask for fewer "
                "partitions at a time"
            )
        kind = DescribeProducersResponse.TopicResponse.PartitionResponse.ProducerState
        found = []
        for producer_id in producers:
            known = producers.entry(producer_id)
            assert known is not None
            found.append(
                kind(
                    producer_id=producer_id,
                    producer_epoch=known.epoch,
                    last_sequence=(
                        known.batches[-1].last_sequence if known.batches else _NO_SEQUENCE
                    ),
                    last_timestamp=known.seen_at if known.seen_at > 0 else NO_TIMESTAMP,
                    coordinator_epoch=known.coordinator_epoch,
                    current_txn_start_offset=known.first_offset,
                )
            )
        return found


def _wire(topic: Topic, entry: _Named) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic_id=topic.topic_id, partition=entry[1])


def _outcome(refusal: MillraceError | None) -> _Outcome:
    return (NO_ERROR, None) if refusal is None else (code_of(refusal), refusal.message)


def _by_topic(
    results: Mapping[_Named, _Outcome],
) -> dict[str, list[tuple[int, _Outcome]]]:
    grouped: dict[str, list[tuple[int, _Outcome]]] = {}
    for (name, number), found in results.items():
        grouped.setdefault(name, []).append((number, found))
    return grouped
