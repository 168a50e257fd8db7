"""What a consumer counts: the source of `Consumer.metrics` and of `millrace.client.metrics`."""

from collections import Counter
from dataclasses import dataclass, field

from millrace.client._cluster.latencies import Latencies


@dataclass(slots=True)
class ConsumerCounters:
    """All since the consumer was made."""

    records: int = 0
    batches: int = 0
    batch_bytes: int = 0
    throttled_ms: int = 0
    """The time by which quotas have delayed answers."""
    assignments: int = 0
    jumps: Counter[str] = field(default_factory=Counter)
    """Positions that moved without the user, by reason."""
    skipped_records: int = 0
    """Offsets that these jumps passed over."""
    polled_at: float | None = None
    """When it was polled last, in seconds of the monotonic clock."""
    age_seconds: Latencies = field(default_factory=Latencies)
    """The age of the last record of each batch, when the batch was taken."""
    commit_seconds: Latencies = field(default_factory=Latencies)
    commit_failures: Counter[str] = field(default_factory=Counter)
    """Commits that failed, by error."""
