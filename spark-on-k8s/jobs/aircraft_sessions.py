"""When each aircraft is in use: sessions, which end after a pause, to Parquet.

What it shows: windows whose length depends on the data. The flights of an aircraft belong together
while none leaves more than `--gap` after the one before. A session is written once, when the
watermark shows that no flight can lengthen it any more: `--lateness` behind the latest flight so
far. Until then it is kept as state, in RocksDB, and in the checkpoint.

A driver that is killed and restarted with the same checkpoint continues, and the files are the
same: no session is missing or duplicated.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, session_window
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import sum as total

from millrace.spark import job
from millrace.spark.stopping import await_queries
from millrace.spark.values import json_to_columns

FLIGHT = "tailnum STRING, time_hour TIMESTAMP, distance INT"
"""The columns of a flight: its aircraft, when it should have left, its distance in miles."""


def sessions(flights: DataFrame, gap: str, lateness: str) -> DataFrame:
    """Return a row for each session of an aircraft, from the values of a topic."""
    return (
        # A value that is no flight ends the query, with an error that names it by these columns.
        json_to_columns(flights.select("topic", "partition", "offset", "value"), FLIGHT)
        .where(col("tailnum").isNotNull())  # Flights that were cancelled early have no aircraft.
        .withWatermark("time_hour", lateness)
        .groupBy(session_window("time_hour", gap), "tailnum")
        .agg(
            greatest("time_hour").alias("last"),
            count("*").alias("flights"),
            total("distance").alias("miles"),
        )
        .select(
            "tailnum",
            col("session_window.start").alias("first"),
            "last",
            "flights",
            "miles",
        )
    )


def main() -> None:
    """Run until it is ended, or with `--available-now` until all is read."""
    options = arguments()
    spark = SparkSession.builder.appName("aircraft_sessions").getOrCreate()
    # A state is kept in as many files a batch; a checkpoint keeps the number for good.
    spark.conf.set("spark.sql.shuffle.partitions", options.tasks)
    flights = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.batch_records)
        .option("maxPartitions", options.tasks)
        .load()
    )
    query = (
        sessions(flights, options.gap, options.lateness)
        .writeStream.format("parquet")
        .option("path", options.output)
        .outputMode("append")
        .queryName("aircraft_sessions")
        .option("checkpointLocation", options.checkpoint)
        .trigger(**job.trigger(options))
        .start()
    )
    with job.watched(spark, options):
        await_queries(query)


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = job.new_parser(__doc__)
    add = parser.add_argument
    job.add_stream_options(parser)
    add("--topic", default="flights", help="flights as JSON (default: flights)")
    add("--output", required=True, metavar="FOLDER", help="where the Parquet files go")
    add("--gap", default="12 hours", help="the pause that ends a session (default: 12 hours)")
    job.add_lateness(parser)
    return parser.parse_args()


if __name__ == "__main__":
    job.run(main)
