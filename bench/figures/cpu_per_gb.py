"""CPU seconds for a GB of 1 KB records, client and broker together: ours over those of Kafka with
confluent-kafka, to produce and to consume.

Of both clients the seconds count from the first record to the last, without imports and start; of
the brokers those of the whole run. To produce, the cheaper of confluent's two calls counts in each
round. Filling the topic to consume comes first, and warms up the JVM.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from bench.comparisons.pair import running_pair
from bench.measure import Bench, Outcome, Run, cpu_seconds_per_gb, ratios, summaries

RECORD_BYTES = 1000
TOPIC = "filled"
PARTITIONS = 4
FILLED_RECORDS = 2_000_000


def measure(bench: Bench) -> Outcome:
    """Measure consumers, and then producers, each interleaved."""
    with running_pair(bench.directory, RECORD_BYTES) as pair:
        pair.fill(TOPIC, PARTITIONS, FILLED_RECORDS)
        consumed = bench.interleave(
            {
                "millrace": pair.consume("columns", TOPIC),
                "confluent": pair.confluent_consume(TOPIC),
            }
        )
        for broker in (pair.kafka, pair.millrace):
            broker.delete_topic(TOPIC)
        produced = bench.interleave(
            {
                "millrace": pair.produce("batch"),
                "confluent_batch": pair.confluent_produce("batch"),
                "confluent_each": pair.confluent_produce("each"),
            }
        )
    return Outcome(
        values={
            "to produce, over Kafka with confluent-kafka": over_cheapest(
                produced, "confluent_batch", "confluent_each"
            ),
            "to consume, likewise": over_cheapest(consumed, "confluent"),
        },
        detail={
            name: {
                side: {"cpu_seconds_per_gb": median(map(cpu_seconds_per_gb, of_side)), **told}
                for (side, of_side), told in zip(
                    runs.items(), summaries(runs).values(), strict=True
                )
            }
            for name, runs in (("produce", produced), ("consume", consumed))
        },
    )


def over_cheapest(runs: Mapping[str, Sequence[Run]], *theirs: str) -> float:
    """Return the median of our cost over that of the cheapest of their sides, round by round."""
    costs = [[cpu_seconds_per_gb(run) for run in runs[side]] for side in theirs]
    ours = [cpu_seconds_per_gb(run) for run in runs["millrace"]]
    return median(ratios(ours, [min(of_round) for of_round in zip(*costs, strict=True)]))
