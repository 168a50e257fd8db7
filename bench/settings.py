"""Client settings of both sides, each tuned by measurement on two cores (`bench.tune_peer`).

They are documented settings of the public clients. All others are the client's defaults.
"""

from typing import Any

DURABILITIES = ("replicated", "fsync")

KAFKA_TOPIC = {"replicated": {}, "fsync": {"flush.messages": "1"}}
"""Kafka's default acknowledges from the page cache; flush.messages=1 flushes first."""
MILLRACE_TOPIC = {
    "replicated": {"durability": "replicated"},
    "fsync": {"durability": "fsync"},
}

CONFLUENT_PRODUCER: dict[str, Any] = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 1_048_576,
}
CONFLUENT_CONSUMER: dict[str, Any] = {
    "fetch.message.max.bytes": 4_194_304,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 262_144,
    "fetch.queue.backoff.ms": 1,  # The default pauses for a second whenever the queue is full.
}

JAVA_PRODUCER: dict[str, str] = {
    "batch.size": "262144",
    "linger.ms": "10",
    "buffer.memory": "67108864",
}
JAVA_CONSUMER: dict[str, str] = {"check.crcs": "true"}
JAVA_CONSUMER_FETCH_BYTES = 4_194_304

MILLRACE_PRODUCER: dict[str, Any] = {}
MILLRACE_CONSUMER: dict[str, Any] = {}
"""Ours are the defaults: no other value was faster at both sizes."""

GRPC_OPTIONS = "reads_no_probe"
"""Channel options that made raw streaming fastest, over sizes, directions and kinds of server."""

SPARK_SETTINGS: dict[str, dict[str, Any]] = {"millrace": {}, "kafka": {}}
"""Options of Spark's sources: the defaults of both."""
SPARK_LATENCY: dict[str, dict[str, Any]] = {
    "millrace": {"maxPartitions": 1, "latestOffsetMaxWaitMs": 500},
    "kafka": {},
}
"""For small micro-batches: our source packs partitions into tasks, and waits for records."""
SPARK_SINKS: dict[str, dict[str, Any]] = {
    "millrace": {},
    "kafka": {f"kafka.{name}": value for name, value in JAVA_PRODUCER.items()},
}
"""Options of Spark's sinks: our defaults, and the fastest ones found for Kafka's producer."""
