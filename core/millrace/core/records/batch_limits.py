"""A topic's limits for batches of clients, of either format."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class BatchLimits:
    """What a leader holds a client's batch against."""

    batch_bytes_max: int
    """Header and stored body; of a Kafka client's batch what it sends."""
    inflated_bytes_max: int
    """Body once inflated."""
    requires_keys: bool = False
    """Whether every record needs a key, as those of a compacted topic."""
    takes_transactions: bool = False
    """Whether a batch may belong to a transaction; not in the cluster's own topics."""
