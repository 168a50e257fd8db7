"""Operators of a cluster with 1,000 unchanged Topics: their writes to the API server in a second,
the Lease included, and the memory of the larger operator.

A round lasts as long as `--seconds` says.
"""

import re
import time
from statistics import median

from bench.comparisons.kubernetes_topics import ready_topics
from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import fresh_namespace, running_kubernetes
from e2e.cluster.kubectl import Kubectl
from e2e.installed import SYSTEM, topic, until

from millrace.operator.telemetry import PORT

TOPICS = 1000
_READS = {"GET"}


def measure(bench: Bench) -> Outcome:
    """Create the topics, then count."""
    rates, memory = [], []
    with running_kubernetes() as kubernetes, fresh_namespace(kubernetes) as namespace:
        namespace.make_cluster("logs")
        namespace.apply(
            *(topic(f"idle-{number}", "logs", partitions=1) for number in range(TOPICS))
        )
        until(lambda: ready_topics(namespace) == TOPICS, f"{TOPICS} topics are ready", 900)
        for number in range(1, bench.rounds + 1):
            before, since = _writes(kubernetes.kubectl), time.monotonic()
            time.sleep(bench.seconds)
            written = _writes(kubernetes.kubectl) - before
            rates.append(written / (time.monotonic() - since))
            memory.append(_megabytes(kubernetes.kubectl))
            say(f"round {number}/{bench.rounds} {rates[-1]:.3f} writes/s, {memory[-1]:.0f} MB")
    return Outcome(
        values={"writes a second": median(rates), "MB": max(memory)},
        detail={"rounds": rates, "megabytes": memory, "topics": TOPICS},
    )


def _pods(kubectl: Kubectl) -> list[str]:
    chosen = "--selector=app.kubernetes.io/component=operator"
    return [
        pod["metadata"]["name"]
        for pod in kubectl.get(f"--namespace={SYSTEM}", "pods", chosen)["items"]
    ]


def _writes(kubectl: Kubectl) -> float:
    """Return how many requests that change something all operators have sent."""
    url = f"http://127.0.0.1:{PORT}/metrics"
    read = f"from urllib.request import urlopen; print(urlopen('{url}').read().decode())"
    total = 0.0
    for pod in _pods(kubectl):
        text = kubectl.exec(pod, "python3", "-c", read, namespace=SYSTEM)
        for method, count in re.findall(
            r'^millrace_operator_api_requests_total{method="(\w+)"} (\S+)$', text, re.MULTILINE
        ):
            total += 0.0 if method in _READS else float(count)
    return total


def _megabytes(kubectl: Kubectl) -> float:
    """Return the memory of the largest operator, without what it shares, by the kernel's count."""
    sizes = []
    for pod in _pods(kubectl):
        text = kubectl.exec(pod, "cat", "/proc/1/smaps_rollup", namespace=SYSTEM)
        (found,) = re.findall(r"^Rss:\s+(\d+) kB$", text, re.MULTILINE)
        sizes.append(int(found) / 1000)
    return max(sizes)
