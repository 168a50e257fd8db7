"""The broker's CPU seconds per 64 KiB batch with 1,000 partitions, over those with 10.

Two brokers, one with a topic of 10 partitions and one with 1,000; the same producer sends full
batches of 64 KiB to all partitions in turn.
"""

from contextlib import ExitStack
from statistics import median

from bench.measure import Bench, Outcome, details, ratios, summaries
from bench.millrace_broker import running_millrace
from bench.records import write_random_records
from bench.settings import MILLRACE_PRODUCER, MILLRACE_TOPIC
from bench.sides import Produce

FEW, MANY = 10, 1000
BATCH_BYTES = 64 << 10
RECORD_BYTES = 1016
"""64 of them make a batch of 64 KiB, as the client counts 8 additional bytes for each."""


def measure(bench: Bench) -> Outcome:
    """Measure both brokers in turn."""
    records = write_random_records(bench.directory / "records", RECORD_BYTES)
    with ExitStack() as stack:
        runs = bench.interleave(
            {
                str(partitions): Produce(
                    broker=stack.enter_context(running_millrace(bench.directory / str(partitions))),
                    module="spread_millrace",
                    way="",
                    records_file=records,
                    topic_config=MILLRACE_TOPIC["replicated"],
                    settings={"batch_bytes": BATCH_BYTES, "producer": MILLRACE_PRODUCER},
                    partitions=partitions,
                )
                for partitions in (FEW, MANY)
            }
        )
    cost = {
        partitions: [run.broker.cpu_seconds / run.moved.detail["batches"] for run in of_side]
        for partitions, of_side in runs.items()
    }
    return Outcome(
        values={
            "CPU seconds per batch, 1,000 partitions over 10": median(
                ratios(cost[str(MANY)], cost[str(FEW)])
            )
        },
        detail={
            "cpu_microseconds_per_batch": {
                partitions: median(of_side) * 1e6 for partitions, of_side in cost.items()
            },
            "records_per_batch": {
                partitions: median(details(of_side, "records_per_batch"))
                for partitions, of_side in runs.items()
            },
            **summaries(runs),
        },
    )
