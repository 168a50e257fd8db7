"""Clients of Kafka in a pod of a guarded Cluster: a program for it, `python -c SOURCE WHAT`.

It is asked by a line of JSON on standard input:

    attempts   {"topic": TOPIC, "group": GROUP, "token_file": PATH}
               answers what each client got that wrote, and read in the group, with the token:
               {"confluent-kafka produce": "yes", ...}, or the name of the error
    work       {"topic": TOPIC, "group": GROUP, "partitions": COUNT, "folder": PATH}
               writes numbers and reads them in a group until there is a file `end` in a folder. In
               `progress.json` it says how far it is, and in `seen.json` at the end what it has
               seen: see `Seen`

`KAFKA_BOOTSTRAP`, `MILLRACE_TLS_CA_FILE` and `MILLRACE_TOKEN_FILE` say where the brokers are, whom
to trust, and who calls. The settings of both libraries are those of docs/kubernetes.md.
"""

import base64
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

_ATTEMPT_SECONDS = 30
_END_SECONDS = 120
_MEMBERS = 2
_PAUSE_S = 0.01


def _token(path: str) -> tuple[str, float]:
    """Return a token, and the second at which it ends."""
    text = Path(path).read_text()
    claims = text.split(".")[1]
    return text, json.loads(base64.urlsafe_b64decode(claims + "=="))["exp"]


def _of_confluent(token_file: str) -> dict[str, Any]:
    """Return the settings of confluent-kafka."""
    return {
        "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP"],
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": os.environ["MILLRACE_TLS_CA_FILE"],
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: _token(token_file),
    }


class _Tokens(AbstractTokenProvider):  # type: ignore[misc, unused-ignore]
    """As kafka-python asks for a token at each connection."""

    def __init__(self, path: str) -> None:
        self._path = path

    def token(self) -> str:
        return _token(self._path)[0]


def _of_kafka_python(token_file: str) -> dict[str, Any]:
    """Return the settings of kafka-python."""
    return {
        "bootstrap_servers": os.environ["KAFKA_BOOTSTRAP"],
        "security_protocol": "SASL_SSL",
        "ssl_cafile": os.environ["MILLRACE_TLS_CA_FILE"],
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": _Tokens(token_file),
    }


def _confluent_writes(settings: dict[str, Any], topic: str) -> str:
    told: list[str] = []
    producer = Producer(
        {
            **settings,
            "enable.idempotence": True,
            "message.timeout.ms": _ATTEMPT_SECONDS * 1000,
            "error_cb": lambda error: told.append(error.name()),
        }
    )
    producer.produce(
        topic,
        b"an attempt",
        on_delivery=lambda error, _: told.append(error.name() if error else "yes"),
    )
    ends = time.monotonic() + _ATTEMPT_SECONDS
    while time.monotonic() < ends and not _decided(told):
        producer.poll(0.1)
    producer.purge()
    return _decided(told) or f"nothing: {told}"


def _decided(told: Sequence[str]) -> str:
    """Return the answer among what a client was told; empty: there is none yet."""
    ways = {"yes", "_AUTHENTICATION", "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"}
    return next((each for each in told if each in ways), "")


def _confluent_reads(settings: dict[str, Any], topic: str, group: str) -> str:
    told: list[str] = []
    consumer = Consumer(
        {
            **settings,
            "group.id": f"{group}-confluent",
            "auto.offset.reset": "earliest",
            "error_cb": lambda error: told.append(error.name()),
        }
    )
    consumer.subscribe([topic])
    ends = time.monotonic() + _ATTEMPT_SECONDS
    while time.monotonic() < ends and not _decided(told):
        if (record := consumer.poll(0.1)) is not None:
            told.append(record.error().name() if record.error() else "yes")
    consumer.close()
    return _decided(told) or f"nothing: {told}"


def _kafka_python_writes(settings: dict[str, Any], topic: str) -> str:
    def write() -> str:
        producer = KafkaProducer(**settings, max_block_ms=_ATTEMPT_SECONDS * 1000)
        try:
            producer.send(topic, b"an attempt").get(_ATTEMPT_SECONDS)
        finally:
            producer.close(timeout=0)
        return "yes"

    return _of_error(write)


def _kafka_python_reads(settings: dict[str, Any], topic: str, group: str) -> str:
    def read() -> str:
        consumer = KafkaConsumer(
            topic,
            **settings,
            group_id=f"{group}-python",
            auto_offset_reset="earliest",
            consumer_timeout_ms=_ATTEMPT_SECONDS * 1000,
        )
        try:
            return next(("yes" for _ in consumer), "nothing")
        finally:
            consumer.close()

    return _of_error(read)


def _of_error(act: Callable[[], str]) -> str:
    try:
        return act()
    except KafkaError as error:
        return str(getattr(error, "message", None) or type(error).__name__)


def attempts(question: dict[str, Any]) -> dict[str, str]:
    """Return what each client got."""
    token_file, topic, group = (question[name] for name in ("token_file", "topic", "group"))
    confluent, python = _of_confluent(token_file), _of_kafka_python(token_file)
    return {
        "confluent-kafka produce": _confluent_writes(confluent, topic),
        "confluent-kafka consume": _confluent_reads(confluent, topic, group),
        "kafka-python produce": _kafka_python_writes(python, topic),
        "kafka-python consume": _kafka_python_reads(python, topic, group),
    }


@dataclass(kw_only=True)
class Seen:
    """What clients have seen by the end. A record is its partition, offset and number.

    Attributes:
        sent: how many numbers were given to the producer, which are 0 and so on.
        acknowledged: all records that were.
        failed: the errors of all that were not.
        read: by the members of the group.
        stored: what the topic has in the end.
        told: errors that clients went on from, and how often.
        rebalances: how often members were assigned partitions.
        longest_wait_s: of a write until it was acknowledged.
    """

    sent: int = 0
    acknowledged: list[tuple[int, int, int]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    read: list[tuple[int, int, int]] = field(default_factory=list)
    stored: list[tuple[int, int, int]] = field(default_factory=list)
    told: dict[str, int] = field(default_factory=Counter)
    rebalances: int = 0
    longest_wait_s: float = 0.0


class _Work:
    """A producer and the members of a group, each with a thread of its own."""

    def __init__(self, topic: str, group: str, partitions: int) -> None:
        self.seen = Seen()
        self._topic, self._group, self._partitions = topic, group, partitions
        self._settings = _of_confluent(os.environ["MILLRACE_TOKEN_FILE"]) | {"error_cb": self._tell}
        self._assigned: Counter[int] = Counter()
        self._is_written, self._is_over = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._write)]
        self._threads += [threading.Thread(target=self._read) for _ in range(_MEMBERS)]

    def begin(self) -> None:
        """Start all: the writer begins once the members share all partitions."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Write no more, let the members read what is there, and read all from the beginning."""
        self._is_written.set()
        writer, *members = self._threads
        writer.join()
        ends = time.monotonic() + _END_SECONDS
        while len(self.seen.read) < len(self.seen.acknowledged) and time.monotonic() < ends:
            time.sleep(0.1)
        self._is_over.set()
        for member in members:
            member.join()
        self._read_all()

    def _tell(self, error: Any) -> None:
        self.seen.told[error.name()] += 1

    def _write(self) -> None:
        # The defaults of confluent-kafka, but for this one.
        producer = Producer({**self._settings, "enable.idempotence": True})
        while len(self._assigned) < self._partitions and not self._is_written.is_set():
            producer.poll(0.1)
        while not self._is_written.is_set():
            number = self.seen.sent
            producer.produce(
                self._topic,
                str(number).encode(),
                partition=number % self._partitions,
                on_delivery=self._noted(number),
            )
            self.seen.sent += 1
            producer.poll(_PAUSE_S)
        if left := producer.flush(_END_SECONDS):
            self.seen.failed += ["not acknowledged"] * left

    def _noted(self, number: int) -> Callable[[Any, Message], None]:
        begun = time.monotonic()

        def note(error: Any, record: Message) -> None:
            waited = time.monotonic() - begun
            self.seen.longest_wait_s = max(self.seen.longest_wait_s, waited)
            if error:
                self.seen.failed.append(error.name())
            else:
                self.seen.acknowledged.append((record.partition(), record.offset(), number))

        return note

    def _read(self) -> None:
        own = {"group.id": self._group, "auto.offset.reset": "earliest"}
        assignor = {"partition.assignment.strategy": "cooperative-sticky"}
        member = Consumer({**self._settings, **own, **assignor})
        member.subscribe([self._topic], on_assign=self._assign, on_revoke=self._revoke)
        while not self._is_over.is_set():
            self._take(member.consume(500, 0.2), self.seen.read)
        member.close()

    def _assign(self, member: Consumer, partitions: list[TopicPartition]) -> None:
        self.seen.rebalances += 1
        self._assigned.update(each.partition for each in partitions)
        member.incremental_assign(partitions)

    def _revoke(self, member: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned -= Counter(each.partition for each in partitions)
        member.incremental_unassign(partitions)

    def _take(self, records: list[Message], taken: list[tuple[int, int, int]]) -> None:
        for record in records:
            if record.error():
                self.seen.told[record.error().name()] += 1
            else:
                taken.append((record.partition(), record.offset(), int(record.value())))

    def _read_all(self) -> None:
        reader = Consumer({**self._settings, "group.id": f"{self._group}-all"})
        reader.poll(0)  # Has the callback called that gives the token.
        begin = [TopicPartition(self._topic, each, 0) for each in range(self._partitions)]
        count = sum(reader.get_watermark_offsets(each, timeout=30)[1] for each in begin)
        reader.assign(begin)
        ends = time.monotonic() + _END_SECONDS
        while len(self.seen.stored) < count and time.monotonic() < ends:
            self._take(reader.consume(500, 0.2), self.seen.stored)
        reader.close()


def work(question: dict[str, Any]) -> str:
    """Write and read until somebody makes the file `end`; write down what was seen."""
    folder = Path(question["folder"])
    running = _Work(question["topic"], question["group"], question["partitions"])
    running.begin()
    while not (folder / "end").exists():
        seen = running.seen
        progress = {"acknowledged": len(seen.acknowledged), "read": len(seen.read)}
        _write(folder / "progress.json", progress)
        time.sleep(0.2)
    running.end()
    _write(folder / "seen.json", vars(running.seen))
    return "done"


def _write(path: Path, content: object) -> None:
    made = path.with_suffix(".new")
    made.write_text(json.dumps(content))
    made.replace(path)


def _say(line: object) -> None:
    sys.stdout.write(f"{json.dumps(line)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    WHAT: dict[str, Callable[[Any], Any]] = {"attempts": attempts, "work": work}
    _say(WHAT[sys.argv[1]](json.loads(sys.stdin.readline())))
