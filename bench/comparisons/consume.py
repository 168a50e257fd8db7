"""Consuming side by side: the same keyed records, filled once on each side, read over and over.

Ours is `poll_batches()` with the key and the value columns turned into lists of bytes, as a program
reads many records. `poll()`, which makes an object for every record, and Arrow without Python
objects are in `detail`.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.measure import Bench, Outcome, median_ratio, summaries
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
from bench.sides import Broker, Consume, GroupConsume, JavaConsume, fill

TOPIC = "filled"
PARTITIONS = 4
JAVA_BYTES_PER_SECOND = {100: 300e6, 1000: 600e6}
"""The highest rates of Java's tool; the topic should last for a quarter of a run and a bit."""
TOPIC_BYTES_MAX = 4e9

GROUP_MEMBERS = 4
GROUP_PARTITIONS = 8
GROUP_RECORD_BYTES = 1000
GROUP_RECORDS = 1_000_000


def compare_consumers(bench: Bench, record_bytes: int) -> Outcome:
    """Compare records whose key and value exist as bytes."""
    records_file = write_random_records(bench.directory / "records", record_bytes)
    size = min(TOPIC_BYTES_MAX, JAVA_BYTES_PER_SECOND[record_bytes] * bench.seconds)
    wanted = int(size / (record_bytes + KEY_BYTES))
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(bench.directory / "kafka"))
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        filled = _fill_both(kafka, millrace, records_file, PARTITIONS, wanted)

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
        values={"over confluent-kafka-python": median_ratio(runs["millrace"], confluent)},
        detail={
            "records_over_confluent": median_ratio(runs["millrace_records"], confluent),
            "arrow_over_confluent": median_ratio(runs["millrace_arrow"], confluent),
            "over_java": median_ratio(runs["millrace"], runs["java"]),
            "arrow_over_java": median_ratio(runs["millrace_arrow"], runs["java"]),
            **summaries(runs),
        },
    )


def compare_groups(bench: Bench) -> Outcome:
    """Compare the members of a group, each a process of its own, likewise."""
    records_file = write_random_records(bench.directory / "records", GROUP_RECORD_BYTES)
    with (
        running_kafka(bench.directory / "kafka") as kafka,
        running_millrace(bench.directory / "millrace") as millrace,
    ):
        _fill_both(kafka, millrace, records_file, GROUP_PARTITIONS, GROUP_RECORDS)

        def members(
            broker: Broker, module: str, way: str, settings: dict[str, Any]
        ) -> GroupConsume:
            return GroupConsume(
                broker=broker,
                module=module,
                way=way,
                topic=TOPIC,
                settings=settings,
                log=bench.directory / "consume.log",
                partitions=GROUP_PARTITIONS,
                members=GROUP_MEMBERS,
            )

        runs = bench.interleave(
            {
                "millrace": members(millrace, "millrace_group", "columns", MILLRACE_CONSUMER),
                "confluent": members(kafka, "confluent_group", "", CONFLUENT_CONSUMER),
                "millrace_records": members(
                    millrace, "millrace_group", "records", MILLRACE_CONSUMER
                ),
            }
        )
    confluent = runs["confluent"]
    return Outcome(
        values={"over confluent-kafka-python's group": median_ratio(runs["millrace"], confluent)},
        detail={
            "members": GROUP_MEMBERS,
            "records_over_confluent": median_ratio(runs["millrace_records"], confluent),
            **summaries(runs),
        },
    )


def _fill_both(
    kafka: Broker, millrace: Broker, records_file: Path, partitions: int, wanted: int
) -> int:
    """Fill the topic on both sides; return how many records Kafka's has."""
    filled = fill(
        kafka,
        "confluent_produce",
        "keyed",
        topic=TOPIC,
        partitions=partitions,
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
        partitions=partitions,
        config=MILLRACE_TOPIC["replicated"],
        records_file=records_file,
        records=wanted,
        settings=MILLRACE_PRODUCER,
    )
    return filled
