"""The Cluster service: handshake, metadata, and the administration of topics."""

from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Final

import grpc

from millrace.broker.config import LimitsConfig
from millrace.broker.controller import ControllerShell
from millrace.broker.rpc.errors import to_proto
from millrace.broker.rpc.requests import unary_handler
from millrace.broker.runtime.partitions import Partitions
from millrace.core import settings
from millrace.core.errors import MalformedRequestError, MillraceError, UnknownTopicOrPartitionError
from millrace.core.ids import NO_BROKER, TOPIC_ID_BYTES, BrokerId, TopicId, TopicPartition
from millrace.core.metadata import topic_config
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import PartitionState, Topic
from millrace.core.metadata.requests import NewTopic, TopicChange, TopicRef
from millrace.core.topics import parse_topic_name
from millrace.proto.v1 import cluster_pb2 as pb
from millrace.proto.v1 import common_pb2
from millrace.proto.v1.common_pb2 import HelloRequest, HelloResponse

SOFTWARE_VERSION: Final = version("millrace")


def _topic_id(data: bytes) -> TopicId | None:
    if data and len(data) != TOPIC_ID_BYTES:
        raise MalformedRequestError(f"a topic id is {TOPIC_ID_BYTES} bytes, but {len(data)} came")
    return TopicId(data) if data else None


class ClusterService:
    """Serves `millrace.proto.v1.Cluster`."""

    NAME = pb.DESCRIPTOR.services_by_name["Cluster"].full_name

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        controller: ControllerShell,
        partitions: Partitions,
        limits: LimitsConfig,
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._partitions = partitions
        self._limits = limits

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to register."""
        unary = partial(unary_handler, entries_max=self._limits.request_entries_max)
        return grpc.method_handlers_generic_handler(
            self.NAME,
            {
                "Hello": unary(self._hello, HelloRequest),
                "GetMetadata": unary(self._get_metadata, pb.GetMetadataRequest),
                "CreateTopics": unary(self._create_topics, pb.CreateTopicsRequest),
                "AlterTopics": unary(self._alter_topics, pb.AlterTopicsRequest),
                "DeleteTopics": unary(self._delete_topics, pb.DeleteTopicsRequest),
                "DescribeLogs": unary(self._describe_logs, pb.DescribeLogsRequest),
            },
        )

    async def _hello(self, request: HelloRequest, _: object) -> HelloResponse:
        image = self._controller.metadata
        cluster_id = image.cluster.cluster_id
        broker = image.broker(self._broker_id)
        assert broker is not None
        response = HelloResponse(
            cluster_id=cluster_id,
            broker_id=self._broker_id,
            broker_name=broker.name,
            software_version=SOFTWARE_VERSION,
            rack=broker.rack,
            message_bytes_max=self._limits.message_bytes_max,
        )
        if request.cluster_id and request.cluster_id != cluster_id:
            error = MalformedRequestError(
                f"this is broker {broker.name} of cluster {cluster_id}, not of {request.cluster_id}"
            )
            response.error.CopyFrom(to_proto(error))
        return response

    async def _get_metadata(
        self, request: pb.GetMetadataRequest, _: object
    ) -> pb.GetMetadataResponse:
        image = self._controller.metadata
        response = pb.GetMetadataResponse(
            cluster_id=image.cluster.cluster_id,
            # With one broker the controller is here or nowhere.
            controller_id=self._broker_id if self._controller.is_controller else NO_BROKER,
            controller_epoch=image.cluster.controller_epoch,
            brokers=[
                pb.BrokerMetadata(
                    broker_id=broker.broker_id,
                    name=broker.name,
                    address=broker.address,
                    rack=broker.rack,
                    broker_epoch=broker.broker_epoch,
                    fenced=broker.is_fenced,
                )
                for _, broker in sorted(image.cluster.brokers.items())
            ],
        )
        if request.brokers_only:
            return response
        if request.topics or request.topic_ids:
            for name in request.topics:
                response.topics.append(_find(image, name=name))
            for topic_id in request.topic_ids:
                response.topics.append(_find(image, topic_id=topic_id))
        else:
            for _, topic in sorted(image.topics.items()):
                response.topics.append(describe_topic(image, topic))
        if request.with_documentation:
            for described in response.topics:
                for entry in described.config:
                    entry.documentation = topic_config.SETTINGS[entry.name].description.meaning
        return response

    async def _create_topics(
        self, request: pb.CreateTopicsRequest, _: object
    ) -> pb.CreateTopicsResponse:
        topics = [
            NewTopic(
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                config=dict(topic.config),
            )
            for topic in request.topics
        ]
        results = await self._controller.create_topics(topics, request.validate_only)
        return pb.CreateTopicsResponse(results=await self._results(results))

    async def _alter_topics(
        self, request: pb.AlterTopicsRequest, _: object
    ) -> pb.AlterTopicsResponse:
        changes = [
            TopicChange(
                topic=TopicRef(name=change.name, topic_id=_topic_id(change.topic_id)),
                set_config=dict(change.set_config),
                unset_config=tuple(change.unset_config),
                partitions=change.partitions,
            )
            for change in request.topics
        ]
        results = await self._controller.alter_topics(changes, request.validate_only)
        return pb.AlterTopicsResponse(results=await self._results(results))

    async def _delete_topics(
        self, request: pb.DeleteTopicsRequest, _: object
    ) -> pb.DeleteTopicsResponse:
        topics = [
            TopicRef(name=topic.name, topic_id=_topic_id(topic.topic_id))
            for topic in request.topics
        ]
        results = await self._controller.delete_topics(topics, request.validate_only)
        return pb.DeleteTopicsResponse(results=await self._results(results))

    async def _results(self, outcomes: Iterable[Topic | MillraceError]) -> Sequence[pb.TopicResult]:
        """Answer once this broker has done its part, so that the next request finds it done."""
        await self._partitions.settled()
        image = self._controller.metadata
        return [
            pb.TopicResult(error=to_proto(outcome))
            if isinstance(outcome, MillraceError)
            else pb.TopicResult(topic=describe_topic(image, outcome))
            for outcome in outcomes
        ]

    async def _describe_logs(
        self, request: pb.DescribeLogsRequest, _: object
    ) -> pb.DescribeLogsResponse:
        wanted = [
            TopicPartition(_topic_id(each.topic_id) or TopicId(b""), each.partition)
            for each in request.partitions
        ]
        logs = []
        for topic_partition in wanted or sorted(self._partitions):
            named = common_pb2.TopicPartition(
                topic_id=topic_partition.topic_id, partition=topic_partition.partition
            )
            try:
                partition = self._partitions.get(topic_partition)
            except MillraceError as error:
                error = self._partitions.in_words(error, topic_partition)
                logs.append(pb.LogDescription(topic_partition=named, error=to_proto(error)))
                continue
            log = partition.log
            logs.append(
                pb.LogDescription(
                    topic_partition=named,
                    log_start_offset=log.log_start_offset,
                    log_end_offset=log.log_end_offset,
                    high_watermark=partition.leader.high_watermark,
                    flushed_offset=log.flushed_offset,
                    size_bytes=log.size_bytes,
                    segments=log.segment_count,
                    log_dir=log.directory,
                )
            )
        return pb.DescribeLogsResponse(logs=logs)


def _find(image: MetadataImage, *, name: str = "", topic_id: bytes = b"") -> pb.TopicMetadata:
    try:
        if name:
            topic = image.topics.get(parse_topic_name(name))
        else:
            wanted = _topic_id(topic_id)
            topic = image.topics_by_id.get(wanted) if wanted is not None else None
        if topic is None:
            raise UnknownTopicOrPartitionError(
                f"there is no topic {name}: create it first"
                if name
                else f"there is no topic with id {topic_id.hex()}: it was deleted"
            )
    except MillraceError as error:
        return pb.TopicMetadata(name=name, topic_id=topic_id, error=to_proto(error))
    return describe_topic(image, topic)


def describe_topic(image: MetadataImage, topic: Topic) -> pb.TopicMetadata:
    """Return a topic as clients see it."""
    config = topic.config
    return pb.TopicMetadata(
        name=str(topic.name),
        topic_id=topic.topic_id,
        internal=topic.name.is_internal,
        partitions=[
            _describe_partition(image, number, partition)
            for number, partition in enumerate(topic.partitions)
        ],
        config=[
            pb.ConfigEntry(
                name=name,
                value=settings.to_text(getattr(config, setting.attribute)),
                source=pb.CONFIG_SOURCE_TOPIC
                if name in topic.overrides
                else pb.CONFIG_SOURCE_DEFAULT,
            )
            for name, setting in topic_config.SETTINGS.items()
        ],
    )


def _describe_partition(
    image: MetadataImage, number: int, partition: PartitionState
) -> pb.PartitionMetadata:
    return pb.PartitionMetadata(
        partition=number,
        leader=common_pb2.PartitionLeader(
            broker_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            address=image.leader_address(partition),
        ),
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=[life.broker_id for life in partition.isr],
        elr=[life.broker_id for life in partition.elr],
        offline_replicas=[] if partition.leader != NO_BROKER else partition.replicas,
    )
