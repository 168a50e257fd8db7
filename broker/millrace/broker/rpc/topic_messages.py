"""Topics as clients see them."""

from millrace.broker.rpc.requests import checked_topic_id
from millrace.core import settings
from millrace.core.controller.partitions.elections import UNCLEAN_ELECTIONS
from millrace.core.ids import BrokerId, TopicId
from millrace.core.metadata import topic_config
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import Listener, PartitionState, Topic
from millrace.proto.v1 import cluster_pb2 as pb
from millrace.proto.v1 import common_pb2


def topic_id_of(data: bytes) -> TopicId | None:
    """Return a topic's id from a message; None when none is named.

    Raises:
        MalformedRequestError: that is no topic id.
    """
    return checked_topic_id(data) if data else None


class TopicDescriptions:
    """Topics as clients of a listener see them, cached: they are requested often and change
    rarely."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._image: MetadataImage | None = None
        self._cluster: ClusterConfig | None = None
        self._known: dict[TopicId, pb.TopicMetadata] = {}

    def of(self, image: MetadataImage, topic: Topic, cluster: ClusterConfig) -> pb.TopicMetadata:
        """Return a topic of an image; the message is shared and must not be changed.

        Args:
            image: no older than in earlier calls.
            topic: the topic.
            cluster: the settings of the cluster, as they are now.
        """
        self._follow(image)
        if cluster is not self._cluster:
            self._cluster = cluster
            self._known.clear()
        described = self._known.get(topic.topic_id)
        if described is None:
            described = describe_topic(image, topic, cluster, self._listener)
            self._known[topic.topic_id] = described
        return described

    def _follow(self, image: MetadataImage) -> None:
        """Drop outdated descriptions."""
        before, self._image = self._image, image
        if before is None or before is image:
            return
        if before.cluster.brokers != image.cluster.brokers:
            self._known.clear()  # Addresses, and who is alive.
            return
        changes = image.changes_since(before)
        for topic in (*changes.deleted, *(old for old, _ in changes.altered)):
            self._known.pop(topic.topic_id, None)


def describe_topic(
    image: MetadataImage, topic: Topic, cluster: ClusterConfig, listener: Listener
) -> pb.TopicMetadata:
    """Return a topic as clients of a listener see it, with its effective settings."""
    return pb.TopicMetadata(
        name=str(topic.name),
        topic_id=topic.topic_id,
        internal=topic.name.is_internal,
        partitions=[
            _describe_partition(image, number, partition, listener)
            for number, partition in enumerate(topic.partitions)
        ],
        config=[_describe_setting(topic, name, cluster) for name in topic_config.SETTINGS],
    )


def _describe_setting(topic: Topic, name: str, cluster: ClusterConfig) -> pb.ConfigEntry:
    value: object = getattr(topic.config, topic_config.SETTINGS[name].attribute)
    source = pb.CONFIG_SOURCE_TOPIC if name in topic.overrides else pb.CONFIG_SOURCE_DEFAULT
    if name == UNCLEAN_ELECTIONS and name not in topic.overrides:
        value = cluster.unclean_leader_election_enable
        source = pb.CONFIG_SOURCE_BROKER
    return pb.ConfigEntry(name=name, value=settings.to_text(value), source=source)


def _describe_partition(
    image: MetadataImage, number: int, partition: PartitionState, listener: Listener
) -> pb.PartitionMetadata:
    return pb.PartitionMetadata(
        partition=number,
        leader=common_pb2.PartitionLeader(
            broker_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            address=image.leader_address(partition, listener),
        ),
        partition_epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=[life.broker_id for life in partition.isr],
        elr=[life.broker_id for life in partition.elr],
        offline_replicas=[
            broker_id for broker_id in partition.replicas if not _is_alive(image, broker_id)
        ],
        adding_replicas=partition.adding,
        removing_replicas=partition.removing,
        recovering=partition.is_recovering,
    )


def _is_alive(image: MetadataImage, broker_id: BrokerId) -> bool:
    broker = image.broker(broker_id)
    return broker is not None and not broker.is_fenced
