"""The cases of the comparison with Kafka: partitions, codecs and durabilities on one broker,
replication on three; a side for each client.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench.measure import Run
from bench.millrace_broker import Millrace
from bench.millrace_cluster import BROKERS, MillraceCluster
from bench.peers.grpc_server import GrpcServer
from bench.peers.kafka import Kafka
from bench.records import KEY_BYTES
from bench.settings import (
    CONFLUENT_CONSUMER,
    CONFLUENT_PRODUCER,
    DURABILITIES,
    JAVA_PRODUCER,
    KAFKA_TOPIC,
    MILLRACE_CONSUMER,
    MILLRACE_PRODUCER,
    MILLRACE_TOPIC,
)
from bench.sides import Broker, Consume, JavaConsume, JavaProduce, Produce, RawStream, fill

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
    prepare: Callable[[], None] = lambda: None
    """Prepares the case before its first run."""
    runs: dict[str, list[Run]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Filling:
    """A topic with the same records on both brokers, for consumers."""

    topic: str
    partitions: int
    codec: str
    records: Path

    def fill(self, kafka: Broker, millrace: Broker) -> None:
        """Create and fill it on both."""
        fill(
            kafka,
            "confluent_produce",
            "keyed",
            topic=self.topic,
            partitions=self.partitions,
            config=KAFKA_TOPIC["replicated"],
            records_file=self.records,
            records=FILL_RECORDS,
            settings={**CONFLUENT_PRODUCER, "compression.type": self.codec},
        )
        fill(
            millrace,
            "millrace_produce",
            "batch_keyed",
            topic=self.topic,
            partitions=self.partitions,
            config=MILLRACE_TOPIC["replicated"],
            records_file=self.records,
            records=FILL_RECORDS,
            settings={**MILLRACE_PRODUCER, "compression": self.codec},
        )


def ceilings(servers: Mapping[str, GrpcServer], directory: Path) -> Iterator[Case]:
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
                    kind=kind,
                    direction=direction,
                    message_bytes=CEILING_MESSAGE_BYTES,
                    log=directory / "grpc-client.log",
                )
                for kind, server in servers.items()
            },
        )


def produce_cases(
    kafka: Kafka, millrace: Millrace, directory: Path, records: Path
) -> Iterator[Case]:
    """Yield a case for each number of partitions, durability and codec."""
    for partitions in PARTITIONS:
        for durability in DURABILITIES:
            for codec in CODECS:
                yield Case(
                    what="produce",
                    partitions=partitions,
                    codec=codec,
                    durability=durability,
                    sides=_producers(
                        kafka,
                        millrace,
                        directory,
                        records,
                        partitions=partitions,
                        durability=durability,
                        codec=codec,
                    ),
                )


def consume_cases(
    kafka: Kafka, millrace: Millrace, directory: Path, records: Path
) -> Iterator[Case]:
    """Yield a case for each number of partitions and codec."""
    for partitions in PARTITIONS:
        for codec in CODECS:
            filling = Filling(
                topic=f"filled-{partitions}-{codec}",
                partitions=partitions,
                codec=codec,
                records=records,
            )
            yield Case(
                what="consume",
                partitions=partitions,
                codec=codec,
                durability="",
                sides=_consumers(kafka, millrace, directory, filling),
                prepare=partial(filling.fill, kafka, millrace),
            )


def cluster_cases(
    kafka: Kafka, millrace: MillraceCluster, directory: Path, records: Path
) -> Iterator[Case]:
    """Yield the cases of three brokers: for each replication, producers and then consumers."""
    for replication in REPLICATIONS:
        theirs = replace(kafka, replication=replication)
        ours = replace(millrace, replication=replication)
        for durability in DURABILITIES:
            for codec in CLUSTER_CODECS:
                yield Case(
                    what="produce",
                    partitions=CLUSTER_PARTITIONS,
                    codec=codec,
                    durability=durability,
                    sides=_producers(
                        theirs,
                        ours,
                        directory,
                        records,
                        partitions=CLUSTER_PARTITIONS,
                        durability=durability,
                        codec=codec,
                    ),
                    brokers=BROKERS,
                    replication=replication,
                )
        filling = Filling(
            topic=f"filled-{replication}-of-{BROKERS}",
            partitions=CLUSTER_PARTITIONS,
            codec=CLUSTER_CODECS[0],
            records=records,
        )
        yield Case(
            what="consume",
            partitions=CLUSTER_PARTITIONS,
            codec=filling.codec,
            durability="",
            sides=_consumers(theirs, ours, directory, filling),
            brokers=BROKERS,
            replication=replication,
            prepare=partial(filling.fill, theirs, ours),
        )


def _producers(
    kafka: Broker,
    millrace: Broker,
    directory: Path,
    records: Path,
    *,
    partitions: int,
    durability: str,
    codec: str,
) -> dict[str, Side]:
    return {
        "millrace": Produce(
            broker=millrace,
            module="millrace_produce",
            way="batch",
            records_file=records,
            topic_config=MILLRACE_TOPIC[durability],
            settings={**MILLRACE_PRODUCER, "compression": codec},
            partitions=partitions,
        ),
        "confluent": Produce(
            broker=kafka,
            module="confluent_produce",
            way="each",
            records_file=records,
            topic_config=KAFKA_TOPIC[durability],
            settings={**CONFLUENT_PRODUCER, "compression.type": codec},
            partitions=partitions,
        ),
        "java": JavaProduce(
            broker=kafka,
            directory=directory / "kafka",
            records_file=records,
            record_bytes=RECORD_BYTES,
            topic_config=KAFKA_TOPIC[durability],
            settings={**JAVA_PRODUCER, "compression.type": codec},
            partitions=partitions,
        ),
    }


def _consumers(
    kafka: Broker, millrace: Broker, directory: Path, filling: Filling
) -> dict[str, Side]:
    log = directory / "consume.log"
    ours: dict[str, Side] = {
        name: Consume(
            broker=millrace,
            module="millrace_consume",
            way=way,
            topic=filling.topic,
            settings=MILLRACE_CONSUMER,
            log=log,
            partitions=filling.partitions,
        )
        for name, way in (("millrace", "columns"), ("millrace arrow", "arrow"))
    }
    theirs: dict[str, Side] = {
        "confluent": Consume(
            broker=kafka,
            module="confluent_consume",
            way="",
            topic=filling.topic,
            settings=CONFLUENT_CONSUMER,
            log=log,
            partitions=filling.partitions,
        ),
        "java": JavaConsume(
            broker=kafka,
            directory=directory / "kafka",
            topic=filling.topic,
            records=FILL_RECORDS,
            record_bytes=RECORD_BYTES + KEY_BYTES,
        ),
    }
    return {**ours, **theirs}
