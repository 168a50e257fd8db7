"""What an operator asks of a cluster, by the messages of the published .proto."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc
from bench.processes import LoadFailedError

from millrace.client import TopicDescription
from millrace.proto.v1 import cluster_pb2, cluster_pb2_grpc, common_pb2

TIMEOUT_S = 60
PARTITIONS_AT_ONCE = 1000


def drain(address: str, broker_id: int, *, back: bool = False) -> None:
    """Have a broker hand over all that it leads, or take it back into service.

    Raises:
        LoadFailedError: it was refused.
    """
    request = cluster_pb2.DrainBrokerRequest(broker_id=broker_id, undrain=back)
    with _cluster(address) as cluster:
        response = cluster.DrainBroker(request, timeout=TIMEOUT_S)
    if response.HasField("error"):
        raise LoadFailedError(f"broker {broker_id} was not drained: {response.error.message}")


def lead_by(address: str, broker_id: int, topics: Iterable[TopicDescription]) -> None:
    """Make a broker the preferred leader of all partitions, and have it lead them.

    The replicas stay where they are.

    Raises:
        LoadFailedError: it was refused for one of them.
    """
    reassignments = [
        cluster_pb2.Reassignment(
            topic_partition=common_pb2.TopicPartition(
                topic_id=topic.topic_id, partition=partition.partition
            ),
            replicas=[broker_id, *(each for each in partition.replicas if each != broker_id)],
        )
        for topic in topics
        for partition in topic.partitions
    ]
    elect = cluster_pb2.ElectLeadersRequest(kind=cluster_pb2.ELECTION_KIND_PREFERRED)
    with _cluster(address) as cluster:
        for first in range(0, len(reassignments), PARTITIONS_AT_ONCE):
            request = cluster_pb2.ReassignPartitionsRequest(
                reassignments=reassignments[first : first + PARTITIONS_AT_ONCE]
            )
            _check(cluster.ReassignPartitions(request, timeout=TIMEOUT_S).results)
        _check(cluster.ElectLeaders(elect, timeout=TIMEOUT_S).results)


def _check(results: Iterable[cluster_pb2.PartitionResult]) -> None:
    problems = [result.error.message for result in results if result.error.code]
    if problems:
        raise LoadFailedError(f"{len(problems)} partitions were refused: {problems[0]}")


@contextmanager
def _cluster(address: str) -> Iterator[cluster_pb2_grpc.ClusterStub]:
    with grpc.insecure_channel(address) as channel:
        yield cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
