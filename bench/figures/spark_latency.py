"""From sending a record to the end of its micro-batch: p50 of Spark's Kafka source over ours.

A producer sends `RATE` records a second to four partitions. A streaming query takes them to Spark's
`noop` sink as fast as micro-batches follow each other, with a checkpoint. A record is done when
Spark reports the end of its micro-batch: after the commit to the checkpoint.
"""

from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy
from bench.comparisons.spark_read import read_options
from bench.loads.paced import WARM_UP_S, percentiles
from bench.loads.spec import Load, Moved, command_line
from bench.measure import Bench, Outcome, Run, details, ratios
from bench.millrace_broker import running_millrace
from bench.peers.kafka import running_kafka
from bench.processes import LoadFailedError, run_load, usage
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC, SPARK_LATENCY
from bench.sides import GRACE_S, Broker, fresh_topic
from bench.spark import Spark, running_spark

RATE = 1_000
PARTITIONS = 4
PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


def measure(bench: Bench) -> Outcome:
    """Measure both sources in one session, interleaved."""
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(bench.directory / "kafka"))
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        spark = stack.enter_context(
            running_spark(bench.directory / "spark", {"spark.master": "local[2]"})
        )
        runs = bench.interleave(
            {
                "millrace": _side(bench, spark, "millrace", millrace, "latency_millrace"),
                "kafka": _side(bench, spark, "kafka", kafka, "latency_confluent"),
            }
        )
    return Outcome(
        values={
            "p50 of Spark's Kafka source over ours": median(
                ratios(*(details(runs[side], "p50_ms") for side in ("kafka", "millrace")))
            )
        },
        detail={
            name: {what: median(details(side, what)) for what in side[0].moved.detail}
            for name, side in runs.items()
        },
    )


def _side(
    bench: Bench, spark: Spark, name: str, broker: Broker, producer: str
) -> Callable[[float], Run]:
    topic_config = (MILLRACE_TOPIC if name == "millrace" else KAFKA_TOPIC)["replicated"]

    def run(seconds: float) -> Run:
        of_spark, of_broker = spark.usage(), usage(*broker.pids)
        with fresh_topic(broker, PARTITIONS, topic_config) as topic:
            options = read_options(name, broker, topic)
            spark.do(
                "follow",
                GRACE_S,
                format=name,
                options={**options, **SPARK_LATENCY[name]},
                directory=str(bench.directory),
            )
            load = Load(
                address=broker.address,
                topic=topic,
                partitions=PARTITIONS,
                seconds=seconds,
                rate=RATE,
                way="produce",
            )
            run_load(
                command_line(producer, load),
                bench.directory / "latency.log",
                seconds + WARM_UP_S + GRACE_S,
            )
            batches = spark.do("stop", GRACE_S)["batches"]
            sent = spark.do("sent", GRACE_S, format=name, options=options)
        latencies = _latencies_ms(batches, sent, topic)
        return Run(
            moved=Moved(
                records=len(latencies),
                bytes=0,
                seconds=seconds,
                detail={**percentiles(latencies), **_phases(batches)},
            ),
            client=spark.usage().since(of_spark),
            broker=usage(*broker.pids).since(of_broker),
        )

    return run


def _latencies_ms(batches: list[dict[str, Any]], sent: dict[str, Any], topic: str) -> Any:
    """Return the latencies of the records that were due after the warm-up."""
    partitions, offsets = numpy.array(sent["partitions"]), numpy.array(sent["offsets"])
    due, done = numpy.array(sent["due_ms"]), numpy.full(len(sent["due_ms"]), numpy.nan)
    done_at = numpy.array([batch["done_ms"] for batch in batches])
    for partition in range(PARTITIONS):
        ends = numpy.array([batch["end"][topic].get(str(partition), 0) for batch in batches])
        ours = partitions == partition
        batch = numpy.searchsorted(ends, offsets[ours], side="right")
        if len(batch) and batch.max() == len(ends):
            raise LoadFailedError(f"the query has not read partition {partition} to its end")
        done[ours] = done_at[batch]
    return (done - due)[due >= due.min() + WARM_UP_S * 1000]


def _phases(batches: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median time of each phase of a micro-batch."""
    return {
        f"{phase}_ms": float(median(batch["took_ms"].get(phase, 0) for batch in batches))
        for phase in (*PHASES, "triggerExecution")
    }
