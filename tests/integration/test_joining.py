"""Brokers that join a cluster whose brokers are of another release, or have other settings."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.raw_client import RawClient, RawStream
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.broker.coordination.sqlite import SqliteStore
from millrace.client import SyncAdmin
from millrace.core.controller.lease import LeaseRecord
from millrace.core.errors import UnsupportedFeatureError
from millrace.proto.errors import error_from_wire, error_to_trailers
from millrace.proto.v1 import common_pb2, controller_pb2, fetch_pb2
from millrace.proto.v1.common_pb2 import Feature

SESSION = "/millrace.proto.v1.Controller/Session"
REPLICA_FETCH = "/millrace.proto.v1.Replica/Fetch"
DIFFERENCES = "millrace_differing_cluster_settings"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Two brokers that are not started."""
    running = RunningCluster(tmp_path, racks=("", ""))
    yield running
    running.abandon()


def features(name: str, min_level: int, max_level: int) -> list[Feature]:
    return [Feature(name=name, min_level=min_level, max_level=max_level)]


def test_the_settings_of_a_cluster_are_changed_broker_by_broker(cluster: RunningCluster) -> None:
    first, second = cluster.brokers
    changed: dict[str, object] = {
        "cluster.unclean_leader_election_enable": "true",
        "cluster.broker_session_timeout_ms": 3000,
    }
    second.settings = second.settings | changed
    cluster.start()
    for words in (
        "cluster.unclean_leader_election_enable is true here and false there",
        "cluster.broker_session_timeout_ms is 3000 here and 4000 there",
    ):
        wait_until(lambda: second.log_has(words), words)  # noqa: B023
    assert first.metrics()[DIFFERENCES] == 0
    assert second.metrics()[DIFFERENCES] == 2
    first.stop()
    first.settings = first.settings | changed
    first.start()  # The second is the controller by now.
    assert not first.log_has("differ"), first.log_end()
    wait_until(lambda: second.metrics()[DIFFERENCES] == 0, "the second's settings count")
    with SyncAdmin(cluster.bootstrap) as admin:
        assert admin.describe_cluster().controller_id == 1


def test_a_running_broker_refuses_peers_of_another_release_and_goes_on(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    cluster.start()
    store = SqliteStore(tmp_path / "coordination.sqlite", is_exclusive=False)
    lease = store.read_lease()
    store.close()
    assert lease is not None
    later = features("broker-protocol", 7, 8)
    opening = controller_pb2.SessionOpening(features=later)
    settings = fetch_pb2.FetchSettings(replica_id=1, features=later)
    for method, request in (
        (SESSION, controller_pb2.SessionRequest(opening=opening)),
        (REPLICA_FETCH, fetch_pb2.FetchRequest(settings=settings)),
    ):
        with grpc.insecure_channel(lease.address) as channel:
            stream = RawStream(channel, method)
            stream.send(request.SerializeToString())
            assert stream.ended_with() is grpc.StatusCode.FAILED_PRECONDITION
            said = stream.call.details()
            assert "levels 7 to 8, and this broker levels 1 to 4: upgrade the cluster's" in said
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", replication_factor=2)
        wait_until(lambda: admin.describe_health().is_healthy, "all is well")


def test_a_broker_ends_when_the_controller_is_of_another_release(tmp_path: Path) -> None:
    def refuse(_: object, context: grpc.ServicerContext) -> None:
        error = UnsupportedFeatureError("upgrade the broker that calls")
        context.set_trailing_metadata(error_to_trailers(error))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)

    handlers: dict[str, Any] = {"Session": grpc.stream_stream_rpc_method_handler(refuse)}
    server = grpc.server(ThreadPoolExecutor(4))
    name = controller_pb2.DESCRIPTOR.services_by_name["Controller"].full_name
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    path = tmp_path / "coordination.sqlite"
    store = SqliteStore(path, is_exclusive=False)
    held = LeaseRecord(holder="other", address=f"127.0.0.1:{port}", duration_ms=60_000, version=1)
    assert store.compare_and_swap_lease(held)
    store.close()
    settings: dict[str, object] = {
        "coordination.path": path,
        "coordination.shared": "true",
        "coordination.lease_duration_ms": 60_000,
    }
    try:
        code, log = RunningBroker(tmp_path / "broker", settings).refused_start()
    finally:
        server.stop(None)
    assert code == 1, log
    assert "upgrade the broker that calls" in log
    assert "Traceback" not in log


def test_a_client_of_another_release_is_told_both_levels(cluster: RunningCluster) -> None:
    broker = cluster.brokers[0].start()
    with RawClient(broker.address) as client:

        def hello(*levels: Feature) -> common_pb2.HelloResponse:
            request = common_pb2.HelloRequest(features=levels)
            answer: common_pb2.HelloResponse = client.cluster.Hello(request, timeout=10)
            return answer

        assert not hello().HasField("error")
        assert not hello(*features("client-protocol", 1, 9)).HasField("error")
        assert not hello(*features("unheard-of", 5, 9)).HasField("error")
        answer = hello(*features("client-protocol", 5, 9))
        error = error_from_wire(answer.error)
        assert isinstance(error, UnsupportedFeatureError)
        assert "levels 5 to 9, and this broker level 1" in error.message
        assert list(answer.features) == features("client-protocol", 1, 1)
