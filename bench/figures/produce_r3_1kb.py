"""Three brokers, three replicas, `acks=all`, 1 KB records by the batch API: records/s over
confluent-kafka-python on three Kafka nodes.
"""

from functools import partial

from bench.comparisons.produce import compare_replicated_batches
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "produce_r3_1kb",
        unit="times",
        goal=">= 1.5, and >= 1.5 over Java's perf tool",
        measure=partial(
            compare_replicated_batches,
            record_bytes=1000,
            over_confluent=1.5,
            over_java=1.5,
        ),
    )
