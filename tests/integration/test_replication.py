"""Three brokers: what was acknowledged by all in-sync replicas outlives any one of them."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from tests.integration.raw_client import (
    FETCH,
    RawClient,
    RawStream,
    batch_of,
    request_of,
)
from tests.integration.running_broker import RunningBroker, failed_start, flip, wait_until
from tests.integration.running_cluster import RunningCluster, read_all

from millrace.client import (
    DamagedReplica,
    PartitionDescription,
    SyncAdmin,
    SyncProducer,
    TopicDescription,
)
from millrace.core.errors import CorruptLogError, NotEnoughReplicasError, NotLeaderError
from millrace.core.ids import TopicPartition
from millrace.proto.codec import decode_fetch_response
from millrace.proto.v1 import cluster_pb2, fetch_pb2


def log_of(broker: RunningBroker) -> cluster_pb2.LogDescription:
    """Return the only log that a broker has."""
    with RawClient(broker.address) as client:
        found: cluster_pb2.DescribeLogsResponse = client.cluster.DescribeLogs(
            cluster_pb2.DescribeLogsRequest(), timeout=20
        )
        return found.logs[0]


def test_a_broker_that_is_stopped_hands_over_first_and_comes_back(cluster: RunningCluster) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all") as producer,
    ):
        admin.create_topic("t", replication_factor=3)
        assert producer.send("t", b"before").result(30).offset == 0
        for broker in cluster.brokers:
            assert broker.stop() == 0
            assert producer.send("t", b"meanwhile").result(30).offset > 0
            broker.start()
            wait_until(
                lambda: set(admin.describe_topic("t").partitions[0].isr) == {0, 1, 2},
                "the stopped broker is in sync again",
            )
    assert read_all(cluster.bootstrap, "t", 4) == [b"before"] + [b"meanwhile"] * 3


@pytest.mark.nightly
def test_a_broker_that_clients_may_not_find_yet_leads_what_nobody_else_can(tmp_path: Path) -> None:
    gauge = 'millrace_reluctance{reason="new address"}'
    with RunningCluster(tmp_path, {"cluster.address_settle_ms": 5000}) as cluster:
        restarted = cluster[1]
        with SyncAdmin(cluster.bootstrap) as admin:
            admin.create_topic("t", partitions=3, replication_factor=3)
            wait_until(
                lambda: all(broker.state == "alive" for broker in admin.describe_cluster().brokers),
                "all have settled",
            )
            restarted.stop()
            restarted.start()
            wait_until(
                lambda: all(
                    len(partition.isr) == 3 for partition in admin.describe_topic("t").partitions
                ),
                "it is in sync again",
            )
            assert admin.describe_cluster().brokers[1].state == "new address"
            assert restarted.metrics()[gauge] == 1
            assert admin.describe_health().is_healthy
            assert {partition.leader for partition in admin.describe_topic("t").partitions} == {
                0,
                2,
            }

            def leaders() -> list[int]:
                return [partition.leader for partition in admin.describe_topic("t").partitions]

            wait_until(lambda: sorted(leaders()) == [0, 1, 2], "it leads again")
            assert restarted.metrics()[gauge] == 0


def test_a_leader_whose_log_is_damaged_is_taken_over_from(cluster: RunningCluster) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all") as producer,
    ):
        topic = admin.create_topic("t", replication_factor=3)
        for number in range(3):
            batch = [
                producer.send("t", b"%d" % number) for number in range(3 * number, 3 * number + 3)
            ]
            for future in batch:
                future.result(30)
        first = topic.partitions[0]
        damaged = _flip_at_the_leader(cluster, topic, 80)
        with RawClient(damaged.address) as client:
            look_up = client.list_offset(TopicPartition(topic.topic_id, 0), timestamp=0)
            assert look_up.error.code == CorruptLogError.code
        wait_until(lambda: _has_another_led(admin, first), "another has led")
        assert producer.send("t", b"9").result(30).offset == 9
        wait_until(
            lambda: set(admin.describe_topic("t").partitions[0].isr) == {0, 1, 2},
            "the damaged one was fetched anew",
        )
    assert sorted(read_all(cluster.bootstrap, "t", 10)) == [b"%d" % number for number in range(10)]


def _has_another_led(admin: SyncAdmin, before: PartitionDescription) -> bool:
    """Whether another replica was elected; the first one may lead again.

    A small log is soon fetched again, so the second election may be over, too.
    """
    now = admin.describe_topic("t").partitions[0]
    elections = now.leader_epoch - before.leader_epoch
    return now.leader != -1 and elections >= (1 if now.leader != before.leader else 2)


def _flip_at_the_leader(cluster: RunningCluster, topic: TopicDescription, at: int) -> RunningBroker:
    """Flip a bit in the only segment of the first partition; return the leader, which has it."""
    first = topic.partitions[0]
    leader = cluster.at(first.leader_address)
    (segment,) = leader.partition_directory(topic.topic_id).glob("*.log")
    flip(segment, at % segment.stat().st_size)  # A negative place counts from the end.
    return leader


def test_a_consumer_that_meets_damage_reads_on_from_another_leader(
    cluster: RunningCluster,
) -> None:
    values = [b"%d" % number for number in range(9)]
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all", batch_size=1) as producer,
    ):
        topic = admin.create_topic("t", replication_factor=3)
        for value in values:
            producer.send("t", value).result(30)
        damaged = _flip_at_the_leader(cluster, topic, -1)
        assert read_all(cluster.bootstrap, "t", len(values)) == values
        wait_until(lambda: damaged.log_has("a damaged log was set aside"), "it is set aside")
        assert _has_another_led(admin, topic.partitions[0])


def test_a_follower_that_meets_damage_at_its_leader_has_another_lead(
    cluster: RunningCluster,
) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all") as producer,
    ):
        topic = admin.create_topic("t", replication_factor=3)
        first = topic.partitions[0]
        late = next(broker for broker in cluster.brokers if broker.address != first.leader_address)
        late.kill()
        assert producer.send("t", b"0").result(30).offset == 0
        damaged = _flip_at_the_leader(cluster, topic, -1)
        late.start()
        wait_until(
            lambda: set(admin.describe_topic("t").partitions[0].isr) == {0, 1, 2},
            "all have a sound copy",
        )
        wait_until(lambda: damaged.log_has("a damaged log was set aside"), "it is set aside")
        assert _has_another_led(admin, first)
    assert read_all(cluster.bootstrap, "t", 1) == [b"0"]


def test_a_replica_that_rots_is_found_set_aside_and_fetched_anew(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, {"storage.scrub_bytes_per_second": 64 << 20}) as cluster:
        _let_a_closed_segment_rot(cluster)


def _let_a_closed_segment_rot(cluster: RunningCluster) -> None:
    values = [b"%d" % number + bytes(20_000) for number in range(200)]
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all") as producer,
    ):
        config = {"segment.bytes": str(1 << 20)}
        topic = admin.create_topic("t", replication_factor=3, config=config)
        for sent in [producer.send("t", value) for value in values[:-1]]:
            sent.result(30)
        before = topic.partitions[0]
        rotten = next(
            broker for broker in cluster.brokers if broker.address != before.leader_address
        )
        directory = rotten.partition_directory(topic.topic_id)
        closed = sorted(directory.glob("*.log"))[0]
        intact = closed.read_bytes()
        spoilt = bytearray(intact)
        spoilt[len(spoilt) // 2] ^= 1
        closed.write_bytes(spoilt)

        def damaged() -> list[DamagedReplica]:
            return admin.describe_damage("t")

        wait_until(lambda: any(each.kept_in for each in damaged()), "it is found and set aside")
        wait_until(
            lambda: set(admin.describe_topic("t").partitions[0].isr) == {0, 1, 2},
            "it is in sync again",
        )
        assert producer.send("t", values[-1]).result(30).offset == 199
        after = admin.describe_topic("t").partitions[0]
        assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch + 1)
        (replica,) = damaged()
        (kept,) = replica.kept_in
        assert (replica.broker_id, replica.error) == (cluster.brokers.index(rotten), "")
        assert Path(kept, closed.name).read_bytes() == bytes(spoilt)
        assert admin.describe_health().is_healthy
        name = f'millrace_damaged_logs{{log_dir="{rotten.log_dirs[0]}"}}'
        wait_until(lambda: rotten.metrics()[name] == 1, "the metric counts what is kept")
        assert rotten.log_has(kept)
    log = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    assert log[:1000] == intact[:1000]
    others = [broker for broker in cluster.brokers if broker is not rotten]
    for other in others:
        other_log = sorted(other.partition_directory(topic.topic_id).glob("*.log"))
        assert b"".join(path.read_bytes() for path in other_log) == log
    assert sorted(read_all(cluster.bootstrap, "t", 200)) == sorted(values)


@pytest.mark.nightly
def test_a_second_process_of_a_brokers_name_is_refused_and_the_first_goes_on(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        admin.create_topic("t", partitions=3, replication_factor=3)
        controller_id = admin.describe_cluster().controller_id
        for victim in (cluster[controller_id], cluster[(controller_id + 1) % 3]):
            epochs = {
                broker.broker_id: broker.broker_epoch for broker in admin.describe_cluster().brokers
            }
            second = RunningBroker(tmp_path / f"second-{victim.pid}", dict(victim.settings))
            code, said = failed_start(second)
            assert code != 0
            assert "is alive in another process" in said
            for number in range(3):
                assert producer.send("t", b"on", partition=number).result(30).offset >= 0
            described = admin.describe_cluster()
            assert described.controller_id == controller_id
            assert {broker.broker_id: broker.broker_epoch for broker in described.brokers} == epochs


def test_a_controller_that_stands_still_is_replaced_and_nobody_else_is_fenced(
    cluster: RunningCluster,
) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all") as producer,
    ):
        admin.create_topic("t", partitions=3, replication_factor=3)
        controller_id = admin.describe_cluster().controller_id
        stopped = cluster.named(f"broker-{controller_id}")
        paused = stopped.pid
        os.kill(paused, signal.SIGSTOP)
        try:
            sent = [producer.send("t", b"meanwhile", partition=number) for number in range(3)]
            for future in sent:
                assert future.result(20).offset >= 0
        finally:
            os.kill(paused, signal.SIGCONT)
        wait_until(
            lambda: all(
                set(partition.isr) == {0, 1, 2}
                for partition in admin.describe_topic("t").partitions
            ),
            "the one that stood still is in sync again",
            40,
        )


def test_too_few_replicas_in_sync_refuse_a_write_that_all_must_have(
    cluster: RunningCluster,
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        topic = admin.create_topic("t", replication_factor=3, config={"min.insync.replicas": "3"})
        partition = TopicPartition(topic.topic_id, 0)
        leader = topic.partitions[0].leader_address
        others = [broker for broker in cluster.brokers if broker.address != leader]
        others[0].kill()
        with RawClient(leader) as client:

            def produce(acks: int) -> int:
                request = request_of((partition, batch_of(partition)), acks=acks)
                (answer,) = client.produce(request)
                return int(answer.results[0].error.code)

            wait_until(
                lambda: len(admin.describe_topic("t").partitions[0].isr) == 2, "the ISR shrinks"
            )
            assert produce(acks=-1) == NotEnoughReplicasError.code
            assert produce(acks=1) == 0
        with RawClient(others[1].address) as client:
            (answer,) = client.produce(request_of((partition, batch_of(partition))))
            error = answer.results[0].error
            assert error.code == NotLeaderError.code
            assert error.leader.address == leader


def test_a_reader_that_names_its_zone_may_read_from_a_follower(cluster: RunningCluster) -> None:
    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all") as producer,
    ):
        topic = admin.create_topic("t", replication_factor=3)
        producer.send("t", b"v").result(30)
        leader = topic.partitions[0].leader_address
        follower = next(broker for broker in cluster.brokers if broker.address != leader)
        wait_until(lambda: log_of(follower).high_watermark == 1, "the follower knows of it")
        wanted = fetch_pb2.FetchPartition(
            handle=1, topic_id=topic.topic_id, current_leader_epoch=-1, last_fetched_epoch=-1
        )

        def fetch(**settings: object) -> fetch_pb2.FetchedPartition:
            message = fetch_pb2.FetchRequest(
                partitions=[wanted],
                credit_bytes=1 << 20,
                settings=fetch_pb2.FetchSettings(min_bytes=1, **settings),  # type: ignore[arg-type]
            )
            with RawClient(follower.address) as client:
                stream = RawStream(client.channel, FETCH)
                stream.send(message.SerializeToString())
                header, _ = decode_fetch_response(stream.receive())
                stream.cancel()
                return header.partitions[0]

        assert fetch().error.code == NotLeaderError.code
        near = fetch(rack="here")
        assert not near.HasField("error")
        assert near.length > 0
        assert near.high_watermark == 1


def test_followers_do_not_fetch_on_the_client_listener(cluster: RunningCluster) -> None:
    with RawClient(cluster.brokers[0].address) as client:
        stream = RawStream(client.channel, FETCH)
        settings = fetch_pb2.FetchSettings(replica_id=1, replica_broker_epoch=2)
        stream.send(fetch_pb2.FetchRequest(settings=settings).SerializeToString())
        assert stream.ended_with() is grpc.StatusCode.INVALID_ARGUMENT


def test_nothing_acknowledged_is_lost_while_brokers_are_killed_in_turn(
    cluster: RunningCluster,
) -> None:
    sent: dict[bytes, int] = {}
    is_over = threading.Event()

    def produce() -> None:
        with SyncProducer(cluster.bootstrap, acks="all", linger_ms=1) as producer:
            number = 0
            while not is_over.is_set():
                values = [b"%d" % number for number in range(number, number + 50)]
                futures = [producer.send("t", value) for value in values]
                for value, future in zip(values, futures, strict=True):
                    sent[value] = future.result(60).offset
                number += 50

    def wait_for_more() -> None:
        count = len(sent) + 500
        wait_until(lambda: len(sent) >= count or producing.done(), "records go in", 40)

    with SyncAdmin(cluster.bootstrap) as admin, ThreadPoolExecutor(1) as pool:
        admin.create_topic("t", replication_factor=3)
        producing = pool.submit(produce)
        try:
            for broker in cluster.brokers:
                wait_for_more()
                broker.kill()
                wait_for_more()
                broker.start()
                wait_until(
                    lambda: set(admin.describe_topic("t").partitions[0].isr) == {0, 1, 2},
                    "the killed broker is in sync again",
                    40,
                )
        finally:
            is_over.set()
        producing.result(60)
    in_order = sorted(sent, key=sent.__getitem__)
    assert sorted(sent.values()) == list(range(len(sent)))
    assert read_all(cluster.bootstrap, "t", len(sent)) == in_order
    wait_until(
        lambda: {log_of(broker).high_watermark for broker in cluster.brokers} == {len(sent)},
        "every replica has everything, and knows that it is committed",
    )
    files = [broker.folder.glob("log/*-0/*.log") for broker in cluster.brokers]
    contents = {b"".join(path.read_bytes() for path in sorted(found)) for found in files}
    assert len(contents) == 1, "the replicas differ"


def test_the_metrics_tell_of_followers_elections_and_what_is_missing(
    cluster: RunningCluster,
) -> None:
    def sample(broker: RunningBroker, name: str) -> float:
        return broker.metrics().get(f"millrace_{name}", 0)

    with (
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all") as producer,
    ):
        leader = admin.create_topic("t", replication_factor=3).partitions[0].leader
        producer.send("t", b"v").result(30)
        others = [broker for number, broker in enumerate(cluster.brokers) if number != leader]
        cluster[leader].kill()
        producer.send("t", b"v").result(30)
        new = admin.describe_topic("t").partitions[0].leader
        leading = cluster[new]
        wait_until(
            lambda: sample(leading, "under_replicated_partitions") == 1, "a replica is missed"
        )
        assert sample(leading, "led_partitions") == 1
        assert sample(leading, "at_min_isr_partitions") == 1
        assert sample(leading, "under_min_isr_partitions") == 0
        assert sample(leading, 'topic_isr_size_min{topic="t"}') == 2
        assert sample(leading, "leader_elections_total") == 1
        assert sample(leading, "isr_shrinks_total") == 1
        assert sample(leading, f'follower_lag_records_max{{follower="{leader}"}}') > 0
        wait_until(  # Each broker looks once a second, and not at the same time.
            lambda: sum(sample(other, "fenced_brokers") for other in others) == 1,
            "the controller tells of it",
        )
        assert sum(sample(other, "controller_active") for other in others) == 1
        assert {sample(other, "offline_partitions") for other in others} == {0}

        cluster[leader].start()
        wait_until(
            lambda: (
                sum(sample(broker, "under_replicated_partitions") for broker in cluster.brokers)
                == 0
            ),
            "all replicas are in sync",
        )
        assert sum(sample(broker, "isr_expands_total") for broker in cluster.brokers) >= 1
        wait_until(
            lambda: len({sample(broker, "controller_epoch") for broker in cluster.brokers}) == 1,
            "all know the same controller",
        )


def test_who_catches_up_leaves_something_for_producers_and_does_catch_up(tmp_path: Path) -> None:
    """The rate is a fraction of what producers write meanwhile: it comes on top of that (F34)."""
    missed, rate = 8 << 20, 2 << 20
    settings = {"replication.catch_up_bytes_per_second": rate}
    value = os.urandom(100_000)
    with RunningCluster(tmp_path, settings) as running:
        cluster = running
        with (
            SyncAdmin(cluster.bootstrap) as admin,
            SyncProducer(cluster.bootstrap, acks="all", compression="none") as producer,
        ):
            admin.create_topic("t", replication_factor=3)

            def in_sync() -> set[int]:
                return set(admin.describe_topic("t").partitions[0].isr)

            first = admin.describe_topic("t").partitions[0]
            away = next(
                broker for broker in cluster.brokers if broker.address != first.leader_address
            )
            away.kill()
            for _ in range(missed // len(value)):
                producer.send("t", value).result(30)
            began = time.monotonic()
            away.start()
            while in_sync() != {0, 1, 2}:
                assert time.monotonic() - began < 60, "it never catches up"
                producer.send("t", value).result(30)
            took = time.monotonic() - began
            assert took > 0.7 * missed / rate
            leader = cluster.at(admin.describe_topic("t").partitions[0].leader_address)
            assert leader.metrics()["millrace_catch_up_bytes_total"] >= missed * 0.9
