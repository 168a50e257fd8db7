"""The Cluster service: handshake, metadata, and administration, which the controller does."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from google.protobuf.message import Message

from millrace.broker.controller.channel import ControllerChannel, ForwardedRequest
from millrace.broker.guard.callers import GuardedCaller, check_topic
from millrace.broker.guard.demands import KNOWN, Demands, cluster, each, whole
from millrace.broker.quotas import Quotas
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.rpc.broker_settings import describe_settings
from millrace.broker.rpc.calls import Calls, ForwardMethod, ServiceMethods
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.record_deletions import RecordDeletions
from millrace.broker.rpc.resources import TopicResources, topic_resource
from millrace.broker.rpc.topic_messages import TopicDescriptions, topic_id_of
from millrace.core.broker_config import BrokerConfig
from millrace.core.callers import Caller
from millrace.core.controller.request_limits import count_problem
from millrace.core.errors import (
    AccessDeniedError,
    BrokerShuttingDownError,
    InconsistentClusterIdError,
    LogDirFailedError,
    MalformedRequestError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.ids import BrokerId, MonotonicMs, TopicId, TopicPartition
from millrace.core.media import TopicMedia
from millrace.core.metadata import topic_config
from millrace.core.metadata.broker_levels import check_assignments
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import Listener
from millrace.core.metadata.requests import (
    AlterTopics,
    CreateTopics,
    DeleteQuotas,
    DeleteTopics,
    DrainBroker,
    ElectLeaders,
    PurgeTopics,
    ReassignPartitions,
    Request,
    SetQuotas,
    UndeleteTopics,
    UnregisterBroker,
)
from millrace.core.topics import parse_topic_name
from millrace.proto.errors import error_to_wire
from millrace.proto.features import CLIENT_PROTOCOL, check_client
from millrace.proto.media import media_to_wire
from millrace.proto.quotas import bucket_to_wire, quota_to_wire
from millrace.proto.v1 import cluster_pb2 as pb
from millrace.proto.v1 import common_pb2
from millrace.proto.v1.common_pb2 import HelloRequest, HelloResponse
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.software import SOFTWARE_VERSION
from millrace.runtime.turns import Turns


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """A method that the controller answers.

    Attributes:
        kind: of the request.
        request: as the controller knows it.
        entries: the field of the request with its topics, partitions or quotas; empty: it has none.
        operation: that it demands, on the cluster or on its topics.
    """

    kind: ForwardedRequest
    request: type[Request]
    entries: str
    operation: Operation


_FORWARDED: Final = {
    method: _Forwarded(ForwardedRequest(field), request, entries, operation)
    for method, field, request, entries, operation in (
        ("CreateTopics", "create_topics", CreateTopics, "topics", Operation.CREATE),
        ("AlterTopics", "alter_topics", AlterTopics, "topics", Operation.ALTER),
        ("DeleteTopics", "delete_topics", DeleteTopics, "topics", Operation.DELETE),
        ("UndeleteTopics", "undelete_topics", UndeleteTopics, "topics", Operation.DELETE),
        ("PurgeTopics", "purge_topics", PurgeTopics, "topics", Operation.DELETE),
        ("DrainBroker", "drain_broker", DrainBroker, "", Operation.ADMINISTER),
        ("UnregisterBroker", "unregister_broker", UnregisterBroker, "", Operation.ADMINISTER),
        (
            "ReassignPartitions",
            "reassign_partitions",
            ReassignPartitions,
            "reassignments",
            Operation.ADMINISTER,
        ),
        ("ElectLeaders", "elect_leaders", ElectLeaders, "partitions", Operation.ADMINISTER),
        ("SetQuotas", "set_quotas", SetQuotas, "quotas", Operation.ADMINISTER),
        ("DeleteQuotas", "delete_quotas", DeleteQuotas, "names", Operation.ADMINISTER),
    )
}
_WITH_ASSIGNMENTS: Final = frozenset({"create_topics", "alter_topics"})
_QUOTA_USES_MAX: Final = 10_000
_WITH_TOPICS: Final = (
    pb.CreateTopicsResponse,
    pb.AlterTopicsResponse,
    pb.DeleteTopicsResponse,
    pb.UndeleteTopicsResponse,
    pb.PurgeTopicsResponse,
)


class ClusterService:
    """Serves `millrace.proto.v1.Cluster`."""

    NAME = pb.DESCRIPTOR.services_by_name["Cluster"].full_name

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        channel: ControllerChannel,
        partitions: Partitions,
        config: BrokerConfig,
        turns: Turns,
        quotas: Quotas,
        calls: Calls,
        drpc_address: Callable[[], str],
    ) -> None:
        self._broker_id = broker_id
        self._drpc_address = drpc_address
        self._quotas = quotas
        self._channel = channel
        self._partitions = partitions
        self._config = config
        self._turns = turns
        self._calls = calls
        self._listener = calls.listener
        self._resources = TopicResources(lambda: channel.metadata)
        self._topics = TopicDescriptions(calls.listener)
        self._deletions = RecordDeletions(
            partitions,
            turns,
            wait_ms_max=config.limits.request_timeout_ms_max,
            listener=calls.listener,
            audit=calls.audit,
        )

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        demanded = demands(self._resources)
        return self._calls.methods(
            self.NAME,
            unary={
                "Hello": (self._hello, HelloRequest, demanded["Hello"]),
                "GetMetadata": (self._get_metadata, pb.GetMetadataRequest, demanded["GetMetadata"]),
                "ListDeletedTopics": (
                    self._list_deleted,
                    pb.ListDeletedTopicsRequest,
                    demanded["ListDeletedTopics"],
                ),
                "DescribeLogs": (
                    self._describe_logs,
                    pb.DescribeLogsRequest,
                    demanded["DescribeLogs"],
                ),
                "DescribeBrokerConfig": (
                    self._describe_config,
                    pb.DescribeBrokerConfigRequest,
                    demanded["DescribeBrokerConfig"],
                ),
                "DeleteRecords": (
                    self._deletions.delete_records,
                    pb.DeleteRecordsRequest,
                    demanded["DeleteRecords"],
                ),
                "DescribeQuotas": (
                    self._describe_quotas,
                    pb.DescribeQuotasRequest,
                    demanded["DescribeQuotas"],
                ),
            },
            forwards={
                method: (self._forward_method(forwarded), demanded[method])
                for method, forwarded in _FORWARDED.items()
            },
        )

    async def _hello(self, request: HelloRequest, _: object) -> HelloResponse:
        image = self._channel.metadata
        cluster_id = image.cluster.cluster_id
        broker = image.broker(self._broker_id)
        if broker is None:
            raise BrokerShuttingDownError("this broker was unregistered, and is about to stop")
        response = HelloResponse(
            cluster_id=cluster_id,
            broker_id=self._broker_id,
            broker_name=broker.name,
            software_version=SOFTWARE_VERSION,
            rack=broker.rack,
            features=[CLIENT_PROTOCOL],
            message_bytes_max=self._config.limits.message_bytes_max,
            # Its own word: a controller of an earlier release passes none on.
            drpc_address=self._drpc_address(),
        )
        try:
            if request.cluster_id and request.cluster_id != cluster_id:
                raise InconsistentClusterIdError(
                    f"this is broker {broker.name} of cluster {cluster_id}, not of "
                    f"{request.cluster_id}: correct the address, or open the client again when the "
                    "cluster was made again"
                )
            check_client(request.features)
        except MillraceError as error:
            response.error.CopyFrom(error_to_wire(error))
        return response

    async def _get_metadata(
        self, request: pb.GetMetadataRequest, caller: GuardedCaller
    ) -> pb.GetMetadataResponse:
        image = self._channel.metadata
        response = pb.GetMetadataResponse(
            cluster_id=image.cluster.cluster_id,
            controller_id=self._channel.controller_id,
            controller_epoch=image.cluster.controller_epoch,
            metadata_epoch=image.epoch,
            controller_problem=self._channel.problem,
            brokers=[
                pb.BrokerMetadata(
                    broker_id=broker.broker_id,
                    name=broker.name,
                    address=broker.address_at(self._listener),
                    rack=broker.rack,
                    broker_epoch=broker.broker_epoch,
                    fenced=broker.is_fenced,
                    draining=broker.is_draining,
                    drained=broker.is_drained,
                    reluctance=broker.reluctance,
                    media=map(media_to_wire, broker.media),
                    drpc_address=broker.drpc_address_at(self._listener),
                )
                for _, broker in sorted(image.cluster.brokers.items())
            ],
        )
        if request.brokers_only:
            return response
        work = self._turns.work()
        if request.topics or request.topic_ids:
            # Each once, even if it is named often: a description is a hundred times as long as a
            # name.
            await caller.learn(
                Operation.DESCRIBE, (named(ResourceKind.TOPICS, name) for name in request.topics)
            )
            for name in dict.fromkeys(request.topics):
                await work.give_way()
                response.topics.append(self._find(image, caller, name=name))
            answered = set[bytes]()
            if request.topic_ids:
                answered.update(topic.topic_id for topic in response.topics if not topic.error.code)
            for topic_id in dict.fromkeys(request.topic_ids):
                await work.give_way()
                if topic_id not in answered:
                    response.topics.append(self._find(image, caller, topic_id=topic_id))
        else:
            await caller.learn(
                Operation.DESCRIBE,
                map(topic_resource, image.topics),
                all_needed=request.none_hidden,
            )
            for _, topic in sorted(image.topics.items()):
                await work.give_way()
                resource = topic_resource(topic.name)
                if caller.sees(Operation.DESCRIBE, resource, none_hidden=request.none_hidden):
                    response.topics.append(self._topics.of(image, topic, self._channel.config))
        if request.with_documentation:
            for described in response.topics:
                await work.give_way()
                for entry in described.config:
                    entry.documentation = topic_config.SETTINGS[
                        entry.name
                    ].description.documentation
        return response

    def _find(
        self,
        image: MetadataImage,
        caller: GuardedCaller,
        *,
        name: str = "",
        topic_id: bytes = b"",
    ) -> pb.TopicMetadata:
        try:
            if name:
                wanted_name = parse_topic_name(name)
                # The answer is the same whether there is such a topic or not.
                if refused := caller.refusal(Operation.DESCRIBE, topic_resource(wanted_name)):
                    raise refused
                topic = image.topics.get(wanted_name)
            else:
                wanted = topic_id_of(topic_id)
                topic = image.topics_by_id.get(wanted) if wanted is not None else None
                if topic is not None:
                    found = topic_resource(topic.name)
                    if refused := caller.refusal_by_id(Operation.DESCRIBE, found):
                        raise refused
            if topic is None:
                raise UnknownTopicOrPartitionError(
                    f"there is no topic {name}"
                    if name
                    else f"there is no topic with id {topic_id.hex()}: it was deleted"
                )
        except MillraceError as error:
            return pb.TopicMetadata(name=name, topic_id=topic_id, error=error_to_wire(error))
        return self._topics.of(image, topic, self._channel.config)

    async def _list_deleted(
        self, _: pb.ListDeletedTopicsRequest, caller: GuardedCaller
    ) -> pb.ListDeletedTopicsResponse:
        image, kept_ms = self._channel.metadata, self._channel.config.deleted_topic_retention_ms
        response = pb.ListDeletedTopicsResponse(metadata_epoch=image.epoch)
        work = self._turns.work()
        await caller.learn(
            Operation.DESCRIBE,
            (topic_resource(deleted.topic.name) for deleted in image.deleted_topics()),
        )
        for deleted_topic in image.deleted_topics():
            await work.give_way()
            if not caller.may(Operation.DESCRIBE, topic_resource(deleted_topic.topic.name)):
                continue
            response.topics.append(
                pb.DeletedTopic(
                    name=str(deleted_topic.topic.name),
                    topic_id=deleted_topic.topic.topic_id,
                    partitions=len(deleted_topic.topic.partitions),
                    replication_factor=deleted_topic.topic.replication_factor,
                    deleted_at_ms=deleted_topic.deleted_at,
                    gone_at_ms=deleted_topic.deleted_at + kept_ms,
                )
            )
        return response

    def _forward_method(self, forwarded: _Forwarded) -> ForwardMethod:
        """Return the method that passes a client's request on to the controller.

        A request that the controller would refuse for its size is refused here, for less; and one
        of which a controller of an earlier release would overlook something.
        """
        kind = forwarded.kind

        def check(request: Message) -> None:
            count = len(getattr(request, forwarded.entries)) if forwarded.entries else 0
            problem = count_problem(forwarded.request, count, self._channel.config)
            if problem is not None:
                raise MalformedRequestError(problem)
            if kind.name in _WITH_ASSIGNMENTS and any(
                topic.assignment for topic in cast(Any, request).topics
            ):
                check_assignments(self._channel.metadata.cluster)

        async def forward(request: bytes, caller: Caller) -> Message:
            response = await self._channel.forward(kind, request, caller)
            # Wait until this broker has applied it, too: the client's next request depends on it.
            await self._partitions.settled()
            answer = getattr(response, kind.name)
            if self._listener is not Listener.CLIENTS and isinstance(answer, _WITH_TOPICS):
                await self._address(answer)
            answer.metadata_epoch = self._channel.metadata.epoch
            return cast(Message, answer)

        return forward, kind, check

    async def _address(self, answer: Any) -> None:
        """Add leaders' addresses for the clients of this listener: the controller names none."""
        image = self._channel.metadata
        work = self._turns.work()
        for result in answer.results:
            await work.give_way()
            for partition in result.topic.partitions:
                leader = image.broker(BrokerId(partition.leader.broker_id))
                address = "" if leader is None else leader.address_at(self._listener)
                partition.leader.address = address

    async def _describe_logs(
        self, request: pb.DescribeLogsRequest, caller: GuardedCaller
    ) -> pb.DescribeLogsResponse:
        work = self._turns.work()
        wanted: dict[TopicPartition, None] = {}
        for asked in request.partitions:
            await work.give_way()
            topic_id = topic_id_of(asked.topic_id) or TopicId(b"")
            wanted[TopicPartition(topic_id, asked.partition)] = None
        described: Iterable[TopicPartition]
        if request.only_damaged:
            damaged = self._partitions.damaged()
            lacking = self._partitions.replicas.lacking()
            described = [partition for partition in damaged if not wanted or partition in wanted]
        else:
            lacking = {}
            described = wanted or sorted(self._partitions)
        # A request that names no partitions has been checked as a whole.
        seen = caller.on_topics(Operation.DESCRIBE, self._resources.of) if wanted else None
        response = pb.DescribeLogsResponse()
        for topic_partition in described:
            await work.give_way()
            named = common_pb2.TopicPartition(
                topic_id=topic_partition.topic_id, partition=topic_partition.partition
            )
            try:
                check_topic(seen, topic_partition.topic_id)
                partition = self._partitions.get(topic_partition)
                if topic_partition in lacking:
                    raise lacking[topic_partition]
            except MillraceError as error:
                response.logs.append(
                    pb.LogDescription(
                        topic_partition=named,
                        error=wire_error(self._partitions, error, topic_partition, self._listener),
                        damaged_logs=self._partitions.damaged_logs(topic_partition)
                        if not isinstance(error, AccessDeniedError)
                        else (),
                    )
                )
                continue
            log = partition.log
            response.logs.append(
                pb.LogDescription(
                    topic_partition=named,
                    log_start_offset=log.log_start_offset,
                    log_end_offset=log.log_end_offset,
                    high_watermark=partition.replica.high_watermark,
                    flushed_offset=log.flushed_offset,
                    size_bytes=log.size_bytes,
                    segments=len(log.segments),
                    log_dir=log.directory,
                    media=media_to_wire(self._partitions.placement.media_of(topic_partition)),
                    leads=partition.replica.leads,
                    followers=_describe_followers(partition, monotonic_now()),
                    damaged_logs=self._partitions.damaged_logs(topic_partition),
                    compaction=self._describe_compaction(partition),
                    tier=self._describe_tier(partition),
                    appended_bytes=partition.appended_bytes,
                    fetched_bytes=partition.fetched_bytes,
                )
            )
        return response

    def _describe_compaction(self, partition: Partition) -> pb.CompactionDescription | None:
        log, refused = partition.log, partition.uncleanable
        if not log.config.is_compacted:
            return None
        described = pb.CompactionDescription(
            cleaner_point=log.state.cleaner_point.offset,
            dirty_ratio=log.cleaner.cleanable(wall_now()).dirty_ratio,
            compacted_at=log.state.cleaner_point.cleaned_at,
        )
        if refused is not None:
            error = wire_error(self._partitions, refused, partition.topic_partition, self._listener)
            described.error.CopyFrom(error)
        return described

    def _describe_tier(self, partition: Partition) -> pb.TierDescription | None:
        log = partition.log
        refused: MillraceError | None = partition.unmovable
        is_tiered = partition.config.media is TopicMedia.TIERED
        if log.tier is None and not is_tiered:
            return None
        if is_tiered and self._partitions.placement.tier_for(partition.topic_partition) is None:
            refused = LogDirFailedError(
                "no segment can move: this broker has no log directory on an HDD that works, or "
                "the log lies on an HDD itself"
            )
        described = pb.TierDescription()
        if log.tier is not None:
            described.log_dir = log.tier.folder(partition.topic_partition)
            described.end_offset = log.tier.end_offset
            described.size_bytes = log.tier_bytes
        if refused is not None:
            error = wire_error(self._partitions, refused, partition.topic_partition, self._listener)
            described.error.CopyFrom(error)
        return described

    async def _describe_config(
        self, _: pb.DescribeBrokerConfigRequest, __: object
    ) -> pb.DescribeBrokerConfigResponse:
        return pb.DescribeBrokerConfigResponse(
            config=describe_settings(self._config, self._channel.config)
        )

    async def _describe_quotas(
        self, request: pb.DescribeQuotasRequest, _: object
    ) -> pb.DescribeQuotasResponse:
        image = self._channel.metadata
        wanted = set(request.names)
        response = pb.DescribeQuotasResponse(metadata_epoch=image.epoch)
        for name, quota in sorted(image.cluster.quotas.items()):
            if not wanted or name in wanted:
                response.quotas.append(quota_to_wire(quota))
        if request.without_use:
            return response
        work = self._turns.work()
        for state in self._quotas.states():
            await work.give_way()
            if wanted and state.bucket.quota not in wanted:
                continue
            if len(response.uses) == _QUOTA_USES_MAX:
                break
            response.uses.append(
                pb.QuotaUse(
                    bucket=bucket_to_wire(state.bucket),
                    used_per_second=state.used,
                    limit_per_second=state.limit,
                    delay_ms=state.delay_ms,
                    throttled_ms=state.throttled_ms,
                )
            )
        return response


def demands(topics: TopicResources) -> dict[str, Demands]:
    """Return what each call demands; `topics` finds those that requests name."""
    described = each(Operation.DESCRIBE, ResourceKind.TOPICS)
    return {
        "Hello": KNOWN,
        "GetMetadata": described,
        "ListDeletedTopics": described,
        "DescribeLogs": each(Operation.DESCRIBE, ResourceKind.TOPICS, "of the partitions it names")
        & cluster(
            Operation.DESCRIBE,
            "if it names no partitions",
            lambda request: not request.partitions,
        ),
        "DescribeBrokerConfig": cluster(Operation.DESCRIBE),
        "DeleteRecords": whole(
            Operation.DELETE,
            ResourceKind.TOPICS,
            lambda request: topics.of_partitions(request.partitions),
        ),
        "DescribeQuotas": cluster(Operation.DESCRIBE),
        **{method: _forwarded(found, topics) for method, found in _FORWARDED.items()},
    }


def _forwarded(forwarded: _Forwarded, topics: TopicResources) -> Demands:
    if forwarded.operation is Operation.ADMINISTER:
        return cluster(Operation.ADMINISTER)
    return whole(
        forwarded.operation, ResourceKind.TOPICS, lambda request: topics.of_refs(request.topics)
    )


def _describe_followers(partition: Partition, now: MonotonicMs) -> Iterator[pb.FollowerDescription]:
    leader = partition.replica.leader
    if leader is None or leader.is_resigned:
        return
    in_sync = {life.broker_id for life in leader.state.isr}
    for follower in leader.in_sync.followers:
        is_behind = follower.progress.log_end_offset < leader.written_offset
        yield pb.FollowerDescription(
            broker_id=follower.broker_id,
            log_end_offset=follower.progress.log_end_offset,
            flushed_offset=follower.progress.flushed_offset,
            behind_ms=now - follower.caught_up_at if is_behind else 0,
            in_sync=follower.broker_id in in_sync,
        )
