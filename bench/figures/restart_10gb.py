"""Seconds from the restart of a broker that was killed with -9 to its first acknowledged write and
read.

10 GB in 16 partitions, `replicated`, written at full speed until the kill. Each further round
writes for a while, and kills again. The value is the slowest round.
"""

import os
import signal
import subprocess
import time
from pathlib import Path
from statistics import median

from bench.loads.spec import Load, command_line
from bench.measure import Bench, Outcome, say
from bench.millrace_broker import Millrace, running_millrace
from bench.processes import LoadFailedError, start, stop
from bench.records import write_random_records
from bench.settings import MILLRACE_PRODUCER, MILLRACE_TOPIC

from millrace.client import SyncConsumer, SyncProducer

LOG_BYTES = 10_000_000_000
PARTITIONS = 16
TOPIC = "restarted"
WRITE_TIMEOUT_S = 600
READ_TIMEOUT_MS = 60_000


def measure(bench: Bench) -> Outcome:
    """Fill, kill, start and time it; then write, kill and start again, for each further round."""
    records = write_random_records(bench.directory / "records", 1000)
    data = bench.directory / "millrace"
    taken: list[dict[str, float]] = []
    with running_millrace(data) as millrace:
        millrace.create_topic(TOPIC, PARTITIONS, MILLRACE_TOPIC["replicated"])
        _write_until_killed(millrace, data, records, bytes_min=LOG_BYTES, seconds_min=0)
    for number in range(1, bench.rounds + 1):
        log_bytes = _size(data)
        started = time.perf_counter()
        with running_millrace(data) as millrace:
            listening = time.perf_counter() - started
            _write_and_read(millrace)
            seconds = time.perf_counter() - started
            taken.append({"seconds": seconds, "listening": listening, "log_gb": log_bytes / 1e9})
            say(f"round {number}/{bench.rounds} {taken[-1]}")
            if number < bench.rounds:
                _write_until_killed(millrace, data, records, bytes_min=0, seconds_min=bench.seconds)
    times = [restart["seconds"] for restart in taken]
    return Outcome(
        values={"slowest restart in seconds": max(times)},
        detail={"median": median(times), "rounds": taken},
    )


def _write_until_killed(
    millrace: Millrace, data: Path, records: Path, *, bytes_min: int, seconds_min: float
) -> None:
    """Write at full speed and kill the broker in the middle of it."""
    load = Load(
        address=millrace.address,
        topic=TOPIC,
        partitions=PARTITIONS,
        seconds=WRITE_TIMEOUT_S,
        records_file=str(records),
        way="batch",
        settings=MILLRACE_PRODUCER,
    )
    log = records.with_suffix(".log")
    producer = start(command_line("millrace_produce", load), log)
    try:
        started = time.monotonic()
        while _size(data) < bytes_min or time.monotonic() - started < seconds_min:
            if producer.poll() is not None:
                raise LoadFailedError(f"the producer ended:\n{log.read_text()[-4000:]}")
            time.sleep(0.05)
        os.kill(millrace.pid, signal.SIGKILL)
    finally:
        _end(producer)


def _end(producer: subprocess.Popen[bytes]) -> None:
    producer.kill()  # It would keep retrying.
    stop(producer)


def _write_and_read(millrace: Millrace) -> None:
    """Write a record and read it back."""
    value = os.urandom(16)
    with SyncProducer(millrace.address, acks="all", linger_ms=0) as producer:
        written = producer.send(TOPIC, value).result(READ_TIMEOUT_MS / 1000)
    with SyncConsumer(millrace.address) as consumer:
        consumer.assign([(TOPIC, written.partition)], start=written.offset)
        read = consumer.poll(READ_TIMEOUT_MS)
    if not read or read[0].value != value or read[0].offset != written.offset:
        raise LoadFailedError(f"what was written at {written} was not read back: {read[:1]}")


def _size(data: Path) -> int:
    """Return the bytes of all segments."""
    return sum(segment.stat().st_size for segment in data.glob("log/**/*.log"))
