"""A topic as a table: the latest record of each key.

    aircraft = tables.latest_of_each_key(spark.read.format("millrace")...load())

A compacted topic keeps at least these records, but also older ones that its cleaner has not looked
at yet, and tombstones for a while. So a reader chooses the last ones itself, as a KTable of Kafka
Streams does. The same works for a topic that keeps all records; it only reads more.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.spark.errors import InvalidColumnsError

_KEY: Final = ("topic", "partition", "key")
"""As the cleaner has it: offsets have an order within a partition only."""
_LATEST: Final = "_latest"


def latest_of_each_key(records: DataFrame) -> DataFrame:
    """Return the last record of each key, with the columns of `records`.

    A key whose last record is a tombstone (its value is null) is left out, and so are records
    without a key. A key counts once in each partition that has it: that is one, unless partitions
    were added to the topic or a program chose them itself.

    Args:
        records: of a batch, as the source returns them, before values become columns.

    Raises:
        InvalidColumnsError: a column is missing that says which record is the last.
    """
    if missing := [name for name in (*_KEY, "value", "offset") if name not in records.columns]:
        raise InvalidColumnsError(
            f"the last record of each key is not known without the columns {missing}: call this "
            "first, and select columns of what it returns"
        )
    others = [name for name in records.columns if name not in _KEY]
    latest = (
        records.where(F.col("key").isNotNull())
        .groupBy(*_KEY)
        .agg(F.max_by(F.struct(*others), "offset").alias(_LATEST))
    )
    there = latest.where(F.col(_LATEST)["value"].isNotNull())
    return there.select(
        *(
            F.col(name) if name in _KEY else F.col(_LATEST)[name].alias(name)
            for name in records.columns
        )
    )
