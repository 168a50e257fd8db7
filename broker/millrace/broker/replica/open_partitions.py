"""The replicas of this broker whose logs are open."""

from collections.abc import Iterator

from millrace.broker.replica.partition import Partition
from millrace.core.errors import UnknownTopicOrPartitionError
from millrace.core.ids import TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.replica.replication.replicas import Replicas


class OpenPartitions:
    """Looks up open replicas. It iterates over their names; any thread may look one up.

    Attributes:
        replicas: the machine that decides for them.
        image: the metadata that was applied last.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.image: MetadataImage | None = None
        self._open: dict[TopicPartition, Partition] = {}

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Partition]:
        """Return every replica that is open here."""
        return list(self._open.values())

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        """Return a replica that is open here; from any thread."""
        return self._open.get(topic_partition)

    def get(self, topic_partition: TopicPartition) -> Partition:
        """Return a replica that is open here; from any thread.

        Raises:
            UnknownTopicOrPartitionError: this broker has no such replica.
            LogDirFailedError, CorruptLogError: it has, but its log is offline.
        """
        partition = self._open.get(topic_partition)
        if partition is None:
            self.replicas.get(topic_partition)  # Says why.
            raise UnknownTopicOrPartitionError(
                "this broker has no replica of it: refresh the metadata",
                topic_partition=topic_partition,
            )
        return partition

    def named(self, topic_partition: TopicPartition) -> str:
        """Return a partition's name for people."""
        topic = None if self.image is None else self.image.topics_by_id.get(topic_partition[0])
        return str(topic_partition if topic is None else f"{topic.name}-{topic_partition[1]}")
