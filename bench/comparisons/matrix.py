"""The cases of the comparison with Kafka: partitions, codecs and durabilities, a side for each
client.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.measure import Run
from bench.millrace_broker import Millrace
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
from bench.sides import Consume, JavaConsume, JavaProduce, Produce, RawStream, fill

PARTITIONS = (1, 16)
CODECS = ("none", "lz4", "zstd")
RECORD_BYTES = 1000
FILL_RECORDS = 1_000_000
CEILING_MESSAGE_BYTES = 1 << 20

Side = Callable[[float], Run]


@dataclass(kw_only=True)
class Case:
    """One row of the comparison, with the clients as columns."""

    what: str
    """produce, consume, or the ceiling's name."""
    partitions: int
    codec: str
    durability: str
    sides: dict[str, Side]
    prepare: Callable[[], None] = lambda: None
    """What has to be done before the first run."""
    runs: dict[str, list[Run]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Filling:
    """A topic that both brokers hold, with the same records, for consumers."""

    topic: str
    partitions: int
    codec: str
    records: Path

    def fill(self, kafka: Kafka, millrace: Millrace) -> None:
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
                sides: dict[str, Side] = {
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
                yield Case(
                    what="produce",
                    partitions=partitions,
                    codec=codec,
                    durability=durability,
                    sides=sides,
                )


def consume_cases(
    kafka: Kafka, millrace: Millrace, directory: Path, records: Path
) -> Iterator[Case]:
    """Yield a case for each number of partitions and codec."""
    for partitions in PARTITIONS:
        for codec in CODECS:
            topic = f"filled-{partitions}-{codec}"
            log = directory / "consume.log"
            ours: dict[str, Side] = {
                name: Consume(
                    broker=millrace,
                    module="millrace_consume",
                    way=way,
                    topic=topic,
                    settings=MILLRACE_CONSUMER,
                    log=log,
                    partitions=partitions,
                )
                for name, way in (("millrace", "columns"), ("millrace arrow", "arrow"))
            }
            theirs: dict[str, Side] = {
                "confluent": Consume(
                    broker=kafka,
                    module="confluent_consume",
                    way="",
                    topic=topic,
                    settings=CONFLUENT_CONSUMER,
                    log=log,
                    partitions=partitions,
                ),
                "java": JavaConsume(
                    broker=kafka,
                    directory=directory / "kafka",
                    topic=topic,
                    records=FILL_RECORDS,
                    record_bytes=RECORD_BYTES + KEY_BYTES,
                ),
            }

            filling = Filling(topic=topic, partitions=partitions, codec=codec, records=records)
            yield Case(
                what="consume",
                partitions=partitions,
                codec=codec,
                durability="",
                sides={**ours, **theirs},
                prepare=partial(filling.fill, kafka, millrace),
            )
