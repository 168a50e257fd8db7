"""A job as a pod runs it: copies a topic until SIGTERM. Arguments: brokers, a folder."""

import sys

from pyspark.sql import SparkSession

from millrace.spark.stopping import await_queries


def main(brokers: str, folder: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    stream = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", brokers)
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "200")
        .load()
    )
    query = (
        stream.select("value")
        .writeStream.format("millrace")
        .option("bootstrap.servers", brokers)
        .option("topic", "out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    await_queries(query)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
