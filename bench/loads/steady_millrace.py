"""Records through Millrace at a steady rate, each with its times (`bench.loads.steady`)."""

import time

from bench.loads.spec import Load, Moved, run_from_command_line
from bench.loads.steady import OnDone, write

from millrace.client import RecordHandle, SyncProducer


def run(load: Load) -> Moved:
    """Produce until SIGTERM."""
    with SyncProducer(load.address, **load.settings["producer"]) as producer:
        producer.partitions_for(load.topic)

        def send(partition: int, value: bytes, done: OnDone) -> None:
            producer.send(load.topic, value, partition=partition).add_done_callback(
                lambda handle: done(_is_acknowledged(handle))
            )

        return write(load, send, time.sleep, producer.flush)


def _is_acknowledged(handle: RecordHandle) -> bool:
    try:
        handle.result(0)
    except Exception:  # Any error is the record's outcome.
        return False
    return True


if __name__ == "__main__":
    run_from_command_line(run)
