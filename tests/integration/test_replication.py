"""Three brokers: one hands over, one is damaged, one catches up, and their metrics say so."""

import os
import time
from pathlib import Path

import grpc
import pytest
from tests.integration.raw_client import (
    FETCH,
    RawClient,
    RawStream,
)
from tests.integration.running_broker import RunningBroker, flip, wait_until
from tests.integration.running_cluster import RunningCluster, read_all

from millrace.client import (
    DamagedReplica,
    PartitionDescription,
    SyncAdmin,
    SyncProducer,
    TopicDescription,
)
from millrace.core.errors import CorruptLogError
from millrace.core.ids import TopicPartition
from millrace.proto.v1 import fetch_pb2


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
        wait_until(lambda: _has_another_led(admin, topic.partitions[0]), "all know who leads")


def test_a_replica_that_rots_is_found_set_aside_and_fetched_anew(tmp_path: Path) -> None:
    values = [b"%d" % number + bytes(20_000) for number in range(200)]
    with (
        RunningCluster(tmp_path, {"storage.scrub_bytes_per_second": 64 << 20}) as cluster,
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

        wait_until(
            lambda: any(replica.kept_in for replica in damaged()), "it is found and set aside"
        )
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
        wait_until(lambda: admin.describe_health().is_healthy, "all is well")
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


def test_followers_do_not_fetch_on_the_client_listener(cluster: RunningCluster) -> None:
    with RawClient(cluster.brokers[0].address) as client:
        stream = RawStream(client.channel, FETCH)
        settings = fetch_pb2.FetchSettings(replica_id=1, replica_broker_epoch=2)
        stream.send(fetch_pb2.FetchRequest(settings=settings).SerializeToString())
        assert stream.ended_with() is grpc.StatusCode.INVALID_ARGUMENT


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

        def leader_now() -> int:
            return admin.describe_topic("t").partitions[0].leader

        # The producer may know it before the broker that is asked here.
        wait_until(lambda: leader_now() not in (leader, -1), "another leads")
        leading = cluster[leader_now()]
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
