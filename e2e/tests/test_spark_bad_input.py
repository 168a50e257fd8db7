"""Invalid jobs say so: the driver exits non-zero, and the pod's status has its last words."""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from e2e.cluster.native import NativeCluster
from e2e.flights import produce_all
from e2e.installed import Namespace
from e2e.spark_job import SparkJob
from tests.spark_jobs.flights import FLIGHTS, read_source

pytestmark = pytest.mark.timeout(900)
SECONDS_MAX = 240.0


def wait_for_last_words(job: SparkJob, said: str) -> None:
    """Return once a driver has ended with this status message; it is restarted until then."""
    deadline = time.monotonic() + SECONDS_MAX
    heard: set[str] = set()
    while not any(said.lower() in text.lower() for text in heard):
        assert time.monotonic() < deadline, f"{heard} is said, not {said!r}: {job.last_words()}"
        time.sleep(0.5)
        heard.update(_last_words(job))


def _last_words(job: SparkJob) -> Iterator[str]:
    for pod in job.pods("spark-driver"):
        for status in pod["status"].get("containerStatuses", []):
            for state in (status["state"], status.get("lastState", {})):
                if ended := state.get("terminated"):
                    assert ended["exitCode"] != 0, json.dumps(ended)
                    yield str(ended["message"]).strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"topicNamespace": "nowhere"},
            "error: UnknownTopicOrPartitionError: there is no topic nowhere/flights",
        ),
        (
            {"bootstrap": "wrong-name:7092"},
            "error: ConnectionFailedError: no broker can be reached",
        ),
        ({"job__file": "/opt/millrace/jobs/gone.py"}, "gone.py"),
        ({"image__repository": "localhost/millrace"}, "python"),
    ],
    ids=["no topic", "no such Service", "no such program", "an image without Spark"],
)
def test_a_wrong_value_is_told_by_the_pod(
    with_spark: NativeCluster, with_flights: Namespace, values: dict[str, str], said: str
) -> None:
    job = SparkJob(with_spark, with_flights, "wrong")
    job.install("carrier_delays", **values)
    wait_for_last_words(job, said)


def test_missing_rights_are_told(with_spark: NativeCluster, with_flights: Namespace) -> None:
    job = SparkJob(with_spark, with_flights, "wrong")
    job.install("carrier_delays", stopped=True)
    with_flights("delete", "rolebinding", "wrong")
    job.start()
    wait_for_last_words(job, "forbidden")


def test_executors_with_too_little_memory_are_told(
    with_spark: NativeCluster, with_flights: Namespace
) -> None:
    """They are killed before they can log anything."""
    job = SparkJob(with_spark, with_flights, "wrong")
    job.install("carrier_delays", executor__memory="450m", executor__memoryOverhead="1m")
    wait_for_last_words(job, "as with too little memory")


def _recreate_topic(job: SparkJob, kubernetes: NativeCluster, namespace: Namespace) -> None:
    namespace("delete", f"topic.millrace.dev/{FLIGHTS}", "--timeout=60s")
    namespace.make_topic(FLIGHTS, partitions=4, replicas=3)


def _fill(job: SparkJob, kubernetes: NativeCluster, namespace: Namespace) -> None:
    node, path = kubernetes.volume_of(f"{job.name}-data", namespace.name)
    fill = 'for size in 1M 4k; do dd if=/dev/zero of="$0/$size" bs=$size 2>/dev/null || true; done'
    node.machine.run("sh", "-c", fill, path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(_recreate_topic, "error: TopicRecreatedError"), (_fill, "No space left on device")],
    ids=["a topic made anew", "a full volume"],
)
def test_what_happens_to_a_running_job_is_told(
    with_spark: NativeCluster,
    with_flights: Namespace,
    spoil: Callable[[SparkJob, NativeCluster, Namespace], None],
    said: str,
) -> None:
    source = read_source(20)
    halves = source.parts(2)
    job = SparkJob(with_spark, with_flights, "delays")
    job.install("carrier_delays")
    produce_all(with_flights, halves[0])
    job.wait_for_batch(after=-1)
    spoil(job, with_spark, with_flights)
    produce_all(with_flights, halves[1])
    wait_for_last_words(job, said)
