"""Three brokers, three replicas, `acks=all`, 100 B records by the batch API: records/s over
confluent-kafka-python on three Kafka nodes.
"""

from functools import partial

from bench.comparisons.produce import compare_replicated_batches
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "produce_r3_100b",
        unit="times",
        goal=">= 2, and >= 2 over Java's perf tool",
        measure=partial(
            compare_replicated_batches,
            record_bytes=100,
            over_confluent=2,
            over_java=2,
        ),
    )
