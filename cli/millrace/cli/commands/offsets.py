"""`millrace offsets`: where a topic's partitions begin and end, and where a time lies in them."""

from typing import Literal

import click

from millrace.cli.arguments.read_start import isolation_option, time_value
from millrace.cli.cluster import connect_admin, say_unknown, try_offsets
from millrace.cli.command import Command, bootstrap_option, output_option
from millrace.cli.console.output import print_result
from millrace.cli.topics.topic_selection import selected, topics_argument
from millrace.core.errors import MillraceError
from millrace.core.isolation import Isolation
from millrace.core.topics import PartitionName


@click.command(
    "offsets",
    cls=Command,
    examples="""
    millrace offsets flights
    millrace offsets flights --at 2h                       # the first record of the last two hours
    millrace offsets flights --at 2013-01-31T10:00Z --output json
    millrace offsets --regex 'metrics/.*'
    """,
)
@topics_argument()
@click.option(
    "--at",
    "timestamp_ms",
    callback=time_value,
    metavar="TIME",
    help="Also the offset of the first record of this time or later (2013-01-31T10:00, 2h).",
)
@isolation_option
@bootstrap_option
@output_option
def command(
    *,
    topics: tuple[str, ...],
    is_regex: bool,
    timestamp_ms: int | None,
    isolation: Isolation,
    bootstrap: str,
    output: str,
) -> None:
    """Show where each partition of TOPICS begins and ends.

    The latest offset is that of the next record. `latest - earliest` records are there, or fewer:
    what was compacted, the ends of transactions, and aborted records count. A dash stands for an
    unknown offset, such as that of a partition without a leader.
    """
    wanted: dict[str, Literal["beginning", "end"] | int]
    wanted = {"earliest": "beginning", "latest": "end"}
    if timestamp_ms is not None:
        wanted["at"] = timestamp_ms
    rows: dict[PartitionName, dict[str, str | int | None]] = {}
    unknown: dict[PartitionName, MillraceError] = {}
    with connect_admin(bootstrap) as admin:
        for topic in selected(admin, topics, is_regex=is_regex):
            left: list[int] | None = None
            for name, at in wanted.items():
                found = try_offsets(admin, topic, at, left, isolation)
                for partition, outcome in found.items():
                    row = rows.setdefault(
                        (topic, partition), {"topic": topic, "partition": partition}
                    )
                    if isinstance(outcome, MillraceError):
                        unknown[topic, partition] = outcome
                    else:
                        row[name] = outcome.offset if outcome.offset >= 0 else None
                left = [number for number in found if (topic, number) not in unknown]
    columns = [
        "topic",
        "partition",
        "earliest",
        "latest",
        "records",
        *(["at"] if "at" in wanted else []),
    ]
    document = []
    for row in rows.values():
        earliest, latest = row.get("earliest"), row.get("latest")
        if isinstance(earliest, int) and isinstance(latest, int):
            row["records"] = latest - earliest
        document.append({name: row.get(name) for name in columns})
    print_result(
        output,
        document,
        [name.upper() for name in columns],
        [list(row.values()) for row in document],
    )
    say_unknown(unknown)
