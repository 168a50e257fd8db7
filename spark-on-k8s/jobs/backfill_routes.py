"""Statistics of each route, day by day, from the records of a time range in the past.

What it shows: a batch that reads by time, `--from` inclusive and `--until` exclusive. The range is
fixed when it begins, even if records are written meanwhile, and it replaces `--output` as a whole.
So the result is the same each time, as long as no producer adds records with times of the range.

A killed run leaves the output half written. Run it again.
"""

import argparse
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, count, date_trunc, lit

from millrace.client.times import parse_time
from millrace.spark import job
from millrace.spark.values import json_to_columns

FLIGHT = "origin STRING, dest STRING, time_hour TIMESTAMP, dep_delay INT, arr_delay INT"
"""The columns of a flight. Delays: minutes; null if it never left, or never arrived there."""


def routes(flights: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Return a row for each day and route, from the records of a time range."""
    return (
        # Producers give the times, and two producers are not in step: some records of a partition
        # after the first one of the range have times before the range.
        flights.where((col("timestamp") >= lit(begin)) & (col("timestamp") < lit(end)))
        .transform(lambda records: json_to_columns(records, FLIGHT))
        .groupBy(date_trunc("day", "time_hour").alias("day"), "origin", "dest")
        .agg(
            count("*").alias("flights"),
            count("dep_delay").alias("departed"),
            avg("arr_delay").alias("mean_arr_delay"),
        )
    )


def main() -> None:
    """Read the range, then end."""
    options = arguments()
    begin, end = options.begin, options.end
    spark = SparkSession.builder.appName("backfill_routes").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", options.tasks)
    flights = (
        spark.read.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingTimestamp", begin.isoformat())
        .option("startingOffsetsByTimestampStrategy", "latest")  # A partition may have none.
        .option("endingTimestamp", end.isoformat())
        .option("maxPartitions", options.tasks)
        .load()
    )
    with job.watched(spark, options):
        rows = routes(flights, begin, end)
        rows.write.mode("overwrite").parquet(options.output)


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = job.new_parser(__doc__)
    add = parser.add_argument
    add("--topic", default="flights", help="flights as JSON (default: flights)")
    add("--output", required=True, metavar="FOLDER", help="where the Parquet files go")
    for name, dest, what in (
        ("--from", "begin", "of the first records: 2013-03-01, or 2013-03-01T06:00+01:00"),
        ("--until", "end", "after the last ones; UTC, unless it says a zone"),
    ):
        add(name, dest=dest, type=parse_time, required=True, metavar="TIME", help=what)
    job.add_tasks(parser)
    options = parser.parse_args()
    if not options.begin < options.end <= datetime.now(UTC):
        parser.error("--from must be before --until, and that must be past: more may come")
    return options


if __name__ == "__main__":
    job.run(main)
