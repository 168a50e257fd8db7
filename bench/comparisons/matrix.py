"""The cases of the comparison with Kafka: partitions, codecs and durabilities on one broker,
replication on three; a side for each client.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from bench.comparisons.pair import Pair
from bench.measure import Run
from bench.millrace_cluster import BROKERS, MillraceCluster
from bench.peers.kafka import Kafka
from bench.peers.raw_server import RawServer
from bench.settings import DURABILITIES
from bench.sides import RawStream

PARTITIONS = (1, 16)
CODECS = ("none", "lz4", "zstd")
CLUSTER_PARTITIONS = 16
CLUSTER_CODECS = ("none", "lz4")
REPLICATIONS = (1, 3)
RECORD_BYTES = 1000
FILL_RECORDS = 1_000_000
CEILING_MESSAGE_BYTES = 1 << 20

Side = Callable[[float], Run]


@dataclass(kw_only=True)
class Case:
    """One row of the comparison, with the clients as columns."""

    what: str
    """produce, consume, or the name of the raw ceiling."""
    partitions: int
    codec: str
    durability: str
    sides: dict[str, Side]
    brokers: int = 1
    """Number of brokers of each system."""
    replication: int = 1
    prepare: Callable[[], object] = lambda: None
    """Prepares the case before its first run."""
    runs: dict[str, list[Run]] = field(default_factory=dict)


def ceilings(servers: Mapping[str, RawServer], directory: Path) -> Iterator[Case]:
    """Yield raw gRPC streaming in both directions."""
    for direction in ("produce", "fetch"):
        yield Case(
            what=f"grpc {direction}",
            partitions=0,
            codec="",
            durability="",
            sides={
                kind: RawStream(
                    server=server,
                    direction=direction,
                    message_bytes=CEILING_MESSAGE_BYTES,
                    log=directory / "grpc-client.log",
                )
                for kind, server in servers.items()
            },
        )


def produce_cases(pair: Pair) -> Iterator[Case]:
    """Yield a case for each number of partitions, durability and codec."""
    for partitions, durability, codec in product(PARTITIONS, DURABILITIES, CODECS):
        yield _produce_case(pair, partitions, durability, codec)


def consume_cases(pair: Pair) -> Iterator[Case]:
    """Yield a case for each number of partitions and codec."""
    for partitions, codec in product(PARTITIONS, CODECS):
        yield _consume_case(pair, f"filled-{partitions}-{codec}", partitions, codec)


def cluster_cases(
    kafka: Kafka, millrace: MillraceCluster, directory: Path, records: Path
) -> Iterator[Case]:
    """Yield the cases of three brokers: for each replication, producers and then consumers."""
    for replication in REPLICATIONS:
        pair = Pair(
            kafka=replace(kafka, replication=replication),
            millrace=replace(millrace, replication=replication),
            directory=directory,
            records=records,
            record_bytes=RECORD_BYTES,
        )
        topic = f"filled-{replication}-of-{BROKERS}"
        cases = [
            *(
                _produce_case(pair, CLUSTER_PARTITIONS, durability, codec)
                for durability, codec in product(DURABILITIES, CLUSTER_CODECS)
            ),
            _consume_case(pair, topic, CLUSTER_PARTITIONS, CLUSTER_CODECS[0]),
        ]
        yield from (replace(case, brokers=BROKERS, replication=replication) for case in cases)


def _produce_case(pair: Pair, partitions: int, durability: str, codec: str) -> Case:
    options: Any = {"durability": durability, "codec": codec, "partitions": partitions}
    return Case(
        what="produce",
        partitions=partitions,
        codec=codec,
        durability=durability,
        sides={
            "millrace": pair.produce("batch", **options),
            "confluent": pair.confluent_produce("each", **options),
            "java": pair.java_produce(**options),
        },
    )


def _consume_case(pair: Pair, topic: str, partitions: int, codec: str) -> Case:
    return Case(
        what="consume",
        partitions=partitions,
        codec=codec,
        durability="",
        sides={
            "millrace": pair.consume("columns", topic, partitions),
            "millrace arrow": pair.consume("arrow", topic, partitions),
            "confluent": pair.confluent_consume(topic, partitions),
            "java": pair.java_consume(topic, FILL_RECORDS),
        },
        prepare=lambda: pair.fill(topic, partitions, FILL_RECORDS, codec),
    )
