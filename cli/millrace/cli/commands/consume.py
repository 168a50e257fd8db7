"""`millrace consume`: records of topics to standard output or into a file."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import click

from millrace.cli.cluster import CLIENT_ID, connect_admin, ranges_of, topic_argument
from millrace.cli.command import Command, bootstrap_option, separator_bytes
from millrace.cli.failures import ExitCode, Failure
from millrace.cli.inputs import is_regular
from millrace.cli.interruption import Interruption
from millrace.cli.measures import Transfer, payload_bytes
from millrace.cli.output import say
from millrace.cli.partition_names import listed
from millrace.cli.progress import Progress
from millrace.cli.read_start import (
    FORMS,
    AtOffset,
    AtTime,
    Beginning,
    End,
    Last,
    Position,
    start_value,
)
from millrace.cli.stall_notices import Reading, Stall
from millrace.cli.whole_file import WholeFile
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from millrace.cli.records.writers import RecordWriter
    from millrace.client import FetchedRecords, SyncConsumer

POLL_MS = 500
FORMATS = ("lines", "json", "csv", "arrow", "parquet", "table")

TopicPartition = tuple[str, int]
_OpenWriter = Callable[..., AbstractContextManager["RecordWriter"]]


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
    millrace consume flights --file flights.jsonl.gz
    """,
)
@topic_argument("topics", nargs=-1, required=True)
@click.option(
    "--from",
    "start",
    callback=start_value,
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
    is_eager=True,
    help="Form of the records.  [default: what the name of --file says, else lines]",
)
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False),
    help="Write there, not to standard output; compressed if its name ends in .gz, .bz2, .zst or "
    ".lz4.",
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

    Without --follow the command ends with the records that were there when it began. A file is
    there when all of it is: what was there before stays until then, and for good after Ctrl-C. With
    --follow, Ctrl-C is the end.
    """
    from millrace.cli.records.file_names import check_written
    from millrace.client import SyncConsumer

    output = output or _format_of(path)
    if path:
        check_written(path, output)
    elif output in ("arrow", "parquet") and sys.stdout.isatty():
        raise click.UsageError(f"{output} is not for terminals: use --file, or redirect the output")
    opened = partial(
        _opened,
        output=output,
        key_separator=separator_bytes(key_separator),
        null_value=null_value,
    )
    with connect_admin(bootstrap) as admin:
        ranges = {
            (topic, partition): offsets
            for topic in dict.fromkeys(topics)
            for partition, offsets in ranges_of(admin, topic, partitions).items()
        }
    with SyncConsumer(bootstrap, client_id=CLIENT_ID, client_rack=rack) as consumer:
        place(consumer, ranges, start)
        ends = None if follow else {each: end for each, (_, end) in ranges.items()}
        copying = _Copying(consumer, ends, records_max=records_max, timeout_s=timeout_s)
        if path:
            _write_file(copying, path, opened, is_endless=follow)
        else:
            with opened(sys.stdout.buffer) as writer:
                copying.run(writer, sys.stdout.buffer)
    if not copying.transfer.records and not follow:
        say("no records there; --follow waits for new ones")


@contextmanager
def _opened(
    stream: BinaryIO,
    path: str = "",
    *,
    output: str,
    key_separator: bytes | None,
    null_value: str | None,
) -> "Iterator[RecordWriter]":
    """Yield a writer of records to a stream, compressed as the file's name says."""
    from millrace.cli.records.file_names import deflating
    from millrace.cli.records.writers import open_writer

    with (
        deflating(stream, path) as contents,
        closing(
            open_writer(output, contents, key_separator=key_separator, null_value=null_value)
        ) as writer,
    ):
        yield writer


def _write_file(copying: "_Copying", path: str, opened: _OpenWriter, *, is_endless: bool) -> None:
    """Write records into a file, which appears when it is complete; raise the error that ended it.

    Endless output counts as complete at any end.
    """
    problem: Exception | None = None
    with WholeFile(path) as file, Interruption() as interruption:
        with opened(file.stream, path) as writer:
            try:
                copying.run(writer, file.stream, interruption)
            except (MillraceError, Failure) as error:
                problem = error
        is_whole = is_endless or not (problem or interruption.came)
        if is_whole:
            file.finish()
    count = copying.transfer.count
    say(f"{count} to {path}" if is_whole else f"{count} read, and {path} left as it was")
    if problem is not None:
        raise problem
    if interruption.came:
        raise KeyboardInterrupt


def place(
    consumer: "SyncConsumer", ranges: dict[TopicPartition, tuple[int, int]], start: Position
) -> None:
    """Give the consumer its partitions and the position in each.

    Args:
        consumer: one that has no partitions yet.
        ranges: of each partition the log start offset and the end offset.
        start: where to begin.

    Raises:
        Failure: no partition has the requested offset.
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


class _Copying:
    """Writes records until the ends are reached, or for ever.

    Args:
        consumer: has its partitions, and stands where to begin.
        ends: of each partition; None: there are none.
        records_max: end after so many; None: no limit.
        timeout_s: give up when nothing came for so long; None: never.
    """

    def __init__(
        self,
        consumer: "SyncConsumer",
        ends: dict[TopicPartition, int] | None,
        *,
        records_max: int | None,
        timeout_s: float | None,
    ) -> None:
        self._consumer, self._ends = consumer, ends
        self._records_max, self._timeout_s = records_max, timeout_s
        self.transfer = Transfer()

    def run(
        self,
        writer: "RecordWriter",
        stream: BinaryIO,
        interruption: Interruption | None = None,
    ) -> None:
        """Write the records.

        Args:
            writer: takes the records.
            stream: flushed when there are no more records for the moment, as a person may be
                watching.
            interruption: ends it, too.

        Raises:
            Failure: nothing came for too long.
        """
        consumer, ends = self._consumer, self._ends
        until = ends or {}
        reading = Reading(until)
        if ends is None:
            reading.again = "all partitions are read again"
        stall = Stall(reading, say)
        started = last_came = time.monotonic()
        # Not where the terminal shows records, or another program reads them and may draw there.
        is_shown = is_regular(stream)
        total = self._total() if is_shown else None
        with Progress("read", total, is_shown=is_shown) as progress:
            while (ends is None or reading.left) and not (interruption and interruption.came):
                batches = consumer.poll_batches(POLL_MS)
                for batch in batches:
                    self._write(writer, batch)
                    if self.transfer.records == self._records_max:
                        break
                now = time.monotonic()
                self.transfer.seconds = now - started
                if self.transfer.records == self._records_max:
                    return
                stream.flush()
                progress.update(self.transfer.records, self.transfer)
                if ends is None:  # Regardless of records of the others.
                    reading.left = consumer.awaited_partitions()
                else:
                    reading.count += len(batches)
                    reading.left = [
                        each for each in reading.left if consumer.position(each) < until[each]
                    ]
                stall.look(now)
                if batches:
                    last_came = now
                elif (
                    self._timeout_s is not None
                    and now - last_came > self._timeout_s
                    and (ends is None or reading.left)
                ):
                    raise _nothing_came(self._timeout_s, reading)

    def _total(self) -> int | None:
        """Return how many records there will be, if that is known."""
        if self._ends is None:
            return self._records_max
        left = sum(max(0, end - self._consumer.position(each)) for each, end in self._ends.items())
        return left if self._records_max is None else min(left, self._records_max)

    def _write(self, writer: "RecordWriter", batch: "FetchedRecords") -> None:
        records = batch.records
        if self._ends is not None:  # Later records are left for the next run.
            end = self._ends[batch.topic, batch.partition]
            records = records.slice(0, int((records.column("offset").to_numpy() < end).sum()))
        if self._records_max is not None:
            records = records.slice(0, self._records_max - self.transfer.records)
        if records.num_rows:
            writer.write(batch.topic, batch.partition, records)
            self.transfer.records += records.num_rows
            self.transfer.size_bytes += payload_bytes(records)


def _nothing_came(timeout_s: float, reading: Reading) -> Failure:
    return Failure(
        f"nothing came for {timeout_s:g} s"
        + (f", and {listed(reading.left)} are not read to their end" if reading.left else ""),
        "`millrace cluster health` says what is missing" if reading.left else "",
        exit_code=ExitCode.TIMED_OUT,
    )


def _format_of(path: str | None) -> str:
    from millrace.cli.records.file_names import format_of

    return "lines" if path is None else format_of(path)
