"""New records since the last run, to Parquet: run it every hour, by cron or a CronJob.

What it shows: each run reads the records that are in the topic when it begins, in batches of
`--batch-size`, and ends; the checkpoint has the exact record where the next run continues. Each row
keeps the partition and the offset of its record. A value that is no flight is kept unchanged, in
the column `unparsed`: one bad record neither stops the runs nor gets lost.

The next run completes a killed one: no record is missing or duplicated.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, from_json, when

from millrace.spark import job
from millrace.spark.stopping import await_queries

FLIGHT = (
    "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "time_hour TIMESTAMP, dep_delay INT, arr_delay INT, air_time INT, distance INT"
)


def flights_of(records: DataFrame) -> DataFrame:
    """Return the columns of JSON values, with the place of each record.

    `values.json_to_columns` ends the query at a value that is no flight, or makes it null; here it
    is kept.
    """
    text = col("value").cast("string")
    flight = from_json(
        text,
        f"{FLIGHT}, broken STRING",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"},
    )
    # From an empty value Spark makes a flight that is null, and not a broken one.
    unparsed = coalesce("flight.broken", when(col("flight").isNull(), col("value")))
    place = ("partition", "offset", "timestamp")
    return (
        records.select(*place, text.alias("value"), flight.alias("flight"))
        .select(*place, "flight.*", unparsed.alias("unparsed"))
        .drop("broken")
    )


def main() -> None:
    """Read the present records, then end."""
    options = arguments()
    spark = SparkSession.builder.appName("ingest_flights").getOrCreate()
    records = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", options.batch_size)
        .option("maxPartitions", options.tasks)
        .load()
    )
    query = (
        flights_of(records)
        .writeStream.format("parquet")
        .option("path", options.output)
        .queryName("ingest_flights")
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with job.watched(spark, options):
        await_queries(query)


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = job.new_parser(__doc__)
    add = parser.add_argument
    add("--topic", default="flights", help="flights as JSON (default: flights)")
    add("--output", required=True, metavar="FOLDER", help="where the Parquet files go")
    job.add_checkpoint(parser)
    add(
        "--batch-size",
        default="64MiB",
        metavar="BYTES",
        help="about so many bytes in a batch, as they are stored: 64MiB, 1GB (default: 64MiB)",
    )
    job.add_tasks(parser)
    return parser.parse_args()


if __name__ == "__main__":
    job.run(main)
