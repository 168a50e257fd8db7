"""The demo's last Spark program: flights that departed, and how late, to a topic, exactly once.

    python demo/departures_job.py --help

It brings the records of a flight together, by a shuffle: a micro-batch that is repeated writes its
rows in another order. Nothing is set for exactly once: a micro-batch is one transaction of all its
tasks. The executors are processes of their own, so that each can be killed; the driver replaces
them. It runs until SIGTERM.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace.spark import values
from millrace.spark.stopping import await_queries

FLIGHT = "carrier string, dest string, dep_delay int"
EXECUTORS = 2
MEMORY_MB = 512


def departures(flights: DataFrame) -> DataFrame:
    """Return a record for each flight that departed, with the key of the flight."""
    rows = values.json_to_columns(flights.select("key", "value"), FLIGHT)
    departed = rows.where(F.col("dep_delay").isNotNull()).repartition(EXECUTORS, "key")
    return values.columns_to_json(departed, ["carrier", "dest", "dep_delay"])


def main() -> None:
    """Run until SIGTERM."""
    options = _arguments()
    spark = (
        SparkSession.builder.appName("departures")
        .master(f"local-cluster[{EXECUTORS},1,{MEMORY_MB}]")
        .config("spark.executor.memory", f"{MEMORY_MB}m")
        .config("spark.task.maxFailures", 8)
        .getOrCreate()
    )
    flights = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", options.flights)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.batch_records)
        .option("maxPartitions", EXECUTORS)
        .load()
    )
    query = (
        departures(flights)
        .writeStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("topic", options.topic)
        .option("checkpointLocation", options.checkpoint)
        .start()
    )
    await_queries(query)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", default="localhost:7092", help="brokers, with commas")
    parser.add_argument("--flights", default="flights", help="topic of flights as JSON")
    parser.add_argument("--batch-records", type=int, default=30_000, help="flights in a batch")
    parser.add_argument("--topic", required=True, help="where the departures go")
    parser.add_argument("--checkpoint", required=True, help="folder that says how far it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
