"""End-to-end latency at 10,000 records a second: Kafka's p50 and p99 over ours.

A producer and a consumer process on each side, by the two Python clients, with the same linger: 0,
and the 5 ms that both have by default. The value is the smallest of the four ratios.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from bench.measure import Bench, Outcome, Run, connections_of, details, ratios
from bench.millrace_broker import running_millrace
from bench.peers.kafka import running_kafka
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC
from bench.sides import Paced

RATE = 10_000
LINGERS_MS = (0, 5)
COMPARED = ("p50", "p99")
PERCENTILES = ("p50_ms", "p99_ms", "p999_ms")


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
            over |= {f"{what}, {name}": ratio for what, ratio in kafka_over_ours(runs).items()}
            detail[name] = {
                side: {
                    **{what: median(details(of_side, what)) for what in PERCENTILES},
                    "client_connections": connections_of(of_side),
                }
                for side, of_side in runs.items()
            }
    return Outcome(values=smallest_first(over), detail=detail)


def kafka_over_ours(runs: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """Return the median over the rounds of Kafka's percentiles over ours."""
    return {
        f"Kafka's {what} over ours": median(
            ratios(*(details(runs[side], f"{what}_ms") for side in ("confluent", "millrace")))
        )
        for what in COMPARED
    }


def smallest_first(over: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios with the one that counts first; all have the same bound."""
    return dict(sorted(over.items(), key=lambda named: named[1]))
