"""Transactions under load, and a group that copies their topic exactly once.

One process writes transactions (`transactor`), two members of a group copy (`copier`), and readers
of both isolations follow here. At the end both topics are read from their beginning: no transaction
may be left open, and everything must have been copied. `tests.checkers.transactional` judges the
rest.

It does not depend on how the brokers run: it works with processes and in a pod.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.checkers.history import INFO, INVOKE, OK, UNCOMMITTED, Op
from tests.faults.clients import Clients
from tests.faults.history import NEMESIS
from tests.faults.load import value_of
from tests.faults.notes import Notes, merged, noted

from millrace.client import Admin, Consumer, SyncAdmin
from millrace.core.errors import MillraceError
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation

SOURCE: Final = "transactional"
COPY: Final = "copy"
KAFKA_COPY: Final = "kafka-copy"
"""What clients of Kafka copy, if there are any."""
TOPICS: Final = (SOURCE, COPY)
PARTITIONS: Final = 3
GROUP: Final = "copiers"
COPIERS: Final = 2
KEYS: Final = range(PARTITIONS)
_VALUES_OF_EACH: Final = 10_000_000
_POLL_MS: Final = 300
_PAUSE_SECONDS: Final = 0.1
_MORE_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 60.0
_FINAL_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.02


class ClientProcess:
    """A client in a process of its own.

    Args:
        name: of this life.
        folder: for what it says.
        words: the module and its arguments.
    """

    def __init__(self, name: str, folder: Path, *words: str) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-m", *words], stdout=log, stderr=log)

    @property
    def failure(self) -> str:
        """What it said last, if it has ended by itself; else empty."""
        code = self._process.poll()
        if code is None or code == -signal.SIGKILL:
            return ""
        return f"{self.name} ended with {code}: {self._log.read_text(errors='replace')[-3000:]}"

    @property
    def has_crashed(self) -> bool:
        """Whether its C code ended it: the heap was damaged."""
        return self._process.poll() in (-signal.SIGABRT, -signal.SIGSEGV)

    def pause(self) -> None:
        """Pause the process (SIGSTOP)."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Let it end in order.

        Raises:
            AssertionError: it had failed, or does not end.
        """
        assert not self.failure, self.failure
        self._process.terminate()
        try:
            code = self._process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} does not end") from None
        assert code == 0, self.failure


class Transactional(Clients):
    """Writers of transactions, copiers and readers. Close it at the end.

    Args:
        folder: for the files of processes.
        bootstrap: addresses of the brokers.
        namespace: of the two topics; empty: the default one.
        replicas: of these topics.

    Attributes:
        is_begun: brokers of the last release know no transactions; so it may begin late.
        copiers: the members that run, by their transactional ids.
        seen: how many records readers of committed records have seen, of each topic.
        files: of processes that write the first topic, as `notes` has them.
        notes: what is known of each topic beside that. Others may add to both.
    """

    def __init__(
        self, folder: Path, bootstrap: str, *, namespace: str = "", replicas: int = 3
    ) -> None:
        super().__init__("transactional")
        self.is_begun = False
        self.copiers: dict[str, ClientProcess] = {}
        self.seen = {SOURCE: 0, COPY: 0}
        self._folder = folder
        self._addresses = bootstrap
        self._replicas = replicas
        self._names = {topic: f"{namespace}/{topic}" if namespace else topic for topic in TOPICS}
        self._lives = itertools.count()
        self._writer: ClientProcess | None = None
        self.files: list[Path] = []
        self.notes: defaultdict[str, Notes] = defaultdict(Notes)
        folder.mkdir()

    # --- From other threads ------------------------------------------------------------------

    def begin(self) -> None:
        """Make the topics, and start all clients."""
        self.is_begun = True
        with SyncAdmin(self._addresses) as admin:
            for name in self._names.values():
                admin.create_topic(name, partitions=PARTITIONS, replication_factor=self._replicas)
        self.start_writer()
        for number in range(COPIERS):
            self.start_copier(f"copier-{number}")
        self.start()
        readers = ((SOURCE, READ_COMMITTED), (COPY, READ_COMMITTED), (SOURCE, READ_UNCOMMITTED))
        self.begin_clients(self._follow(topic, isolation) for topic, isolation in readers)

    @property
    def writer(self) -> ClientProcess:
        """The process that writes transactions."""
        assert self._writer is not None
        return self._writer

    def start_writer(self) -> None:
        """Start the writer, or another one with the same ids after it was killed."""
        life = next(self._lives)
        file = self._folder / f"transactor-{life}.jsonl"
        self.files.append(file)
        self._writer = ClientProcess(
            f"transactor-{life}",
            self._folder,
            "tests.faults.transactor",
            self._addresses,
            self._names[SOURCE],
            str(PARTITIONS),
            str((life + 1) * _VALUES_OF_EACH),
            str(file),
        )

    def start_copier(self, transactional_id: str) -> None:
        """Start a member that copies, or another one after it was killed."""
        self.copiers[transactional_id] = ClientProcess(
            f"{transactional_id}.{next(self._lives)}",
            self._folder,
            *("tests.faults.copier", self._addresses, GROUP, *self._names.values()),
            transactional_id,
        )

    def wait_for_more(self, count: int = 5) -> None:
        """Return once so many more records of both topics were read; at once before it began.

        Raises:
            AssertionError: they were not in time, or a process has failed.
        """
        if not self.is_begun:
            return
        wanted = {topic: seen + count for topic, seen in self.seen.items()}
        deadline = time.monotonic() + _MORE_SECONDS_MAX
        while any(self.seen[topic] < seen for topic, seen in wanted.items()):
            if self.failure is not None:
                raise self.failure
            assert not self.problem, self.problem
            assert time.monotonic() < deadline, f"of {wanted} records {self.seen} were read"
            time.sleep(_LOOK_SECONDS)

    def window(self, what: str) -> None:
        """Note that all should be available from now on ("open"), or may be broken ("close")."""
        self.notes[SOURCE].add(NEMESIS, INFO, "window", details=what)

    @property
    def problem(self) -> str:
        """What a client should not have met; empty: nothing."""
        if self.failure is not None:
            return repr(self.failure)
        processes = (self.writer, *self.copiers.values()) if self.is_begun else ()
        return next((process.failure for process in processes if process.failure), "")

    def read_all(self) -> None:
        """Stop the writer, wait for the copy, stop all, and read both topics to their ends.

        Raises:
            AssertionError: a transaction stays open, or the copy stays behind.
        """
        if not self.is_begun:
            return
        self.writer.stop()
        count = self.read_to_end(SOURCE, 0)
        self.read_to_end(COPY, count)
        for copier in self.copiers.values():
            copier.stop()
        self.stop_clients()

    def read_to_end(self, topic: str, least: int) -> int:
        """Read a topic to its end; return the number of its committed records.

        Args:
            topic: to be read.
            least: how many records must be there.

        Raises:
            AssertionError: they do not come, or a transaction stays open.
        """
        count: int = self.call(self._read_all(topic, least), 2 * _FINAL_SECONDS_MAX)
        return count

    @property
    def original(self) -> Sequence[Op]:
        """The history of the topic that is written."""
        written = (op for file in self.files for op in noted(file))
        return merged([*self.notes[SOURCE].ops, *written])

    @property
    def copied(self) -> Sequence[Op]:
        """The history of its copy."""
        return self.history_of(COPY)

    def history_of(self, topic: str) -> Sequence[Op]:
        """The history of a topic that is a copy."""
        return merged(self.notes[topic].ops)

    def close(self) -> None:
        """Leave nothing running."""
        self.stop()
        for process in (self._writer, *self.copiers.values()):
            if process is not None:
                process.kill()

    # --- On the loop -------------------------------------------------------------------------

    async def _follow(self, topic: str, isolation: Isolation) -> None:
        notes = self.notes[topic]
        f = "poll" if isolation == READ_COMMITTED else UNCOMMITTED
        while not self.is_over.is_set():
            name = f"{isolation}.{next(self._lives)}"
            consumer = self._consumer(isolation)
            try:
                await consumer.assign([self._names[topic]], start="beginning")
                notes.add(name, OK, "assign", details=list(KEYS))
                while not self.is_over.is_set():
                    notes.add(name, INVOKE, f)
                    found = await _poll(consumer)
                    notes.add(name, OK, f, polled=found)
                    if isolation == READ_COMMITTED:
                        self.seen[topic] += sum(map(len, found.values()))
                    await asyncio.sleep(_PAUSE_SECONDS)
            except MillraceError as error:
                notes.add(name, INFO, f, error=repr(error))
                await asyncio.sleep(_PAUSE_SECONDS)
            finally:
                with suppress(MillraceError):
                    await consumer.close()

    def _consumer(self, isolation: Isolation = READ_COMMITTED) -> Consumer:
        return Consumer(self._addresses, request_timeout_ms=10_000, isolation=isolation)

    async def _read_all(self, topic: str, least: int) -> int:
        """Read a topic to its end, of whatever kind the last record is.

        Args:
            topic: to be read.
            least: how many records must be there.

        Returns:
            The number of committed records.
        """
        name = self._names.get(topic, topic)
        places = [(name, number) for number in KEYS]
        notes, read = self.notes[topic], 0
        deadline = time.monotonic() + _FINAL_SECONDS_MAX
        async with Admin(self._addresses) as admin, self._consumer() as consumer:
            await consumer.assign([name], start="beginning")
            notes.add("final", INVOKE, "final")
            polls: list[dict[int, list[tuple[int, int]]]] = []
            while True:
                ends = await admin.list_offsets(name, isolation=READ_UNCOMMITTED)
                at = {place: await consumer.position(place) for place in places}
                if read >= least and all(at[place] >= ends[place].offset for place in places):
                    break
                assert time.monotonic() < deadline, (
                    f"{name} is read up to {at}, and ends at {ends}: {read} records, and not "
                    f"{least}; what is open: {await admin.list_transactions(['ongoing'])}"
                )
                polls.append(await _poll(consumer))
                read += sum(map(len, polls[-1].values()))
            notes.add("final", OK, "final", polled=_joined(polls))
        return read


async def _poll(consumer: Consumer) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for record in await consumer.poll(_POLL_MS):
        found.setdefault(record.partition, []).append((record.offset, value_of(record.value)))
    return found


def _joined(
    polls: Iterable[dict[int, list[tuple[int, int]]]],
) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for poll in polls:
        for key, pairs in poll.items():
            found.setdefault(key, []).extend(pairs)
    return found
