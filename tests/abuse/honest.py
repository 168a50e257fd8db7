"""An honest producer and an honest consumer, in a process of their own: how long records take.

A record is sent when it is due, whether the ones before have arrived or not. The file gets two
numbers for each that arrives: when it was due, and how long it took to its receipt, in ns of the
machine's monotonic clock.

    python -m tests.abuse.honest ADDRESS TOPIC CA_FILE TOKEN_FILE OUTPUT
"""

import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from millrace.client import SyncConsumer, SyncProducer

RATE: Final = 200
"""Records a second."""
_NUMBERS: Final = struct.Struct("<qq")
_STAMP_BYTES: Final = 8
_PADDING: Final = bytes(92)


def read(path: Path) -> list[tuple[int, int]]:
    """Return what has arrived until now: due times and delays in ns, in the order of arrival."""
    data = path.read_bytes()
    return list(_NUMBERS.iter_unpack(data[: len(data) // _NUMBERS.size * _NUMBERS.size]))


def main() -> None:
    address, topic, ca_file, token_file, output = sys.argv[1:]
    settings: Any = {"tls_ca_file": ca_file, "token_file": token_file}
    with (
        SyncConsumer(address, **settings) as consumer,
        SyncProducer(address, linger_ms=0, **settings) as producer,
        Path(output).open("ab", buffering=0) as file,
    ):
        consumer.assign([(topic, 0)], start="end")
        producer.partitions_for(topic)
        threading.Thread(target=_produce, args=(producer, topic), daemon=True).start()
        while True:
            values = [record.value for record in consumer.poll(1000)]
            now = time.monotonic_ns()
            dues = [int.from_bytes(value[:_STAMP_BYTES], "little") for value in values if value]
            file.write(b"".join(_NUMBERS.pack(due, now - due) for due in dues))


def _produce(producer: SyncProducer, topic: str) -> None:
    due = time.monotonic_ns()
    while True:
        due += 1_000_000_000 // RATE
        ahead = due - time.monotonic_ns()
        if ahead > 0:
            time.sleep(ahead / 1e9)
        producer.send(topic, due.to_bytes(_STAMP_BYTES, "little") + _PADDING)


if __name__ == "__main__":
    main()
