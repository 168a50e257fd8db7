"""Events of each airport: two topics into one, and unparsable records into another.

What it shows: one query reads flights and weather, whose values are different, and writes two
topics at once: the column `topic` of a row chooses the topic. Events of an airport share its key,
and so a partition. A record that is no flight, or no weather, goes unchanged to `--rejected-topic`,
with the header `error.reason`: the query does not stop, and nothing is lost. The headers
`source.topic`, `source.partition` and `source.offset` of all rows name their source.

A driver that is killed and restarted with the same checkpoint continues: no record is left out, and
none is there twice. A micro-batch is one transaction in both topics. A reader sees its events and
its rejected rows together. With `--by-airport` a shuffle brings the rows of an airport into one
task, so that each partition is written by few tasks; its rows come in another order each time.
"""

import argparse

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import (
    array,
    coalesce,
    col,
    concat,
    from_json,
    lit,
    named_struct,
    to_json,
    when,
)

from millrace.spark import job
from millrace.spark.stopping import await_queries

FLIGHT = (
    "carrier STRING, flight INT, origin STRING, dest STRING, time_hour TIMESTAMP, dep_delay INT"
)
WEATHER = (
    "origin STRING, time_hour TIMESTAMP, "
    "temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE"
)
REQUIRED = ("origin", "time_hour")
"""Without an airport and a time nothing is an event; all else may be unknown."""


def parsed(records: DataFrame, kind: str, schema: str) -> DataFrame:
    """Return each record with its `event` as JSON, or with the `reason` why it is none."""
    event = from_json(
        col("value").cast("string"),
        f"{schema}, broken STRING",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"},
    )
    # From an empty value Spark makes an event that is null, and not a broken one.
    is_broken = col("event").isNull() | col("event.broken").isNotNull()
    missing = [when(col(f"event.{name}").isNull(), f"{name} is missing") for name in REQUIRED]
    return (
        records.select("topic", "partition", "offset", "key", "value", event.alias("event"))
        .withColumn("reason", coalesce(when(is_broken, f"no JSON of {kind}"), *missing))
        .withColumn("origin", col("event.origin"))
        .withColumn("event", to_json(col("event").dropFields("broken")))
        .withColumn("kind", lit(kind))
    )


def rows(records: DataFrame, events_topic: str, rejected_topic: str) -> DataFrame:
    """Return the rows to write: events by airport to one topic, all others unchanged to the
    other."""
    is_good = col("reason").isNull()
    source = array(
        header("source.topic", col("topic")),
        header("source.partition", col("partition").cast("string")),
        header("source.offset", col("offset").cast("string")),
    )
    good = array(header("kind", col("kind")))
    bad = array(header("error.reason", col("reason")))
    return records.select(
        when(is_good, events_topic).otherwise(rejected_topic).alias("topic"),
        when(is_good, col("origin").cast("binary")).otherwise(col("key")).alias("key"),
        when(is_good, col("event").cast("binary")).otherwise(col("value")).alias("value"),
        concat(source, when(is_good, good).otherwise(bad)).alias("headers"),
    )


def header(name: str, text: Column) -> Column:
    """Return a header of a record."""
    return named_struct(lit("key"), lit(name), lit("value"), text.cast("binary"))


def main() -> None:
    """Run until it is ended, or with `--available-now` until all is read."""
    options = arguments()
    spark = SparkSession.builder.appName("airport_events").getOrCreate()

    def stream(topic: str) -> DataFrame:
        return (
            spark.readStream.format("millrace")
            .option("bootstrap.servers", options.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", options.batch_records)
            .option("maxPartitions", options.tasks)
            .load()
        )

    flights = parsed(stream(options.flights), "a flight", FLIGHT)
    weather = parsed(stream(options.weather), "weather", WEATHER)
    written = rows(flights.union(weather), options.events_topic, options.rejected_topic)
    if options.by_airport:
        # By columns: what chance has put into tasks Spark does not repeat after an executor's loss.
        written = written.repartition(options.tasks, "topic", "key")
    query = (
        written.writeStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .queryName("airport_events")
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
    for name, default, what in (
        ("--flights", "flights", "flights as JSON"),
        ("--weather", "weather", "weather as JSON"),
        ("--events-topic", "airport-events", "where the events go"),
        ("--rejected-topic", "rejected", "where all else goes"),
    ):
        add(name, default=default, metavar="TOPIC", help=f"{what} (default: {default})")
    add("--by-airport", action="store_true", help="write the rows of an airport in one task")
    return parser.parse_args()


if __name__ == "__main__":
    job.run(main)
