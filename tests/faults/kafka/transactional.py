"""Transactions of Kafka's clients beside the others, in the same topic, and a copy of it by them.

A process writes transactions with librdkafka (`transactor`), two members of a classic group
copy all committed records of both kinds of writers (`copier`). Readers of Kafka follow the
topic in both isolations, and both copies. The operations go to the histories of `Transactional`.

librdkafka damages the heap now and then when producers are fenced ("unaligned tcache chunk",
"exception <class 'str'> is not a BaseException subclass"). To the brokers such a crash is what a
kill is: the process gets a successor.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Message
from tests.checkers.history import INFO, INVOKE, OK, UNCOMMITTED
from tests.faults.cluster import SESSION_MS
from tests.faults.kafka import clients
from tests.faults.kafka.threads import KafkaThreads
from tests.faults.load import value_of
from tests.faults.transactional import (
    COPY,
    KAFKA_COPY,
    KEYS,
    PARTITIONS,
    SOURCE,
    ClientProcess,
    Transactional,
)

from millrace.client import SyncAdmin
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation

GROUP: Final = "kafka-copiers"
COPIERS: Final = 2
_FIRST_VALUE: Final = 10**12
_VALUES_OF_EACH: Final = 10_000_000
_POLL_SECONDS: Final = 0.3
_PAUSE_SECONDS: Final = 0.15
_RECORDS_MAX: Final = 1_000
_MORE_SECONDS_MAX: Final = 90.0  # A copier that hangs has to be replaced meanwhile.
_FINAL_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.02

Pairs = dict[int, list[tuple[int, int]]]


class KafkaTransactional(KafkaThreads):
    """Writer, copiers and readers of Kafka. Close it at the end.

    Args:
        folder: for the files of processes.
        transactional: the other clients, who have begun before; its histories get the operations.
        addresses: of the brokers, for clients of Millrace.
        bootstrap: returns those for clients of Kafka, when they begin.

    Attributes:
        copiers: the members that run, by their transactional ids.
        seen: how many records readers have seen of their copy.
        crashes: how many processes librdkafka has ended.
    """

    def __init__(
        self,
        folder: Path,
        transactional: Transactional,
        addresses: str,
        bootstrap: Callable[[], str],
    ) -> None:
        super().__init__()
        self.copiers: dict[str, ClientProcess] = {}
        self.seen = 0
        self.crashes = 0
        self._folder = folder
        self._transactional = transactional
        self._addresses = addresses
        self._bootstrap = bootstrap
        self._lives = itertools.count()
        self._writer: ClientProcess | None = None
        folder.mkdir()

    def begin(self) -> None:
        """Make the topic of the copy, and start all clients."""
        with SyncAdmin(self._addresses) as admin:
            admin.create_topic(KAFKA_COPY, partitions=PARTITIONS, replication_factor=3)
        self.start_writer()
        for number in range(COPIERS):
            self.start_copier(f"kafka-copier-{number}")
        for topic, isolation in (
            (SOURCE, READ_COMMITTED),
            (SOURCE, READ_UNCOMMITTED),
            (COPY, READ_COMMITTED),
            (KAFKA_COPY, READ_COMMITTED),
        ):
            self.start(f"reads {topic}", functools.partial(self._read, topic, isolation))

    @property
    def writer(self) -> ClientProcess:
        """The process that writes transactions."""
        assert self._writer is not None
        return self._writer

    def start_writer(self) -> None:
        """Start the writer, or another one with the same ids after it was killed."""
        life = next(self._lives)
        file = self._folder / f"kafka-transactor-{life}.jsonl"
        self._transactional.files.append(file)
        self._writer = ClientProcess(
            f"kafka-transactor-{life}",
            self._folder,
            *("tests.faults.kafka.transactor", self._bootstrap(), SOURCE, str(PARTITIONS)),
            *(str(_FIRST_VALUE + life * _VALUES_OF_EACH), str(file)),
        )

    def start_copier(self, transactional_id: str) -> None:
        """Start a member that copies, or another one after it was killed."""
        self.copiers[transactional_id] = ClientProcess(
            f"{transactional_id}.{next(self._lives)}",
            self._folder,
            *("tests.faults.kafka.copier", "--session-ms", str(SESSION_MS), self._bootstrap()),
            *(GROUP, SOURCE, KAFKA_COPY, transactional_id),
        )

    def wait_for_more(self, count: int = 5) -> None:
        """Return once so many more records of the copy were read.

        Raises:
            AssertionError: they were not in time, or a process has failed.
        """
        wanted = self.seen + count
        deadline = time.monotonic() + _MORE_SECONDS_MAX
        while self.seen < wanted:
            self._replace_crashed()
            assert not self.problem, self.problem
            assert time.monotonic() < deadline, (
                f"of {KAFKA_COPY} {self.seen} records were read, and not {wanted}"
            )
            time.sleep(_LOOK_SECONDS)

    def _replace_crashed(self) -> None:
        """Begin a successor of each process that librdkafka has ended."""
        if self.writer.has_crashed:
            self.crashes += 1
            self.start_writer()
        for transactional_id in [name for name, its in self.copiers.items() if its.has_crashed]:
            self.crashes += 1
            self.start_copier(transactional_id)

    @property
    def problem(self) -> str:
        """What a client should not have met; empty: nothing."""
        if self.failure is not None:
            return repr(self.failure)
        processes = (self.writer, *self.copiers.values())
        return next((process.failure for process in processes if process.failure), "")

    def stop_writer(self) -> None:
        """Let the writer end in order."""
        self._replace_crashed()
        self.writer.stop()

    def read_all(self) -> None:
        """Wait for the copy, stop all, and read all three topics to their ends.

        The writers have stopped.

        Raises:
            AssertionError: the copy stays behind, or a client of Kafka does not get to an end.
        """
        self._replace_crashed()
        count = self._read_to_end(SOURCE)
        self._transactional.read_to_end(KAFKA_COPY, count)
        for copier in self.copiers.values():
            copier.stop()
        for topic in (COPY, KAFKA_COPY):
            self._read_to_end(topic)
        self.stop_clients()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Leave nothing running."""
        self.stop()
        for process in (self._writer, *self.copiers.values()):
            if process is not None:
                process.kill()

    def _reader(self, topic: str, isolation: Isolation = READ_COMMITTED) -> Consumer:
        reader = clients.consumer(self._bootstrap(), isolation, enable_partition_eof=True)
        reader.assign(clients.beginning({key: (topic, key) for key in KEYS}))
        return reader

    def _read(self, topic: str, isolation: Isolation) -> None:
        while not self.is_over.is_set():
            self._follow(topic, isolation)

    def _follow(self, topic: str, isolation: Isolation) -> None:
        """Follow a topic until an error, or the end."""
        notes = self._transactional.notes[topic]
        f = "poll" if isolation == READ_COMMITTED else UNCOMMITTED
        name = f"Kafka {isolation}.{next(self._lives)}"
        reader = self._reader(topic, isolation)
        try:
            notes.add(name, OK, "assign", details=list(KEYS))
            while not self.is_over.is_set():
                notes.add(name, INVOKE, f)
                messages = reader.consume(_RECORDS_MAX, _POLL_SECONDS)
                found, _, errors = _sorted(messages)
                notes.add(name, OK, f, polled=found)
                if topic == KAFKA_COPY:
                    self.seen += sum(map(len, found.values()))
                if errors:
                    notes.add(name, INFO, f, error="; ".join(errors))
                    return
                self.is_over.wait(_PAUSE_SECONDS)
        finally:
            reader.close()

    def _read_to_end(self, topic: str) -> int:
        """Read a topic to its end; return the number of committed records."""
        notes, polls = self._transactional.notes[topic], Pairs()
        ended: set[int] = set()
        deadline = time.monotonic() + _FINAL_SECONDS_MAX
        reader = self._reader(topic)
        try:
            notes.add("final by Kafka", INVOKE, "final")
            while ended != set(KEYS):
                assert time.monotonic() < deadline, f"{topic}: only {ended} were read to their end"
                messages = reader.consume(_RECORDS_MAX, _POLL_SECONDS)
                found, at_end, errors = _sorted(messages)
                assert not errors, f"{topic}: {errors}"
                for key, pairs in found.items():
                    polls.setdefault(key, []).extend(pairs)
                ended |= at_end
            notes.add("final by Kafka", OK, "final", polled=polls)
        finally:
            reader.close()
        return sum(map(len, polls.values()))


def _sorted(messages: Iterable[Message]) -> tuple[Pairs, set[int], list[str]]:
    """Return records by key, the keys whose ends were reached, and the errors."""
    found, ended, errors = Pairs(), set[int](), list[str]()
    for message in messages:
        error, key = message.error(), message.partition()
        if error is None:
            found.setdefault(key, []).append((message.offset(), value_of(message.value())))
        elif clients.is_end(error):
            ended.add(key)
        else:
            errors.append(clients.said(error))
    return found, ended, errors
