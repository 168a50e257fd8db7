"""A streaming job in pods, of which one part after another is killed while flights stream in.

After every kill the job continues by itself: it commits the next micro-batch within
`BACK_SECONDS_MAX`. At the end its Parquet files hold exactly what plain Arrow computes from the
acknowledged flights.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa
from e2e.cluster.native import NativeCluster
from e2e.flights import FlightsStream
from e2e.installed import Namespace, until
from e2e.spark_job import SparkJob
from tests.spark_jobs import expected
from tests.spark_jobs.flights import FLIGHTS, PARTITIONS, REPLICAS, Source

BACK_SECONDS_MAX = 180.0
FLIGHTS_A_SECOND = 100
_DONE_SECONDS_MAX = 300.0
_DRAINED_SECONDS_MAX = 240


class Victim(StrEnum):
    """The target of a kill; a node is emptied by `kubectl drain` instead."""

    DRIVER = "driver"
    EXECUTOR = "executor"
    BROKER = "broker"
    NODE = "node"


@dataclass
class Outcome:
    """The kills of a job, and whether its output is right.

    Attributes:
        back_s: for each kill, seconds until the commit of a micro-batch that began after it.
        rows: of the output.
        difference: from the expected output; empty: none.
    """

    back_s: list[tuple[Victim, float]] = field(default_factory=list)
    rows: int = 0
    difference: str = "the job did not end"

    def seconds_of(self, victim: Victim) -> list[float]:
        """Return the seconds of one kind of kill."""
        return [seconds for kind, seconds in self.back_s if kind == victim]


def plan_of(count: int, seed: int) -> list[Victim]:
    """Return kills of every kind in turn, in an order by the dice."""
    dice = random.Random(seed)
    plan = [victim for _ in range(-(-count // len(Victim))) for victim in Victim][:count]
    dice.shuffle(plan)
    return plan


def run(
    kubernetes: NativeCluster,
    namespace: Namespace,
    source: Source,
    plan: Sequence[Victim],
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a job under kills in a namespace that has nothing yet.

    Raises:
        AssertionError, CommandError, RuntimeError: something did not happen in time.
    """
    namespace.make_cluster()
    namespace.make_topic(FLIGHTS, partitions=PARTITIONS, replicas=REPLICAS)
    namespace.make_client()
    story = _Story(kubernetes, namespace)
    flights = FlightsStream(namespace, source, FLIGHTS_A_SECOND)
    try:
        story.begin()
        for number, victim in enumerate(plan, 1):
            seconds = story.kill(victim)
            say(f"{number} of {len(plan)}: {victim}, and a batch after {seconds:.1f} s")
    finally:
        sent = flights.end()
    story.finish(sent)
    return story.outcome


class _Story:
    def __init__(self, kubernetes: NativeCluster, namespace: Namespace) -> None:
        self.outcome = Outcome()
        self._kubernetes = kubernetes
        self._namespace = namespace
        self._job = SparkJob(kubernetes, namespace, "delays")

    def begin(self) -> None:
        self._job.install("carrier_delays", "--every=1 second")
        self._job.wait_for_batch(after=-1)

    def kill(self, victim: Victim) -> float:
        """Make a kill; return the seconds until the commit of a batch that began after it."""
        until(lambda: len(self._job.executors()) == 2, "there are two executors")
        self._job.wait_for_batch()
        begun = time.monotonic()
        planned = self._job.written().planned()
        match victim:
            case Victim.DRIVER:
                self._kill_pod(self._job.driver())
            case Victim.EXECUTOR:
                self._kill_pod(self._job.executors()[0])
            case Victim.BROKER:
                self._kill_pod("logs-brokers-0")
            case Victim.NODE:
                self._drain()
        self._job.wait_for_batch(planned, BACK_SECONDS_MAX)
        seconds = time.monotonic() - begun
        self.outcome.back_s.append((victim, seconds))
        self._namespace.wait("cluster.millrace.dev/logs", "Healthy")
        return seconds

    def finish(self, sent: pa.Table) -> None:
        wanted = expected.carrier_delays(sent)
        assert wanted.num_rows, "more flights are needed: no hour is over"
        self._job.wait_for_rows(wanted.num_rows, _DONE_SECONDS_MAX)
        found = self._job.written().table()
        self.outcome.rows = found.num_rows
        self.outcome.difference = expected.difference(found, wanted)

    def _kill_pod(self, name: str) -> None:
        """Kill a pod at once: `kubectl delete --force` would let it stop cleanly."""
        self._kubernetes.signal_pod(name, "SIGKILL", self._namespace.name)
        # In place, it would restart later after each kill, finally after five minutes.
        self._namespace("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")

    def _drain(self) -> None:
        """Drain a node with a part of the job, but without the pod that sends flights."""
        kept = self._kubernetes.node_of("client", self._namespace.name).name
        pods = self._job.pods("spark-driver") + self._job.pods("spark-executor")
        nodes = {pod["spec"]["nodeName"] for pod in pods} - {kept}
        node = min(nodes, default=next(n.name for n in self._kubernetes.nodes if n.name != kept))
        kubectl = self._kubernetes.kubectl
        try:
            kubectl(
                *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
                f"--timeout={_DRAINED_SECONDS_MAX}s",
            )
        finally:
            kubectl("uncordon", node)
