"""Copying a topic exactly once, records of 100 bytes, in transactions of 100 ms.

Ours is `Consumer.process_exactly_once`; beside it the loop that users of confluent-kafka write.
"""

from bench.comparisons.pair import Pair, running_pair
from bench.measure import Bench, Outcome, median_ratio, summaries
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC
from bench.sides import Broker, Copy

RECORD_BYTES = 100
COMMIT_MS = 100
TOPIC = "source"
PARTITIONS = 4
RATE_MAX = 12_000_000
"""Records a second that nobody copies on two cores."""


def measure(bench: Bench) -> Outcome:
    """Measure both, interleaved."""
    with running_pair(bench.directory, RECORD_BYTES) as pair:
        filled = pair.fill(TOPIC, PARTITIONS, int(RATE_MAX * bench.seconds))
        sides = {
            "millrace": _copy(pair, pair.millrace, "millrace", MILLRACE_TOPIC, filled),
            "confluent": _copy(pair, pair.kafka, "kafka", KAFKA_TOPIC, filled),
        }
        runs = bench.interleave(sides)
    over = median_ratio(runs["millrace"], runs["confluent"])
    return Outcome(values={"over confluent-kafka-python": over}, detail=summaries(runs))


def _copy(
    pair: Pair,
    broker: Broker,
    system: str,
    topic_config: dict[str, dict[str, str]],
    filled: dict[str, int],
) -> Copy:
    return Copy(
        broker=broker,
        module="copy_millrace" if system == "millrace" else "copy_confluent",
        topic=TOPIC,
        records=filled[system],
        commit_ms=COMMIT_MS,
        topic_config=topic_config["replicated"],
        log=pair.directory / "copy.log",
        partitions=PARTITIONS,
    )
