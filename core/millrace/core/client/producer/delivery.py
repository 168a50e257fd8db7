"""Partition and outcome of records that travel together, for their handles."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millrace.core.errors import MillraceError
from millrace.core.ids import Offset, TopicPartition, WallMs

Waiter = Callable[[], object]
"""What the shell calls once there is an outcome."""


@dataclass(slots=True)
class Acknowledged:
    """The outcome of a success."""

    base_offset: Offset
    """-1 with `acks=0`: unknown."""
    append_timestamp: WallMs
    """The broker's time of all records if the topic wants that, else -1."""


@dataclass(slots=True, eq=False)
class Delivery:
    """Records of one partition that live and fail together."""

    topic: str
    topic_partition: TopicPartition
    timestamps: Any = field(default=None, kw_only=True)
    """Times of the records, for their handles: one, or an int64 array; None before encoding."""
    attempts: int = field(default=0, kw_only=True)
    last_problem: str = field(default="", kw_only=True)
    """Error of the latest finished attempt."""
    outcome: Acknowledged | MillraceError | None = field(default=None, kw_only=True)
    waiters: deque[Waiter] = field(default_factory=deque, kw_only=True)
    """What is called for single records once there is an outcome."""

    def timestamp_of(self, index: int) -> WallMs:
        """Return the time that the producer gave a record."""
        times = self.timestamps
        return WallMs(int(times[index])) if isinstance(times, np.ndarray) else times
