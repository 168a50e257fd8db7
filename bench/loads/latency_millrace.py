"""Records through Millrace at a steady rate: from due time to receipt.

Ways: `produce` and `consume`, one process each.
"""

import time
from dataclasses import replace

from bench.loads.paced import due_records, receive, record_count
from bench.loads.spec import Load, Moved, run_from_command_line, used_since

from millrace.client import SyncConsumer, SyncProducer

POLL_TIMEOUT_MS = 10_000


def run(load: Load) -> Moved:
    """Produce or consume."""
    return _produce(load) if load.way == "produce" else _consume(load)


def _produce(load: Load) -> Moved:
    with SyncProducer(load.address, acks="all", **load.settings) as producer:
        producer.partitions_for(load.topic)
        cpu_started = time.process_time()
        for values in due_records(load):
            for value in values:
                producer.send(load.topic, value)
        producer.flush()
        used = used_since(cpu_started)
    return Moved(records=record_count(load), bytes=0, seconds=load.seconds, detail=used)


def _consume(load: Load) -> Moved:
    with SyncConsumer(load.address, **load.settings) as consumer:
        consumer.assign(
            [(load.topic, partition) for partition in range(load.partitions)], start="beginning"
        )
        cpu_started = time.process_time()
        moved = receive(load, lambda: [record.value for record in consumer.poll(POLL_TIMEOUT_MS)])
        return replace(moved, detail=moved.detail | used_since(cpu_started))


if __name__ == "__main__":
    run_from_command_line(run)
