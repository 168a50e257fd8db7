"""A topic's settings as far as its files go."""

from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = -1


@dataclass(slots=True, frozen=True, kw_only=True)
class LogConfig:
    """A topic's settings as far as its files go; Kafka's names. Replaced at run time as a whole."""

    segment_bytes: int = 1_073_741_824
    """A segment is closed before an append that would make it larger; at most 2^31 - 1."""
    segment_ms: int = 604_800_000
    """A segment is closed by the first append this long after its first one."""
    index_interval_bytes: int = 4096
    """Distance of index entries: halving it doubles the index and halves what a search walks."""
    retention_ms: int = 604_800_000
    """Closed segments whose newest record is older are deleted; -1 keeps them."""
    retention_bytes: int = UNLIMITED
    """The oldest segments are deleted while the others still hold as much; -1 keeps them."""
    checkpoint_bytes: int = 64 * 2**20
    """The recovery point advances when this much was appended since; at twice this an append waits
    for it."""
    checkpoint_ms: int = 10_000
    """The recovery point advances when anything was appended this long ago."""
