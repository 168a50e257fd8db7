"""Wake-ups of threads that a single record costs, from `send()` to its acknowledgement: ours over
Kafka's.

One client sends a record when the one before is acknowledged, without linger. Those of the client's
and the broker's threads count together. `detail` has them apart, and the latencies.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.loads.spec import Load
from bench.measure import Bench, Outcome, Run, details, ratios
from bench.millrace_broker import running_millrace
from bench.peers.kafka import running_kafka
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC
from bench.sides import Broker, fresh_topic, run_client


@dataclass(frozen=True, kw_only=True)
class OneByOne:
    """A client that sends single records, one after the other."""

    broker: Broker
    module: str
    topic_config: Mapping[str, str]
    producer: Mapping[str, Any]
    log: Path

    def __call__(self, seconds: float) -> Run:
        """Send for so many seconds to a fresh topic."""
        with fresh_topic(self.broker, 1, self.topic_config) as topic:
            load = Load(
                address=self.broker.address,
                topic=topic,
                partitions=1,
                seconds=seconds,
                settings={"producer": dict(self.producer), "pids": self.broker.pids},
            )
            return run_client(self.broker, self.module, load, self.log)


def measure(bench: Bench) -> Outcome:
    """Measure both systems, interleaved."""
    log = bench.directory / "one_by_one.log"
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(bench.directory / "kafka"))
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        runs = bench.interleave(
            {
                "millrace": OneByOne(
                    broker=millrace,
                    module="one_by_one_millrace",
                    topic_config=MILLRACE_TOPIC["replicated"],
                    producer={"linger_ms": 0},
                    log=log,
                ),
                "confluent": OneByOne(
                    broker=kafka,
                    module="one_by_one_confluent",
                    topic_config=KAFKA_TOPIC["replicated"],
                    producer={"linger.ms": 0},
                    log=log,
                ),
            }
        )
    ours, theirs = (_waits(runs[side]) for side in ("millrace", "confluent"))
    return Outcome(
        values={"ours over Kafka's": median(ratios(ours, theirs))},
        detail={
            "a_record": {"millrace": median(ours), "confluent": median(theirs)},
            **{
                side: {
                    what: value if isinstance(value, list) else median(details(of_side, what))
                    for what, value in of_side[-1].moved.detail.items()
                }
                for side, of_side in runs.items()
            },
        },
    )


def _waits(runs: list[Run]) -> list[float]:
    """Return the wake-ups a record of each run, in client and broker together."""
    return [sum(run.moved.detail[f"{side}_waits"] for side in ("client", "broker")) for run in runs]
