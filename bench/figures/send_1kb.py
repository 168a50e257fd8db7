"""One send() per 1 KB record: records/s over confluent's produce()."""

from functools import partial

from bench.comparisons.produce import compare_single_sends
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "send_1kb",
        unit="times",
        goal=">= 1",
        measure=partial(compare_single_sends, record_bytes=1000, over_confluent=1),
    )
