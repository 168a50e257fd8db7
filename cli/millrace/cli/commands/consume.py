"""`millrace consume`: records of topics to standard output or into a file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import click

from millrace.cli.arguments.partition_names import partitions_option
from millrace.cli.arguments.read_start import (
    Position,
    from_option,
    isolation_option,
    keys_option,
    records_max_option,
    to_option,
)
from millrace.cli.cluster import CLIENT_ID, connect_admin, ranges_of
from millrace.cli.command import Command, bootstrap_option, separator_bytes
from millrace.cli.console.failures import Failure
from millrace.cli.console.interruption import END_S, LAST_STEP_S, Interruption
from millrace.cli.console.output import say
from millrace.cli.console.standard_streams import check_output
from millrace.cli.files.whole_file import WholeFile
from millrace.cli.groups.group_reading import Membership, reset_of
from millrace.cli.records.inputs import is_regular
from millrace.cli.topics.topic_selection import joined, selected, topics_argument
from millrace.cli.transfer.reading import LOOK_MS, Reader, assign_partitions, ends_of
from millrace.core.errors import MillraceError
from millrace.core.isolation import Isolation

if TYPE_CHECKING:
    from millrace.cli.records.record_format import Piece
    from millrace.cli.records.writers import RecordWriter
    from millrace.client import SyncConsumer

FORMATS = ("lines", "json", "csv", "arrow", "parquet", "table")

_OpenWriter = Callable[..., AbstractContextManager["RecordWriter"]]


def _format_value(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> "list[Piece] | None":
    from millrace.cli.records.record_format import parse_format

    try:
        return None if text is None else parse_format(text)
    except ValueError as error:
        hint = f": did you mean --output {text}?" if text in FORMATS else ""
        raise click.BadParameter(f"{error}{hint}") from error


@click.command(
    "consume",
    cls=Command,
    examples=r"""
    millrace consume greetings                                  # all there is, then end
    millrace consume greetings --follow --from end              # what comes from now on
    millrace consume flights --from -10 --output table          # the last ten of each partition
    millrace consume flights --from 2h --max 1000 --output json | jq .value
    millrace consume flights --from 2013-01-31 --to 2013-02-01      # that day
    millrace consume flights --key N14228 --key N24211              # of these keys alone
    millrace consume flights --key-separator '\t' | sort | head
    millrace consume flights --format '%T %k %h %s\n'               # as kcat -f
    millrace consume --regex 'metrics/.*' --output json         # several topics
    millrace consume flights --file flights.parquet             # pandas and Spark read it
    millrace consume flights --file flights.jsonl.gz
    millrace consume flights --group audit --output json        # share them with other members
    """,
)
@topics_argument(
    more_help=" With --follow or --group they take in topics that are made later; with --partition "
    "or --to they do not."
)
@from_option()
@to_option
@keys_option
@records_max_option
@isolation_option
@click.option("--follow", "-f", is_flag=True, help="Do not end: wait for records to come.")
@click.option(
    "--group",
    "-g",
    metavar="NAME",
    help="Read as a member of this consumer group: share the partitions with its other members, go "
    "on where the group has committed (else at --from), commit what was printed, and wait for new "
    "records until Ctrl-C, SIGTERM, or --max.",
)
@partitions_option
@click.option(
    "--output",
    "-o",
    type=click.Choice(FORMATS),
    is_eager=True,
    help="Form of the records.  [default: what the name of --file says, else lines]",
)
@click.option(
    "--format",
    "pieces",
    callback=_format_value,
    metavar="TEXT",
    help=r"Print each record as this text says, without a newline of its own. %t topic, "
    r"%p partition, %o offset, %k key, %s value, %K and %S their lengths (-1: null), %R the "
    r"value's as four bytes, %T timestamp in ms, %h headers (name=value,...), %% a %; \n, \r, \t, "
    r"\0, \\ and \xNN.",
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
    is_regex: bool,
    start: Position,
    until: Position | None,
    keys: list[bytes],
    records_max: int | None,
    isolation: Isolation,
    follow: bool,
    group: str | None,
    partitions: tuple[int, ...],
    output: str | None,
    pieces: "list[Piece] | None",
    path: str | None,
    key_separator: str | None,
    null_value: str | None,
    rack: str,
    timeout_s: float | None,
    bootstrap: str,
) -> None:
    """Read the records of TOPICS, in order within each partition.

    Without --follow and --to the command ends with the records that were there when it began. With
    a time, --to ends each partition at its first record of that time or later. A file is
    there when all of it is: what was there before stays until then, and for good after Ctrl-C. With
    --follow, Ctrl-C is the end, or an offset after --to. With --group each record is printed at
    least once by the members together, in the order of its partition.
    """
    from millrace.cli.records.file_names import check_written
    from millrace.client import SyncConsumer

    if pieces is not None and (output or key_separator):
        raise click.UsageError(
            "--format says all about the form: leave --output and --key-separator"
        )
    output = output or ("lines" if pieces else _format_of(path))
    if path:
        check_written(path, output)
    elif output in ("arrow", "parquet") and sys.stdout.isatty():
        raise click.UsageError(f"{output} is not for terminals: use --file, or redirect the output")
    opened = partial(
        _opened,
        output=output,
        pieces=pieces,
        key_separator=separator_bytes(key_separator),
        null_value=null_value,
    )
    new_reader = partial(
        Reader,
        keys=keys,
        records_max=records_max,
        timeout_s=timeout_s,
    )
    if group is not None:
        unfit = {"--partition": partitions, "--to": until, "--file": path}
        if given := [name for name, value in unfit.items() if value]:
            raise click.UsageError(f"--group says which partitions and how far: leave {given[0]}")
        if output == "parquet":  # It is complete only at the end.
            raise click.UsageError("a group commits what was printed: use another --output")
        with (
            Interruption(END_S) as interruption,
            SyncConsumer(
                bootstrap,
                client_id=CLIENT_ID,
                client_rack=rack,
                group=group,
                enable_auto_commit=False,
                auto_offset_reset=reset_of(start),
                isolation=isolation,
            ) as consumer,
        ):
            _read_as_member(consumer, topics, opened, new_reader, interruption, is_regex=is_regex)
        return
    with connect_admin(bootstrap) as admin:
        ranges = {
            (topic, partition): offsets
            for topic in selected(admin, topics, is_regex=is_regex)
            for partition, offsets in ranges_of(admin, topic, partitions, isolation).items()
        }
        ends = ends_of(admin, ranges, until, follow=follow, isolation=isolation)
    grows = ends is None and not partitions
    with SyncConsumer(
        bootstrap,
        client_id=CLIENT_ID,
        client_rack=rack,
        metadata_max_age_ms=LOOK_MS,
        isolation=isolation,
    ) as consumer:
        pattern = joined(topics) if is_regex else ""
        assign_partitions(consumer, ranges, start, ends, grows=grows, pattern=pattern)
        reader = new_reader(consumer, ends)
        if path:
            _write_file(reader, path, opened, is_endless=ends is None, is_regex=is_regex)
        else:
            with opened(sys.stdout.buffer) as writer:
                _write(reader, writer, sys.stdout.buffer, check_output)
            _check_all_read(reader, is_regex=is_regex)
    if not reader.transfer.records and not follow:
        what = "such " if keys or until is not None else ""
        say(f"no {what}records there; --follow waits for new ones")


def _read_as_member(
    consumer: "SyncConsumer",
    topics: tuple[str, ...],
    opened: _OpenWriter,
    new_reader: Callable[..., Reader],
    interruption: Interruption,
    *,
    is_regex: bool,
) -> None:
    """Print what the group gives to this member, and commit it, until a signal or `--max`."""
    stream = sys.stdout.buffer
    reader = new_reader(consumer, None)
    membership = Membership(consumer, reader.passed)
    membership.join(topics, is_regex=is_regex)

    def flush() -> None:
        check_output()
        membership.on_flushed()

    try:
        with opened(stream) as writer:
            _write(reader, writer, stream, flush, interruption)
        flush()
    finally:
        interruption.allow(LAST_STEP_S)
        membership.leave()
    interruption.raise_if_came()


@contextmanager
def _opened(
    stream: BinaryIO,
    path: str = "",
    *,
    output: str,
    pieces: "list[Piece] | None" = None,
    key_separator: bytes | None,
    null_value: str | None,
) -> "Iterator[RecordWriter]":
    """Yield a writer of records to a stream, compressed as the file's name says."""
    from millrace.cli.records.file_names import deflating
    from millrace.cli.records.writers import FormatWriter, open_writer

    with (
        deflating(stream, path) as contents,
        closing(
            FormatWriter(contents, pieces, null_value)
            if pieces is not None
            else open_writer(output, contents, key_separator=key_separator, null_value=null_value)
        ) as writer,
    ):
        yield writer


def _write(
    reader: Reader,
    writer: "RecordWriter",
    stream: BinaryIO,
    flush: Callable[[], None],
    interruption: Interruption | None = None,
) -> None:
    # No bar where the terminal shows records, or another program reads them and may draw there.
    reader.run(writer, flush, is_shown=is_regular(stream), interruption=interruption)


def _check_all_read(reader: Reader, *, is_regex: bool) -> None:
    """Check that no topic was deleted meanwhile; those of a pattern may come and go.

    Raises:
        Failure: a topic was deleted before it was read to its end, and `--max` was not reached.
    """
    if reader.gone and not (is_regex or reader.is_full):
        gone = ", ".join(sorted({topic for topic, _ in reader.gone}))
        raise Failure(f"{gone} was deleted before it was read to its end")


def _write_file(
    reader: Reader, path: str, opened: _OpenWriter, *, is_endless: bool, is_regex: bool
) -> None:
    """Write records into a file, which appears when it is complete; raise the error that ended it.

    Endless output counts as complete at any end.
    """
    problem: Exception | None = None
    with WholeFile(path) as file, Interruption() as interruption:
        with opened(file.stream, path) as writer:
            try:
                _write(reader, writer, file.stream, file.stream.flush, interruption)
                _check_all_read(reader, is_regex=is_regex)
            except (MillraceError, Failure) as error:
                problem = error
        is_whole = is_endless or not (problem or interruption.came)
        if is_whole:
            file.finish()
    count = reader.transfer.count
    say(f"{count} to {path}" if is_whole else f"{count} read, and {path} left as it was")
    if problem is not None:
        raise problem
    interruption.raise_if_came()


def _format_of(path: str | None) -> str:
    from millrace.cli.records.file_names import format_of

    return "lines" if path is None else format_of(path)
