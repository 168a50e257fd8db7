"""Metadata and DescribeCluster: brokers with their addresses for this listener, and topics.

The topics are those of `GetMetadata`, with its rules of who sees what. A topic that is not there is
created by the look-up only where `kafka.auto_create_topics` allows it, the client asks for it, and
may create topics.

Source: KIP-4, KIP-430 (operations that a caller is allowed), KIP-516 (topic ids), KIP-700.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import DescribeClusterResponse
from kafka.protocol.metadata import MetadataResponse

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.kafka.names import topic_id_of, uuid_of
from millrace.broker.kafka.operations import allowed_operations
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code, code_of, code_of_wire
from millrace.core.errors import MillraceError
from millrace.core.guard.access import CLUSTER, ResourceKind, named
from millrace.core.ids import NO_BROKER, BrokerId
from millrace.proto.v1 import cluster_pb2 as pb

_FIRST_WITH_NONE: Final = 1
"""From here on an empty list of topics means none, and no list means all."""
_FIRST_WITHOUT_CREATION: Final = 4
"""From here on the client says whether a look-up may create topics; before, it may."""
_FIRST_WITH_LISTENER_ERRORS: Final = 6
_BROKERS: Final = 1
"""The type of endpoint that DescribeCluster knows here; controllers have none of their own."""


class MetadataRequests:
    """Answers Metadata and DescribeCluster."""

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._creates = parts.broker.config.kafka.auto_create_topics

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.METADATA: Served(range(14), self._metadata),
            ApiKey.DESCRIBE_CLUSTER: Served(range(3), self._describe_cluster),
        }

    # --- Metadata ----------------------------------------------------------------------------

    async def _metadata(self, request: Request) -> Any:
        message, parts = request.message, self._parts
        asked = message.topics
        if request.version < _FIRST_WITH_NONE and not asked:
            asked = None
        wanted = _Wanted(parts, asked)
        try:
            found = await parts.local.call("GetMetadata", wanted.request(), request.caller)
            topics = list(found.topics)
            may_create = (
                request.version < _FIRST_WITHOUT_CREATION or message.allow_auto_topic_creation
            )
            if self._creates and may_create and asked:
                topics = await self._created(topics, request.caller)
        except MillraceError as error:
            return self._refused(request, asked, code_of(error))
        described = await self._topics(topics, wanted, request)
        response = MetadataResponse(
            version=request.version,
            brokers=self._brokers(MetadataResponse.MetadataResponseBroker, "node_id"),
            cluster_id=found.cluster_id,
            controller_id=self._controller_id(found.controller_id),
            topics=described,
        )
        if message.include_cluster_authorized_operations:
            response.authorized_operations = await allowed_operations(request.caller, CLUSTER)
        return response

    def _refused(self, request: Request, asked: Sequence[Any] | None, code: int) -> Any:
        """Return the answer where nothing can be said of any topic."""
        topics = [
            MetadataResponse.MetadataResponseTopic(
                error_code=code,
                name=topic.name if topic.name is not None else "",
                topic_id=topic.topic_id,
                partitions=[],
            )
            for topic in asked or ()
        ]
        return MetadataResponse(
            version=request.version,
            brokers=self._brokers(MetadataResponse.MetadataResponseBroker, "node_id"),
            topics=topics,
            error_code=code,
        )

    async def _created(
        self, topics: Iterable[pb.TopicMetadata], caller: GuardedCaller
    ) -> list[pb.TopicMetadata]:
        """Return topics, those that were not there created, or with the reason why not."""
        after = []
        for topic in topics:
            is_missing = code_of_wire(topic.error) == Code.UNKNOWN_TOPIC_OR_PARTITION
            after.append(await self._create(topic, caller) if is_missing and topic.name else topic)
        return after

    async def _create(self, topic: pb.TopicMetadata, caller: GuardedCaller) -> pb.TopicMetadata:
        local = self._parts.local
        asked = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=topic.name)])
        try:
            created = await local.call("CreateTopics", asked, caller)
            result = created.results[0]
            code = code_of_wire(result.error)
            if code not in (NO_ERROR, Code.TOPIC_ALREADY_EXISTS):
                return pb.TopicMetadata(name=topic.name, error=result.error)
            again = pb.GetMetadataRequest(topics=[topic.name])
            found = await local.call("GetMetadata", again, caller)
        except MillraceError:
            return topic  # As before: it is not there, or the caller may not know that it is.
        described: pb.TopicMetadata = found.topics[0]
        return described

    async def _topics(
        self, topics: Iterable[pb.TopicMetadata], wanted: "_Wanted", request: Request
    ) -> list[Any]:
        work = self._parts.broker.turns.work()
        described = []
        for topic in topics:
            await work.give_way(1 + len(topic.partitions))
            name = wanted.name_of(topic)
            if topic.error.code:
                described.append(_missing(topic, name))
                continue
            if name is None:
                if wanted.is_all:
                    continue  # It lies in another namespace.
                described.append(_missing(topic, None, Code.UNKNOWN_TOPIC_ID))
                continue
            entry = MetadataResponse.MetadataResponseTopic(
                error_code=NO_ERROR,
                name=name,
                topic_id=uuid_of(topic.topic_id),
                is_internal=topic.internal,
                partitions=[
                    self._partition(partition, request.version) for partition in topic.partitions
                ],
            )
            if request.message.include_topic_authorized_operations:
                resource = named(ResourceKind.TOPICS, topic.name)
                entry.authorized_operations = await allowed_operations(request.caller, resource)
            described.append(entry)
        return described

    def _partition(self, partition: pb.PartitionMetadata, version: int) -> Any:
        leader, code = partition.leader.broker_id, NO_ERROR
        if leader == NO_BROKER:
            code = Code.LEADER_NOT_AVAILABLE
        elif self._parts.addresses.of(BrokerId(leader)) is None:
            has_name = version >= _FIRST_WITH_LISTENER_ERRORS
            code = Code.LISTENER_NOT_FOUND if has_name else Code.LEADER_NOT_AVAILABLE
            leader = NO_BROKER
        return MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
            error_code=code,
            partition_index=partition.partition,
            leader_id=leader,
            leader_epoch=partition.leader.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=list(partition.offline_replicas),
        )

    # --- Brokers -----------------------------------------------------------------------------

    def _brokers(self, kind: Any, id_name: str) -> list[Any]:
        return [
            kind(host=name, port=port, rack=broker.rack or None, **{id_name: broker.broker_id})
            for broker, (name, port) in self._parts.addresses.living()
        ]

    def _controller_id(self, known: int) -> int:
        """Return the broker that clients send what the controller does: any can pass it on."""
        addresses = self._parts.addresses
        return known if addresses.of(BrokerId(known)) is not None else addresses.own_id

    async def _describe_cluster(self, request: Request) -> Any:
        message, parts = request.message, self._parts
        if message.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                version=request.version,
                error_code=Code.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="brokers alone have endpoints (type 1)",
                endpoint_type=message.endpoint_type,
                cluster_id="",
                brokers=[],
            )
        try:
            asked = pb.GetMetadataRequest(brokers_only=True)
            found = await parts.local.call("GetMetadata", asked, request.caller)
        except MillraceError as error:
            return DescribeClusterResponse(
                version=request.version,
                error_code=code_of(error),
                error_message=error.message,
                cluster_id="",
                brokers=[],
            )
        response = DescribeClusterResponse(
            version=request.version,
            cluster_id=found.cluster_id,
            controller_id=self._controller_id(found.controller_id),
            brokers=self._brokers(DescribeClusterResponse.DescribeClusterBroker, "broker_id"),
        )
        if message.include_cluster_authorized_operations:
            response.authorized_operations = await allowed_operations(request.caller, CLUSTER)
        return response


class _Wanted:
    """The topics that a request names, by names and by ids; None: all."""

    def __init__(self, parts: KafkaParts, asked: Sequence[Any] | None) -> None:
        self._names = parts.names
        self.is_all = asked is None
        self._asked = asked or ()
        self._said: dict[str, str] = {}  # The names as the request has them, by the full names.

    def request(self) -> pb.GetMetadataRequest:
        """Return the same in Millrace's protocol."""
        if self.is_all:
            return pb.GetMetadataRequest()
        request = pb.GetMetadataRequest(brokers_only=not self._asked)
        for topic in self._asked:
            topic_id = topic_id_of(topic.topic_id)
            if topic.name is not None:
                full = self._names.full(topic.name)
                self._said[full] = topic.name
                request.topics.append(full)
            else:
                request.topic_ids.append(topic_id or bytes(16))
        return request

    def name_of(self, topic: pb.TopicMetadata) -> str | None:
        """Return the name that clients know a topic by; None: they do not know it."""
        said = self._said.get(topic.name)
        return self._names.known(topic.name) if said is None else said


def _missing(topic: pb.TopicMetadata, name: str | None, code: int | None = None) -> Any:
    if code is None:
        code = code_of_wire(topic.error)
        if not topic.name and code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            code = Code.UNKNOWN_TOPIC_ID
    return MetadataResponse.MetadataResponseTopic(
        error_code=code,
        name=name or None,
        topic_id=uuid_of(topic.topic_id or bytes(16)),
        partitions=[],
    )
