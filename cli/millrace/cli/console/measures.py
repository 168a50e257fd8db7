"""Rates and latencies of a running transfer, in constant memory."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

MEGABYTE = 1_000_000
_GROWTH = math.log(1.01)  # Neighbouring buckets are one per cent apart.
_SMALLEST_MS = 0.001


class Latencies:
    """Latencies of many records as a histogram whose buckets are one per cent wide."""

    def __init__(self) -> None:
        self.count = 0
        self.max_ms = 0.0
        self._total_ms = 0.0
        self._buckets: Counter[int] = Counter()

    def add(self, milliseconds: float, records: int = 1) -> None:
        """Count records that took so long."""
        self.count += records
        self.max_ms = max(self.max_ms, milliseconds)
        self._total_ms += milliseconds * records
        self._buckets[round(math.log(max(milliseconds, _SMALLEST_MS)) / _GROWTH)] += records

    @property
    def mean_ms(self) -> float:
        """The mean; 0 when nothing was counted."""
        return self._total_ms / self.count if self.count else 0.0

    def percentile(self, share: float) -> float:
        """Return the latency in ms that a share of the records stays within, such as 0.99."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(math.exp(bucket * _GROWTH), self.max_ms)
        return 0.0


@dataclass(slots=True)
class Transfer:
    """Records and bytes that went through, and in what time."""

    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0

    @property
    def records_per_second(self) -> float:
        """The rate; 0 before any time has passed."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def megabytes_per_second(self) -> float:
        """The rate in units of 1,000,000 bytes."""
        return self.size_bytes / MEGABYTE / self.seconds if self.seconds > 0 else 0.0

    def minus(self, earlier: "Transfer") -> "Transfer":
        """Return what went through since an earlier state."""
        return Transfer(
            self.records - earlier.records,
            self.size_bytes - earlier.size_bytes,
            self.seconds - earlier.seconds,
        )

    @property
    def count(self) -> str:
        """The number of records, in words."""
        return f"{self.records:,} record{'' if self.records == 1 else 's'}"

    @property
    def pace(self) -> str:
        """Time and rates, in words."""
        return (
            f"in {self.seconds:.1f} s: {self.records_per_second:,.0f} records/s, "
            f"{self.megabytes_per_second:,.1f} MB/s"
        )

    def __str__(self) -> str:
        return f"{self.count} {self.pace}"

    def as_json(self) -> dict[str, float]:
        """Return the figures by the names that `--output json` uses."""
        return {
            "records": self.records,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 6),
            "records_per_second": round(self.records_per_second, 1),
            "megabytes_per_second": round(self.megabytes_per_second, 3),
        }


def payload_bytes(records: "pa.RecordBatch") -> int:
    """Return the bytes of all keys and values."""
    import pyarrow.compute as pc

    lengths = (pc.sum(pc.binary_length(records.column(name))).as_py() for name in ("key", "value"))
    return sum(length or 0 for length in lengths)
