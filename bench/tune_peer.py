"""Finds the best settings of confluent-kafka and of Java's tools on this machine, by measurement.

`python -m bench.tune_peer produce --record-bytes 100` runs the client with variants of its settings
in turn and prints a table. `bench.settings` has the results; run it again after a change of the
peer or of the machine.
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from bench.directories import run_directory
from bench.measure import Bench, Run
from bench.peers.kafka import Kafka, running_kafka
from bench.processes import unwind_on_terminate
from bench.records import KEY_BYTES, write_random_records
from bench.settings import (
    CONFLUENT_CONSUMER,
    CONFLUENT_PRODUCER,
    JAVA_CONSUMER,
    JAVA_CONSUMER_FETCH_BYTES,
    JAVA_PRODUCER,
)
from bench.sides import Consume, JavaConsume, JavaProduce, Produce
from rich.console import Console
from rich.table import Table

FILL_BYTES = 3_000_000_000
TOPIC = "filled"
MIB = 1 << 20

CONFLUENT_PRODUCERS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "chosen": CONFLUENT_PRODUCER,
    "linger 20": {**CONFLUENT_PRODUCER, "linger.ms": 20},
    "linger 50": {**CONFLUENT_PRODUCER, "linger.ms": 50},
    "batch 256 KiB": {**CONFLUENT_PRODUCER, "batch.size": 262_144},
    "queue 200,000": {**CONFLUENT_PRODUCER, "queue.buffering.max.messages": 200_000},
    "sticky 100": {**CONFLUENT_PRODUCER, "sticky.partitioning.linger.ms": 100},
}
CONFLUENT_CONSUMERS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "chosen": CONFLUENT_CONSUMER,
    "fetch 1 MiB": {**CONFLUENT_CONSUMER, "fetch.message.max.bytes": MIB},
    "fetch 16 MiB": {**CONFLUENT_CONSUMER, "fetch.message.max.bytes": 16 * MIB},
    "receive 8 MiB": {**CONFLUENT_CONSUMER, "socket.receive.buffer.bytes": 8 * MIB},
    "queue 20,000": {**CONFLUENT_CONSUMER, "queued.min.messages": 20_000},
    "queue 1,000,000": {
        **CONFLUENT_CONSUMER,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 1_048_576,
    },
}
JAVA_PRODUCERS: dict[str, dict[str, str]] = {
    "defaults": {},
    "chosen": JAVA_PRODUCER,
    "batch 64 KiB": {**JAVA_PRODUCER, "batch.size": "65536"},
    "batch 1,000,000": {**JAVA_PRODUCER, "batch.size": "1000000"},
    "linger 0": {**JAVA_PRODUCER, "linger.ms": "0"},
    "buffer 256 MiB": {**JAVA_PRODUCER, "buffer.memory": str(256 * MIB)},
}
JAVA_CONSUMERS: dict[str, tuple[int, dict[str, str]]] = {
    "defaults": (MIB, {}),
    "chosen": (JAVA_CONSUMER_FETCH_BYTES, JAVA_CONSUMER),
    "fetch 16 MiB": (16 * MIB, {**JAVA_CONSUMER, "fetch.max.bytes": str(100 * MIB)}),
    "poll 5000": (JAVA_CONSUMER_FETCH_BYTES, {**JAVA_CONSUMER, "max.poll.records": "5000"}),
}


def main() -> None:
    """Measure one client's variants as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["produce", "java-produce", "consume", "java-consume"])
    parser.add_argument("--record-bytes", type=int, choices=[100, 1000], default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    unwind_on_terminate()
    with run_directory() as directory, running_kafka(directory / "kafka") as kafka:
        records = write_random_records(directory / "records", options.record_bytes)
        bench = Bench(rounds=options.rounds, seconds=options.seconds, directory=directory)
        runs = bench.interleave(_sides(options.what, kafka, records, options.record_bytes))
    _print(f"{options.what}, {options.record_bytes} B", runs)


def _sides(what: str, kafka: Kafka, records: Path, record_bytes: int) -> dict[str, Any]:
    directory = records.parent / "kafka"
    if what == "produce":
        return {
            f"{name}, {way}": _producer(kafka, records, way, settings)
            for way in ("each", "batch")
            for name, settings in CONFLUENT_PRODUCERS.items()
        }
    if what == "java-produce":
        return {
            name: JavaProduce(
                broker=kafka,
                directory=directory,
                records_file=records,
                record_bytes=record_bytes,
                topic_config={},
                settings=settings,
            )
            for name, settings in JAVA_PRODUCERS.items()
        }
    filled = _producer(kafka, records, "keyed", CONFLUENT_PRODUCER).fill(
        TOPIC, FILL_BYTES // (record_bytes + KEY_BYTES)
    )
    if what == "consume":
        return {
            name: Consume(
                broker=kafka,
                module="confluent_consume",
                way="",
                topic=TOPIC,
                settings=settings,
                log=records.with_suffix(".log"),
            )
            for name, settings in CONFLUENT_CONSUMERS.items()
        }
    return {
        name: JavaConsume(
            broker=kafka,
            directory=directory,
            topic=TOPIC,
            records=filled,
            record_bytes=record_bytes + KEY_BYTES,
            fetch_bytes=fetch_bytes,
            settings=settings,
        )
        for name, (fetch_bytes, settings) in JAVA_CONSUMERS.items()
    }


def _producer(kafka: Kafka, records: Path, way: str, settings: dict[str, Any]) -> Produce:
    return Produce(
        broker=kafka,
        module="confluent_produce",
        way=way,
        records_file=records,
        topic_config={},
        settings=settings,
    )


def _print(title: str, runs: dict[str, list[Run]]) -> None:
    table = Table(
        "settings", "median records/s", "best", "client CPU s/M", "broker CPU s/M", title=title
    )
    for name, of_side in runs.items():
        rates = [run.records_per_second for run in of_side]
        client = median(run.client.cpu_seconds / run.moved.records for run in of_side) * 1e6
        broker = median(run.broker.cpu_seconds / run.moved.records for run in of_side) * 1e6
        table.add_row(
            name, f"{median(rates):,.0f}", f"{max(rates):,.0f}", f"{client:.2f}", f"{broker:.2f}"
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
