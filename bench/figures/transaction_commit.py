"""The time of a commit: from its beginning until a reader of committed records has the records.

Three brokers, three replicas on disk, transactions of a record in each of three partitions, whose
records are acknowledged before. Kafka's p50 and p99 over ours; the value is the smaller one.

Both also flush what the coordinator decides: Millrace by default, Kafka as it is told here. Without
that a loss of power can take a commit back that was answered.
"""

from dataclasses import replace
from statistics import median

from bench.comparisons.pair import running_pair
from bench.figures.latency_10k import kafka_over_ours, smallest_first
from bench.loads.commits import until_seen
from bench.loads.spec import Moved
from bench.measure import Bench, Outcome, details
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC
from bench.sides import Paced

PARTITIONS = 3
COMMITS_PER_SECOND = 20
RECORD_BYTES = 100
PERCENTILES = ("p50_ms", "p99_ms")
KAFKA_FLUSHES = "log.flush.interval.messages=1\n"


def measure(bench: Bench) -> Outcome:
    """Measure both, interleaved."""
    with running_pair(
        bench.directory, RECORD_BYTES, brokers=3, kafka_properties=KAFKA_FLUSHES
    ) as pair:
        runs = bench.interleave(
            {
                name: Paced(
                    broker=broker,
                    module=f"commits_{name}",
                    rate=COMMITS_PER_SECOND,
                    topic_config=topic_config["fsync"],
                    settings={},
                    log=bench.directory / "commits.log",
                    partitions=PARTITIONS,
                    joined=_joined,
                )
                for name, broker, topic_config in (
                    ("millrace", pair.millrace, MILLRACE_TOPIC),
                    ("confluent", pair.kafka, KAFKA_TOPIC),
                )
            }
        )
    return Outcome(
        values=smallest_first(kafka_over_ours(runs)),
        detail={
            side: {what: median(details(of_side, what)) for what in PERCENTILES}
            for side, of_side in runs.items()
        },
    )


def _joined(produced: Moved, consumed: Moved) -> Moved:
    return replace(consumed, detail=until_seen(produced.detail, consumed.detail))
