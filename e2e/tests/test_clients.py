"""Clients in pods: a consumer group that is scaled, and a quota that slows one pod down."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from e2e.cluster.commands import CommandError
from e2e.cluster.images import PRODUCT
from e2e.installed import Namespace, until

pytestmark = pytest.mark.timeout(900)

PARTITIONS = 12
GROUP = "printers"
LINES_PER_SECOND = 100

PRODUCE = """
import json, sys, time
from millrace.client import SyncProducer
name, topic, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
ends, size = time.monotonic() + seconds, 0
with SyncProducer(sys.argv[4], client_id=name) as producer:
    while time.monotonic() < ends:
        for _ in range(20):
            producer.send(topic, bytes(1000))
        size += 20_000
        producer.flush()
        time.sleep(0.02)
    print(json.dumps({"bytes_per_second": size / seconds, **producer.metrics()}))
"""
"""Produces as quickly as it may, but at most 1 MB/s: NAME TOPIC SECONDS ADDRESS."""


def _say(text: str) -> None:
    sys.stderr.write(f"e2e: {text}\n")


class Readers:
    """A Deployment of `millrace consume --group`, and all that its pods print."""

    def __init__(self, namespace: Namespace, topic: str, folder: Path, closing: ExitStack) -> None:
        self._namespace, self._topic, self._folder = namespace, topic, folder
        self._closing = closing
        self._followed: set[str] = set()

    def apply(self) -> None:
        """Make it, with one pod."""
        command = ["millrace", "consume", self._topic, "--group", GROUP, "--format", "%s\\n"]
        container = {
            "name": "reader",
            "image": PRODUCT,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "env": [
                {
                    "name": "MILLRACE_BOOTSTRAP",
                    "value": f"logs-bootstrap.{self._namespace.name}.svc:7092",
                }
            ],
        }
        labels = {"app": "readers"}
        self._namespace.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "readers"},
                "spec": {
                    "replicas": 1,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": [container]},
                    },
                },
            }
        )

    def scale(self, count: int) -> float:
        """Let so many pods read; return the seconds until they share all partitions."""
        begun = time.monotonic()
        self._namespace("scale", "deployment/readers", f"--replicas={count}")
        until(lambda: self._is_shared_by(count), f"{count} members share all partitions")
        return time.monotonic() - begun

    def printed(self) -> list[str]:
        """Return all lines of all pods so far."""
        return [
            line for path in self._folder.glob("*.log") for line in path.read_text().splitlines()
        ]

    def _is_shared_by(self, count: int) -> bool:
        self._follow()
        try:
            described = json.loads(
                self._namespace.millrace("group", "describe", GROUP, "--output", "json")
            )
        except CommandError:  # It is not there yet, or its coordinator was killed.
            return False
        shares = [len(member["partitions"]) for member in described["members"]]
        return described["state"] == "stable" and shares == [PARTITIONS // count] * count

    def _follow(self) -> None:
        """Keep what each pod prints: it is gone with the pod."""
        pods = self._namespace.get("pods", "--selector=app=readers")["items"]
        for name in {pod["metadata"]["name"] for pod in pods} - self._followed:
            if _is_running(next(pod for pod in pods if pod["metadata"]["name"] == name)):
                self._followed.add(name)
                file = self._closing.enter_context((self._folder / f"{name}.log").open("wb"))
                logs = self._namespace.start("logs", "--follow", f"pod/{name}", output=file)
                self._closing.callback(_end, logs)


def _is_running(pod: dict[str, Any]) -> bool:
    return bool(pod["status"]["phase"] == "Running")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.communicate()


@contextmanager
def writing(namespace: Namespace, topic: str) -> Iterator[list[str]]:
    """Write numbers all the time; at the end of the block all of them are acknowledged."""
    command = ("exec", "--stdin", "client", "--", "millrace", "produce", topic)
    producing = namespace.start(*command)
    written: list[str] = []
    is_over = Event()

    def write() -> None:
        assert producing.stdin is not None
        while not is_over.wait(1 / LINES_PER_SECOND):
            producing.stdin.write(f"{len(written)}\n".encode())
            producing.stdin.flush()
            written.append(str(len(written)))
        producing.stdin.close()

    thread = Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        is_over.set()
        thread.join()
    assert producing.wait(120) == 0, "not every record was acknowledged"


def test_a_group_of_pods_is_scaled_under_load_and_reads_all_while_brokers_are_killed(
    namespace: Namespace, tmp_path: Path
) -> None:
    namespace.make_cluster()
    namespace.make_topic("orders", partitions=PARTITIONS, replicas=3)
    namespace.make_client()
    topic = f"{namespace.name}/orders"

    def kill(broker: str) -> None:
        before = namespace.broker_uids()
        namespace("delete", "pod", broker, "--grace-period=0", "--force", "--wait=false")
        until(lambda: len(namespace.broker_uids() - before) == 1, f"{broker} is another pod")
        namespace.wait("cluster.millrace.dev/logs", "Healthy")

    with ExitStack() as closing:
        readers = Readers(namespace, topic, tmp_path, closing)
        readers.apply()
        with writing(namespace, topic) as written:
            readers.scale(1)
            readers.scale(6)
            kill("logs-brokers-0")
            shrunk_s = readers.scale(2)
            kill("logs-brokers-1")
        until(lambda: set(written) <= set(readers.printed()), "every record was printed", 120)
        repeated = len(readers.printed()) - len(written)
        _say(f"{len(written)} records, {repeated} printed again; 6 to 2 in {shrunk_s:.1f} s")
        until(lambda: _lag(namespace) == 0, "the group has committed all of it")


def test_a_quota_slows_the_pod_that_it_is_for_and_no_other(namespace: Namespace) -> None:
    namespace.make_cluster()
    namespace.make_topic("orders", partitions=3, replicas=3)
    namespace.make_client()
    namespace.apply(
        {
            "apiVersion": "millrace.dev/v1beta1",
            "kind": "Quota",
            "metadata": {"name": "slow"},
            "spec": {
                "clusterRef": {"name": "logs"},
                "for": {"clientId": "slow"},
                "produceBytesPerSecond": "50k",
            },
        }
    )
    namespace.wait("quota.millrace.dev/slow", "Ready")
    for name in ("slow", "fast"):
        _start_producer(namespace, name, seconds=40)
    until(
        lambda: namespace.get("mrq", "slow")["status"].get("throttled") == 1,
        "the Quota shows the client that it slows down",
    )
    assert "client id slow" in namespace("get", "mrq")
    measured = {name: _produced(namespace, name) for name in ("slow", "fast")}
    _say(f"{measured}")
    assert measured["slow"]["bytes_per_second"] < 75_000
    assert measured["slow"]["throttled_ms"] > 0
    assert measured["fast"]["bytes_per_second"] > 150_000
    assert measured["fast"]["throttled_ms"] == 0

    namespace("delete", "mrq", "slow", "--timeout=60s")
    assert "slow" not in namespace.millrace("quota", "list")


def _lag(namespace: Namespace) -> int | None:
    described = json.loads(namespace.millrace("group", "describe", GROUP, "--output", "json"))
    lag: int | None = described["lag"]
    return lag


def _start_producer(namespace: Namespace, name: str, *, seconds: int) -> None:
    address = f"logs-bootstrap.{namespace.name}.svc:7092"
    topic = f"{namespace.name}/orders"
    container = {
        "name": "producer",
        "image": PRODUCT,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", PRODUCE, name, topic, str(seconds), address],
    }
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [container], "restartPolicy": "Never"},
        }
    )


def _produced(namespace: Namespace, name: str) -> dict[str, float]:
    """Return what a producer has measured, when it is over."""
    namespace.wait(f"pod/{name}", "jsonpath={.status.phase}=Succeeded")
    lines = namespace("logs", f"pod/{name}").splitlines()  # With what the client has to say.
    measured: dict[str, float] = json.loads(next(line for line in lines if line.startswith("{")))
    return measured
