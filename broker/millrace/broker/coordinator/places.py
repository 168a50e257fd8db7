"""Where an internal topic keeps what belongs to one name: in the partition of the name's hash.

The leader of that partition coordinates the name. Clients ask it, and so do the leaders of
partitions that join a transaction, and other coordinators.
"""

from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.ids import TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.topics import TopicName


def place_of(image: MetadataImage | None, topic: TopicName, name: str) -> TopicPartition | None:
    """Return the partition of a name; None: the topic is not there, as far as this broker knows.

    Args:
        image: the newest metadata; None: there are none yet.
        topic: the internal topic.
        name: what is kept in it; of a transactional id the full one.
    """
    found = None if image is None else image.topics.get(topic)
    if found is None:
        return None
    return TopicPartition(found.topic_id, partition_of(name.encode(), len(found.partitions)))
