"""Producing side by side: the batch APIs and Java's tool, or one call per record."""

from contextlib import ExitStack

from bench.measure import Bench, Outcome, median_ratio, summaries
from bench.millrace_broker import running_millrace
from bench.millrace_cluster import BROKERS, REPLICATION, running_millrace_cluster
from bench.peers.kafka import running_kafka
from bench.records import write_random_records
from bench.settings import (
    CONFLUENT_PRODUCER,
    JAVA_PRODUCER,
    KAFKA_TOPIC,
    MILLRACE_PRODUCER,
    MILLRACE_TOPIC,
)
from bench.sides import Broker, JavaProduce, Produce

CONFLUENT_WAY_OF = {"each": "each", "keyed": "keyed", "handle": "callback"}
"""Our way of sending single records, and confluent's that does the same."""


def compare_batches(bench: Bench, record_bytes: int) -> Outcome:
    """Compare our batch API with confluent-kafka's fastest call and with Java's perf tool.

    Confluent is measured by both of its calls; the better median counts.
    """
    with (
        running_kafka(bench.directory / "kafka") as kafka,
        running_millrace(bench.directory / "millrace") as millrace,
    ):
        return _compare_batches(
            bench,
            kafka,
            millrace,
            record_bytes,
        )


def compare_replicated_batches(bench: Bench, record_bytes: int) -> Outcome:
    """Compare likewise on three brokers of each system, with three replicas."""
    with (
        running_kafka(bench.directory / "kafka", nodes=BROKERS, replication=REPLICATION) as kafka,
        running_millrace_cluster(bench.directory / "millrace") as millrace,
    ):
        return _compare_batches(
            bench,
            kafka,
            millrace,
            record_bytes,
        )


def _compare_batches(
    bench: Bench,
    kafka: Broker,
    millrace: Broker,
    record_bytes: int,
) -> Outcome:
    records = write_random_records(bench.directory / "records", record_bytes)

    def confluent(way: str) -> Produce:
        return Produce(
            broker=kafka,
            module="confluent_produce",
            way=way,
            records_file=records,
            topic_config=KAFKA_TOPIC["replicated"],
            settings=CONFLUENT_PRODUCER,
        )

    runs = bench.interleave(
        {
            "millrace": Produce(
                broker=millrace,
                module="millrace_produce",
                way="batch",
                records_file=records,
                topic_config=MILLRACE_TOPIC["replicated"],
                settings=MILLRACE_PRODUCER,
            ),
            "confluent_batch": confluent("batch"),
            "confluent_each": confluent("each"),
            "java": JavaProduce(
                broker=kafka,
                directory=bench.directory / "kafka",
                records_file=records,
                record_bytes=record_bytes,
                topic_config=KAFKA_TOPIC["replicated"],
                settings=JAVA_PRODUCER,
            ),
        }
    )
    ours = runs["millrace"]
    over_better = min(
        median_ratio(ours, runs["confluent_batch"]), median_ratio(ours, runs["confluent_each"])
    )
    return Outcome(
        values={
            "over confluent-kafka-python": over_better,
            "over Kafka's Java tool": median_ratio(ours, runs["java"]),
        },
        detail=summaries(runs),
    )


def compare_single_sends(bench: Bench, record_bytes: int) -> Outcome:
    """Compare one call per record: plain, with a key, with an outcome for each."""
    records = write_random_records(bench.directory / "records", record_bytes)
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(bench.directory / "kafka"))
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        sides = {}
        for way, their_way in CONFLUENT_WAY_OF.items():
            sides[f"millrace_{way}"] = Produce(
                broker=millrace,
                module="millrace_produce",
                way=way,
                records_file=records,
                topic_config=MILLRACE_TOPIC["replicated"],
                settings=MILLRACE_PRODUCER,
            )
            sides[f"confluent_{way}"] = Produce(
                broker=kafka,
                module="confluent_produce",
                way=their_way,
                records_file=records,
                topic_config=KAFKA_TOPIC["replicated"],
                settings=CONFLUENT_PRODUCER,
            )
        runs = bench.interleave(sides)
    over = {
        way: median_ratio(runs[f"millrace_{way}"], runs[f"confluent_{way}"])
        for way in CONFLUENT_WAY_OF
    }
    return Outcome(
        values={"over confluent's produce(), no key, checked by flush()": over["each"]},
        detail={"over_confluent": over, **summaries(runs)},
    )


def compare_fsync(bench: Bench, record_bytes: int) -> Outcome:
    """Compare appends that are on disk before the acknowledgement; Kafka's by Java's tool."""
    records = write_random_records(bench.directory / "records", record_bytes)
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(bench.directory / "kafka"))
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        runs = bench.interleave(
            {
                "millrace": Produce(
                    broker=millrace,
                    module="millrace_produce",
                    way="batch",
                    records_file=records,
                    topic_config=MILLRACE_TOPIC["fsync"],
                    settings=MILLRACE_PRODUCER,
                ),
                "java": JavaProduce(
                    broker=kafka,
                    directory=bench.directory / "kafka",
                    records_file=records,
                    record_bytes=record_bytes,
                    topic_config=KAFKA_TOPIC["fsync"],
                    settings=JAVA_PRODUCER,
                ),
            }
        )
    return Outcome(
        values={
            "over Kafka's Java tool with flush.messages=1": median_ratio(
                runs["millrace"], runs["java"]
            )
        },
        detail=summaries(runs),
    )
