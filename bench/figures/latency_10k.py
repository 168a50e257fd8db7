"""End-to-end latency at 10,000 records a second: Kafka's p99 over ours.

A producer and a consumer process on each side, by the two Python clients, with the same linger: 0,
and the 5 ms that both have by default. The value is the smaller ratio.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.loads.paced import WARM_UP_S
from bench.loads.spec import Load, Moved, command_line
from bench.measure import Bench, Outcome, Run, ratios
from bench.millrace_broker import running_millrace
from bench.peers.kafka import running_kafka
from bench.processes import last_json, run_loads, usage
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC
from bench.sides import GRACE_S, Broker, fresh_topic

RATE = 10_000
LINGERS_MS = (0, 5)
PARTITIONS = 4


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
                    "millrace": _side(
                        millrace,
                        "latency_millrace",
                        {"linger_ms": linger_ms},
                        MILLRACE_TOPIC["replicated"],
                        log,
                    ),
                    "confluent": _side(
                        kafka,
                        "latency_confluent",
                        {"linger.ms": linger_ms},
                        KAFKA_TOPIC["replicated"],
                        log,
                    ),
                }
            )
            name = f"linger {linger_ms} ms"
            over[name] = median(ratios(_p99(runs["confluent"]), _p99(runs["millrace"])))
            detail[name] = {
                side: {
                    what: median([run.moved.detail[what] for run in of_side])
                    for what in of_side[0].moved.detail
                }
                for side, of_side in runs.items()
            }
    return Outcome(
        values={"smaller of Kafka's p99 over ours": min(over.values())},
        detail={"kafka_over_millrace": over, **detail},
    )


def _p99(runs: list[Run]) -> list[float]:
    return [run.moved.detail["p99_ms"] for run in runs]


def _side(
    broker: Broker,
    module: str,
    producer_settings: Mapping[str, Any],
    topic_config: Mapping[str, str],
    log: Path,
) -> Callable[[float], Run]:
    def run(seconds: float) -> Run:
        with fresh_topic(broker, PARTITIONS, topic_config) as topic:
            commands = [
                command_line(
                    module,
                    Load(
                        address=broker.address,
                        topic=topic,
                        partitions=PARTITIONS,
                        seconds=seconds,
                        rate=RATE,
                        way=way,
                        settings=dict(settings),
                    ),
                )
                for way, settings in (("consume", {}), ("produce", producer_settings))
            ]
            before = usage(*broker.pids)
            (printed, used), _ = run_loads(commands, log, seconds + WARM_UP_S + GRACE_S)
            return Run(
                moved=Moved(**last_json(printed)),
                client=used,
                broker=usage(*broker.pids).since(before),
            )

    return run
