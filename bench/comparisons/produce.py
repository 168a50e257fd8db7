"""Producing side by side: the batch APIs and Java's tool, or one call per record."""

from bench.comparisons.pair import running_pair
from bench.measure import Bench, Outcome, Run, median_ratio, summaries

CONFLUENT_WAY_OF = {"each": "each", "keyed": "keyed", "handle": "callback"}
"""Our way of sending single records, and confluent's that does the same."""
SINGLE_SENDS = {
    "each": ("", "over confluent's produce(), no key, checked by flush()"),
    "keyed": ("keyed_", "over confluent's produce() with a key"),
    "handle": ("handle_", "over confluent's produce() with a delivery report for each"),
}
"""By our way: its part of the figure's name, and what the value is."""
SIZES = {100: "100b", 1000: "1kb"}
"""A record's bytes, as the names of figures have them."""


def compare_batches(bench: Bench, record_bytes: int, brokers: int = 1) -> Outcome:
    """Compare our batch API with confluent-kafka's fastest call and with Java's perf tool.

    Confluent is measured by both of its calls; the better median counts. Several brokers have three
    replicas of each partition.
    """
    with running_pair(bench.directory, record_bytes, brokers) as pair:
        runs = bench.interleave(
            {
                "millrace": pair.produce("batch"),
                "confluent_batch": pair.confluent_produce("batch"),
                "confluent_each": pair.confluent_produce("each"),
                "java": pair.java_produce(),
            }
        )

    def over(side: str) -> float:
        return median_ratio(runs["millrace"], runs[side])

    return Outcome(
        values={
            "over confluent-kafka-python": min(over("confluent_batch"), over("confluent_each")),
            "over Kafka's Java tool": over("java"),
        },
        detail=summaries(runs),
    )


def compare_single_sends(bench: Bench, record_bytes: int) -> dict[str, Outcome]:
    """Compare one call per record: plain, with a key, with an outcome for each; a figure each."""
    with running_pair(bench.directory, record_bytes) as pair:
        sides = {}
        for way, their_way in CONFLUENT_WAY_OF.items():
            sides[f"millrace_{way}"] = pair.produce(way)
            sides[f"confluent_{way}"] = pair.confluent_produce(their_way)
        runs = bench.interleave(sides)
    return {
        f"send_{figure}{SIZES[record_bytes]}": Outcome(
            values={
                what: median_ratio(runs[f"millrace_{way}"], runs[f"confluent_{way}"]),
            },
            detail=summaries({side: runs[f"{side}_{way}"] for side in ("millrace", "confluent")}),
        )
        for way, (figure, what) in SINGLE_SENDS.items()
    }


def compare_fsync(bench: Bench, record_bytes: int) -> Outcome:
    """Compare appends that are on disk before the acknowledgement; Kafka's by Java's tool."""
    with running_pair(bench.directory, record_bytes) as pair:
        runs: dict[str, list[Run]] = bench.interleave(
            {
                "millrace": pair.produce("batch", durability="fsync"),
                "java": pair.java_produce(durability="fsync"),
            }
        )
    over = median_ratio(runs["millrace"], runs["java"])
    return Outcome(
        values={"over Kafka's Java tool with flush.messages=1": over}, detail=summaries(runs)
    )
