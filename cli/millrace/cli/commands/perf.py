"""`millrace perf`: how fast records go in and come out, as Kafka's performance tools measure it."""

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import click

from millrace.cli.arguments.read_start import Position, from_option
from millrace.cli.cluster import CLIENT_ID, check_topic, connect_admin, ranges_of, topic_argument
from millrace.cli.command import Group, bootstrap_option, output_option
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.measures import Latencies, Transfer, payload_bytes
from millrace.cli.console.output import print_json, print_table, say
from millrace.cli.transfer.producing import Acks, acks_option, compression_option, open_producer
from millrace.cli.transfer.reading import assign_partitions

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.client import BatchHandle, RecordHandle, SyncProducer

PERCENTILES = (0.5, 0.95, 0.99, 0.999)
POLL_MS = 500
SINGLES_PER_SAMPLE = 100
"""With one send() per record and no limit of rate, the latency of every hundredth is measured."""
_POOL_BYTES = 16 << 20
"""Random values that are sent repeatedly; more than any codec looks back."""


@click.group(
    "perf",
    cls=Group,
    examples="""
    millrace topic create speed --partitions 4
    millrace perf produce speed --records 1000000 --size 100
    millrace perf consume speed
    """,
)
def command() -> None:
    """Measure how fast records go in and come out."""


def _interval_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--interval",
        type=click.FloatRange(min=0.1),
        default=5.0,
        show_default=True,
        help="Seconds between two interim lines.",
    )(command)


@command.command(
    "produce",
    writes=True,
    examples="""
    millrace perf produce speed --records 1000000 --size 100
    millrace perf produce speed --records 200000 --size 1024 --acks 1 --compression lz4
    millrace perf produce speed --records 300000 --rate 10000      # latency at a given load
    millrace perf produce speed --records 500000 --batch 1         # one send() per record
    """,
)
@topic_argument()
@click.option(
    "--records",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="How many to write.",
)
@click.option(
    "--size", type=click.IntRange(1, 1 << 20), default=100, show_default=True, help="Bytes of each."
)
@click.option("--rate", type=click.IntRange(1), help="Records per second.  [default: no limit]")
@click.option(
    "--batch",
    type=click.IntRange(1, 100_000),
    default=1000,
    show_default=True,
    help="Records in one call of the client; 1: each has a send() of its own.",
)
@acks_option
@compression_option
@click.option(
    "--linger-ms",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="How long records wait for others to share a batch.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(0),
    help="Bytes at which a batch is sent.  [default: the client's]",
)
@_interval_option
@bootstrap_option
@output_option
def produce(
    *,
    topic: str,
    records: int,
    size: int,
    rate: int | None,
    batch: int,
    acks: Acks,
    compression: str,
    linger_ms: int,
    batch_size: int | None,
    interval: float,
    bootstrap: str,
    output: str,
) -> None:
    """Write random records to TOPIC and measure rate and latency.

    A latency lasts from the call that takes the records to their acknowledgement; of records that
    are sent in one call, all count.
    """
    settings: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    pool = _random_values(size, batch)
    report = _Report("acknowledged", interval)
    with open_producer(
        bootstrap, acks=acks, compression=compression, linger_ms=linger_ms, **settings
    ) as producer:
        check_topic(producer, topic)
        _send_all(
            producer=producer, topic=topic, pool=pool, records=records, rate=rate, report=report
        )
    report.finish(output)


@command.command(
    "consume",
    examples="""
    millrace perf consume speed
    millrace perf consume speed --records 1000000 --from end --timeout 60
    """,
)
@topic_argument()
@click.option("--records", type=click.IntRange(1), help="End after so many.  [default: all there]")
@from_option("Where to begin, as for `millrace consume`.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Give up, with exit code 5, when nothing came for so many seconds.",
)
@_interval_option
@bootstrap_option
@output_option
def consume(
    *,
    topic: str,
    records: int | None,
    start: Position,
    timeout: float,
    interval: float,
    bootstrap: str,
    output: str,
) -> None:
    """Read TOPIC as Arrow batches, checksums verified, and measure rate and poll times."""
    from millrace.client import SyncConsumer

    with connect_admin(bootstrap) as admin:
        ranges = {(topic, number): both for number, both in ranges_of(admin, topic).items()}
    report = _Report("a poll returns", interval)
    with SyncConsumer(bootstrap, client_id=CLIENT_ID) as consumer:
        assign_partitions(consumer, ranges, start)
        is_to_end = records is None
        if records is None:
            records = sum(
                end - consumer.position(partition) for partition, (_, end) in ranges.items()
            )
        report.start()
        last_seen = time.monotonic()
        while report.transfer.records < records:
            asked = time.monotonic()
            batches = consumer.poll_batches(POLL_MS)
            now = time.monotonic()
            if batches:
                last_seen = now
            elif is_to_end and all(
                consumer.position(partition) >= end for partition, (_, end) in ranges.items()
            ):
                records = report.transfer.records  # The other offsets are of no records.
            elif now - last_seen > timeout:
                break
            for batch in batches:
                report.add(batch.records.num_rows, payload_bytes(batch.records))
            report.add_latency((now - asked) * 1000)
    report.finish(output)
    if report.transfer.records < records:
        raise Failure(f"nothing came for {timeout:g} s", exit_code=ExitCode.TIMED_OUT)


def _random_values(size: int, count: int) -> Sequence["pa.Array"]:
    """Return arrays of `count` random values each."""
    import numpy as np
    import pyarrow as pa

    arrays = []
    for _ in range(max(2, min(64, _POOL_BYTES // (size * count)))):
        offsets = np.arange(0, size * (count + 1), size, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(os.urandom(size * count))]
        arrays.append(pa.Array.from_buffers(pa.binary(), count, buffers))
    return arrays


def _send_all(
    *,
    producer: "SyncProducer",
    topic: str,
    pool: Sequence["pa.Array"],
    records: int,
    rate: int | None,
    report: "_Report",
) -> None:
    """Send from this thread and wait for acknowledgements in another, so that none is seen late."""
    size, batch = len(pool[0][0].as_py()), len(pool[0])
    values = [array[0].as_py() for array in pool]
    sent: queue.SimpleQueue[tuple[RecordHandle | BatchHandle, float, int] | None]
    sent = queue.SimpleQueue()
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            while (entry := sent.get()) is not None:
                handle, at, count = entry
                handle.result()
                report.add(count, count * size)
                report.add_latency((time.monotonic() - at) * 1000, count)
        except BaseException as error:
            failures.append(error)

    collector = threading.Thread(target=collect, name="acknowledgements", daemon=True)
    report.start()
    collector.start()
    started, done, turn = time.monotonic(), 0, 0
    handle: RecordHandle | BatchHandle
    while done < records and not failures:
        if rate is not None:
            ahead = started + done / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
        if batch > 1:
            count = min(batch, records - done)
            at = time.monotonic()
            handle = producer.send_batch(topic, pool[turn % len(pool)].slice(0, count))
        else:
            count = min(SINGLES_PER_SAMPLE if rate is None else 1, records - done)
            for _ in range(count - 1):
                producer.send(topic, values[turn % len(values)])
            at = time.monotonic()
            handle = producer.send(topic, values[turn % len(values)])
        sent.put((handle, at, count))
        done, turn = done + count, turn + 1
    producer.flush()
    sent.put(None)
    collector.join()
    if failures:
        raise failures[0]


class _Report:
    """Interim lines and the summary of one measurement."""

    def __init__(self, latency_of: str, interval: float) -> None:
        self.transfer = Transfer()
        self.latencies = Latencies()
        self._latency_of, self._interval = latency_of, interval
        self._started = 0.0
        self._shown = Transfer()
        self._recent = Latencies()

    def start(self) -> None:
        """Begin to measure time."""
        self._started = time.monotonic()

    def add(self, records: int, size_bytes: int) -> None:
        """Count records that went through."""
        self.transfer.records += records
        self.transfer.size_bytes += size_bytes
        self.transfer.seconds = time.monotonic() - self._started

    def add_latency(self, milliseconds: float, records: int = 1) -> None:
        """Count records that took so long, and print an interim line when it is time."""
        self.latencies.add(milliseconds, records)
        self._recent.add(milliseconds, records)
        if self.transfer.seconds - self._shown.seconds >= self._interval:
            interval, recent = self.transfer.minus(self._shown), self._recent
            say(
                f"{interval}; ms until {self._latency_of}: mean {recent.mean_ms:.1f}, "
                f"p50 {recent.percentile(0.5):.1f}, p99 {recent.percentile(0.99):.1f}, "
                f"max {recent.max_ms:.1f}"
            )
            self._shown, self._recent = copy(self.transfer), Latencies()

    def finish(self, output: str) -> None:
        """Print the summary."""
        latencies = self.latencies
        shares = {f"p{share * 100:g}".replace(".", ""): share for share in PERCENTILES}
        if output == "json":
            figures = {name: round(latencies.percentile(p), 3) for name, p in shares.items()}
            figures |= {"mean": round(latencies.mean_ms, 3), "max": round(latencies.max_ms, 3)}
            print_json({**self.transfer.as_json(), "latency_ms": figures})
            return
        rows = [
            ("records", f"{self.transfer.records:,}"),
            ("seconds", f"{self.transfer.seconds:,.2f}"),
            ("records/s", f"{self.transfer.records_per_second:,.0f}"),
            ("MB/s", f"{self.transfer.megabytes_per_second:,.1f}"),
        ]
        milliseconds = {
            "mean": latencies.mean_ms,
            **{name: latencies.percentile(share) for name, share in shares.items()},
            "max": latencies.max_ms,
        }
        for name, value in milliseconds.items():
            rows.append((f"ms until {self._latency_of}, {name}", f"{value:,.2f}"))
        print_table(["MEASURE", "VALUE"], rows)
