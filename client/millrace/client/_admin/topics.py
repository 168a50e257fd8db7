"""Creates, describes, changes and deletes topics, and brings deleted ones back."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from millrace.client._admin.administration import Administration, only_result
from millrace.client._admin.descriptions import (
    DeletedTopic,
    TopicDescription,
    deleted_from_wire,
    topic_from_wire,
)
from millrace.client._cluster import wire
from millrace.client._cluster.arguments import checked_count
from millrace.client._cluster.connection import Connection
from millrace.core.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TOPIC_ID_BYTES, TopicId
from millrace.core.topics import parse_topic_name
from millrace.proto.v1 import cluster_pb2
from millrace.runtime import host


class TopicAdministration(Administration):
    """The part of `Admin` that is about topics."""

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
        return await self._change_topic(lambda c: c.cluster.CreateTopics(request))

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
        return await self._change_topic(lambda c: c.cluster.AlterTopics(request))

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
                await self._delete(cluster_pb2.TopicRef(name=named.name, topic_id=topic.topic_id))

    async def _delete(
        self, topic: cluster_pb2.TopicRef, *, validate_only: bool = False
    ) -> cluster_pb2.TopicMetadata:
        request = cluster_pb2.DeleteTopicsRequest(topics=[topic], validate_only=validate_only)
        result: cluster_pb2.TopicResult = await self._change(
            lambda c: c.cluster.DeleteTopics(request), only_result
        )
        return result.topic

    async def list_deleted_topics(self) -> list[DeletedTopic]:
        """Return the deleted topics that can be brought back, the one deleted first at first."""
        request = cluster_pb2.ListDeletedTopicsRequest()
        response: cluster_pb2.ListDeletedTopicsResponse = await self._newest(
            lambda c: c.cluster.ListDeletedTopics(request)
        )
        found = map(deleted_from_wire, response.topics)
        return sorted(found, key=lambda topic: (topic.deleted_at_ms, topic.topic_id))

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
        return await self._change_topic(lambda c: c.cluster.UndeleteTopics(request))

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
            await self._change(lambda c: c.cluster.PurgeTopics(request), only_result)
        except UnknownTopicOrPartitionError:
            if not was_there:
                raise

    async def _deleted(
        self, name: str, topic_id: TopicId | None
    ) -> tuple[cluster_pb2.TopicRef, bool]:
        """Return which deleted topic is meant, and whether there is exactly one.

        It is named by its id then, so that a repeated request means the same one.
        """
        parsed = str(parse_topic_name(name))
        found = [
            topic.topic_id
            for topic in await self.list_deleted_topics()
            if topic.name == parsed and topic_id in (None, topic.topic_id)
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
        self, names: Iterable[str] | None = None, *, none_hidden: bool = False
    ) -> dict[str, TopicDescription]:
        """Return topics by name; None: all that the caller may see.

        Their settings come without `documentation`.

        Args:
            names: of the topics.
            none_hidden: refuse if there are topics that the caller may not see. Ask so to decide by
                what no topic has.

        Raises:
            UnknownTopicOrPartitionError: one of them does not exist.
            TopicAuthorizationFailedError: with `none_hidden`, the caller may not see all.
        """
        return await self._describe_topics(names, none_hidden=none_hidden)

    async def _describe_topics(
        self,
        names: Iterable[str] | None,
        *,
        with_documentation: bool = False,
        none_hidden: bool = False,
    ) -> dict[str, TopicDescription]:
        wanted = None if names is None else [str(parse_topic_name(name)) for name in names]
        if wanted == []:
            return {}
        response = await self._cluster.look_up(
            cluster_pb2.GetMetadataRequest(
                topics=wanted or (),
                with_documentation=with_documentation,
                none_hidden=none_hidden,
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
        described = await self._describe_topics([name], with_documentation=True)
        return described[str(parse_topic_name(name))]

    async def _change_topic(
        self, method: Callable[[Connection], Awaitable[cluster_pb2.CreateTopicsResponse]]
    ) -> TopicDescription:
        return topic_from_wire((await self._change(method, only_result)).topic)
