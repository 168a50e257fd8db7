"""What a producer counts, from its start on."""

from collections import Counter
from dataclasses import dataclass, field

from millrace.client._cluster.latencies import Latencies


@dataclass(slots=True)
class ProducerCounters:
    """The source of `metrics()` and `millrace.client.metrics`; all since the producer was made."""

    records: int = 0
    record_bytes: int = 0
    batches: int = 0
    batch_bytes: int = 0
    requests: int = 0
    acknowledged_records: int = 0
    failed_records: int = 0
    repeated_batches: int = 0
    refused_requests: int = 0
    throttled_ms: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Failed records, by error."""
    begun_transactions: int = 0
    committed_transactions: int = 0
    commit_seconds: Latencies = field(default_factory=Latencies)
    """The time of each commit of a transaction: to deliver what is not, and to decide."""
    delivery_seconds: Latencies = field(default_factory=Latencies)
    """The time of each batch from the `send()` of its first record to its acknowledgement."""
    request_seconds: Latencies = field(default_factory=Latencies)
    """The time of each request until its answer."""
