"""Clusters to run suites against: Apache Kafka, which says what a suite expects, and ours."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.kafka import running_kafka
from bench.processes import announced, start, stop
from tests.suites.suite import Target

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60

KAFKA_PROPERTIES = """\
auto.create.topics.enable={creates}
num.partitions=4
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms=10000
group.consumer.min.heartbeat.interval.ms=100
group.consumer.heartbeat.interval.ms=500
transaction.max.timeout.ms=900000
log.retention.check.interval.ms=1000
log.cleaner.backoff.ms=1000
"""
"""As the suites' own set-ups have them. Short sessions: some tests wait for the end of one."""


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
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "up.log"
    command = [
        *(sys.executable, "-m", "millrace.cli", "up", "--kafka", "0", "--brokers", str(nodes)),
        *("--data-dir", str(folder / "data"), "--port", "0", "--metrics-port", "0"),
        *("--output", "json"),
    ]
    settings = {"MILLRACE_BROKER__KAFKA__AUTO_CREATE_TOPICS": str(creates).lower()}
    process = start(command, log, ends_by="TERM", settings=settings)
    try:
        said = announced(process, log, "pid" if nodes == 1 else "brokers", START_TIMEOUT_S)
        addresses = ",".join(broker["kafka_address"] for broker in said.get("brokers", [said]))
        yield Target(bootstrap=addresses, folder=folder, replication=nodes)
    finally:
        stop(process, STOP_TIMEOUT_S)
