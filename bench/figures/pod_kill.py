"""A broker's pod is killed: seconds until a partition that it led acknowledges the next write, the
median over partitions and kills. Every third kill hits the controller, as in `failover`.

The time runs from the last acknowledged write to the partition before the kill to the first one
after it, which is a little more than the kill costs. The broker gets a SIGKILL on its node, because
`kubectl delete --force` would let it hand over its leaderships first. Then its pod is deleted, and
Kubernetes creates it again.
"""

from itertools import pairwise
from statistics import median

from bench.comparisons.kubernetes_load import TOPIC, Write, cluster_under_load, writes
from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from bench.real_kubernetes import native_kubernetes
from e2e.cluster.native import NativeCluster
from e2e.installed import Namespace, until
from e2e.load.pod import LoadPod

KILLS_PER_ROUND = 3
CONTROLLER_EVERY = 3


def measure(bench: Bench) -> Outcome:
    """Kill one broker after another, once a round, under one load."""
    with native_kubernetes() as kubernetes, cluster_under_load(kubernetes) as (namespace, load):
        namespace.make_client("logs")
        led, victims = [], []
        for number in range(1, KILLS_PER_ROUND * bench.rounds + 1):
            victims.append(_victim(namespace, is_controller=number % CONTROLLER_EVERY == 0))
            led.append(_kill(kubernetes, namespace, load, victims[-1]))
            say(f"kill {number}: {victims[-1]} led {len(led[-1])} partitions")
        history = load.finish()
    found = writes(history)
    kills = [op.at_ns for op in history if op.f == "fault"]
    if len(kills) != len(led):
        raise LoadFailedError(f"{len(led)} kills were marked, and {len(kills)} were seen")
    by_kill = [
        [_gap_s(found, partition, at_ns) for partition in partitions]
        for at_ns, partitions in zip(kills, led, strict=True)
    ]
    gaps = [gap for gaps_of_kill in by_kill for gap in gaps_of_kill]
    failed = sum(not write.is_acknowledged for write in found)
    return Outcome(
        values={"median in s": median(gaps), "writes that failed": failed},
        detail={
            "slowest_s": max(gaps),
            "of_controllers_median_s": median(
                gap
                for gaps_of_kill in by_kill[CONTROLLER_EVERY - 1 :: CONTROLLER_EVERY]
                for gap in gaps_of_kill
            ),
            "kills": [
                {"broker": name, "s": seconds}
                for name, seconds in zip(victims, by_kill, strict=True)
            ],
        },
    )


def _victim(namespace: Namespace, *, is_controller: bool) -> str:
    """Return the controller, or the other broker that leads most partitions."""
    controller: str = namespace.get("cluster.millrace.dev", "logs")["status"]["controller"]
    if is_controller:
        return controller
    others = [f"logs-brokers-{number}" for number in range(3)]
    others.remove(controller)
    return max(others, key=lambda name: len(namespace.led_by(TOPIC, name)))


def _kill(kubernetes: NativeCluster, namespace: Namespace, load: LoadPod, broker: str) -> list[int]:
    """Kill a broker; return its former partitions, once it is back and leads some again."""
    led = namespace.led_by(TOPIC, broker)
    before = namespace.broker_uids()
    load.fault("F36", broker)
    kubernetes.signal_pod(broker, "SIGKILL", namespace.name)
    # In place, it would restart later after each kill, finally after five minutes.
    namespace("delete", "pod", broker, "--grace-period=0", "--force", "--wait=false")
    until(lambda: len(namespace.broker_uids() - before) == 1, f"{broker} is another pod")
    namespace.wait(f"pod/{broker}", "Ready")
    namespace.wait("cluster.millrace.dev/logs", "Healthy")
    load.wait_for_all()
    until(lambda: bool(namespace.led_by(TOPIC, broker)), f"{broker} leads again")
    return led


def _gap_s(found: list[Write], partition: int, at_ns: int) -> float:
    """Return the longest time without an acknowledgement in the seconds after a moment."""
    ends = sorted(
        write.ended_ns for write in found if write.key == partition and write.is_acknowledged
    )
    near = [end for end in ends if at_ns - 2e9 < end < at_ns + 20e9]
    return max(later - sooner for sooner, later in pairwise(near)) / 1e9
