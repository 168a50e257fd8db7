"""What an operator asks of a cluster, by the messages of the published .proto."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from bench.processes import LoadFailedError

from millrace.proto.v1 import cluster_pb2, cluster_pb2_grpc

TIMEOUT_S = 60


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


@contextmanager
def _cluster(address: str) -> Iterator[cluster_pb2_grpc.ClusterStub]:
    with grpc.insecure_channel(address) as channel:
        yield cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
