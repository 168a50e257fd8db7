"""Consuming side by side: the same keyed records, filled once on each side, read over and over.

Ours is `poll_batches()` with the key and the value columns turned into lists of bytes, as a program
reads many records. `poll()`, which makes an object for every record, and Arrow without Python
objects are in `detail`.
"""

from contextlib import ExitStack

from bench.measure import Bench, Bound, Outcome, median_ratio, summaries
from bench.millrace_broker import running_millrace
from bench.peers.kafka import running_kafka
from bench.records import KEY_BYTES, write_random_records
from bench.settings import (
    CONFLUENT_CONSUMER,
    CONFLUENT_PRODUCER,
    KAFKA_TOPIC,
    MILLRACE_CONSUMER,
    MILLRACE_PRODUCER,
    MILLRACE_TOPIC,
)
from bench.sides import Consume, JavaConsume, fill

TOPIC = "filled"
PARTITIONS = 4
JAVA_BYTES_PER_SECOND = {100: 300e6, 1000: 600e6}
"""The highest rates of Java's tool; the topic should last for a quarter of a run and a bit."""
TOPIC_BYTES_MAX = 4e9


def compare_consumers(bench: Bench, record_bytes: int, *, over_confluent: float) -> Outcome:
    """Compare records whose key and value exist as bytes."""
    records_file = write_random_records(bench.directory / "records", record_bytes)
    size = min(TOPIC_BYTES_MAX, JAVA_BYTES_PER_SECOND[record_bytes] * bench.seconds)
    wanted = int(size / (record_bytes + KEY_BYTES))
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(bench.directory / "kafka"))
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        filled = fill(
            kafka,
            "confluent_produce",
            "keyed",
            topic=TOPIC,
            partitions=PARTITIONS,
            config=KAFKA_TOPIC["replicated"],
            records_file=records_file,
            records=wanted,
            settings=CONFLUENT_PRODUCER,
        )
        fill(
            millrace,
            "millrace_produce",
            "batch_keyed",
            topic=TOPIC,
            partitions=PARTITIONS,
            config=MILLRACE_TOPIC["replicated"],
            records_file=records_file,
            records=wanted,
            settings=MILLRACE_PRODUCER,
        )

        def ours(way: str) -> Consume:
            return Consume(
                broker=millrace,
                module="millrace_consume",
                way=way,
                topic=TOPIC,
                settings=MILLRACE_CONSUMER,
                log=bench.directory / "consume.log",
            )

        runs = bench.interleave(
            {
                "millrace": ours("columns"),
                "confluent": Consume(
                    broker=kafka,
                    module="confluent_consume",
                    way="",
                    topic=TOPIC,
                    settings=CONFLUENT_CONSUMER,
                    log=bench.directory / "consume.log",
                ),
                "millrace_records": ours("records"),
                "millrace_arrow": ours("arrow"),
                "java": JavaConsume(
                    broker=kafka,
                    directory=bench.directory / "kafka",
                    topic=TOPIC,
                    records=filled,
                    record_bytes=record_bytes + KEY_BYTES,
                ),
            }
        )
    confluent = runs["confluent"]
    return Outcome(
        bounds=[
            Bound(
                what="over confluent-kafka-python",
                value=median_ratio(runs["millrace"], confluent),
                at_least=over_confluent,
            )
        ],
        detail={
            "records_over_confluent": median_ratio(runs["millrace_records"], confluent),
            "arrow_over_confluent": median_ratio(runs["millrace_arrow"], confluent),
            "over_java": median_ratio(runs["millrace"], runs["java"]),
            "arrow_over_java": median_ratio(runs["millrace_arrow"], runs["java"]),
            **summaries(runs),
        },
    )
