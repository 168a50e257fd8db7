"""Administration: topics, offsets, the cluster itself."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from millrace.client import _wire
from millrace.client._cluster import BrokerInfo, Cluster, Connection
from millrace.core.errors import MillraceError, RefreshMetadataError, UnknownTopicOrPartitionError
from millrace.core.ids import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.topics import parse_topic_name
from millrace.proto.v1 import cluster_pb2, fetch_pb2

OffsetAt = Literal["beginning", "end", "max_timestamp"] | int
"""An end of the log, its newest record by time, or the first record at or after a time in ms."""

_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.1
_SOURCES: Final[Mapping[int, str]] = {
    cluster_pb2.CONFIG_SOURCE_DEFAULT: "default",
    cluster_pb2.CONFIG_SOURCE_BROKER: "broker",
    cluster_pb2.CONFIG_SOURCE_TOPIC: "topic",
}
Result = TypeVar("Result")


@dataclass(slots=True, frozen=True)
class ConfigValue:
    """A setting of a topic."""

    value: str
    source: str
    """`default`, `broker` or `topic`: who decided it."""
    documentation: str


@dataclass(slots=True, frozen=True)
class PartitionDescription:
    """One partition."""

    partition: int
    leader: BrokerId
    """-1: nobody at present."""
    leader_epoch: LeaderEpoch
    leader_address: str
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]


@dataclass(slots=True, frozen=True)
class TopicDescription:
    """A topic with its partitions and settings."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]
    config: Mapping[str, ConfigValue]

    @property
    def replication_factor(self) -> int:
        """Return the number of replicas of each partition."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(slots=True, frozen=True)
class ClusterDescription:
    """The cluster as its brokers describe it."""

    cluster_id: str
    controller_id: BrokerId
    brokers: tuple[BrokerInfo, ...]


@dataclass(slots=True, frozen=True)
class OffsetAndTimestamp:
    """An offset that was looked up."""

    offset: Offset
    """-1: no record matches."""
    timestamp: int
    """Of the record found, ms UTC; -1: none or not asked for."""
    leader_epoch: LeaderEpoch


@dataclass(slots=True, frozen=True)
class LogDescription:
    """One replica's log on one broker."""

    topic: str
    partition: int
    broker_id: BrokerId
    log_start_offset: Offset
    log_end_offset: Offset
    high_watermark: Offset
    flushed_offset: Offset
    size_bytes: int
    segments: int
    log_dir: str


class Admin:
    """Creates, describes and changes topics, from an event loop.

        async with Admin("localhost:7092") as admin:
            await admin.create_topic("orders", partitions=4, config={"retention.ms": "86400000"})
            print(await admin.list_topics())

    Args:
        bootstrap: `host:port` of brokers, tried in turn: a string with commas, or a sequence.
        client_id: name in the brokers' logs and metrics.
        request_timeout_ms: how long one call may take.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "millrace-python",
        request_timeout_ms: int = 30_000,
    ) -> None:
        self._cluster = Cluster(bootstrap, client_id=client_id, timeout_ms=request_timeout_ms)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Create a topic.

        Args:
            name: `name` or `namespace/name`.
            partitions: None: the cluster's default.
            replication_factor: None: the cluster's default.
            config: settings by Kafka's names, such as `retention.ms`.
            validate_only: check everything and change nothing.

        Raises:
            TopicAlreadyExistsError, InvalidTopicError, InvalidPartitionsError,
            InvalidReplicationFactorError, InvalidConfigError: what the names say.
        """
        request = cluster_pb2.CreateTopicsRequest(
            topics=[
                cluster_pb2.NewTopic(
                    name=str(parse_topic_name(name)),
                    partitions=partitions or 0,
                    replication_factor=replication_factor or 0,
                    config={key: str(value) for key, value in (config or {}).items()},
                )
            ],
            validate_only=validate_only,
        )
        return await self._change(lambda c: c.cluster.CreateTopics(request))

    async def alter_topic(
        self,
        name: str,
        *,
        set_config: Mapping[str, str] | None = None,
        unset_config: Iterable[str] = (),
        partitions: int | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Change settings of a topic, or let its number of partitions grow.

        Raises:
            UnknownTopicOrPartitionError, InvalidConfigError, InvalidPartitionsError: what the
                names say.
        """
        request = cluster_pb2.AlterTopicsRequest(
            topics=[
                cluster_pb2.TopicChange(
                    name=str(parse_topic_name(name)),
                    set_config={key: str(value) for key, value in (set_config or {}).items()},
                    unset_config=list(unset_config),
                    partitions=partitions or 0,
                )
            ],
            validate_only=validate_only,
        )
        return await self._change(lambda c: c.cluster.AlterTopics(request))

    async def delete_topic(self, name: str, *, validate_only: bool = False) -> None:
        """Delete a topic with all its records.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
        """
        request = cluster_pb2.DeleteTopicsRequest(
            topics=[cluster_pb2.TopicRef(name=str(parse_topic_name(name)))],
            validate_only=validate_only,
        )
        await self._result(lambda c: c.cluster.DeleteTopics(request))

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; internal ones only when asked for."""
        response = await self._metadata(cluster_pb2.GetMetadataRequest())
        return sorted(
            str(parse_topic_name(topic.name))
            for topic in response.topics
            if (internal or not topic.internal) and not topic.error.code
        )

    async def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> dict[str, TopicDescription]:
        """Return topics by name; None: all.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """
        wanted = None if names is None else [str(parse_topic_name(name)) for name in names]
        if wanted == []:
            return {}
        response = await self._metadata(
            cluster_pb2.GetMetadataRequest(topics=wanted or (), with_documentation=True)
        )
        described = {}
        for topic in response.topics:
            _wire.raise_if_error(topic.error, is_set=topic.HasField("error"))
            description = _topic_from_wire(topic)
            described[description.name] = description
        for name in wanted or ():
            if name not in described:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return described

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return one topic.

        Raises:
            UnknownTopicOrPartitionError: it does not exist.
        """
        (topic,) = (await self.describe_topics([name])).values()
        return topic

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers."""
        await self._metadata(cluster_pb2.GetMetadataRequest(brokers_only=True))
        return ClusterDescription(
            self._cluster.cluster_id,
            self._cluster.controller_id,
            tuple(self._cluster.brokers[broker] for broker in sorted(self._cluster.brokers)),
        )

    async def list_offsets(
        self, topic: str, at: OffsetAt = "end", partitions: Iterable[int] | None = None
    ) -> dict[int, OffsetAndTimestamp]:
        """Return an offset per partition.

        Args:
            topic: its name.
            at: "beginning", "end", "max_timestamp" or a time in ms UTC.
            partitions: None: all.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return await self._list_offsets(topic, at, partitions)
            except RefreshMetadataError as error:
                if isinstance(error, UnknownTopicOrPartitionError) or attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    async def describe_logs(self, topic: str | None = None) -> list[LogDescription]:
        """Return offsets and sizes of the replicas on all brokers; of one topic or of all."""
        await self._metadata(
            cluster_pb2.GetMetadataRequest(
                topics=() if topic is None else [str(parse_topic_name(topic))]
            )
        )
        request = cluster_pb2.DescribeLogsRequest()
        if topic is not None:
            info = await self._cluster.topic(topic)
            for partition in info.partitions:
                request.partitions.add(topic_id=info.topic_id, partition=partition.partition)
        described = []
        for broker in self._cluster.brokers.values():
            if broker.is_fenced:
                continue
            connection = await self._cluster.connection(broker.address)

            async def describe(connection: Connection) -> cluster_pb2.DescribeLogsResponse:
                response: cluster_pb2.DescribeLogsResponse = await connection.cluster.DescribeLogs(
                    request
                )
                return response

            response = await self._cluster.on(connection, describe)
            for log in response.logs:
                if log.HasField("error") and log.error.code:
                    continue  # A replica that this broker does not hold.
                topic_id = TopicId(log.topic_partition.topic_id)
                described.append(
                    LogDescription(
                        self._cluster.topic_names.get(topic_id, topic_id.hex()),
                        log.topic_partition.partition,
                        broker.broker_id,
                        Offset(log.log_start_offset),
                        Offset(log.log_end_offset),
                        Offset(log.high_watermark),
                        Offset(log.flushed_offset),
                        log.size_bytes,
                        log.segments,
                        log.log_dir,
                    )
                )
        return sorted(described, key=lambda log: (log.topic, log.partition, log.broker_id))

    async def close(self) -> None:
        """Close the connections."""
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _metadata(
        self, request: cluster_pb2.GetMetadataRequest
    ) -> cluster_pb2.GetMetadataResponse:
        response = await self._cluster.call(lambda c: c.cluster.GetMetadata(request))
        self._cluster.learn(response)
        return response  # type: ignore[no-any-return]

    async def _change(
        self, method: Callable[[Connection], Awaitable[cluster_pb2.CreateTopicsResponse]]
    ) -> TopicDescription:
        return _topic_from_wire((await self._result(method)).topic)

    async def _result(
        self, method: Callable[[Connection], Awaitable[cluster_pb2.CreateTopicsResponse]]
    ) -> cluster_pb2.TopicResult:
        """Call whoever is the controller; another one, or none, is looked up again."""
        for attempt in range(_ATTEMPTS):
            response = await self._cluster.call(method)
            (result,) = response.results
            try:
                _wire.raise_if_error(result.error, is_set=result.HasField("error"))
            except MillraceError as error:
                unknown = isinstance(error, UnknownTopicOrPartitionError)
                if unknown or not error.retriable or attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(_PAUSE_S)
                await self._cluster.refresh([])
            else:
                return result
        raise AssertionError("the last attempt returns or raises")

    async def _list_offsets(
        self, topic: str, at: OffsetAt, partitions: Iterable[int] | None
    ) -> dict[int, OffsetAndTimestamp]:
        name = str(parse_topic_name(topic))
        await self._cluster.refresh([name])
        info = await self._cluster.topic(name)
        wanted = range(len(info.partitions)) if partitions is None else list(partitions)
        by_broker: dict[BrokerId, list[int]] = {}
        for number in wanted:
            if not 0 <= number < len(info.partitions):
                raise UnknownTopicOrPartitionError(
                    f"topic {name!r} has partitions 0 to {len(info.partitions) - 1}, not {number}"
                )
            leader = info.partitions[number].leader.broker_id
            if leader < 0:
                raise RefreshMetadataError(f"nobody leads partition {number} of {name!r} now")
            by_broker.setdefault(leader, []).append(number)
        found = {}
        for broker_id, numbers in by_broker.items():
            request = fetch_pb2.ListOffsetsRequest(
                partitions=[_offset_query(info.topic_id, number, at) for number in numbers]
            )
            offsets = await self._cluster.list_offsets(broker_id, request)
            for number, listed in zip(numbers, offsets, strict=True):
                found[number] = OffsetAndTimestamp(
                    Offset(listed.offset), listed.timestamp, LeaderEpoch(listed.leader_epoch)
                )
        return dict(sorted(found.items()))


def _offset_query(
    topic_id: TopicId, partition: int, at: OffsetAt
) -> fetch_pb2.ListOffsetsPartition:
    query = fetch_pb2.ListOffsetsPartition(
        topic_partition=_wire.partition_to_wire(TopicPartition(topic_id, partition)),
        current_leader_epoch=-1,
    )
    if at == "beginning":
        query.earliest = True
    elif at == "end":
        query.latest = True
    elif at == "max_timestamp":
        query.max_timestamp = True
    else:
        query.timestamp = at
    return query


def _topic_from_wire(topic: cluster_pb2.TopicMetadata) -> TopicDescription:
    info = _wire.topic_from_wire(topic)
    return TopicDescription(
        info.name,
        info.topic_id,
        info.is_internal,
        tuple(
            PartitionDescription(
                partition.partition,
                partition.leader.broker_id,
                partition.leader.leader_epoch,
                partition.leader_address,
                partition.replicas,
                partition.isr,
                partition.offline_replicas,
            )
            for partition in info.partitions
        ),
        {
            entry.name: ConfigValue(
                entry.value, _SOURCES.get(entry.source, "unknown"), entry.documentation
            )
            for entry in topic.config
        },
    )
