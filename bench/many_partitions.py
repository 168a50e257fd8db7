"""A cluster with many partitions: topics of a hundred each, one record in every partition."""

from collections.abc import Sequence

from bench.measure import say
from bench.millrace_cluster import MillraceCluster

from millrace.client import SyncProducer

PER_TOPIC = 100


def fill(cluster: MillraceCluster, partitions: int) -> list[str]:
    """Create so many partitions by the defaults of topics; return the topics' names."""
    topics = [f"many-{number}" for number in range(-(-partitions // PER_TOPIC))]
    for number, topic in enumerate(topics):
        count = min(PER_TOPIC, partitions - number * PER_TOPIC)
        cluster.admin.create_topic(topic, count, cluster.replication)
    cluster.wait_until_in_sync(topics)
    write(cluster.address, [(topic, PER_TOPIC) for topic in topics], partitions)
    say(f"{partitions:,} partitions in {len(topics)} topics")
    return topics


def write(address: str, topics: Sequence[tuple[str, int]], partitions: int) -> None:
    """Write a record to each partition."""
    with SyncProducer(address) as producer:
        left = partitions
        for topic, count in topics:
            for partition in range(min(count, left)):
                producer.send(topic, b"a record", partition=partition)
            left -= count
        producer.flush()
