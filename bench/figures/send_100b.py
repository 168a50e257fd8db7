"""One send() per 100 B record: records/s over confluent's produce()."""

from functools import partial

from bench.comparisons.produce import compare_single_sends
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "send_100b",
        unit="times",
        goal=">= 1.5",
        measure=partial(compare_single_sends, record_bytes=100, over_confluent=1.5),
    )
