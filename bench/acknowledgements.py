"""When each record of a load was sent and acknowledged, and what that says about interruptions.

A load writes one row for each record (`RECORDS`); times are of the monotonic clock, which all
processes of a machine share. An interruption notes its time by the same clock.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy
import numpy.typing

RECORDS: Final = numpy.dtype([("partition", "i4"), ("sent_ns", "i8"), ("acknowledged_ns", "i8")])
NEVER: Final = 0
"""The acknowledgement time of a record that was never acknowledged."""

Records = numpy.typing.NDArray[numpy.void]


def save(path: Path, rows: Sequence[tuple[int, int, int]]) -> None:
    """Write partition, time sent and time acknowledged of each record of a load."""
    with path.open("wb") as file:
        numpy.save(file, numpy.array(rows, dtype=RECORDS))


def load(path: Path) -> Records:
    """Read the records of a load."""
    records: Records = numpy.load(path)
    return records


def seconds_until_acknowledged(records: Records, partition: int, since: float) -> float:
    """Return how long after `since` the first record was acknowledged that was sent after it.

    Args:
        since: monotonic seconds.

    Raises:
        ValueError: there is no such record.
    """
    since_ns = round(since * 1e9)
    later = records[
        (records["partition"] == partition)
        & (records["sent_ns"] > since_ns)
        & (records["acknowledged_ns"] != NEVER)
    ]
    if not len(later):
        raise ValueError(f"nothing sent to partition {partition} later was acknowledged")
    return float(later["acknowledged_ns"].min() - since_ns) / 1e9


def longest_stall_ms(
    records: Records, partitions: Sequence[int], since: float, until: float
) -> float:
    """Return the longest time that a record waited for its acknowledgement.

    Args:
        partitions: whose records count.
        since: monotonic seconds; records that were waiting then count too.
        until: likewise; later records do not count.

    Raises:
        ValueError: there are none, or one was never acknowledged.
    """
    since_ns, until_ns = round(since * 1e9), round(until * 1e9)
    meanwhile = records[
        numpy.isin(records["partition"], partitions)
        & ((records["acknowledged_ns"] > since_ns) | (records["acknowledged_ns"] == NEVER))
        & (records["sent_ns"] < until_ns)
    ]
    if not len(meanwhile) or (meanwhile["acknowledged_ns"] == NEVER).any():
        raise ValueError(f"not every record to the partitions {partitions} was acknowledged")
    return float((meanwhile["acknowledged_ns"] - meanwhile["sent_ns"]).max()) / 1e6


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(share * 100) * len(ordered) // 100) - 1)]
