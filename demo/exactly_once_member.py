"""A member that copies delays exactly once, until SIGTERM:

    python -m demo.exactly_once_member ADDRESS GROUP TRANSACTIONAL_ID SOURCE TARGET

It works slowly, in transactions of half a second, so that there is something to kill.
"""

import signal
import sys
import time
from collections.abc import Iterator

from demo.exactly_once import delays_of

from millrace.client import FetchedRecords, OutputRecords, SyncConsumer, SyncProducer

TRANSACTION_MS = 500
TRANSACTION_BYTES = 2 << 20
RECORDS_PER_SECOND = 15_000


def main() -> None:
    """Copy until SIGTERM."""
    address, group, transactional_id, source, target = sys.argv[1:]

    def delays(read: FetchedRecords) -> Iterator[OutputRecords]:
        time.sleep(read.records.num_rows / RECORDS_PER_SECOND)
        keys, values = delays_of(read.records.column("key"), read.records.column("value"))
        yield OutputRecords(target, values, keys)

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with (
        SyncConsumer(address, group=group, enable_auto_commit=False) as consumer,
        SyncProducer(address, transactional_id=transactional_id) as producer,
    ):
        producer.init_transactions()  # What a dead predecessor left open is aborted now.
        consumer.subscribe([source])
        consumer.process_exactly_once(
            delays, producer, interval_ms=TRANSACTION_MS, bytes_max=TRANSACTION_BYTES
        )


if __name__ == "__main__":
    main()
