"""`millrace offsets`: where a topic's partitions begin and end, and where a time lies in them."""

import click

from millrace.cli.cluster import connect_admin, offsets_at, ranges_of, topic_argument
from millrace.cli.command import Command, bootstrap_option, output_option
from millrace.cli.output import print_result
from millrace.cli.positions import time_value


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

    The latest offset is that of the next record: `latest - earliest` records are there, fewer when
    the topic is compacted.
    """
    with connect_admin(bootstrap) as admin:
        ranges = ranges_of(admin, topic)
        at = offsets_at(admin, topic, timestamp_ms) if timestamp_ms is not None else {}
    columns = ["partition", "earliest", "latest", "records"]
    rows: list[list[int | None]] = [
        [partition, earliest, latest, latest - earliest]
        for partition, (earliest, latest) in sorted(ranges.items())
    ]
    if timestamp_ms is not None:
        columns.append("at")
        for row, partition in zip(rows, sorted(ranges), strict=True):
            row.append(at.get(partition))
    document = [dict(zip(columns, row, strict=True)) for row in rows]
    print_result(output, document, [name.upper() for name in columns], rows)
