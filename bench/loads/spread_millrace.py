"""Full batches to many partitions in turn, at full speed.

`settings`: `batch_bytes`, the size of a batch's records, and under `producer` the client's
settings. Records are counted as usual; `detail` has the number of batches.
"""

import itertools
import time

from bench.loads.spec import Load, Moved, run_from_command_line, used_since
from bench.records import read_records

from millrace.client import SyncProducer

RECORD_OVERHEAD_BYTES = 8
"""What the client counts for a record in addition to its value, towards `batch_size`."""
FULL_ENOUGH = 0.95


def produce(load: Load) -> Moved:
    """Produce for the load's time and flush."""
    values = read_records(load.records_path)
    record_bytes = len(values[0])
    batch_bytes = load.settings["batch_bytes"]
    batch = values[: batch_bytes // (record_bytes + RECORD_OVERHEAD_BYTES)]
    with SyncProducer(
        load.address, acks="all", batch_size=batch_bytes, **load.settings["producer"]
    ) as producer:
        for partition in range(load.partitions):
            producer.send(load.topic, values[0], partition=partition)
        producer.flush()
        before = producer.metrics()
        started, cpu_started = time.perf_counter(), time.process_time()
        for partition in itertools.cycle(range(load.partitions)):
            producer.send_batch(load.topic, batch, partition=partition)
            if time.perf_counter() - started >= load.seconds:
                break
        producer.flush()
        seconds = time.perf_counter() - started
        after = producer.metrics()
        used = used_since(cpu_started)
    records = after["records"] - before["records"]
    batches = after["batches"] - before["batches"]
    if not FULL_ENOUGH * len(batch) <= records / batches <= len(batch):
        raise SystemExit(f"{records / batches:.1f} records a batch instead of {len(batch)}")
    return Moved(
        records=records,
        bytes=records * record_bytes,
        seconds=seconds,
        detail={"batches": batches, "records_per_batch": records / batches, **used},
    )


if __name__ == "__main__":
    run_from_command_line(produce)
