"""Clusters to run suites against: Apache Kafka, which says what a suite expects, and ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.millrace_broker import running_millrace
from bench.millrace_cluster import running_millrace_cluster
from bench.peers.kafka import running_kafka
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
    """Start brokers, several with `millrace up --kafka`, and stop them at the end of the block.

    Raises:
        LoadFailedError: they did not start; the message has the end of their log.
    """
    settings = {
        "MILLRACE_BROKER__KAFKA__AUTO_CREATE_TOPICS": str(creates).lower(),
        "MILLRACE_BROKER__GROUPS__CLASSIC_REBALANCE_DELAY_MS": "0",
        "MILLRACE_BROKER__GROUPS__CLASSIC_SESSION_TIMEOUT_MS_MIN": "1000",
        # Some tests write records of years ago.
        "MILLRACE_BROKER__STORAGE__RETENTION_CHECK_INTERVAL_MS": "300000",
        "MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITIONS": "4",
    }
    running = running_millrace if nodes == 1 else running_millrace_cluster
    with running(folder / "millrace", settings=settings, kafka_listener=True) as started:
        yield Target(
            bootstrap=started.kafka_address, folder=folder, replication=nodes, version=LOOKS_LIKE
        )
