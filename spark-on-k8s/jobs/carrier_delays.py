"""Delays of the flights of each carrier, hour by hour: windows over event time.

What it shows: a flight counts in the hour in which it should have left, not in which it is read. An
hour is written once, when the watermark shows that no more flights of it will come: `--lateness`
behind the latest flight so far. So the last hours are not written before later flights come.

A driver that is killed and restarted with the same checkpoint continues: no flight is left out, and
none counts twice. Parquet files (`--output`) are the same then, and so are the rows of a topic
(`--output-topic`), each of them once.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import avg, col, concat_ws, count, window
from pyspark.sql.functions import max as greatest

from millrace.spark import job
from millrace.spark.stopping import await_queries
from millrace.spark.values import columns_to_json, json_to_columns

FLIGHT = "carrier STRING, time_hour TIMESTAMP, dep_delay INT"
"""The columns of a flight. `dep_delay`: minutes, negative if early, null if it never left."""


def delays(flights: DataFrame, length: str, lateness: str) -> DataFrame:
    """Return a row for each carrier and window, from the values of a topic."""
    return (
        # A value that is no flight ends the query, with an error that names it by these columns.
        json_to_columns(flights.select("topic", "partition", "offset", "value"), FLIGHT)
        .withWatermark("time_hour", lateness)
        .groupBy(window("time_hour", length), "carrier")
        .agg(
            count("*").alias("flights"),
            count("dep_delay").alias("departed"),
            avg("dep_delay").alias("mean_delay"),
            greatest("dep_delay").alias("max_delay"),
        )
        .select(
            col("window.start").alias("start"),
            "carrier",
            "flights",
            "departed",
            "mean_delay",
            "max_delay",
        )
    )


def records(rows: DataFrame) -> DataFrame:
    """Return rows as records; the key says which carrier's and which hour's it is."""
    return columns_to_json(rows.withColumn("key", concat_ws("/", "carrier", "start")))


def main() -> None:
    """Run until it is ended, or with `--available-now` until all is read."""
    options = arguments()
    spark = SparkSession.builder.appName("carrier_delays").getOrCreate()
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
    rows = delays(flights, options.window, options.lateness)
    if options.output_topic:
        writer = (
            records(rows)
            .writeStream.format("millrace")
            .option("bootstrap.servers", options.bootstrap)
            .option("topic", options.output_topic)
        )
    else:
        writer = rows.writeStream.format("parquet").option("path", options.output)
    query = (
        writer.outputMode("append")
        .queryName("carrier_delays")
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
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--output", metavar="FOLDER", help="where the Parquet files go")
    where.add_argument("--output-topic", metavar="TOPIC", help="or where the rows go, as JSON")
    add("--window", default="1 hour", help="length of a window (default: 1 hour)")
    job.add_lateness(parser)
    return parser.parse_args()


if __name__ == "__main__":
    job.run(main)
