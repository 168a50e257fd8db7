"""The controller dies by kill -9: seconds until another broker is controller.

Three brokers, 1,000 partitions with three replicas, one SQLite file; then the same with an API
server. The time ends when the new controller has done a request that was sent after the kill, and
when all partitions of the dead leader have other leaders, as the live brokers tell clients. The
dead broker stays dead until then. The value is the slowest round.
"""

import threading
import time

from bench.comparisons.either_store import measure_with_either_store
from bench.measure import Bench, Outcome
from bench.millrace_cluster import MillraceCluster
from bench.processes import until

from millrace.client import RetriableError

PARTITIONS = 1000
POLL_S = 0.02
TIMEOUT_S = 60


def measure(bench: Bench) -> Outcome:
    """Kill the controller once a round, with either store."""

    def fail_over(cluster: MillraceCluster, topics: list[str]) -> dict[str, float]:
        time.sleep(bench.seconds)
        return _fail_over(cluster, topics)

    return measure_with_either_store(
        bench,
        fail_over,
        what="failover",
        counts=("administration", "leaders"),
        partitions=PARTITIONS,
    )


def _fail_over(cluster: MillraceCluster, topics: list[str]) -> dict[str, float]:
    controller = cluster.controller()
    led = [
        key
        for key, partition in cluster.partitions(topics).items()
        if partition.leader == controller
    ]
    with cluster.without_restarts():
        killed_at = cluster.kill(controller)
        answered: list[float] = []

        def administer() -> None:
            until(lambda: _is_altered(cluster, topics[0]) or None, "a new controller", TIMEOUT_S)
            answered.append(time.monotonic() - killed_at)

        asking = threading.Thread(target=administer)
        asking.start()

        def others_lead() -> float | None:
            try:
                found = cluster.partitions(topics)
            except RetriableError:
                return None
            if any(found[key].leader in (controller, -1) for key in led):
                return None
            return time.monotonic() - killed_at

        led_by_others = until(others_lead, "other leaders", TIMEOUT_S, POLL_S)
        asking.join()
    return {"administration": answered[0], "leaders": led_by_others}


def _is_altered(cluster: MillraceCluster, topic: str) -> bool:
    try:
        cluster.admin.alter_topic(topic, set_config={"retention.ms": "604800000"})
    except RetriableError:
        return False
    return True
