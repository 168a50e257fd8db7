"""How soon applied Topics are Ready: one at a time, and many at once.

The time is what a user sees: from the start of `kubectl apply` until the API server says that the
topics are Ready.
"""

import time
from collections.abc import Mapping
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import fresh_namespace, running_kubernetes
from e2e.installed import Namespace, topic, until

MANY = 500
_CLUSTER = "logs"


def measure(bench: Bench) -> Mapping[str, Outcome]:
    """Create one topic, then many, once a round; delete them."""
    ones: list[float] = []
    many: list[float] = []
    with running_kubernetes() as kubernetes, fresh_namespace(kubernetes) as namespace:
        namespace.make_cluster(_CLUSTER)
        for number in range(1, bench.rounds + 1):
            since = time.monotonic()
            namespace.make_topic(f"one-{number}", _CLUSTER, partitions=3)
            ones.append(time.monotonic() - since)
            many.append(_make_many(namespace))
            since = time.monotonic()
            namespace("delete", "topics.millrace.dev", "--all", "--timeout=300s")
            say(
                f"round {number}/{bench.rounds} one {ones[-1]:.2f} s, {MANY} {many[-1]:.1f} s, "
                f"deleted in {time.monotonic() - since:.1f} s"
            )
    return {
        "topic_ready": Outcome(
            values={"median in s": median(ones)},
            detail={"rounds": ones},
        ),
        "topics_500": Outcome(
            values={"median in s": median(many)},
            detail={"rounds": many, "topics": MANY},
        ),
    }


def _make_many(namespace: Namespace) -> float:
    since = time.monotonic()
    namespace.apply(*(topic(f"many-{number}", _CLUSTER, partitions=1) for number in range(MANY)))
    until(lambda: ready_topics(namespace) > MANY, f"{MANY} topics are ready", 600)
    return time.monotonic() - since


def ready_topics(namespace: Namespace) -> int:
    """Return how many Topics of a namespace are Ready."""
    return sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for topic in namespace.get("topics.millrace.dev")["items"]
        for condition in topic.get("status", {}).get("conditions", ())
    )
