"""A member of the demo's group: `python -m demo.group_member ADDRESS GROUP TOPIC FILE`.

It counts what it reads, and writes a line for each batch into its file before it commits: when,
which partition, and the offsets. It reads slowly, so that there is something to see.
"""

import signal
import sys
import time
from contextlib import suppress

from millrace.client import StaleMemberEpochError, SyncConsumer, UnknownMemberIdError

BATCH_BYTES = 256 << 10
PAUSE_SECONDS = 0.05


def main() -> None:
    """Read until SIGTERM."""
    address, group, topic, path = sys.argv[1:]
    is_stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal is_stopping
        is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    with (
        open(path, "w", encoding="ascii") as file,
        SyncConsumer(address, group=group, enable_auto_commit=False) as consumer,
    ):
        consumer.subscribe([topic])
        while not is_stopping:
            for batch in consumer.poll_batches(200, BATCH_BYTES):
                offsets = batch.records.column("offset")
                now = time.monotonic_ns()
                print(now, batch.partition, offsets[0], offsets[-1], file=file)
            file.flush()
            with suppress(StaleMemberEpochError, UnknownMemberIdError):  # Others read on by now.
                consumer.commit()
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
