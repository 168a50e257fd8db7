"""Kafka Connect with its file connectors, by what their documentation shows.

A worker is a process of its own: alone with a file of its positions, or in a group with topics for
connectors, positions and states. Lines go through a file, a topic, and another file.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bench.peers.maven import KAFKA_VERSION
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.cimpl import NewTopic
from tests.suites.command_lines import Bench, Check, CheckedSuite, UnexpectedError
from tests.suites.connect_worker import WAIT_S, Worker, libraries, running_worker, until
from tests.suites.whole_topic import messages_of

LINES = 200
PARTS = 10
ARTIFACTS = ("connect-runtime", "connect-json", "connect-file")
INTERNAL = ("config", "offset", "status")


@dataclass(frozen=True, kw_only=True)
class Files:
    """A file whose lines go to a topic, and one that gets them."""

    bench: Bench
    source: Path
    sink: Path
    written: list[str] = field(default_factory=list)

    @staticmethod
    def of(bench: Bench) -> "Files":
        """Make them for a check, with the topic between them."""
        _admin(bench).create_topics([NewTopic(bench.topic, 2, bench.target.replication)])[
            bench.topic
        ].result(WAIT_S)
        source, sink = (bench.folder / f"{bench.prefix}-{name}.txt" for name in ("in", "out"))
        source.touch()
        return Files(bench=bench, source=source, sink=sink)

    def append(self, count: int = LINES) -> None:
        """Add lines to the first one."""
        lines = [f"line-{len(self.written) + number}" for number in range(count)]
        self.written.extend(lines)
        with self.source.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    @property
    def source_settings(self) -> dict[str, str]:
        """Return the settings of the connector that reads."""
        return {
            "name": f"{self.bench.prefix}-source",
            "connector.class": "FileStreamSource",
            "tasks.max": "1",
            "file": str(self.source),
            "topic": self.bench.topic,
        }

    @property
    def sink_settings(self) -> dict[str, str]:
        """Return the settings of the connector that writes."""
        return {
            "name": f"{self.bench.prefix}-sink",
            "connector.class": "FileStreamSink",
            "tasks.max": "2",
            "file": str(self.sink),
            "topics": self.bench.topic,
        }

    def wait(self) -> None:
        """Wait until each line has come out."""
        until("all lines are out", lambda: set(self.out()) >= set(self.written))

    def out(self) -> list[str]:
        """Return the lines that have come out."""
        return self.sink.read_text().splitlines() if self.sink.exists() else []


@contextmanager
def _in_group(bench: Bench, **settings: str) -> Iterator[Worker]:
    """Start a worker of the check's group."""
    replication = str(bench.target.replication)
    known = {
        "group.id": bench.group,
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        **{f"{of}.storage.topic": f"{bench.prefix}-{of}" for of in INTERNAL},
        **{f"{of}.storage.replication.factor": replication for of in INTERNAL},
        **{f"{of}.storage.partitions": "3" for of in INTERNAL[1:]},
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    with running_worker(bench, ARTIFACTS, "cli.ConnectDistributed", known) as worker:
        worker.wait_until_up()
        yield worker


def _standalone(bench: Bench) -> None:
    files = Files.of(bench)
    positions = {"offset.storage.file.filename": str(bench.folder / f"{bench.prefix}.offsets")}
    connectors = (files.source_settings, files.sink_settings)
    for _ in range(2):  # The second one goes on where the first one has ended.
        files.append()
        with running_worker(
            bench, ARTIFACTS, "cli.ConnectStandalone", positions, *connectors
        ) as worker:
            worker.wait_until_up()
            files.wait()
            files.append()
            files.wait()
    _once_each(files)


def _distributed(bench: Bench) -> None:
    files = Files.of(bench)
    files.append()
    with _in_group(bench) as worker:
        worker.create(files.source_settings["name"], files.source_settings)
        worker.create(files.sink_settings["name"], files.sink_settings)
        files.wait()
    for of in INTERNAL:
        resource = ConfigResource(ConfigResource.Type.TOPIC, f"{bench.prefix}-{of}")
        (found,) = _admin(bench).describe_configs([resource]).values()
        if (policy := found.result(WAIT_S)["cleanup.policy"].value) != "compact":
            raise UnexpectedError(f"the policy of the topic for {of} is {policy}")
    files.append()
    with _in_group(bench) as worker:  # It finds its connectors in the topic.
        files.wait()
        names = set(worker.ask("/connectors"))
        if names != {files.source_settings["name"], files.sink_settings["name"]}:
            raise UnexpectedError(f"its connectors are {names}")
    _once_each(files)


def _workers(bench: Bench) -> None:
    files = Files.of(bench)
    names = [files.source_settings["name"], files.sink_settings["name"]]

    def places(worker: Worker) -> set[str]:
        tasks = [
            task for name in names for task in worker.ask(f"/connectors/{name}/status")["tasks"]
        ]
        return {task["worker_id"] for task in tasks if task["state"] == "RUNNING"}

    with _in_group(bench) as first:
        first.create(files.source_settings["name"], files.source_settings)
        first.create(files.sink_settings["name"], files.sink_settings)
        with _in_group(bench) as second:
            until("both have tasks", lambda: len(places(first)) == 2)
            files.append()
            files.wait()
            second.process.send_signal(signal.SIGKILL)
            second.process.wait()
            alone = {f"127.0.0.1:{first.port}"}
            until("the first has all", lambda: _run_at(first, names) and places(first) == alone)
        files.append()
        files.wait()


def _run_at(worker: Worker, connectors: Sequence[str]) -> bool:
    return all(worker.runs(name) for name in connectors)


def _exactly_once(bench: Bench) -> None:
    files = Files.of(bench)
    settings = {
        **files.source_settings,
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }
    for _ in range(3):
        with _in_group(bench, exactly_once_source_support="enabled") as worker:
            worker.create(settings["name"], settings)
            for _ in range(PARTS):
                before = _ends(bench)
                files.append(LINES // PARTS)
                until("it writes", lambda: _ends(bench) > before)  # noqa: B023
            worker.process.send_signal(signal.SIGKILL)
            worker.process.wait()
    with _in_group(bench, exactly_once_source_support="enabled") as worker:
        files.append()
        until("all lines are there", lambda: set(_committed(bench)) >= set(files.written))
    if sorted(found := _committed(bench)) != sorted(files.written):
        raise UnexpectedError(f"{len(found)} lines are there, of {len(files.written)}")


def _dead_letters(bench: Bench) -> None:
    files = Files.of(bench)
    letters = f"{bench.prefix}-letters"
    settings = {
        **files.sink_settings,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": str(bench.target.replication),
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    with _in_group(bench) as worker:
        worker.create(settings["name"], settings)
        producer = Producer({"bootstrap.servers": bench.target.bootstrap})
        for number in range(10):
            producer.produce(bench.topic, b'"%d"' % number if number % 2 else b"{%d" % number)
        producer.flush(WAIT_S)
        until("the good ones are out", lambda: sorted(files.out()) == list("13579"))
        until("the others are there", lambda: len(_committed(bench, letters)) == 5)
    if sorted(_committed(bench, letters)) != [f"{{{number}" for number in range(0, 10, 2)]:
        raise UnexpectedError(f"other letters: {_committed(bench, letters)}")


def _positions(bench: Bench) -> None:
    files = Files.of(bench)
    files.append()
    name = files.sink_settings["name"]
    with _in_group(bench) as worker:
        worker.create(files.source_settings["name"], files.source_settings)
        worker.create(name, files.sink_settings)
        files.wait()

        def committed() -> int:
            offsets = worker.ask(f"/connectors/{name}/offsets")["offsets"]
            return sum(int(entry["offset"]["kafka_offset"]) for entry in offsets)

        until("positions are committed", lambda: committed() == LINES)
        worker.ask(f"/connectors/{name}/stop", "PUT")
        until("it has stopped", lambda: not worker.ask(f"/connectors/{name}/status")["tasks"])
        partition = {"kafka_topic": bench.topic, "kafka_partition": 0}
        back = {"offsets": [{"partition": partition, "offset": {"kafka_offset": 0}}]}
        of_first = _end(bench, 0)
        worker.ask(f"/connectors/{name}/offsets", "PATCH", back)
        worker.ask(f"/connectors/{name}/resume", "PUT")
        until("one partition is out again", lambda: len(files.out()) == LINES + of_first)
        worker.ask(f"/connectors/{name}/stop", "PUT")
        until("it has stopped", lambda: not worker.ask(f"/connectors/{name}/status")["tasks"])
        worker.ask(f"/connectors/{name}/offsets", "DELETE")
        if found := worker.ask(f"/connectors/{name}/offsets")["offsets"]:
            raise UnexpectedError(f"positions that were deleted: {found}")


def _consumer(bench: Bench) -> Any:
    return Consumer(
        {
            "bootstrap.servers": bench.target.bootstrap,
            "group.id": bench.group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )


def _committed(bench: Bench, topic: str = "") -> list[str]:
    """Return the values of a topic that are committed now."""
    messages = messages_of(_consumer(bench), topic or bench.topic, WAIT_S)
    return [message.value().decode() for message in messages]


def _end(bench: Bench, partition: int) -> int:
    consumer = _consumer(bench)
    at = TopicPartition(bench.topic, partition)
    _, end = consumer.get_watermark_offsets(at, timeout=WAIT_S)
    consumer.close()
    return int(end)


def _ends(bench: Bench) -> int:
    return _end(bench, 0) + _end(bench, 1)


def _once_each(files: Files) -> None:
    if sorted(files.out()) != sorted(files.written):
        raise UnexpectedError(f"{len(files.out())} lines are out, of {len(files.written)}")


def _admin(bench: Bench) -> Any:
    return _admin_at(bench.target.bootstrap)


@cache
def _admin_at(bootstrap: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap})  # Kept: its requests end with it.


def _failing(check: Check) -> Check:
    """Return a check that fails where Kafka's client does."""

    def checking(bench: Bench) -> None:
        try:
            check(bench)
        except KafkaException as error:
            raise UnexpectedError(str(error)) from error

    return checking


CHECKS: dict[str, Check] = {
    check.__name__.removeprefix("_"): _failing(check)
    for check in (
        _standalone, _distributed, _workers, _exactly_once, _dead_letters, _positions,
    )
}  # fmt: skip
KAFKA_CONNECT = CheckedSuite(
    name="kafka-connect",
    version=KAFKA_VERSION,
    about="Kafka Connect: file connectors alone, in a group, exactly once",
    checks=CHECKS,
    fetch=lambda: libraries(*ARTIFACTS),
    timeout_s=WAIT_S,
)
