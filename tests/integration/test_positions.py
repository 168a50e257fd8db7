"""Positions under names, kept by three brokers of which some die."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import (
    InvalidPositionError,
    InvalidTopicError,
    Position,
    PositionsFullError,
    SyncAdmin,
    SyncProducer,
    UnknownTopicOrPartitionError,
)
from millrace.core.client.producer.murmur2 import partition_of
from millrace.proto.v1 import common_pb2 as E
from millrace.proto.v1 import positions_pb2 as pb
from millrace.proto.v1 import positions_pb2_grpc

TOPIC = "__positions"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    # All names fall to one partition, so that the tests know who keeps them.
    with RunningCluster(tmp_path, {"cluster.positions_partitions": 1}) as running:
        yield running


def keeper(admin: SyncAdmin) -> int:
    return admin.describe_topic(TOPIC).partitions[0].leader


def test_what_is_kept_is_kept_whoever_dies(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        assert [group.name for group in admin.list_groups()] == []
        assert admin.fetch_positions("q") == {}
        admin.delete_group("q")
        assert TOPIC not in admin.list_topics(internal=True), "nothing was stored yet"
        admin.create_topic("t", partitions=4, replication_factor=3)
        first = {("t", number): Position(number, 0, "é") for number in range(4)}
        assert admin.resolve_initial("q", first) == first
        assert TOPIC not in admin.list_topics()
        assert len(admin.describe_topic(TOPIC).partitions[0].replicas) == 3

        for at in range(3):
            killed = cluster[keeper(admin)]
            killed.kill()
            again = {place: Position(100 + at) for place in first}
            assert admin.resolve_initial("q", again) == first
            admin.commit_positions("q", again)
            assert admin.fetch_positions("q") == again
            killed.start()

        for broker in cluster.brokers:
            broker.kill()
        cluster.start()
        assert admin.fetch_positions("q", kind="initial") == first
        assert admin.fetch_positions("q") == again
        assert [group.name for group in admin.list_groups()] == ["q"]
        admin.delete_group("q")
        assert [group.name for group in admin.list_groups()] == []
        assert admin.resolve_initial("q", again) == again


def test_of_all_who_propose_at_once_one_wins_although_the_leader_dies(
    cluster: RunningCluster,
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=8, replication_factor=3)
        places = [("t", number) for number in range(8)]
        admin.resolve_initial("warm", {places[0]: Position(0)})

        def propose(who: int, name: str) -> dict[tuple[str, int], Position]:
            with SyncAdmin(cluster.bootstrap) as own:
                return own.resolve_initial(name, {place: Position(who) for place in places})

        with ThreadPoolExecutor(8) as pool:
            for at in range(3):
                leader = cluster[keeper(admin)]
                asked = [pool.submit(propose, who, f"race {at}") for who in range(8)]
                leader.kill()
                answers = [future.result(60) for future in asked]
                kept = admin.fetch_positions(f"race {at}", kind="initial")
                assert all(answer == kept for answer in answers)
                assert kept.keys() == set(places)
                leader.start()


def test_a_leader_that_is_paused_is_not_waited_for(cluster: RunningCluster) -> None:
    place = ("t", 0)
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", replication_factor=3)
        admin.resolve_initial("q", {place: Position(1)})
        its_keeper = cluster[keeper(admin)]
        with its_keeper.paused():
            started = time.monotonic()
            admin.commit_positions("q", {place: Position(2)})
            assert admin.fetch_positions("q") == {place: Position(2)}
            assert time.monotonic() - started < 25, "the request time-out is 30 s"


def test_clients_neither_write_to_the_topic_nor_change_it(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t")
        admin.resolve_initial("q", {("t", 0): Position(7)})
        with (
            pytest.raises(InvalidTopicError, match="belongs to the cluster"),
            SyncProducer(cluster.bootstrap) as producer,
        ):
            producer.send(TOPIC, b"v")
        with pytest.raises(InvalidTopicError, match="belongs to the cluster"):
            admin.delete_topic(TOPIC)
        with pytest.raises(InvalidTopicError, match="belongs to the cluster"):
            admin.alter_topic(TOPIC, partitions=2)
        with pytest.raises(InvalidTopicError, match="belong to the cluster"):
            admin.create_topic("__mine")
        assert admin.fetch_positions("q", kind="initial") == {("t", 0): Position(7)}


def test_what_one_broker_kept_is_given_more_replicas(tmp_path: Path) -> None:
    cluster = RunningCluster(tmp_path, {"cluster.positions_partitions": 1})
    try:
        cluster[0].start()
        with SyncAdmin(cluster[0].address) as admin:
            admin.create_topic("t", partitions=400)
            places = [("t", number) for number in range(400)]
            first = {place: Position(5) for place in places}
            admin.resolve_initial("q", first)
            for at in range(20):
                admin.commit_positions("q", {place: Position(at) for place in places})
            (log,) = admin.describe_logs(TOPIC)
            assert log.log_start_offset > 1000
            for broker in cluster.brokers[1:]:
                broker.start()
            wait_until(
                lambda: len(admin.describe_topic(TOPIC).partitions[0].isr) == 3, "all are in sync"
            )
        cluster[0].kill()  # The one that kept everything alone.
        with SyncAdmin(cluster.bootstrap) as admin:
            assert admin.fetch_positions("q", kind="initial") == first
            assert admin.fetch_positions("q") == {place: Position(19) for place in places}
    finally:
        cluster.abandon()


def test_more_is_kept_than_fits_into_a_request_or_an_answer(tmp_path: Path) -> None:
    with (
        RunningCluster(tmp_path, racks=("",)) as cluster,
        SyncAdmin(cluster.bootstrap) as admin,
    ):
        admin.create_topic("t", partitions=1100)
        many = {("t", number): Position(number) for number in range(1100)}
        assert admin.resolve_initial("q", many) == many
        large = {("t", number): Position(number, 0, "m" * 4096) for number in range(300)}
        admin.commit_positions("q", large)
        assert admin.fetch_positions("q", kind="initial") == many
        assert admin.fetch_positions("q") == large
        names = [f"name {number}" for number in range(100)]
        for name in names:
            admin.commit_positions(name, {("t", 0): Position(0)})
        assert [group.name for group in admin.list_groups()] == sorted([*names, "q"])


def test_what_breaks_a_bound_is_refused(tmp_path: Path) -> None:
    with (
        RunningCluster(tmp_path, {"positions.partition_positions_max": 3}, racks=("",)) as cluster,
        SyncAdmin(cluster.bootstrap) as admin,
    ):
        admin.create_topic("t", partitions=4)
        with pytest.raises(InvalidPositionError):
            admin.resolve_initial("a\nb", {("t", 0): Position(0)})
        with pytest.raises(InvalidPositionError, match="metadata_bytes_max"):
            admin.commit_positions("q", {("t", 0): Position(0, 0, "m" * 4097)})
        with pytest.raises(PositionsFullError):
            admin.commit_positions("q", {("t", number): Position(0) for number in range(4)})
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.commit_positions("q", {("none", 0): Position(0)})
        assert [group.name for group in admin.list_groups()] == []


def test_what_no_client_of_ours_asks_for_is_refused(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, racks=("",)) as cluster:
        with SyncAdmin(cluster.bootstrap) as admin:
            topic = admin.create_topic("t")
            admin.resolve_initial("q", {("t", 0): Position(7)})
        with grpc.insecure_channel(cluster[0].address) as channel:
            stub = positions_pb2_grpc.PositionsStub(channel)  # type: ignore[no-untyped-call]
            place = pb.Position(topic_partition={"topic_id": topic.topic_id, "partition": 0})

            def code(positions: list[pb.Position], name: str = "q") -> int:
                request = pb.CommitPositionsRequest(name=name, positions=positions)
                error = stub.CommitPositions(request, timeout=20).error
                assert error.appended == E.APPENDED_NO
                return int(error.code)

            nowhere = pb.Position(topic_partition={"topic_id": b"x" * 16, "partition": 0})
            no_topic = pb.Position(topic_partition={"topic_id": b"x", "partition": 0})
            beyond = pb.Position(topic_partition={"topic_id": topic.topic_id, "partition": 1})
            before = pb.Position(topic_partition=place.topic_partition, offset=-1)
            assert code([place, place]) == E.ERROR_CODE_MALFORMED_REQUEST
            assert code([no_topic]) == E.ERROR_CODE_MALFORMED_REQUEST
            assert code([nowhere]) == E.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
            assert code([beyond]) == E.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
            assert code([before]) == E.ERROR_CODE_INVALID_POSITION
            assert code([place], "") == E.ERROR_CODE_INVALID_POSITION
            assert code([place], "n" * 256) == E.ERROR_CODE_INVALID_POSITION
            with pytest.raises(grpc.RpcError) as failed:
                code([place] * 10_001)
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            fetched = stub.FetchPositions(pb.FetchPositionsRequest(name="q"), timeout=20)
            assert fetched.error.code == E.ERROR_CODE_MALFORMED_REQUEST
            listed = stub.ListNames(pb.ListNamesRequest(partition=16), timeout=20)
            assert listed.error.code == E.ERROR_CODE_MALFORMED_REQUEST
            assert listed.partitions == 16
            part = partition_of(b"q", 16)
            for after, names in (("", ["q"]), ("p", ["q"]), ("q", [])):
                request = pb.ListNamesRequest(partition=part, after=after)
                assert list(stub.ListNames(request, timeout=20).names) == names
