"""`millrace consume`: records of topics to standard output or into a file."""

import sys
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, BinaryIO

import click

from millrace.cli.cluster import CLIENT_ID, connect_admin, ranges_of, topic_argument
from millrace.cli.command import Command, bootstrap_option, separator_bytes
from millrace.cli.failures import ExitCode, Failure
from millrace.cli.output import say
from millrace.cli.places import listed
from millrace.cli.positions import (
    FORMS,
    AtOffset,
    AtTime,
    Beginning,
    End,
    Last,
    Position,
    position_value,
)
from millrace.cli.stalls import Reading, Stall

if TYPE_CHECKING:
    from millrace.cli.records.writers import RecordWriter
    from millrace.client import SyncConsumer

POLL_MS = 500
FORMATS = ("lines", "json", "csv", "arrow", "parquet", "table")

TopicPartition = tuple[str, int]


@click.command(
    "consume",
    cls=Command,
    examples=r"""
    millrace consume greetings                                  # all there is, then end
    millrace consume greetings --follow --from end              # what comes from now on
    millrace consume flights --from -10 --output table          # the last ten of each partition
    millrace consume flights --from 2h --max 1000 --output json | jq .value
    millrace consume flights --key-separator '\t' | sort | head
    millrace consume flights --file flights.parquet             # pandas and Spark read it
    """,
)
@topic_argument("topics", nargs=-1, required=True)
@click.option(
    "--from",
    "start",
    callback=position_value,
    default="beginning",
    show_default=True,
    metavar="POSITION",
    help=f"Where to begin: {FORMS}.",
)
@click.option("--max", "records_max", type=click.IntRange(1), help="End after so many records.")
@click.option("--follow", "-f", is_flag=True, help="Do not end: wait for records to come.")
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; may be repeated.",
)
@click.option(
    "--output",
    "-o",
    type=click.Choice(FORMATS),
    help="Form of the records.  [default: what the name of --file says, else lines]",
)
@click.option(
    "--file", "path", type=click.Path(dir_okay=False), help="Write there, not to standard output."
)
@click.option(
    "--key-separator", metavar="TEXT", help=r"In lines: write the key and this first; \t is a tab."
)
@click.option(
    "--null-value", metavar="TEXT", help="What null is written as.  [default: null; CSV: nothing]"
)
@click.option(
    "--rack",
    default="",
    metavar="ZONE",
    help="Read from replicas in this zone where there are any, not from the leaders.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Give up, with exit code 5, when nothing came for so long.  [default: never]",
)
@bootstrap_option
def command(
    *,
    topics: tuple[str, ...],
    start: Position,
    records_max: int | None,
    follow: bool,
    partitions: tuple[int, ...],
    output: str | None,
    path: str | None,
    key_separator: str | None,
    null_value: str | None,
    rack: str,
    timeout_s: float | None,
    bootstrap: str,
) -> None:
    """Read the records of TOPICS, in order within each partition.

    Without --follow the command ends with the records that were there when it began.
    """
    from millrace.cli.records.writers import open_writer
    from millrace.client import SyncConsumer

    output = output or _format_of(path)
    if output in ("arrow", "parquet") and path is None and sys.stdout.isatty():
        raise click.UsageError(f"{output} is not for terminals: use --file, or redirect the output")
    with connect_admin(bootstrap) as admin:
        ranges = {
            (topic, partition): offsets
            for topic in dict.fromkeys(topics)
            for partition, offsets in ranges_of(admin, topic, partitions).items()
        }
    with ExitStack() as stack:
        consumer = stack.enter_context(
            SyncConsumer(bootstrap, client_id=CLIENT_ID, client_rack=rack)
        )
        stream = stack.enter_context(open(path, "wb")) if path else sys.stdout.buffer
        writer = stack.enter_context(
            closing(
                open_writer(
                    output,
                    stream,
                    key_separator=separator_bytes(key_separator),
                    null_value=null_value,
                )
            )
        )
        place(consumer, ranges, start)
        ends = None if follow else {each: end for each, (_, end) in ranges.items()}
        count = _copy(consumer, writer, stream, ends, records_max=records_max, timeout_s=timeout_s)
        if not count and not follow:
            say("no records there; --follow waits for new ones")


def place(
    consumer: "SyncConsumer", ranges: dict[TopicPartition, tuple[int, int]], start: Position
) -> None:
    """Give the consumer its partitions and the position in each.

    Args:
        consumer: one that has no partitions yet.
        ranges: of each partition the log start offset and the end offset.
        start: where to begin.

    Raises:
        Failure: no partition has the offset that was asked for.
    """
    match start:
        case Beginning():
            consumer.assign(list(ranges), start="beginning")
        case End():
            consumer.assign(list(ranges), start="end")
        case AtTime(timestamp_ms):
            consumer.assign(list(ranges), start="beginning")
            consumer.seek_to_time(timestamp_ms)
        case AtOffset(offset):
            if not any(first <= offset <= end for first, end in ranges.values()):
                shown = ", ".join(
                    f"{topic}-{partition} has [{first}, {end})"
                    for (topic, partition), (first, end) in ranges.items()
                )
                raise Failure(
                    f"no partition has offset {offset}: {shown}", exit_code=ExitCode.NOT_FOUND
                )
            consumer.assign(list(ranges), start="beginning")
            for each, (first, end) in ranges.items():
                consumer.seek(each, min(max(offset, first), end))
        case Last(records):
            consumer.assign(list(ranges), start="beginning")
            for each, (first, end) in ranges.items():
                consumer.seek(each, max(first, end - records))


def _copy(
    consumer: "SyncConsumer",
    writer: "RecordWriter",
    stream: BinaryIO,
    ends: dict[TopicPartition, int] | None,
    *,
    records_max: int | None,
    timeout_s: float | None,
) -> int:
    """Write records until the ends are reached, or for ever; return how many.

    Raises:
        Failure: nothing came for too long.
    """
    count = 0
    until = ends or {}
    reading = Reading(until)
    stall = Stall(reading, say)
    last_came = time.monotonic()
    while ends is None or reading.left:
        batches = consumer.poll_batches(POLL_MS)
        for batch in batches:
            records = batch.records
            if ends is not None:  # What came after the beginning is for the next time.
                end = ends[batch.topic, batch.partition]
                records = records.slice(0, int((records.column("offset").to_numpy() < end).sum()))
            if records_max is not None:
                records = records.slice(0, records_max - count)
            if records.num_rows:
                writer.write(batch.topic, batch.partition, records)
                count += records.num_rows
            if count == records_max:
                return count
        stream.flush()  # Somebody may be watching.
        reading.count += len(batches)
        reading.left = [each for each in reading.left if consumer.position(each) < until[each]]
        now = time.monotonic()
        stall.look(now)
        if batches:
            last_came = now
        elif (
            timeout_s is not None and now - last_came > timeout_s and (ends is None or reading.left)
        ):
            raise _nothing_came(timeout_s, reading)
    return count


def _nothing_came(timeout_s: float, reading: Reading) -> Failure:
    return Failure(
        f"nothing came for {timeout_s:g} s"
        + (f", and {listed(reading.left)} are not read to their end" if reading.left else ""),
        "`millrace cluster health` says what is missing" if reading.left else "",
        exit_code=ExitCode.TIMED_OUT,
    )


def _format_of(path: str | None) -> str:
    from millrace.cli.records.sources import format_of

    return "lines" if path is None else format_of(path)
