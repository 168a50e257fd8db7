"""The demo's Spark program: each carrier's delays by hour of the day, in dry weather and in rain.

    python demo/delays_job.py --help

It joins a stream of flights with the weather, a topic that it reads once, and sums up the delays.
Each micro-batch writes the changed sums to a topic, with carrier and hour as the key, so that the
last record of a key counts; and as Parquet, with a folder for each batch. A driver that is killed
repeats its current batch with the same flights: it replaces the folder, and writes the records
again under their keys.

When it is told to stop, it reads a compacted topic, with the latest flight of each aircraft, as a
table, and writes where the aircraft are.
"""

import argparse
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.spark import tables, values
from millrace.spark.stopping import await_queries

FLIGHT = "carrier string, origin string, hour int, time_hour string, dep_delay int"
LATEST_FLIGHT = "carrier string, dest string"
WEATHER = "origin string, time_hour string, precip double"
KEY = ("carrier", "hour")


def delays(flights: DataFrame, weather: DataFrame) -> DataFrame:
    """Return a row of whole numbers for each carrier and hour; delays in minutes, summed up."""
    rows = values.json_to_columns(flights.select("value"), FLIGHT)
    hours = values.json_to_columns(weather.select("value"), WEATHER)
    hours = hours.groupBy("origin", "time_hour").agg(F.max("precip").alias("precip"))
    delay_in_rain = F.when(F.col("precip") > 0, F.col("dep_delay"))
    return (
        rows.join(F.broadcast(hours.cache()), ["origin", "time_hour"], "left")
        .groupBy(*KEY)
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay"),
            F.count(delay_in_rain).alias("departed_in_rain"),
            F.coalesce(F.sum(delay_in_rain), F.lit(0)).alias("delay_in_rain"),
        )
    )


def places(records: DataFrame) -> DataFrame:
    """Return the airports to which aircraft went last, with how many and of how many carriers."""
    aircraft = tables.latest_of_each_key(records).select("key", "value")
    return (
        values.json_to_columns(aircraft, LATEST_FLIGHT)
        .groupBy(F.col("dest").alias("airport"))
        .agg(F.count("*").alias("aircraft"), F.countDistinct("carrier").alias("carriers"))
    )


def writer(bootstrap: str, topic: str, table: str) -> Callable[[DataFrame, int], None]:
    """Return the function that writes the changed sums of a micro-batch."""

    def write(changed: DataFrame, batch_id: int) -> None:
        changed.persist()
        changed.write.mode("overwrite").parquet(f"{table}/batch={batch_id}")
        key = F.concat_ws("-", *KEY).cast("binary").alias("key")
        records = values.columns_to_json(changed.select(key, *changed.columns), changed.columns)
        records.write.format("millrace").mode("append").option(
            "bootstrap.servers", bootstrap
        ).option("topic", topic).save()
        changed.unpersist()

    return write


def main() -> None:
    """Run until SIGTERM; then write where the aircraft are."""
    options = _arguments()
    spark = SparkSession.builder.appName("delays").getOrCreate()
    # Spark keeps a state in as many files a batch.
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    flights = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", options.flights)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50_000)
        .option("maxPartitions", 2)
        .load()
    )

    def read(topic: str) -> DataFrame:
        source = spark.read.format("millrace").option("bootstrap.servers", options.bootstrap)
        return source.option("subscribe", topic).load()

    query = (
        delays(flights, read(options.weather))
        .writeStream.outputMode("update")
        .foreachBatch(writer(options.bootstrap, options.topic, options.table))
        .option("checkpointLocation", options.checkpoint)
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    await_queries(query)
    places(read(options.aircraft)).write.mode("overwrite").parquet(options.places)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", default="localhost:7092", help="brokers, with commas")
    parser.add_argument("--flights", default="flights", help="topic of flights as JSON")
    parser.add_argument("--weather", default="weather", help="topic of weather as JSON")
    parser.add_argument("--aircraft", default="aircraft", help="topic of flights by tail number")
    parser.add_argument("--topic", required=True, help="where the sums go, by carrier and hour")
    parser.add_argument("--table", required=True, help="folder where the sums go as Parquet")
    parser.add_argument("--places", required=True, help="folder where the aircraft go as Parquet")
    parser.add_argument("--checkpoint", required=True, help="folder that says how far it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
