"""Peak memory of one Python worker while Spark reads every value of a topic of 10 GB.

One executor with two cores and 1 GB, as a process of its own (`local-cluster`), without the
environment settings that let processes keep freed memory: a user's defaults. The sum of all values'
CRCs proves that each was read. A quick look reads a tenth.
"""

from contextlib import ExitStack

from bench.comparisons.spark_read import PARTITIONS, TOPIC, check_counted, read_options
from bench.measure import Bench, Outcome, say
from bench.millrace_broker import running_millrace
from bench.processes import status_bytes
from bench.records import KEY_BYTES, write_random_records
from bench.settings import MILLRACE_PRODUCER, MILLRACE_TOPIC
from bench.sides import Produce
from bench.spark import running_spark

TOPIC_BYTES = 10_000_000_000
RECORD_BYTES = 1000
QUICK_PART = 10
READ_TIMEOUT_S = 1200


def measure(bench: Bench) -> Outcome:
    """Read the topic once a round, each time with new workers; the highest peak counts."""
    records_file = write_random_records(bench.directory / "records", RECORD_BYTES)
    wanted = TOPIC_BYTES // (RECORD_BYTES + KEY_BYTES) // (1 if bench.is_full else QUICK_PART)
    peaks: list[list[float]] = []
    with ExitStack() as stack:
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        filled = Produce(
            broker=millrace,
            module="millrace_produce",
            way="batch_keyed",
            records_file=records_file,
            topic_config=MILLRACE_TOPIC["replicated"],
            settings=MILLRACE_PRODUCER,
            partitions=PARTITIONS,
        ).fill(TOPIC, wanted)
        for number in range(bench.rounds):
            with running_spark(
                bench.directory / f"spark-{number}",
                {"spark.master": "local-cluster[1,2,1024]"},
                keeps_memory=False,
            ) as spark:
                counted = spark.do(
                    "count",
                    READ_TIMEOUT_S,
                    format="millrace",
                    options=read_options("millrace", millrace, TOPIC),
                )
                check_counted(counted, filled, records_file)
                of_workers = [status_bytes(pid, "VmHWM") / 1e6 for pid in spark.python_workers()]
            say(f"round {number + 1}/{bench.rounds} workers with {of_workers} MB at their peak")
            peaks.append(of_workers)
    return Outcome(
        values={"peak MB of one Python worker": max(max(of_workers) for of_workers in peaks)},
        detail={"records": filled, "workers_mb": peaks},
    )
