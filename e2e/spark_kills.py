"""A streaming job in pods, of which one part after another is killed while flights stream in.

After every kill the job continues by itself: it commits the next micro-batch within
`BACK_SECONDS_MAX`. At the end its output holds exactly what is computed without Spark from the
acknowledged flights: Parquet files here, topics in `spark_topics`.
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa
from e2e.cluster.commands import CommandError
from e2e.cluster.native import NativeCluster
from e2e.flights import FlightsStream
from e2e.installed import Namespace, until
from e2e.spark_job import SparkJob
from tests.spark_jobs import expected
from tests.spark_jobs.flights import FLIGHTS, PARTITIONS, REPLICAS, Source

from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.topics import TRANSACTIONS_TOPIC

BACK_SECONDS_MAX = 180.0
FLIGHTS_A_SECOND = 100
_DONE_SECONDS_MAX = 300.0
_DRAINED_SECONDS_MAX = 240


_ASLEEP_SECONDS = 10.0
_OFF_SECONDS = 5.0


class Victim(StrEnum):
    """The target of a kill."""

    DRIVER = "driver"
    EXECUTOR = "executor"
    BROKER = "broker"
    NODE = "node"
    """It is emptied by `kubectl drain`."""
    COORDINATOR = "coordinator"
    """The broker that decides the query's transactions."""
    SLEEP = "executor asleep"
    """It is stopped for a while: others run its tasks meanwhile, and it goes on with them later."""
    POWER = "power of a node"


OF_FILES = (Victim.DRIVER, Victim.EXECUTOR, Victim.BROKER, Victim.NODE)
"""What is killed under a job that writes files."""


@dataclass
class Outcome:
    """The kills of a job, and whether its output is right.

    Attributes:
        back_s: for each kill, seconds until the commit of a micro-batch that began after it.
        rows: of the output.
        left_out: records in topics that were written, and that readers pass over.
        difference: from the expected output; empty: none.
    """

    back_s: list[tuple[Victim, float]] = field(default_factory=list)
    rows: int = 0
    left_out: int = 0
    difference: str = "the job did not end"

    def seconds_of(self, victim: Victim) -> list[float]:
        """Return the seconds of one kind of kill."""
        return [seconds for kind, seconds in self.back_s if kind == victim]


def plan_of(count: int, seed: int, victims: Sequence[Victim] = OF_FILES) -> list[Victim]:
    """Return kills of every kind in turn, in an order by the dice."""
    dice = random.Random(seed)
    plan = [victim for _ in range(-(-count // len(victims))) for victim in victims][:count]
    dice.shuffle(plan)
    return plan


def run(
    story: "Story",
    plan: Sequence[Victim],
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a job under kills in a namespace that has nothing yet.

    Args:
        story: of the job.
        plan: what is killed, one after another.
        say: gets a line for each kill.

    Raises:
        AssertionError, CommandError, RuntimeError: something did not happen in time.
    """
    flights = story.make()
    try:
        story.begin()
        for number, victim in enumerate(plan, 1):
            seconds = story.kill(victim)
            say(f"{number} of {len(plan)}: {victim}, and a batch after {seconds:.1f} s")
    finally:
        sent = flights.end()
    story.finish(sent)
    return story.outcome


class Story:
    """A job that sums flights up in files, and its kills.

    Args:
        kubernetes: with the image of Spark's pods.
        namespace: of all pods.
        source: of the flights.

    Attributes:
        outcome: of it.
    """

    def __init__(self, kubernetes: NativeCluster, namespace: Namespace, source: Source) -> None:
        self.outcome = Outcome()
        self._kubernetes = kubernetes
        self._namespace = namespace
        self._source = source
        self._job = SparkJob(kubernetes, namespace, "delays")

    def make(self) -> FlightsStream:
        """Make brokers and a topic; return the flights, which begin to come."""
        self._namespace.make_cluster()
        self._namespace.make_topic(FLIGHTS, partitions=PARTITIONS, replicas=REPLICAS)
        self._namespace.make_client()
        return FlightsStream(self._namespace, self._source, FLIGHTS_A_SECOND)

    def begin(self) -> None:
        """Install the job; return once it has committed a micro-batch."""
        self._job.install("carrier_delays", "--every=1 second")
        self._job.wait_for_batch(after=-1)

    def kill(self, victim: Victim) -> float:
        """Make a kill; return the seconds until the commit of a batch that began after it."""
        until(lambda: len(self._job.executors()) == 2, "there are two executors")
        self._job.wait_for_batch(seconds=BACK_SECONDS_MAX)
        begun = time.monotonic()
        match victim:
            case Victim.DRIVER:
                self._kill_pod(self._job.driver)
            case Victim.EXECUTOR:
                self._kill_pod(self._executor)
            case Victim.BROKER:
                self._kill_pod(lambda: "logs-brokers-0")
            case Victim.COORDINATOR:
                self._kill_pod(self._coordinator)
            case Victim.NODE:
                self._drain()
            case Victim.SLEEP:
                self._put_to_sleep(self._executor())
            case Victim.POWER:
                self._cut_the_power()
        self._job.wait_for_batch(self._job.written().planned(), BACK_SECONDS_MAX)
        seconds = time.monotonic() - begun
        self.outcome.back_s.append((victim, seconds))
        self._namespace.wait("cluster.millrace.dev/logs", "Healthy")
        return seconds

    def finish(self, sent: pa.Table) -> None:
        """Compare the output with what comes of the flights that were sent."""
        wanted = expected.carrier_delays(sent)
        assert wanted.num_rows, "more flights are needed: no hour is over"
        self._job.wait_for_rows(wanted.num_rows, _DONE_SECONDS_MAX)
        found = self._job.written().table()
        self.outcome.rows = found.num_rows
        self.outcome.difference = expected.difference(found, wanted)

    def _kill_pod(self, choose: Callable[[], str]) -> None:
        """Kill a pod at once: `kubectl delete --force` would let it stop cleanly.

        Args:
            choose: returns its name; asked again where the pod has ended in between.
        """

        def is_killed() -> bool:
            name = choose()
            try:
                self._kubernetes.signal_pod(name, "SIGKILL", self._namespace.name)
            except CommandError:  # It has no container now, as its node was off.
                return False
            # In place, it would restart later after each kill, finally after five minutes.
            self._namespace("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
            return True

        until(is_killed, f"{choose()} is killed")

    def _executor(self) -> str:
        until(lambda: bool(self._job.executors()), "an executor runs")
        return self._job.executors()[0]

    def _put_to_sleep(self, name: str) -> None:
        def signal(which: str) -> None:
            self._kubernetes.signal_pod(name, which, self._namespace.name, whole=True)

        signal("SIGSTOP")
        time.sleep(_ASLEEP_SECONDS)
        signal("SIGCONT")

    def _coordinator(self) -> str:
        """Return the broker that decides the transactions of the only query."""
        (found,) = json.loads(self._namespace.millrace("transaction", "list", "--output", "json"))
        described = json.loads(
            self._namespace.millrace(
                "topic", "describe", str(TRANSACTIONS_TOPIC), "--output", "json"
            )
        )
        partitions = described["partitions"]
        key = full_id(found["transactional_id"]).encode()
        leader: str = partitions[partition_of(key, len(partitions))]["leader_address"]
        return leader.partition(".")[0]

    def _node(self) -> str:
        """Return a node with a part of the job, but without the pod that sends flights."""
        kept = self._kubernetes.node_of("client", self._namespace.name).name
        pods = self._job.pods("spark-driver") + self._job.pods("spark-executor")
        nodes = {pod["spec"]["nodeName"] for pod in pods} - {kept}
        return min(nodes, default=next(n.name for n in self._kubernetes.nodes if n.name != kept))

    def _cut_the_power(self) -> None:
        """Cut the power of a node for a moment: all that runs there ends, and is begun again."""
        node = self._kubernetes.node(self._node())
        before = self._statuses_on(node.name)
        node.power_off()
        try:
            time.sleep(_OFF_SECONDS)
        finally:
            node.start()
        # Until the node tells more, Kubernetes takes for running what was so before.
        until(
            lambda: all(
                is_ready and (restarts, is_ready) != before.get(name)
                for name, (restarts, is_ready) in self._statuses_on(node.name).items()
            ),
            f"the brokers of {node.name} are ready again",
        )

    def _statuses_on(self, node: str) -> dict[str, tuple[int, bool]]:
        """Return how often each broker of a node was restarted there, and whether it is ready."""
        pods = self._namespace.get("pods", "--selector=app.kubernetes.io/component=broker")
        return {
            pod["metadata"]["name"]: (status["restartCount"], status["ready"])
            for pod in pods["items"]
            if pod["spec"].get("nodeName") == node
            for status in pod["status"].get("containerStatuses", ())
        }

    def _drain(self) -> None:
        node = self._node()
        kubectl = self._kubernetes.kubectl
        try:
            kubectl(
                *("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force"),
                f"--timeout={_DRAINED_SECONDS_MAX}s",
            )
        finally:
            kubectl("uncordon", node)
