"""What transactions cost: producing in transactions of 100 ms over plain producing, 1 KB records.

In `detail` the same ratio for confluent-kafka and Kafka.
"""

from bench.comparisons.pair import running_pair
from bench.measure import Bench, Outcome, median_ratio, summaries

RECORD_BYTES = 1000
COMMIT_MS = 100


def measure(bench: Bench) -> Outcome:
    """Measure both systems with and without transactions, interleaved."""
    with running_pair(bench.directory, RECORD_BYTES) as pair:
        runs = bench.interleave(
            {
                "millrace": pair.produce("batch"),
                "millrace_transactions": pair.produce("batch", commit_ms=COMMIT_MS),
                "confluent": pair.confluent_produce("each"),
                "confluent_transactions": pair.confluent_produce("each", commit_ms=COMMIT_MS),
            }
        )
    shares = {
        side: median_ratio(runs[f"{side}_transactions"], runs[side])
        for side in ("millrace", "confluent")
    }
    return Outcome(
        values={"over plain producing": shares["millrace"]},
        detail=summaries(runs) | {"confluent_over_plain": shares["confluent"]},
    )
