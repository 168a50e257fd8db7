"""`millrace offsets`: where a topic's partitions begin and end, and where a time lies in them."""

from typing import Literal

import click

from millrace.cli.cluster import connect_admin, say_unknown, topic_argument, try_offsets
from millrace.cli.command import Command, bootstrap_option, output_option
from millrace.cli.output import print_result
from millrace.cli.read_start import time_value
from millrace.core.errors import MillraceError
from millrace.core.topics import PartitionName


@click.command(
    "offsets",
    cls=Command,
    examples="""
    millrace offsets flights
    millrace offsets flights --at 2h                       # the first record of the last two hours
    millrace offsets flights --at 2013-01-31T10:00Z --output json
    """,
)
@topic_argument()
@click.option(
    "--at",
    "timestamp_ms",
    callback=time_value,
    metavar="TIME",
    help="Also the offset of the first record of this time or later (2013-01-31T10:00, 2h).",
)
@bootstrap_option
@output_option
def command(topic: str, timestamp_ms: int | None, bootstrap: str, output: str) -> None:
    """Show where each partition of TOPIC begins and ends.

    The latest offset is that of the next record: `latest - earliest` records are there. A dash
    stands for an unknown offset, such as that of a partition without a leader.
    """
    wanted: dict[str, Literal["beginning", "end"] | int]
    wanted = {"earliest": "beginning", "latest": "end"}
    if timestamp_ms is not None:
        wanted["at"] = timestamp_ms
    rows: dict[int, dict[str, int | None]] = {}
    unknown: dict[PartitionName, MillraceError] = {}
    with connect_admin(bootstrap) as admin:
        for name, at in wanted.items():
            left = [each for each in rows if (topic, each) not in unknown] if rows else None
            for partition, found in try_offsets(admin, topic, at, left).items():
                row = rows.setdefault(partition, {"partition": partition})
                if isinstance(found, MillraceError):
                    unknown[topic, partition] = found
                else:
                    row[name] = found.offset if found.offset >= 0 else None
    for row in rows.values():
        earliest, latest = row.get("earliest"), row.get("latest")
        row["records"] = None if earliest is None or latest is None else latest - earliest
    columns = ["partition", "earliest", "latest", "records", *(["at"] if "at" in wanted else [])]
    document = [{name: row.get(name) for name in columns} for row in rows.values()]
    print_result(
        output,
        document,
        [name.upper() for name in columns],
        [list(row.values()) for row in document],
    )
    say_unknown(unknown)
