"""A job whose Spark stops by itself, as after too many executors failed. Argument: how."""

import sys

from pyspark.sql import SparkSession

from millrace.spark import job


def main() -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    if sys.argv[1] == "its JVM ends":
        spark.sparkContext._jvm.java.lang.System.exit(11)
    spark.sparkContext._jsc.stop()
    spark.range(1).count()


if __name__ == "__main__":
    job.run(main)
