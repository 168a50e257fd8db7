"""Transactions of confluent-kafka-python: from the commit to a reader of committed records.

Ways: `produce` and `consume`, one process each.
"""

import time

from bench.loads.commits import committed, due_commits, receive
from bench.loads.confluent_reading import begin_reading
from bench.loads.spec import Load, Moved, run_from_command_line
from confluent_kafka import Producer

WAIT_S = 30


def run(load: Load) -> Moved:
    """Produce or consume."""
    return _produce(load) if load.way == "produce" else _consume(load)


def _produce(load: Load) -> Moved:
    producer = Producer(
        {
            "bootstrap.servers": load.address,
            "transactional.id": load.topic,
            "linger.ms": 0,
            "log_level": 3,
        }
    )
    producer.init_transactions(WAIT_S)
    commits_ns = []
    for value in due_commits(load):
        producer.begin_transaction()
        for partition in range(load.partitions):
            producer.produce(load.topic, value, partition=partition)
        if producer.flush(WAIT_S):
            raise SystemExit("not everything was delivered")
        commits_ns.append(time.monotonic_ns())
        producer.commit_transaction(WAIT_S)
    return committed(load, commits_ns)


def _consume(load: Load) -> Moved:
    consumer, poll = begin_reading(load, {"isolation.level": "read_committed"})
    moved = receive(load, poll)
    consumer.close()
    return moved


if __name__ == "__main__":
    run_from_command_line(run)
