"""Clusters to run suites against: Apache Kafka, which says what a suite expects, and ours."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.kafka import running_kafka
from bench.processes import announced, start, stop
from tests.suites.suite import Target

KAFKA_PROPERTIES = """\
auto.create.topics.enable={creates}
num.partitions=4
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=10000
group.consumer.min.heartbeat.interval.ms=100
group.consumer.heartbeat.interval.ms=500
transaction.max.timeout.ms=900000
log.cleaner.backoff.ms=1000
"""
"""As the suites' own set-ups have them. Short sessions: some tests wait for the end of one."""


LOOKS_LIKE = "4.3"
"""The version that clients take our brokers for, by the requests that they list."""
SETTINGS = {
    "MILLRACE_BROKER__GROUPS__CLASSIC_SESSION_TIMEOUT_MS_MIN": "1000",
    # Some tests write records of years ago.
    "MILLRACE_BROKER__STORAGE__RETENTION_CHECK_INTERVAL_MS": "300000",
    "MILLRACE_BROKER__STORAGE__TRASH_DELAY_MS": "1000",
    "MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITIONS": "4",
    "MILLRACE_BROKER__CLUSTER__DELETED_TOPIC_RETENTION_MS": "0",
    "MILLRACE_BROKER__CLUSTER__POSITIONS_DURABILITY": "replicated",
    "MILLRACE_BROKER__CLUSTER__TRANSACTIONS_DURABILITY": "replicated",
}
"""As with Kafka, files of deleted topics disappear, and what coordinators keep is acknowledged from
the page cache."""
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 90


@contextmanager
def kafka(folder: Path, *, nodes: int = 1, creates: bool = True) -> Iterator[Target]:
    """Start Apache Kafka, and stop it at the end of the block.

    Args:
        creates: whether it creates topics that are written to, or looked up.
    """
    properties = KAFKA_PROPERTIES.format(creates=str(creates).lower())
    with running_kafka(
        folder / "kafka", nodes=nodes, replication=nodes, properties=properties, first_id=0
    ) as running:
        yield Target(bootstrap=running.address, folder=folder, replication=nodes)


@contextmanager
def millrace(folder: Path, *, nodes: int = 1, creates: bool = True) -> Iterator[Target]:
    """Start brokers with `millrace up --kafka`, and stop them at the end of the block.

    Raises:
        LoadFailedError: they did not start; the message has the end of their log.
    """
    settings = {**SETTINGS, "MILLRACE_BROKER__KAFKA__AUTO_CREATE_TOPICS": str(creates).lower()}
    log = folder / "up.log"
    command = [
        *(sys.executable, "-m", "millrace.cli", "up", "--brokers", str(nodes), "--output", "json"),
        *("--data-dir", str(folder / "millrace"), "--port", "0", "--kafka", "0"),
        *("--metrics-port", "0", "--web-port", "-1"),
    ]
    # It ends its brokers on SIGTERM, and would leave them behind on SIGKILL.
    process = start(command, log, ends_by="TERM", settings=settings)
    try:
        said = announced(process, log, "data", START_TIMEOUT_S)
        addresses = [broker["kafka_address"] for broker in said.get("brokers", [said])]
        yield Target(
            bootstrap=",".join(addresses), folder=folder, replication=nodes, version=LOOKS_LIKE
        )
    finally:
        stop(process, STOP_TIMEOUT_S)
