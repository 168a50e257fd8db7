"""Transactions of Millrace's clients: from the commit to a reader of committed records.

Ways: `produce` and `consume`, one process each.
"""

import time

from bench.loads.commits import committed, due_commits, receive
from bench.loads.spec import Load, Moved, run_from_command_line

from millrace.client import SyncConsumer, SyncProducer

POLL_TIMEOUT_MS = 10_000


def run(load: Load) -> Moved:
    """Produce or consume."""
    return _produce(load) if load.way == "produce" else _consume(load)


def _produce(load: Load) -> Moved:
    commits_ns = []
    with SyncProducer(load.address, transactional_id=load.topic, linger_ms=0) as producer:
        for value in due_commits(load):
            producer.begin_transaction()
            for partition in range(load.partitions):
                producer.send(load.topic, value, partition=partition)
            producer.flush()
            commits_ns.append(time.monotonic_ns())
            producer.commit_transaction()
    return committed(load, commits_ns)


def _consume(load: Load) -> Moved:
    with SyncConsumer(load.address) as consumer:
        consumer.assign(
            [(load.topic, partition) for partition in range(load.partitions)], start="beginning"
        )
        return receive(load, lambda: [record.value for record in consumer.poll(POLL_TIMEOUT_MS)])


if __name__ == "__main__":
    run_from_command_line(run)
