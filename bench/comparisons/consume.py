"""Consuming side by side: the same keyed records, filled once on each side, read over and over.

Ours is `poll_batches()` with the key and the value columns turned into lists of bytes, as a program
reads many records. `poll()`, which makes an object for every record, and Arrow without Python
objects are in `detail`.
"""

from typing import Any

from bench.comparisons.pair import running_pair
from bench.measure import Bench, Outcome, median_ratio, summaries
from bench.records import KEY_BYTES
from bench.settings import CONFLUENT_CONSUMER, MILLRACE_CONSUMER
from bench.sides import Broker, GroupConsume

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
    size = min(TOPIC_BYTES_MAX, JAVA_BYTES_PER_SECOND[record_bytes] * bench.seconds)
    wanted = int(size / (record_bytes + KEY_BYTES))
    with running_pair(bench.directory, record_bytes) as pair:
        filled = pair.fill(TOPIC, PARTITIONS, wanted)
        runs = bench.interleave(
            {
                "millrace": pair.consume("columns", TOPIC),
                "confluent": pair.confluent_consume(TOPIC),
                "millrace_records": pair.consume("records", TOPIC),
                "millrace_arrow": pair.consume("arrow", TOPIC),
                "java": pair.java_consume(TOPIC, filled["kafka"]),
            }
        )

    def over(ours: str, theirs: str) -> float:
        return median_ratio(runs[ours], runs[theirs])

    return Outcome(
        values={"over confluent-kafka-python": over("millrace", "confluent")},
        detail={
            "records_over_confluent": over("millrace_records", "confluent"),
            "arrow_over_confluent": over("millrace_arrow", "confluent"),
            "over_java": over("millrace", "java"),
            "arrow_over_java": over("millrace_arrow", "java"),
            **summaries(runs),
        },
    )


def compare_groups(bench: Bench) -> Outcome:
    """Compare the members of a group, each a process of its own, likewise."""
    with running_pair(bench.directory, GROUP_RECORD_BYTES) as pair:
        pair.fill(TOPIC, GROUP_PARTITIONS, GROUP_RECORDS)

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

        ours = (pair.millrace, "millrace_group")
        runs = bench.interleave(
            {
                "millrace": members(*ours, "columns", MILLRACE_CONSUMER),
                "confluent": members(pair.kafka, "confluent_group", "", CONFLUENT_CONSUMER),
                "millrace_records": members(*ours, "records", MILLRACE_CONSUMER),
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
