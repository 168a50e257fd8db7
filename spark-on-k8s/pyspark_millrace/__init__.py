"""Lets Spark find the format `millrace` by itself: it imports every installed `pyspark_*` module.

Light on purpose: each driver imports it when the first format is looked up, whichever that is.
"""

from millrace.spark.data_source import MillraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
