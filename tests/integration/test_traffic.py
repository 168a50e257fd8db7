"""Brokers count what producers append and consumers fetch, and no copies for followers."""

from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster, read_all

from millrace.client import LogDescription, SyncAdmin, SyncProducer

COUNT, SIZE = 50, 1_000


def test_a_leader_counts_what_is_appended_and_fetched(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        admin.create_topic("orders", 1, 3)
        for _ in range(COUNT):
            producer.send("orders", bytes(SIZE))
        producer.flush()

        def logs() -> list[LogDescription]:
            return admin.describe_logs("orders")

        wait_until(lambda: [log.log_end_offset for log in logs()] == [COUNT] * 3, "all have a copy")
        (leader,) = (log for log in logs() if log.leads)
        assert leader.appended_bytes == leader.size_bytes
        assert leader.fetched_bytes == 0
        read_all(cluster.bootstrap, "orders", COUNT)
        (leader,) = (log for log in logs() if log.leads)
        assert leader.fetched_bytes == leader.size_bytes
        followers = [log for log in logs() if not log.leads]
        assert {(follower.appended_bytes, follower.fetched_bytes) for follower in followers} == {
            (0, 0)
        }
