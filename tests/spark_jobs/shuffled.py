"""Passes records on to two topics, shuffled: by chance, and so another way each time it is tried.

Its executors are processes of their own, which can be killed.
"""

from pyspark.sql import SparkSession

from millrace.spark import job
from millrace.spark.stopping import await_queries

MASTER = "local-cluster[2,1,768]"
ROW = (
    "concat('{0}', IF(offset % 3 = 0, '-a', '-b')) AS topic",
    "concat_ws('/', topic, partition, offset) AS key",
    "value",
    "rand() AS place",
)


def main() -> None:
    """Run until it is ended, or with `--available-now` until all is read."""
    parser = job.new_parser(__doc__)
    job.add_stream_options(parser)
    parser.add_argument("--output", help="to topics with this name and -a, or -b")
    options = parser.parse_args()
    spark = (
        SparkSession.builder.master(MASTER)
        .config("spark.executor.memory", "768m")
        .config("spark.task.maxFailures", "8")
        .appName("shuffled")
        .getOrCreate()
    )
    query = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options.batch_records)
        .load()
        .selectExpr(*(column.format(options.output) for column in ROW))
        .repartition(4, "place")
        .drop("place")
        .writeStream.format("millrace")
        .option("bootstrap.servers", options.bootstrap)
        .option("checkpointLocation", options.checkpoint)
        .trigger(**job.trigger(options))
        .start()
    )
    await_queries(query)


if __name__ == "__main__":
    job.run(main)
