"""Every flight with the weather where and when it left: a stream joined with a table, to Parquet.

What it shows: the small side is a topic, too, read once as a batch when the job starts, and kept in
memory; a restart reads it again. The join needs no state: each flight is written at once, and a
flight without known weather in its hour is written without it.

A driver that is killed and restarted with the same checkpoint continues, and the files are the
same: no flight is missing or duplicated.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from millrace.spark import job
from millrace.spark.stopping import await_queries
from millrace.spark.values import json_to_columns

FLIGHT = (
    "carrier STRING, flight INT, origin STRING, dest STRING, time_hour TIMESTAMP, dep_delay INT"
)
WEATHER = (
    "origin STRING, time_hour TIMESTAMP, "
    "temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE"
)
"""The columns of both; `temp` in Fahrenheit, `wind_speed` in mph, `precip` in inches."""


def rows(records: DataFrame, schema: str) -> DataFrame:
    """Return the columns of JSON values; a malformed one ends the query with an error that names
    it."""
    place = ("topic", "partition", "offset")
    return json_to_columns(records.select(*place, "value"), schema).drop(*place)


def with_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Return each flight with the weather at its origin in its hour."""
    return flights.join(broadcast(weather), ["origin", "time_hour"], "left")


def main() -> None:
    """Run until it is ended, or with `--available-now` until all is read."""
    options = arguments()
    spark = SparkSession.builder.appName("flights_with_weather").getOrCreate()
    weather = (
        spark.read.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", options.weather)
        .load()
    )
    flights = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.batch_records)
        .option("maxPartitions", options.tasks)
        .load()
    )
    # Cached: every batch would read the topic again, and find more in it than the batch before.
    table = rows(weather, WEATHER).cache()
    query = (
        with_weather(rows(flights, FLIGHT), table)
        .writeStream.format("parquet")
        .option("path", options.output)
        .queryName("flights_with_weather")
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
    add("--weather", default="weather", metavar="TOPIC", help="weather as JSON (default: weather)")
    add("--output", required=True, metavar="FOLDER", help="where the Parquet files go")
    return parser.parse_args()


if __name__ == "__main__":
    job.run(main)
