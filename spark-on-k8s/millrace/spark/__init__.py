"""Spark reads topics: `spark.read.format("millrace")` and `spark.readStream.format("millrace")`.

The installed module `pyspark_millrace` lets Spark find the format by itself. If it is not
installed, as with `--py-files`, register it once:

    from millrace.spark import register

    register(spark)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the format `millrace` known to a session."""
    from millrace.spark.data_source import MillraceDataSource

    spark.dataSource.register(MillraceDataSource)
