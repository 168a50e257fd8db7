"""Administration: topics, offsets, the cluster itself.

When an answer is lost it is unknown whether the change was made, and the request is repeated. So
each request is idempotent: the client chooses the id of a new topic, a topic to delete is named by
its id, and a deletion counts as done if the topic was there before and is gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Final, Literal, Protocol, Self, TypeVar, Unpack, overload

from millrace.client import host
from millrace.client._admin.descriptions import (
    ClusterDescription,
    ConfigValue,
    DamagedReplica,
    DeletedTopic,
    LogDescription,
    TopicDescription,
    config_from_wire,
    deleted_from_wire,
    log_from_wire,
    topic_from_wire,
)
from millrace.client._admin.groups import (
    GroupDescription,
    GroupListing,
    Lag,
    describe_members,
    kind_of,
    lag_at,
    list_groups,
)
from millrace.client._admin.health import ClusterHealth, ReplicationDefaults, health_of
from millrace.client._admin.quotas import QuotaDescription, described, descriptions
from millrace.client._cluster import wire
from millrace.client._cluster.arguments import (
    checked_broker,
    checked_count,
    checked_offset,
    checked_place,
)
from millrace.client._cluster.cluster import (
    DOUBT_S,
    ChangeResponse,
    Cluster,
    Connection,
    as_maybe,
)
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.offsets import (
    OffsetAndTimestamp,
    OffsetSpec,
    describe_lags,
    find_epoch_ends,
    look_up_offsets,
    wait_for_news,
)
from millrace.client._cluster.positions import KeptPositions
from millrace.client._cluster.record_deletions import delete_records
from millrace.client._cluster.wire import BrokerInfo, TopicInfo
from millrace.client._runtime.tasks import let_go, parts_of_a_call
from millrace.client._settings import AdminConfig, AdminSettings, documents
from millrace.core.errors import (
    Appended,
    BrokerIdNotRegisteredError,
    ClosedError,
    ConnectionFailedError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    MalformedRequestError,
    MillraceError,
    QuotaNotFoundError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TOPIC_ID_BYTES, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.positions.position import Position
from millrace.core.quotas.quota import Quota, QuotaEntity, checked, checked_quota_name
from millrace.core.settings import parse
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.proto.quotas import quota_from_wire, quota_to_wire
from millrace.proto.v1 import cluster_pb2, common_pb2, positions_pb2

_PAUSE_S: Final = 0.1
_DESCRIBE_S: Final = 10.0
"""How long a broker may take to describe its logs or settings before it is left out."""
Result = TypeVar("Result")
_POSITION_KINDS: Final = {
    "committed": positions_pb2.POSITION_KIND_COMMITTED,
    "initial": positions_pb2.POSITION_KIND_INITIAL,
}
_KINDS: Final = {
    "preferred": cluster_pb2.ELECTION_KIND_PREFERRED,
    "unclean": cluster_pb2.ELECTION_KIND_UNCLEAN,
}


class _PartitionResults(ChangeResponse, Protocol):
    """The response to a request about several partitions."""

    @property
    def results(self) -> Sequence[cluster_pb2.PartitionResult]: ...


@documents(AdminConfig)
class Admin:
    """Creates, describes and changes topics, and looks after the cluster, from an event loop.

        async with Admin("localhost:7092") as admin:
            await admin.create_topic("orders", partitions=4, config={"retention.ms": "86400000"})
            print(await admin.list_topics())

    Args:
        bootstrap: `host:port` of brokers, tried in turn: a string with commas, or a sequence.
        {settings}

    Raises:
        InvalidConfigError: a setting does not exist, or is out of its bounds.
    """

    def __init__(self, bootstrap: str | Sequence[str], **settings: Unpack[AdminSettings]) -> None:
        config = parse(AdminConfig, settings)
        self._close_timeout_ms = config.close_timeout_ms
        self._cluster = Cluster(
            bootstrap,
            client_id=config.client_id,
            timeout_ms=config.request_timeout_ms,
            metadata_timeout_ms=config.metadata_timeout_ms,
        )
        self._coordinators = Coordinators(self._cluster)
        self._positions = KeptPositions(self._cluster, self._coordinators)

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
                    topic_id=host.current.random_bytes(TOPIC_ID_BYTES),
                    partitions=checked_count(partitions, "partitions", InvalidPartitionsError),
                    replication_factor=checked_count(
                        replication_factor, "replicas", InvalidReplicationFactorError
                    ),
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
                    partitions=checked_count(partitions, "partitions", InvalidPartitionsError),
                )
            ],
            validate_only=validate_only,
        )
        return await self._change(lambda c: c.cluster.AlterTopics(request))

    async def delete_topic(self, name: str, *, validate_only: bool = False) -> None:
        """Delete a topic with all its records.

        `undelete_topic` brings it back, within the cluster's `deleted_topic_retention_ms`.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            DeletionProtectedError: its setting `deletion.protection` is true; nothing was deleted.
        """
        named = cluster_pb2.TopicRef(name=str(parse_topic_name(name)))
        topic = await self._delete(named, validate_only=True)
        if not validate_only:
            # A later topic of the same name is another one.
            with suppress(UnknownTopicOrPartitionError):
                await self._delete(cluster_pb2.TopicRef(topic_id=topic.topic_id))

    async def _delete(
        self, topic: cluster_pb2.TopicRef, *, validate_only: bool = False
    ) -> cluster_pb2.TopicMetadata:
        request = cluster_pb2.DeleteTopicsRequest(topics=[topic], validate_only=validate_only)
        return (await self._result(lambda c: c.cluster.DeleteTopics(request))).topic

    async def list_deleted_topics(self) -> list[DeletedTopic]:
        """Return the deleted topics that can be brought back, the one deleted first at first."""

        async def ask(connection: Connection) -> cluster_pb2.ListDeletedTopicsResponse:
            response: cluster_pb2.ListDeletedTopicsResponse
            response = await connection.cluster.ListDeletedTopics(
                cluster_pb2.ListDeletedTopicsRequest()
            )
            self._check_age(connection, response.metadata_epoch)
            return response

        response = await self._cluster.call(ask)
        found = map(deleted_from_wire, response.topics)
        return sorted(found, key=lambda each: (each.deleted_at_ms, each.topic_id))

    async def undelete_topic(
        self, name: str, *, topic_id: TopicId | None = None
    ) -> TopicDescription:
        """Bring a deleted topic back, with its id, settings and records, and groups' positions.

            await admin.undelete_topic("orders")

        Args:
            name: of the topic.
            topic_id: which of the deleted topics with this name; None: there is only one.

        Raises:
            UnknownTopicOrPartitionError: there is no such deleted topic; it may be gone for good.
            TopicAlreadyExistsError: another topic has the name by now; nothing was changed.
            MalformedRequestError: several deleted topics have the name; says their ids.
            InvalidPartitionsError: a broker, or the metadata, has no room for its partitions.
        """
        deleted, _ = await self._deleted(name, topic_id)
        request = cluster_pb2.UndeleteTopicsRequest(topics=[deleted])
        return await self._change(lambda c: c.cluster.UndeleteTopics(request))

    async def purge_topic(self, name: str, *, topic_id: TopicId | None = None) -> None:
        """Let a deleted topic be gone for good before its time; brokers delete its files.

        Args:
            name: of the topic.
            topic_id: which of the deleted topics with this name; None: there is only one.

        Raises:
            UnknownTopicOrPartitionError: there is no such deleted topic.
            MalformedRequestError: several deleted topics have the name; says their ids.
        """
        deleted, was_there = await self._deleted(name, topic_id)
        request = cluster_pb2.PurgeTopicsRequest(topics=[deleted])
        try:
            await self._result(lambda c: c.cluster.PurgeTopics(request))
        except UnknownTopicOrPartitionError:
            if not was_there:
                raise
            # The answer to the first attempt was lost.

    async def _deleted(
        self, name: str, topic_id: TopicId | None
    ) -> tuple[cluster_pb2.TopicRef, bool]:
        """Return which deleted topic is meant, and whether there is exactly one.

        It is named by its id then, so that a repeated request means the same one.
        """
        parsed = str(parse_topic_name(name))
        found = [
            each.topic_id
            for each in await self.list_deleted_topics()
            if each.name == parsed and topic_id in (None, each.topic_id)
        ]
        if len(found) == 1:
            return cluster_pb2.TopicRef(name=parsed, topic_id=found[0]), True
        return cluster_pb2.TopicRef(name=parsed, topic_id=topic_id or b""), False

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted; internal ones only when asked for."""
        response = await self._cluster.look_up(cluster_pb2.GetMetadataRequest())
        return sorted(
            str(parse_topic_name(topic.name))
            for topic in response.topics
            if (internal or not topic.internal) and not topic.error.code
        )

    async def describe_topics(
        self, names: Iterable[str] | None = None
    ) -> dict[str, TopicDescription]:
        """Return topics by name; None: all. Their settings come without `documentation`.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
        """
        return await self._describe_topics(names, with_documentation=False)

    async def _describe_topics(
        self, names: Iterable[str] | None, *, with_documentation: bool
    ) -> dict[str, TopicDescription]:
        wanted = None if names is None else [str(parse_topic_name(name)) for name in names]
        if wanted == []:
            return {}
        response = await self._cluster.look_up(
            cluster_pb2.GetMetadataRequest(
                topics=wanted or (), with_documentation=with_documentation
            )
        )
        described = {}
        for topic in response.topics:
            wire.raise_if_refused(topic)
            description = topic_from_wire(topic)
            described[description.name] = description
        for name in wanted or ():
            if name not in described:
                raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return described

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return one topic, with what its settings mean.

        Raises:
            UnknownTopicOrPartitionError: it does not exist.
        """
        (topic,) = (await self._describe_topics([name], with_documentation=True)).values()
        return topic

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers, from the broker with the newest
        metadata.

        All brokers are asked. Those that do not answer within `metadata_timeout_ms` are in
        `unreachable`, unless the metadata has them fenced already.

        for broker in (await admin.describe_cluster()).brokers:
            print(broker.broker_id, broker.address, broker.rack, broker.state)
        """
        unreachable = await self._cluster.survey()
        return ClusterDescription(
            self._cluster.cluster_id,
            self._cluster.controller_id,
            self._cluster.controller_epoch,
            tuple(self._cluster.brokers[broker] for broker in sorted(self._cluster.brokers)),
            unreachable,
            self._cluster.controller_problem,
        )

    async def describe_health(self) -> ClusterHealth:
        """Return the cluster's problems, from the broker with the newest metadata.

        health = await admin.describe_health()
        for partition in health.under_min_isr:
            print(partition.topic, partition.partition, "lacks", partition.missing)
        """
        cluster = await self.describe_cluster()
        response = await self._cluster.look_up(cluster_pb2.GetMetadataRequest())
        topics = [topic_from_wire(topic) for topic in response.topics if not topic.error.code]
        damaged, silent = await self._describe_damage(None, cluster.unreachable)
        cluster = replace(cluster, unreachable=(*cluster.unreachable, *silent))
        return health_of(cluster, topics, damaged, await self._replication_defaults(cluster))

    async def _replication_defaults(
        self, cluster: ClusterDescription
    ) -> ReplicationDefaults | None:
        """Ask one broker: all go by the controller's settings. None: it does not answer."""
        alive = [
            each
            for each in cluster.brokers
            if not each.is_fenced and each.broker_id not in cluster.unreachable
        ]
        if not alive:
            return None
        asked = min(alive, key=lambda each: each.broker_id != cluster.controller_id)
        request = cluster_pb2.DescribeBrokerConfigRequest()
        answer = await self._ask(asked, lambda c: c.cluster.DescribeBrokerConfig(request))
        if answer is None:
            return None
        config = config_from_wire(answer.config)
        return ReplicationDefaults(
            topics=int(config["cluster.default_replication_factor"].value),
            positions=int(config["cluster.positions_replication_factor"].value),
        )

    async def drain_broker(self, broker_id: int) -> None:
        """Take a broker out of service: it hands over its leaderships, and gets no new replicas.

        It goes on replicating, and stays drained over restarts until `undrain_broker`. The answer
        comes when that is decided; the leaderships move at once where another replica is in sync,
        which `describe_topics` shows.

            await admin.drain_broker(2)

        Raises:
            BrokerIdNotRegisteredError: there is no such broker.
        """
        await self._drain(cluster_pb2.DrainBrokerRequest(broker_id=checked_broker(broker_id)))

    async def undrain_broker(self, broker_id: int) -> None:
        """Take a broker back into service; its leaderships return by themselves.

        Raises:
            BrokerIdNotRegisteredError: there is no such broker.
        """
        await self._drain(
            cluster_pb2.DrainBrokerRequest(broker_id=checked_broker(broker_id), undrain=True)
        )

    async def _drain(self, request: cluster_pb2.DrainBrokerRequest) -> None:
        await self._change_broker(lambda c: c.cluster.DrainBroker(request))

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove a broker that is gone for good from the cluster; its id is not given again.

            await admin.unregister_broker(2)

        Raises:
            BrokerIdNotRegisteredError: there is no such broker.
            BrokerInUseError: it is alive, or partitions have it as a replica; says which.
        """
        request = cluster_pb2.UnregisterBrokerRequest(broker_id=checked_broker(broker_id))
        known = await self._cluster.look_up(cluster_pb2.GetMetadataRequest(brokers_only=True))
        was_there = any(each.broker_id == broker_id for each in known.brokers)
        try:
            await self._change_broker(lambda c: c.cluster.UnregisterBroker(request))
        except BrokerIdNotRegisteredError:
            if not was_there:
                raise

    async def reassign_partitions(
        self, assignments: Mapping[PartitionName, Sequence[int] | None]
    ) -> dict[PartitionName, MillraceError | None]:
        """Change which brokers hold partitions; return what was refused, None where it has begun.

        New replicas copy the log first; the old ones go when all new ones are in sync.
        `describe_topics` (`adding_replicas`, `isr`) and `describe_logs` (`followers`) show the
        progress. A `ReassignmentRefusedError` names its `reason`: others are under way, nothing is,
        or no more fit at present.

            refused = await admin.reassign_partitions({("orders", 0): [1, 2, 3]})

        Args:
            assignments: the new replicas of each partition, the preferred leader first; None takes
                back what is under way.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            BrokerIdNotRegisteredError: a replica is no broker's number.
        """
        request = cluster_pb2.ReassignPartitionsRequest()
        for named, replicas in assignments.items():
            place = await self._place_to_wire(*checked_place(named))
            request.reassignments.add(
                topic_partition=place,
                replicas=map(checked_broker, replicas or ()),
                cancel=replicas is None,
            )
        return await self._each(lambda c: c.cluster.ReassignPartitions(request))

    async def elect_leaders(
        self,
        partitions: Iterable[PartitionName] | None = None,
        *,
        kind: Literal["preferred", "unclean"] = "preferred",
    ) -> dict[PartitionName, MillraceError | None]:
        """Elect other leaders; return what was refused, None where the wanted leader leads.

            await admin.elect_leaders()  # The preferred leaders, wherever they can lead.

        Args:
            partitions: topic and number; None: all whose preferred leader does not lead, which is
                possible with `kind="preferred"` only.
            kind: "preferred": the first of the replicas, if it is in sync. "unclean": any live
                replica if there is no leader: acknowledged records that only others have are lost.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            InvalidRequestError: an unclean election of all partitions.
        """
        if kind == "unclean" and partitions is None:
            raise MalformedRequestError(
                "an unclean election may lose records: name the partitions that it is for"
            )
        request = cluster_pb2.ElectLeadersRequest(kind=_KINDS[kind])
        if partitions is not None:
            named = [await self._place_to_wire(*checked_place(place)) for place in partitions]
            if not named:
                return {}
            request.partitions.extend(named)
        else:
            await self._cluster.refresh(None)  # The answer names topics by their ids.
        return await self._each(lambda c: c.cluster.ElectLeaders(request))

    async def _change_broker(
        self, method: Callable[[Connection], Awaitable[cluster_pb2.DrainBrokerResponse]]
    ) -> None:
        async def attempt(timeout_s: float) -> None:
            response = await self._cluster.change(method, timeout_s)
            wire.raise_if_refused(response)

        await self._until_done(attempt)

    async def _place_to_wire(self, topic: str, partition: int) -> common_pb2.TopicPartition:
        info = await self._cluster.topic(topic)
        if partition < 0:
            raise UnknownTopicOrPartitionError(f"topic {info.name!r} has no partition {partition}")
        return wire.partition_to_wire(TopicPartition(info.topic_id, partition))

    async def _each(
        self, method: Callable[[Connection], Awaitable[_PartitionResults]]
    ) -> dict[PartitionName, MillraceError | None]:
        response = await self._until_done(lambda timeout_s: self._cluster.change(method, timeout_s))
        outcomes: dict[PartitionName, MillraceError | None] = {}
        for result in response.results:
            named = result.topic_partition
            topic_id = TopicId(named.topic_id)
            place = self._cluster.topic_names.get(topic_id, topic_id.hex()), named.partition
            outcomes[place] = wire.error_of(result)
        return outcomes

    async def _until_done(self, attempt: Callable[[float], Awaitable[Result]]) -> Result:
        """Repeat while there is no controller, for as long as the client's time-out allows.

        A broker that is cut off knows none: others are asked after a while.

        Args:
            attempt: takes the seconds that are left.
        """
        began_at = host.monotonic_s()
        deadline = began_at + self._cluster.timeout_s
        refusal: RetriableError | None = None
        in_doubt = False
        while True:
            try:
                return await attempt(max(deadline - host.monotonic_s(), _PAUSE_S))
            except UnknownTopicOrPartitionError:
                raise
            except RetriableError as error:
                refusal = error
                in_doubt = in_doubt or error.appended is Appended.MAYBE
                if host.monotonic_s() + _PAUSE_S >= deadline:
                    raise (as_maybe(error) if in_doubt else error) from error.__cause__
                if host.monotonic_s() - began_at >= DOUBT_S:
                    self._cluster.ask_another()
            except ConnectionFailedError as error:
                in_doubt = in_doubt or error.appended is Appended.MAYBE
                told: MillraceError = error
                # The last attempt had no time for an answer, perhaps.
                if refusal is not None and host.monotonic_s() + _PAUSE_S >= deadline:
                    told = refusal
                raise (as_maybe(told) if in_doubt else told) from told.__cause__
            await asyncio.sleep(_PAUSE_S)

    @overload
    async def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: Literal[False] = False,
    ) -> dict[PartitionName, OffsetAndTimestamp]: ...

    @overload
    async def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: bool,
    ) -> dict[PartitionName, OffsetAndTimestamp | MillraceError]: ...

    async def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: bool = False,
    ) -> Mapping[PartitionName, OffsetAndTimestamp | MillraceError]:
        """Return an offset for each partition, of any number of topics at once.

            await admin.list_offsets("orders")
            await admin.list_offsets(["orders", ("payments", 3)], "beginning")
            await admin.list_offsets({("orders", 0): "end", ("payments", 3): 1672531200000})

        A partition without a leader is waited for, as long as `request_timeout_ms` allows.

        Args:
            partitions: a topic for all of its partitions, or several of topics and pairs of topic
                and number; as a mapping, each with its own place in the log.
            at: the place in the log: "beginning" or "earliest", "end" or "latest",
                "max_timestamp" for the record with the latest timestamp, a time in ms UTC for the
                first record at or after it, or `AfterBytes`. A mapping does not use it.
            return_errors: return a partition's error in the place of its offset; else the first
                error is raised.

        Returns:
            The offsets by topic, as it was named, and number.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
            InvalidRequestError: a partition or a place in the log is not one.
        """
        asked: dict[PartitionName, tuple[TopicPartition, OffsetSpec]] = {}
        for place, found, spec in await self._resolved(partitions, at):
            asked[place] = found, spec
        errors: dict[TopicPartition, MillraceError] | None = {} if return_errors else None
        offsets = await look_up_offsets(self._cluster, dict(asked.values()), errors)
        outcomes: dict[TopicPartition, OffsetAndTimestamp | MillraceError]
        outcomes = {**offsets, **(errors or {})}
        return {place: outcomes[found] for place, (found, _) in asked.items()}

    async def _resolved(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec,
    ) -> list[tuple[PartitionName, TopicPartition, OffsetSpec]]:
        """Return each partition as it was named, what it is, and the place in its log."""
        if isinstance(partitions, str):
            partitions = [partitions]
        if not isinstance(partitions, Mapping):
            partitions = dict.fromkeys(partitions, at)
        named = {
            each if isinstance(each, str) else checked_place(each): spec
            for each, spec in partitions.items()
        }
        topics = {each if isinstance(each, str) else each[0] for each in named}
        if topics:
            await self._cluster.refresh(sorted(str(parse_topic_name(topic)) for topic in topics))
        resolved = []
        for each, spec in named.items():
            if isinstance(each, str):
                numbers = range(len((await self._cluster.topic(each)).partitions))
                places = [(each, number) for number in numbers]
            else:
                places = [each]
            resolved += [(place, await self._place(*place), spec) for place in places]
        return resolved

    async def delete_records(
        self, before: Mapping[PartitionName, int]
    ) -> dict[PartitionName, int | MillraceError]:
        """Delete the records of partitions before an offset.

        An offset in the answer is a promise: the records before it are deleted on all replicas that
        may lead, and do not come back after a crash or an election. Space is freed by whole
        segments. Consumers with an earlier position go on as `auto_offset_reset` says.

            await admin.delete_records({("orders", 0): 1200})

            found = await admin.list_offsets("orders", 1672531200000)  # 2023-01-01
            before = {at: each.offset for at, each in found.items() if each.offset >= 0}
            await admin.delete_records(before)

        Partitions are independent of each other. To repeat a call is safe, and needed after an
        error that is `retriable`, or whose `appended` is MAYBE: then the records may come back.

        Args:
            before: the offset, by topic and number; at most the partition's end.

        Returns:
            For each partition the first offset that is left, or why not: an
            `OffsetOutOfRangeError` if not all records before the offset are committed,
            `NotEnoughReplicasError` with fewer replicas in sync than `min.insync.replicas`,
            `RequestTimedOutError` if a replica that may lead has not deleted its records in time,
            `InvalidTopicError` for an internal topic.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
            InvalidRequestError: a partition or an offset is not one.
        """
        offsets = {place: checked_offset(offset, place) for place, offset in before.items()}
        places = await self._places(before)
        refused: dict[TopicPartition, MillraceError] = {}
        wanted = {places[place]: offset for place, offset in offsets.items()}
        deleted = await delete_records(self._cluster, wanted, refused)
        return {place: refused.get(at) or deleted[at] for place, at in places.items()}

    async def wait_for_news(self, ends: Mapping[PartitionName, int], timeout_ms: int) -> None:
        """Wait until the end of a partition moves, or the time is over.

        The brokers wait, so there are no requests meanwhile. A partition whose leader cannot be
        asked ends the wait, too: a look-up gives the reason.

        Args:
            ends: where partitions end, by topic and number; one at least.
            timeout_ms: how long to wait; brokers have a bound of their own, `fetch_wait_ms_max`.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        places = await self._places(ends)
        known = {places[place]: Offset(end) for place, end in ends.items()}
        await wait_for_news(self._cluster, known, timeout_ms / 1000)

    async def find_epoch_ends(
        self, epochs: Mapping[PartitionName, int]
    ) -> dict[PartitionName, int]:
        """Return where the records up to a leader epoch end, for each partition.

        A reader that has read further in that epoch, or before it, has read records that are lost
        since: after an unclean election.

        Args:
            epochs: the leader epoch, by topic and number.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        places = await self._places(epochs)
        found = await find_epoch_ends(
            self._cluster, {places[place]: LeaderEpoch(epoch) for place, epoch in epochs.items()}
        )
        return {place: found[places[place]] for place in epochs}

    async def _places(self, named: Iterable[PartitionName]) -> dict[PartitionName, TopicPartition]:
        named = [checked_place(place) for place in named]
        topics = {topic for topic, _ in named}
        if topics:
            await self._cluster.refresh(sorted({str(parse_topic_name(topic)) for topic in topics}))
        return {place: await self._place(*place) for place in named}

    async def _place(self, topic: str, number: int) -> TopicPartition:
        return _place_in(await self._cluster.topic_with(topic, number), number)

    async def describe_logs(self, topic: str | None = None) -> list[LogDescription]:
        """Return offsets and sizes of the replicas on all brokers; of one topic or of all.

        The leaders' descriptions tell how far each follower is. Brokers that are fenced or do not
        answer are left out.

            for log in await admin.describe_logs("orders"):
                for follower in log.followers:
                    print(log.partition, follower.broker_id, follower.log_end_offset)
        """
        answers, _ = await self._ask_for_logs(topic)
        described = [
            log_from_wire(log, name, broker_id)
            for log, name, broker_id in answers
            # Else a replica that the broker does not hold.
            if wire.error_of(log) is None
        ]
        return sorted(described, key=lambda log: (log.topic, log.partition, log.broker_id))

    async def describe_damage(self, topic: str | None = None) -> list[DamagedReplica]:
        """Return replicas that are offline, lack committed records, or were fetched again.

        Of one topic or of all; brokers are left out as in `describe_logs`.

            for replica in await admin.describe_damage():
                print(replica.topic, replica.partition, replica.broker_id, replica.error)
        """
        return (await self._describe_damage(topic, ()))[0]

    async def _describe_damage(
        self, topic: str | None, unreachable: Sequence[BrokerId]
    ) -> tuple[list[DamagedReplica], list[BrokerId]]:
        """Return damaged replicas, and the brokers that did not say whether they have any."""
        answers, silent = await self._ask_for_logs(
            topic, only_damaged=True, unreachable=unreachable
        )
        described = [
            DamagedReplica(
                name,
                log.topic_partition.partition,
                broker_id,
                log.error.message,
                tuple(log.damaged_logs),
            )
            for log, name, broker_id in answers
        ]
        described.sort(key=lambda each: (each.topic, each.partition, each.broker_id))
        return described, silent

    async def _ask_for_logs(
        self,
        topic: str | None,
        *,
        only_damaged: bool = False,
        unreachable: Sequence[BrokerId] = (),
    ) -> tuple[list[tuple[cluster_pb2.LogDescription, str, BrokerId]], list[BrokerId]]:
        """Ask all living brokers.

        Returns:
            The answers, with the names of the topics; and the brokers that did not answer.
        """
        await self._cluster.look_up(
            cluster_pb2.GetMetadataRequest(
                topics=() if topic is None else [str(parse_topic_name(topic))]
            )
        )
        request = cluster_pb2.DescribeLogsRequest(only_damaged=only_damaged)
        if topic is not None:
            info = await self._cluster.topic(topic)
            for partition in info.partitions:
                request.partitions.add(topic_id=info.topic_id, partition=partition.partition)
        asked = [
            each
            for each in self._cluster.brokers.values()
            if not each.is_fenced and each.broker_id not in unreachable
        ]
        async with parts_of_a_call():
            answers = await asyncio.gather(
                *(self._ask(each, lambda c: c.cluster.DescribeLogs(request)) for each in asked)
            )
        names = self._cluster.topic_names
        told = [
            (log, names.get(topic_id, topic_id.hex()), broker.broker_id)
            for broker, answer in zip(asked, answers, strict=True)
            for log in ([] if answer is None else answer.logs)
            for topic_id in [TopicId(log.topic_partition.topic_id)]
        ]
        silent = [
            broker.broker_id
            for broker, answer in zip(asked, answers, strict=True)
            if answer is None
        ]
        return told, silent

    async def describe_broker_configs(self) -> dict[BrokerId, dict[str, ConfigValue]]:
        """Return the settings that each broker goes by, with where each value comes from.

        By full name, as `storage.trash_delay_ms`. Brokers that are fenced or do not answer are left
        out.

            for broker_id, config in (await admin.describe_broker_configs()).items():
                print(broker_id, config["limits.message_bytes_max"].value)
        """
        await self._cluster.look_up(cluster_pb2.GetMetadataRequest(brokers_only=True))
        request = cluster_pb2.DescribeBrokerConfigRequest()
        asked = [each for each in self._cluster.brokers.values() if not each.is_fenced]
        async with parts_of_a_call():
            answers = await asyncio.gather(
                *(
                    self._ask(each, lambda c: c.cluster.DescribeBrokerConfig(request))
                    for each in asked
                )
            )
        return {
            broker.broker_id: config_from_wire(answer.config)
            for broker, answer in zip(asked, answers, strict=True)
            if answer is not None
        }

    async def _ask(
        self, broker: BrokerInfo, call: Callable[[Connection], Awaitable[Result]]
    ) -> Result | None:
        """Return what a broker says; None: it did not answer."""
        try:
            async with asyncio.timeout(_DESCRIBE_S):
                connection = await self._cluster.broker(broker.broker_id)
                return await self._cluster.on(connection, call)
        except ClosedError:
            raise
        except (MillraceError, TimeoutError):
            return None

    async def set_quota(
        self,
        name: str,
        *,
        principal: str | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        namespace: str | None = None,
        produce_bytes_per_second: int | None = None,
        fetch_bytes_per_second: int | None = None,
        request_percent: int | None = None,
        per_broker: bool = False,
        validate_only: bool = False,
    ) -> QuotaDescription:
        """Make a quota, or replace the one of this name; it counts at once.

        A quota is for clients, by `principal`, `client_id` or both; or for a `topic`, or for a
        `namespace`. An empty name stands for each that has no quota of its own. Clients that exceed
        it are delayed.

            await admin.set_quota("reports", client_id="report", fetch_bytes_per_second=10_000_000)
            await admin.set_quota("others", principal="", produce_bytes_per_second=1_000_000)

        Args:
            name: of the quota, `name` or `namespace/name`.
            principal, client_id, topic, namespace: for whom it is.
            produce_bytes_per_second, fetch_bytes_per_second: the limits; None: no limit.
            request_percent: the limit of the time of one processor that a broker spends on the
                clients' requests; always for each broker, and not for topics.
            per_broker: the limits are for each broker, and not for the cluster.
            validate_only: check everything and change nothing.

        Raises:
            InvalidQuotaError: it breaks a rule, or another quota is for the same.
            QuotasFullError: there is no room for another one.
        """
        quota = checked(
            Quota(
                name=name,
                entity=QuotaEntity(
                    principal=principal, client_id=client_id, topic=topic, namespace=namespace
                ),
                produce_bytes_per_second=produce_bytes_per_second,
                fetch_bytes_per_second=fetch_bytes_per_second,
                request_percent=request_percent,
                is_per_broker=per_broker,
            )
        )
        request = cluster_pb2.SetQuotasRequest(
            quotas=[quota_to_wire(quota)], validate_only=validate_only
        )
        return await self._change_quota(lambda c: c.cluster.SetQuotas(request))

    async def delete_quota(self, name: str, *, validate_only: bool = False) -> None:
        """Delete a quota; whom it delayed goes on at once.

        Raises:
            QuotaNotFoundError: there is no such quota.
        """
        names = [checked_quota_name(name)]
        check = cluster_pb2.DeleteQuotasRequest(names=names, validate_only=True)
        await self._change_quota(lambda c: c.cluster.DeleteQuotas(check))
        if not validate_only:
            request = cluster_pb2.DeleteQuotasRequest(names=names)
            with suppress(QuotaNotFoundError):  # The answer to the first attempt was lost.
                await self._change_quota(lambda c: c.cluster.DeleteQuotas(request))

    async def list_quotas(self) -> list[QuotaDescription]:
        """Return all quotas by name, without their use."""
        request = cluster_pb2.DescribeQuotasRequest(without_use=True)

        async def ask(connection: Connection) -> cluster_pb2.DescribeQuotasResponse:
            response: cluster_pb2.DescribeQuotasResponse = await connection.cluster.DescribeQuotas(
                request
            )
            self._check_age(connection, response.metadata_epoch)
            return response

        response = await self._cluster.call(ask)
        return [described(quota_from_wire(each)) for each in response.quotas]

    def _check_age(self, connection: Connection, metadata_epoch: int) -> None:
        """Refuse an answer that is older than what is known."""
        if metadata_epoch < self._cluster.metadata_epoch:
            raise ConnectionFailedError(
                f"the broker at {connection.address} lags behind what is known already"
            )

    async def describe_quotas(
        self, names: Iterable[str] | None = None
    ) -> dict[str, QuotaDescription]:
        """Return quotas by name, with what is used of them at each broker; None: all.

        Brokers that are fenced or do not answer are left out.

            for use in (await admin.describe_quotas(["reports"]))["reports"].uses:
                print(use.client_id, use.broker_id, use.used_per_second, use.delay_ms)

        Raises:
            QuotaNotFoundError: one of them does not exist.
        """
        wanted = None if names is None else [checked_quota_name(name) for name in names]
        if wanted == []:
            return {}
        request = cluster_pb2.DescribeQuotasRequest(names=wanted or ())
        await self._cluster.look_up(cluster_pb2.GetMetadataRequest(brokers_only=True))
        asked = [each for each in self._cluster.brokers.values() if not each.is_fenced]
        async with parts_of_a_call():
            told = await asyncio.gather(*(self._describe_quotas(each, request) for each in asked))
        answers = {
            broker.broker_id: answer
            for broker, answer in zip(asked, told, strict=True)
            if answer is not None
        }
        if not answers:
            raise ConnectionFailedError("no broker has answered: are they running?")
        found = descriptions(answers)
        for name in wanted or ():
            if name not in found:
                raise QuotaNotFoundError(f"there is no quota {name!r}")
        return found

    async def _describe_quotas(
        self, broker: BrokerInfo, request: cluster_pb2.DescribeQuotasRequest
    ) -> cluster_pb2.DescribeQuotasResponse | None:
        """Return what a broker says; None: it did not answer."""

        async def describe(connection: Connection) -> cluster_pb2.DescribeQuotasResponse:
            response: cluster_pb2.DescribeQuotasResponse = await connection.cluster.DescribeQuotas(
                request
            )
            return response

        return await self._ask(broker, describe)

    async def _change_quota(
        self, method: Callable[[Connection], Awaitable[cluster_pb2.SetQuotasResponse]]
    ) -> QuotaDescription:
        """Let the controller change one quota; retry while there is no controller."""

        async def attempt(timeout_s: float) -> cluster_pb2.QuotaResult:
            response = await self._cluster.change(method, timeout_s)
            (result,) = response.results
            wire.raise_if_refused(result)
            return result

        return described(quota_from_wire((await self._until_done(attempt)).quota))

    async def resolve_initial(
        self, name: str, proposals: Mapping[PartitionName, Position]
    ) -> dict[PartitionName, Position]:
        """Return where a reader of this name began; a partition without a position gets the
        proposal.

        The brokers keep the first proposal for a partition, and return it to all callers from then
        on. A topic that is deleted and created again is another one.

            start = await admin.resolve_initial("report", {("orders", 0): Position(120, 3)})

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            InvalidPositionError: the name or a position breaks a bound.
            PositionsFullError: no more can be kept.
        """
        return await self._positions.resolve_initial(name, proposals)

    async def commit_positions(
        self, name: str, positions: Mapping[PartitionName, Position]
    ) -> None:
        """Store on the brokers how far a reader of this name has read; the last commit counts.

        Each position is stored independently: after an error some may be stored, and a repetition
        is safe.

        Raises:
            UnknownTopicOrPartitionError, InvalidPositionError, PositionsFullError: as in
                `resolve_initial`.
        """
        await self._positions.commit(name, positions)

    async def fetch_positions(
        self, name: str, *, kind: Literal["committed", "initial"] = "committed"
    ) -> dict[PartitionName, Position]:
        """Return how far a reader of this name has read, or where it began; without deleted topics.

        Raises:
            InvalidPositionError: that is no name.
        """
        return await self._positions.fetch(name, _POSITION_KINDS[kind])

    async def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups and all other readers that keep positions, by name."""
        return await list_groups(self._coordinators)

    async def describe_group(self, name: str) -> GroupDescription | None:
        """Return the members and the positions of a group, or of another reader; None: there is
        none of this name.

        Raises:
            InvalidPositionError: that is no name.
        """
        async with parts_of_a_call():
            (epoch, assignor, members), committed, initial = await asyncio.gather(
                describe_members(self._cluster, self._coordinators, name),
                self.fetch_positions(name),
                self.fetch_positions(name, kind="initial"),
            )
        if not (epoch or committed or initial):
            return None
        return GroupDescription(
            name=name,
            kind=kind_of(epoch, initial),
            epoch=epoch,
            assignor=assignor if members else "",
            members=members,
            committed=committed,
            initial=initial,
        )

    async def describe_lags(
        self, positions: Mapping[PartitionName, int]
    ) -> dict[PartitionName, Lag | MillraceError]:
        """Return how much of each partition follows a position.

        The leaders measure it, in records, bytes and time. A partition whose lag is not known has
        the error in its place.

            group = await admin.describe_group("report")
            lags = await admin.describe_lags(group.positions)

        Args:
            positions: the offset of the next record to read, by topic and number.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        places = await self._places(positions)
        errors: dict[TopicPartition, MillraceError] = {}
        found = await describe_lags(
            self._cluster, {places[place]: at for place, at in positions.items()}, errors
        )
        return {
            place: lag_at(at, found[places[place]])
            if places[place] in found
            else errors[places[place]]
            for place, at in positions.items()
        }

    async def forget_topics(self, name: str, topics: Collection[str]) -> None:
        """Forget the positions of a group or another reader in some topics.

        For topics that it reads no more: its lag there would count until the positions expire. If
        it reads one of them again, it begins by its settings.

            await admin.forget_topics("billing", ["orders-of-last-year"])

        Args:
            name: of the group or reader.
            topics: the topics; one without a position changes nothing.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            GroupSubscribedToTopicError: members of the group read one of them.
            InvalidPositionError: that is no name.
        """
        await self._positions.forget_topics(name, topics)

    async def delete_group(self, name: str) -> None:
        """Forget a group or another reader, with all its positions, if there is one.

        Raises:
            InvalidPositionError: that is no name.
            GroupNotEmptyError: the group has members.
        """
        await self._positions.delete(name)

    async def close(self) -> None:
        """Close the connections. Takes `close_timeout_ms` at the most."""
        await let_go(host.monotonic_s() + self._close_timeout_ms / 1000, self._cluster.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _change(
        self, method: Callable[[Connection], Awaitable[cluster_pb2.CreateTopicsResponse]]
    ) -> TopicDescription:
        return topic_from_wire((await self._result(method)).topic)

    async def _result(
        self, method: Callable[[Connection], Awaitable[cluster_pb2.CreateTopicsResponse]]
    ) -> cluster_pb2.TopicResult:
        """Let the controller change one topic; retry while there is no controller."""

        async def attempt(timeout_s: float) -> cluster_pb2.TopicResult:
            response = await self._cluster.change(method, timeout_s)
            (result,) = response.results
            wire.raise_if_refused(result)
            return result

        return await self._until_done(attempt)


def _place_in(info: TopicInfo, number: int) -> TopicPartition:
    if not 0 <= number < len(info.partitions):
        raise UnknownTopicOrPartitionError(
            f"topic {info.name!r} has partitions 0 to {len(info.partitions) - 1}, not {number}"
        )
    return TopicPartition(info.topic_id, number)
