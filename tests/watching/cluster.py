"""Three brokers under a load that moves every metric: writers, readers, a group, transactions, a
quota, compaction, retention, tiers, refusals. Nothing of it is a fault, so no alert fires.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.background import running
from tests.integration.running_broker import RunningBroker
from tests.integration.running_cluster import BROKERS, RunningCluster
from tests.watching.pages import RunningQuery, operator_page, spark_page
from tests.watching.prometheus import RunningPrometheus, Target

from millrace.client import MillraceError, Position, SyncAdmin, SyncConsumer, SyncProducer

CLUSTER_LABELS = {"namespace": "shop", "millrace_cluster": "orders"}
PARTITIONS = 3
VALUE = b"v" * 1000
KEYS = 1000
"""Their latest records take more space than becomes free on a full disk before it is full again."""

TRANSACTION_TIMEOUT_MS = 10_000

SETTINGS: dict[str, object] = {
    "cluster.broker_session_timeout_ms": 2000,
    "replication.replica_lag_time_max_ms": 2000,
    "groups.lag_interval_ms": 200,
    "transactions.timeout_ms_max": TRANSACTION_TIMEOUT_MS,
    "storage.cleaner_backoff_ms": 100,
    "storage.retention_check_interval_ms": 200,
    "storage.tier_check_interval_ms": 200,
    "storage.tier_free_bytes_min": 0,
}
MEDIA = ("ssd", "hdd")
"""Of the log directories of each broker."""
_TOPICS: dict[str, dict[str, str]] = {
    "orders": {"min.insync.replicas": "2"},
    "latest": {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "min.cleanable.dirty.ratio": "0",
    },
    "short": {"segment.ms": "1000", "retention.ms": "1000"},
    "clicks": {
        "media": "tiered",
        "segment.ms": "1000",
        "local.retention.ms": "0",
        "retention.ms": "20000",
    },
}
_QUOTA_BYTES_PER_SECOND = 50_000
_PAUSE_SECONDS = 0.02
_TRANSACTION_SECONDS = 0.1
_REPORT_SECONDS = 0.5
_OUTAGE_MS = 600_000
"""Writers wait for it to end."""


class WatchedCluster:
    """The cluster, its load and its Prometheus. `watched_cluster` makes it.

    Attributes:
        brokers: the processes.
        prometheus: scrapes them, and pages of an operator and of a Spark job.
        query: of the Spark job.
    """

    def __init__(
        self,
        brokers: RunningCluster,
        prometheus: RunningPrometheus,
        query: RunningQuery,
        group_is_over: threading.Event,
    ) -> None:
        self.brokers = brokers
        self.prometheus = prometheus
        self.query = query
        self._group_is_over = group_is_over

    @property
    def controller(self) -> RunningBroker:
        """The broker that is the controller."""
        with SyncAdmin(self.brokers.bootstrap) as admin:
            wait_until(lambda: admin.describe_cluster().controller_id >= 0, "one is elected")
            return self.brokers[admin.describe_cluster().controller_id]

    def kill_one(self) -> RunningBroker:
        """Kill a broker that is not the controller, as a crash would; return it."""
        controller = self.controller
        running = (broker for broker in self.brokers.brokers if broker.is_running)
        killed = next(broker for broker in running if broker is not controller)
        killed.kill()
        return killed

    def stop_group(self) -> None:
        """Let the members of the group `billing` leave, and none come again."""
        self._group_is_over.set()


@contextmanager
def watched_cluster(
    folder: Path,
    rules: list[Path],
    *,
    brokers: RunningCluster | None = None,
    operator: Callable[[], AbstractContextManager[str]] = operator_page,
) -> Iterator[WatchedCluster]:
    """Start the brokers, their load and Prometheus; end all of it.

    Args:
        folder: for their files.
        rules: of Prometheus.
        brokers: to be started; None: with `SETTINGS`, on plain folders of all `MEDIA`.
        operator: serves the operator's page; yields its address.
    """
    brokers = brokers or RunningCluster(folder / "brokers", SETTINGS, media=[MEDIA] * BROKERS)
    query = RunningQuery()
    with ExitStack() as endings:
        endings.callback(brokers.abandon)
        brokers.start()
        _prepare(brokers.bootstrap)
        for job in (_write, _write_too_much, _transact, _follow, _be_refused):
            endings.enter_context(running(partial(job, brokers.bootstrap)))
        group_is_over = endings.enter_context(running(partial(_read, brokers.bootstrap)))
        targets = [
            *(_target(broker) for broker in brokers.brokers),
            Target("operator", endings.enter_context(operator()), {"instance": "operator-0"}),
            Target("spark", endings.enter_context(spark_page(query)), {"namespace": "shop"}),
        ]
        prometheus = RunningPrometheus(folder / "prometheus", targets, rules)
        endings.callback(prometheus.stop)
        yield WatchedCluster(brokers, prometheus.start(), query, group_is_over)


def _target(broker: RunningBroker) -> Target:
    """Return a broker's page, with the name for an instance as it has on Kubernetes."""
    labels = {**CLUSTER_LABELS, "instance": str(broker.settings["node.name"])}
    return Target("brokers", broker.metrics_address, labels)


def _prepare(bootstrap: str) -> None:
    with SyncAdmin(bootstrap) as admin:
        for topic, config in _TOPICS.items():
            admin.create_topic(topic, PARTITIONS, replication_factor=3, config=config)
        admin.set_quota(
            "tenants", client_id="tenant", produce_bytes_per_second=_QUOTA_BYTES_PER_SECOND
        )


def _write(bootstrap: str, is_over: threading.Event) -> None:
    with SyncProducer(bootstrap, linger_ms=5, delivery_timeout_ms=_OUTAGE_MS) as producer:
        number = 0
        while not is_over.wait(_PAUSE_SECONDS):
            for topic in _TOPICS:
                number += 1
                producer.send(topic, VALUE, key=b"key-%d" % (number % KEYS))


def _write_too_much(bootstrap: str, is_over: threading.Event) -> None:
    with SyncProducer(
        bootstrap,
        client_id="tenant",
        compression="none",
        batch_size=10_000,
        delivery_timeout_ms=_OUTAGE_MS,
        buffer_memory=2 * _QUOTA_BYTES_PER_SECOND,  # What is left takes two seconds at the end.
    ) as producer:
        while not is_over.wait(_PAUSE_SECONDS):
            for _ in range(5):
                producer.send("orders", VALUE)


def _transact(bootstrap: str, is_over: threading.Event) -> None:
    """Commit small transactions, and abort one of ten."""
    number = 0
    while not is_over.is_set():
        with (
            suppress(MillraceError),
            SyncProducer(
                bootstrap,
                transactional_id="shop",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            ) as producer,
        ):
            while not is_over.wait(_TRANSACTION_SECONDS):
                number += 1
                producer.begin_transaction()
                producer.send("orders", VALUE)
                if number % 10:
                    producer.commit_transaction()
                else:
                    producer.flush()
                    producer.abort_transaction()


def _read(bootstrap: str, is_over: threading.Event) -> None:
    with SyncConsumer(bootstrap, group="billing", auto_commit_interval_ms=200) as consumer:
        consumer.subscribe(["orders"])
        while not is_over.is_set():
            with suppress(MillraceError):
                consumer.poll(timeout_ms=200)


def _follow(bootstrap: str, is_over: threading.Event) -> None:
    """Be `archive`, which reports positions and is no consumer group, and is a little behind."""
    with SyncAdmin(bootstrap) as admin:
        positions: dict[tuple[str, int], Position] = {}
        while not is_over.wait(_REPORT_SECONDS):
            with suppress(MillraceError):
                if positions:
                    admin.commit_positions("archive", positions)
                ends = admin.list_offsets("orders")
                positions = {place: Position(end.offset) for place, end in ends.items()}


def _be_refused(bootstrap: str, is_over: threading.Event) -> None:
    """Read where nothing is, again and again."""
    while not is_over.wait(0.3):
        with (
            suppress(MillraceError),
            SyncConsumer(bootstrap, auto_offset_reset="none") as consumer,
        ):
            consumer.assign({("orders", 0): 1 << 40})
            consumer.poll(timeout_ms=200)


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    said: Callable[[], str] = str,
    seconds: float = 60.0,
) -> None:
    """Return once `condition()` is true; otherwise fail with what `said()` returns."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{said()}"
        time.sleep(0.2)
