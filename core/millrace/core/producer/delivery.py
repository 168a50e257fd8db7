"""Where records that travel together go, and what became of them: what their handles look at."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millrace.core.errors import MillraceError
from millrace.core.ids import Offset, TopicPartition, WallMs


@dataclass(slots=True)
class Acknowledged:
    """The outcome that everybody wants."""

    base_offset: Offset
    """-1 with `acks=0`: nobody knows."""
    append_timestamp: WallMs
    """The broker's time of all records where the topic wants that, else -1."""


@dataclass(slots=True, eq=False)
class Delivery:
    """Records of one partition that live and fail together."""

    topic: str
    topic_partition: TopicPartition
    timestamps: Any = field(default=None, kw_only=True)
    """Of all records, for their handles: one time, or an int64 array; None before encoding."""
    attempts: int = field(default=0, kw_only=True)
    last_problem: str = field(default="", kw_only=True)
    """Why the latest attempt that is over did not succeed."""
    outcome: Acknowledged | MillraceError | None = field(default=None, kw_only=True)

    def timestamp_of(self, index: int) -> WallMs:
        """Return the time that the producer gave a record."""
        times = self.timestamps
        return WallMs(int(times[index]) if isinstance(times, np.ndarray) else times)
