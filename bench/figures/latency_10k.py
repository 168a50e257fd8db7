"""End-to-end latency at 10,000 records a second: Kafka's p99 over ours.

A producer and a consumer process on each side, by the two Python clients, with the same linger: 0,
and the 5 ms that both have by default. The value is the smaller ratio.
"""

from contextlib import ExitStack
from statistics import median
from typing import Any

from bench.measure import Bench, Outcome, details, ratios
from bench.millrace_broker import running_millrace
from bench.peers.kafka import running_kafka
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC
from bench.sides import Paced

RATE = 10_000
LINGERS_MS = (0, 5)


def measure(bench: Bench) -> Outcome:
    """Measure both lingers, each interleaved."""
    over: dict[str, float] = {}
    detail: dict[str, Any] = {}
    log = bench.directory / "latency.log"
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(bench.directory / "kafka"))
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        for linger_ms in LINGERS_MS:
            runs = bench.interleave(
                {
                    "millrace": Paced(
                        broker=millrace,
                        module="latency_millrace",
                        rate=RATE,
                        topic_config=MILLRACE_TOPIC["replicated"],
                        settings={"linger_ms": linger_ms},
                        log=log,
                    ),
                    "confluent": Paced(
                        broker=kafka,
                        module="latency_confluent",
                        rate=RATE,
                        topic_config=KAFKA_TOPIC["replicated"],
                        settings={"linger.ms": linger_ms},
                        log=log,
                    ),
                }
            )
            name = f"linger {linger_ms} ms"
            over[name] = median(
                ratios(*(details(runs[side], "p99_ms") for side in ("confluent", "millrace")))
            )
            detail[name] = {
                side: {what: median(details(of_side, what)) for what in of_side[0].moved.detail}
                for side, of_side in runs.items()
            }
    return Outcome(
        values={"smaller of Kafka's p99 over ours": min(over.values())},
        detail={"kafka_over_millrace": over, **detail},
    )
