"""confluent-kafka-python against both brokers: the client is the same, what differs is the broker.

Its settings are those that are fastest against Kafka. A broker's CPU seconds are for a GB of keys
and values.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bench.comparisons.pair import Pair, running_pair
from bench.figures.latency_10k import LINGERS_MS, PERCENTILES, RATE, kafka_over_ours, smallest_first
from bench.measure import Bench, Outcome, Run, details, median_ratio, ratios, summaries
from bench.millrace_broker import Millrace, running_millrace
from bench.millrace_cluster import REPLICATION, MillraceCluster
from bench.peers.kafka import running_kafka
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC
from bench.sides import Broker, Paced

TOPIC = "filled"
PARTITIONS = 4
FILLED_BYTES = 1_000_000_000
"""Of a topic that is consumed over and over: in the page cache on both sides."""
WAYS = ("each", "batch")
"""Of confluent's two calls: the better one counts, on either side."""


@dataclass(frozen=True, kw_only=True)
class ByKafka:
    """A Millrace broker, or a cluster of them, as Kafka's clients see it."""

    millrace: Millrace | MillraceCluster

    @property
    def address(self) -> str:
        """Where Kafka's clients begin."""
        return self.millrace.kafka_address

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of all brokers."""
        return self.millrace.pids

    def by_protocol(self, connections: Mapping[str, float]) -> Mapping[str, float]:
        """Return a client's connections by protocol: there is one."""
        return {"Kafka": sum(connections.values())}

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic that is ready for use."""
        self.millrace.create_topic(name, partitions, {**MILLRACE_TOPIC["replicated"], **config})

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its files."""
        self.millrace.delete_topic(name)


def _by_kafka(pair: Pair) -> Pair:
    """Return a pair whose confluent-kafka sides go to Millrace."""
    assert isinstance(pair.millrace, Millrace | MillraceCluster)
    return replace(pair, kafka=ByKafka(millrace=pair.millrace))


def compare_producers(bench: Bench, record_bytes: int) -> Outcome:
    """Compare produce() for each record, and produce_batch(); acks=all, idempotent."""
    return _compare_producers(bench, record_bytes, brokers=1)


def compare_replicated_producers(bench: Bench, record_bytes: int) -> Outcome:
    """Compare them likewise, with three brokers and three replicas; the rates alone have a goal."""
    both = _compare_producers(bench, record_bytes, brokers=REPLICATION)
    (rates, rate), (cpu, share) = both.values.items()
    return Outcome(values={rates: rate}, detail={cpu: share, **both.detail})


def _compare_producers(bench: Bench, record_bytes: int, brokers: int) -> Outcome:
    with running_pair(bench.directory, record_bytes, brokers, kafka_listener=True) as pair:
        ours = _by_kafka(pair)
        runs = bench.interleave(
            {
                f"{name}_{way}": side.confluent_produce(way)
                for name, side in (("millrace", ours), ("kafka", pair))
                for way in WAYS
            }
        )
    best = {name: _best(runs, name) for name in ("millrace", "kafka")}
    return _outcome(best["millrace"], best["kafka"], runs)


def compare_consumers(bench: Bench, record_bytes: int) -> Outcome:
    """Compare consumers of the same records with keys, which confluent-kafka wrote to both."""
    with running_pair(bench.directory, record_bytes, kafka_listener=True) as pair:
        ours = _by_kafka(pair)
        _fill(pair, record_bytes)
        _fill(ours, record_bytes)
        runs = bench.interleave(
            {"millrace": ours.confluent_consume(TOPIC), "kafka": pair.confluent_consume(TOPIC)}
        )
    return _outcome(runs["millrace"], runs["kafka"], runs)


def compare_arrow(bench: Bench, record_bytes: int) -> Outcome:
    """Compare our Arrow consumer with confluent-kafka, of a topic that confluent-kafka wrote."""
    with running_pair(bench.directory, record_bytes, kafka_listener=True) as pair:
        ours = _by_kafka(pair)
        _fill(ours, record_bytes)
        runs = bench.interleave(
            {"arrow": ours.consume("arrow", TOPIC), "confluent": ours.confluent_consume(TOPIC)}
        )
    over = median_ratio(runs["arrow"], runs["confluent"])
    return Outcome(values={"over confluent-kafka of the same topic": over}, detail=_detail(runs))


def compare_latencies(bench: Bench) -> Outcome:
    """Compare the times from a record's due time to its receipt, at 10,000 records a second."""
    over: dict[str, float] = {}
    detail: dict[str, Any] = {}
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(bench.directory / "kafka"))
        millrace = stack.enter_context(
            running_millrace(bench.directory / "millrace", kafka_listener=True)
        )
        sides: dict[str, tuple[Broker, Mapping[str, str]]] = {
            "millrace": (ByKafka(millrace=millrace), MILLRACE_TOPIC["replicated"]),
            "confluent": (kafka, KAFKA_TOPIC["replicated"]),
        }
        for linger_ms in LINGERS_MS:
            runs = bench.interleave(
                {
                    name: Paced(
                        broker=broker,
                        module="latency_confluent",
                        rate=RATE,
                        topic_config=config,
                        settings={"linger.ms": linger_ms},
                        log=bench.directory / "latency.log",
                    )
                    for name, (broker, config) in sides.items()
                }
            )
            named = f"linger {linger_ms} ms"
            over |= {f"{what}, {named}": ratio for what, ratio in kafka_over_ours(runs).items()}
            detail[named] = {
                side: {what: median(details(of_side, what)) for what in PERCENTILES}
                for side, of_side in runs.items()
            }
    return Outcome(values=smallest_first(over), detail=detail)


def broker_cpu_seconds_per_gb(run: Run) -> float:
    """Return the CPU seconds of the brokers alone, for a GB of keys and values."""
    return run.broker.cpu_seconds / run.moved.bytes * 1e9


def _fill(pair: Pair, record_bytes: int) -> None:
    produce = pair.confluent_produce("keyed", partitions=PARTITIONS)
    produce.fill(TOPIC, FILLED_BYTES // record_bytes)


def _best(runs: Mapping[str, Sequence[Run]], side: str) -> Sequence[Run]:
    return max(
        (runs[f"{side}_{way}"] for way in WAYS),
        key=lambda of_way: median(run.records_per_second for run in of_way),
    )


def _outcome(
    ours: Sequence[Run], theirs: Sequence[Run], runs: Mapping[str, Sequence[Run]]
) -> Outcome:
    cpu = median(
        ratios(
            [broker_cpu_seconds_per_gb(run) for run in ours],
            [broker_cpu_seconds_per_gb(run) for run in theirs],
        )
    )
    return Outcome(
        values={
            "records/s over Kafka with the same client": median_ratio(ours, theirs),
            "broker's CPU over Kafka's": cpu,
        },
        detail=_detail(runs),
    )


def _detail(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    return {
        side: {
            "broker_cpu_seconds_per_gb": median(map(broker_cpu_seconds_per_gb, of_side)),
            **told,
        }
        for (side, of_side), told in zip(runs.items(), summaries(runs).values(), strict=True)
    }
