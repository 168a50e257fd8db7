"""What exactly once adds to a micro-batch of 400 rows: the time of a transaction of its tasks.

One session on two cores copies a topic to another one, 400 rows at a time, exactly once and at
least once in turn; the value is the difference of the medians. Two tasks write to four partitions;
in `detail` 200 tasks write to 100 partitions.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.comparisons.spark_read import read_options
from bench.loads.spec import Moved
from bench.measure import Bench, Outcome, Run, details
from bench.millrace_broker import running_millrace
from bench.processes import LoadFailedError, usage
from bench.settings import MILLRACE_TOPIC
from bench.sides import GRACE_S, Broker, fresh_topic
from bench.spark import Spark, running_spark

from millrace.client import SyncProducer

ROWS = 400
BATCHES = 10
"""Of one query; the first two are left out."""
WARM_UP_BATCHES = 2
VALUE: Final = b"v" * 100
DELIVERIES = ("exactly-once", "at-least-once")


def measure(bench: Bench) -> Outcome:
    """Measure both, interleaved; first few tasks, then many."""
    with ExitStack() as stack:
        broker = stack.enter_context(running_millrace(bench.directory / "millrace"))
        spark = stack.enter_context(
            running_spark(bench.directory / "spark", {"spark.master": "local[2]"})
        )
        found = {
            f"{tasks} tasks, {partitions} partitions": bench.interleave(
                {
                    delivery: _Side(bench, spark, broker, delivery, tasks, partitions)
                    for delivery in DELIVERIES
                }
            )
            for tasks, partitions in ((2, 4), (200, 100))
        }
    added = {
        name: _ms(runs, "exactly-once") - _ms(runs, "at-least-once") for name, runs in found.items()
    }
    few, many = added
    return Outcome(
        values={"ms added to a micro-batch of 400 rows": added[few]},
        detail={
            f"added, {many}": added[many],
            **{
                f"{delivery}, {name}": _ms(runs, delivery)
                for name, runs in found.items()
                for delivery in DELIVERIES
            },
        },
    )


def _ms(runs: dict[str, list[Run]], delivery: str) -> float:
    return median(details(runs[delivery], "ms"))


@dataclass(frozen=True)
class _Side:
    """Copies with one delivery."""

    bench: Bench
    spark: Spark
    broker: Broker
    delivery: str
    tasks: int
    partitions: int

    def __call__(self, seconds: float) -> Run:
        """Copy the same rows, over and over, for at least so many seconds."""
        config = MILLRACE_TOPIC["replicated"]
        began = time.monotonic()
        of_spark, of_broker = self.spark.usage(), usage(*self.broker.pids)
        times: list[float] = []
        with fresh_topic(self.broker, 1, config) as source:
            with SyncProducer(self.broker.address) as producer:
                for _ in range(BATCHES):
                    producer.send_batch(source, [VALUE] * ROWS)
            while time.monotonic() - began < seconds:
                with fresh_topic(self.broker, self.partitions, config) as target:
                    times += self._copy(source, target)
        return Run(
            moved=Moved(
                records=len(times) * ROWS,
                bytes=len(times) * ROWS * len(VALUE),
                seconds=time.monotonic() - began,
                detail={"ms": median(times)},
            ),
            client=self.spark.usage().since(of_spark),
            broker=usage(*self.broker.pids).since(of_broker),
        )

    def _copy(self, source: str, target: str) -> list[float]:
        answer = self.spark.do(
            "copy",
            GRACE_S + BATCHES * self.tasks,
            format="millrace",
            options={
                **read_options("millrace", self.broker, source),
                "maxOffsetsPerTrigger": ROWS,
            },
            sink={
                "bootstrap.servers": self.broker.address,
                "topic": target,
                "delivery": self.delivery,
            },
            tasks=self.tasks,
            directory=str(self.bench.directory),
        )
        if answer["rows"] != [ROWS] * BATCHES:
            raise LoadFailedError(
                f"micro-batches of {answer['rows']} rows, not {BATCHES} of {ROWS}"
            )
        return [float(ms) for ms in answer["ms"][WARM_UP_BATCHES:]]
