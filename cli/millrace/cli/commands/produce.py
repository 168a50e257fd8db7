"""`millrace produce`: lines and files into a topic."""

import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from millrace.cli.cluster import check_topic, topic_argument
from millrace.cli.command import Command, bootstrap_option, output_option, separator_bytes
from millrace.cli.console.failures import Failure
from millrace.cli.console.measures import Transfer
from millrace.cli.console.output import print_json, say
from millrace.cli.console.progress import Progress
from millrace.cli.records.inputs import STDIN, Inputs
from millrace.cli.topics.old_records import OldRecords
from millrace.cli.transfer.commits import TIMEOUT_MS, Commits
from millrace.cli.transfer.producing import Acks, acks_option, compression_option, open_producer
from millrace.cli.transfer.stall_notices import StallNotices
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from millrace.cli.records.outcomes import Outcomes
    from millrace.cli.records.sources import RecordColumns, RecordMapping
    from millrace.client import BatchHandle, SyncProducer
    from millrace.core.records.columns import RecordHeaders

_LAST_ANSWERS_SECONDS: Final = 1.0
"""How long answers that are on their way are waited for after Ctrl-C."""

BLOCKS_IN_FLIGHT_MAX = 64
"""Blocks of records that wait for their acknowledgement; `buffer_memory` bounds their bytes."""
RATE_SECONDS_MIN = 0.5
"""Shorter transfers, and typed ones, show no rate."""


def _header_value(
    context: click.Context, parameter: click.Parameter, words: tuple[str, ...]
) -> "RecordHeaders":
    headers = []
    for word in words:
        name, equals, value = word.partition("=")
        if not name:
            raise click.BadParameter(f"{word!r}: write NAME=VALUE, such as source=shell")
        try:
            name.encode()
        except UnicodeEncodeError as error:  # As `os.fsdecode` makes it of any bytes.
            raise click.BadParameter(f"{word!r}: the name of a header must be UTF-8") from error
        headers.append((name, value.encode(errors="surrogateescape") if equals else None))
    return headers


@click.command(
    "produce",
    cls=Command,
    writes=True,
    examples=r"""
    echo hello | millrace produce greetings
    millrace produce greetings --key-separator : < pairs.txt         # lines of key:value
    millrace produce greetings --header source=shell --header run=17 < names.txt
    millrace produce flights flights.csv --key tailnum --null-value NA
    millrace produce flights flights.csv --from-row 150001 --as-text   # go on at a refused row
    millrace produce events events.jsonl.gz --key user_id --timestamp at
    millrace produce orders orders.parquet --key id --value payload --compression zstd
    curl https://example.org/orders | millrace produce orders --format json    # also [{...}, ...]
    millrace consume orders --output arrow | millrace produce copy --format arrow
    millrace produce orders orders.csv --transactional nightly-load     # all of it, or nothing
    millrace produce orders orders.csv --transactional nightly-load --commit-every 100000
    """,
)
@topic_argument()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["lines", "json", "csv", "parquet", "arrow"]),
    help="What the input is.  [default: what the file's name says, else lines]",
)
@click.option("--key", metavar="COLUMN", help="Column of the key.  [default: no key]")
@click.option(
    "--value", metavar="COLUMN", help="Column of the value.  [default: the whole row, as JSON]"
)
@click.option(
    "--timestamp", metavar="COLUMN", help="Column of the time, ISO 8601 or ms.  [default: now]"
)
@click.option(
    "--headers",
    metavar="COLUMN",
    help="Column of the headers, as `consume --output json` writes them, or an object.",
)
@click.option(
    "--header",
    "-H",
    "added_headers",
    callback=_header_value,
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; NAME alone: its value is null; may be repeated.",
)
@click.option("--key-separator", metavar="TEXT", help=r"In lines: what ends the key; \t is a tab.")
@click.option("--null-value", metavar="TEXT", help="Text that stands for null in keys and values.")
@click.option("--as-text", is_flag=True, help="CSV: take every cell as text, recognise no numbers.")
@click.option(
    "--from-row",
    type=click.IntRange(1),
    default=1,
    metavar="NUMBER",
    help="Begin at this row of the first file, or line, or element: to go on where a run ended.",
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="The partition of all records.  [default: by the key]",
)
@click.option(
    "--transactional",
    "transactional_id",
    metavar="ID",
    help="Write in a transaction of this transactional id, `id` or `namespace/id`: readers of "
    "committed records see all of it, or nothing. It may be open for 15 minutes.",
)
@click.option(
    "--commit-every",
    type=click.IntRange(1),
    metavar="RECORDS",
    help="With --transactional: commit after about so many records.  [default: at the end]",
)
@acks_option
@compression_option
@bootstrap_option
@output_option
def command(
    *,
    topic: str,
    files: tuple[str, ...],
    file_format: str | None,
    key: str | None,
    value: str | None,
    timestamp: str | None,
    headers: str | None,
    added_headers: "RecordHeaders",
    key_separator: str | None,
    null_value: str | None,
    as_text: bool,
    from_row: int,
    partition: int | None,
    transactional_id: str | None,
    commit_every: int | None,
    acks: Acks,
    compression: str,
    bootstrap: str,
    output: str,
) -> None:
    """Write records from FILES, or from standard input, to TOPIC.

    Lines are sent as they come. JSON is an object a line, or one array of objects, of which each
    element is a record. Files of any format may be compressed, as their names say (.gz,
    .bz2, .zst, .lz4). The first MiB of a CSV file says which columns hold numbers, and JSON has
    their digits as the file has them. The command ends when every record is acknowledged, and says
    how many were when something goes wrong on the way. When a row cannot be read, all rows before
    it are written, and the message says how to go on. In a transaction that is not committed, no
    row is written.
    """
    from millrace.cli.records.outcomes import Outcomes
    from millrace.cli.records.sources import RecordMapping

    if commit_every is not None and transactional_id is None:
        raise click.UsageError("--commit-every is about transactions: name one by --transactional")
    files = files or (STDIN,)
    if file_format is None and STDIN in files and (key or value or timestamp or headers):
        raise click.UsageError("standard input has no name that says its format: use --format")
    mapping = RecordMapping(
        key=key,
        value=value,
        timestamp=timestamp,
        headers=headers,
        added_headers=added_headers,
        null_value=null_value,
        key_separator=separator_bytes(key_separator),
        as_text=as_text,
    )
    with (
        Inputs(files, file_format, from_row) as inputs,
        open_producer(
            bootstrap,
            acks=acks,
            compression=compression,
            transactional_id=transactional_id or "",
            transaction_timeout_ms=TIMEOUT_MS,
        ) as producer,
    ):
        check_topic(producer, topic, partition)
        if inputs.is_typed:
            say("a record a line; end with Ctrl-D")
        old = OldRecords(bootstrap, topic)
        outcomes = Outcomes()
        commits = Commits(
            producer, outcomes, every=commit_every or 0, is_on=transactional_id is not None
        )
        commits.begin()
        transfer = _produce(
            producer, topic, partition, inputs, mapping, old=old, outcomes=outcomes, commits=commits
        )
        has_rate = transfer.seconds > RATE_SECONDS_MIN and not inputs.is_typed
    if output == "json":
        print_json({"topic": topic, **transfer.as_json()})
    else:
        pace = f" {transfer.pace}" if has_rate else ""
        say(f"{transfer.count} to {topic}{pace}")


def _produce(
    producer: "SyncProducer",
    topic: str,
    partition: int | None,
    inputs: Inputs,
    mapping: "RecordMapping",
    *,
    old: OldRecords,
    outcomes: "Outcomes",
    commits: Commits,
) -> Transfer:
    """Send everything and return what was acknowledged.

    Raises:
        MillraceError: the error of the first refused record, with its place in the input.
    """
    in_flight: deque[tuple[BatchHandle, RecordColumns]] = deque()
    started = time.monotonic()

    def settle_oldest(timeout: float | None = None) -> None:
        handle, columns = in_flight[0]
        with suppress(MillraceError):  # `errors` has the records.
            handle.result(timeout)
        in_flight.popleft()
        outcomes.add(columns, handle.errors())
        outcomes.written.seconds = time.monotonic() - started
        progress.update(inputs.bytes_read, outcomes.written)

    def settle_all() -> None:
        while in_flight:
            settle_oldest()

    with (
        Progress(f"to {topic}", inputs.bytes_total, is_shown=not inputs.is_typed) as progress,
        StallNotices(producer),
    ):
        try:
            for columns in inputs.records(mapping):
                old.look(columns.timestamps)
                handle = producer.send_batch(
                    topic,
                    columns.values,
                    columns.keys,
                    partition=partition,
                    headers=columns.headers,
                    timestamps=columns.timestamps,
                )
                in_flight.append((handle, columns))
                while in_flight and (
                    in_flight[0][0].done() or len(in_flight) > BLOCKS_IN_FLIGHT_MAX
                ):
                    settle_oldest()
                if outcomes.problem is not None:
                    break  # Outcomes in flight are reported; nothing more is sent.
                commits.commit_if_due(len(columns.values), settle_all)
            settle_all()
            commits.commit()
        except Failure as failure:  # The rest of the input cannot be read; earlier rows are good.
            settle_all()
            commits.abort()
            say(outcomes.summary())
            goes_on = outcomes.how_to_go_on(inputs.names, inputs.left)
            failure.hint = "; ".join(filter(None, (failure.hint, goes_on)))
            raise
        except MillraceError as error:  # Refused before it was sent, as it can never be.
            settle_all()
            outcomes.add(columns, dict.fromkeys(range(len(columns.values)), error))
        except BaseException:  # Ctrl-C: do not wait for long.
            until = time.monotonic() + _LAST_ANSWERS_SECONDS
            with suppress(TimeoutError):
                while in_flight:
                    settle_oldest(max(until - time.monotonic(), 0))
            for _, columns in in_flight:
                outcomes.add_unsettled(columns)
            commits.abort()
            say(outcomes.summary())
            raise
    if outcomes.problem is not None:
        commits.abort()
        say(outcomes.summary())
        raise outcomes.problem
    return outcomes.written
