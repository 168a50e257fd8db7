"""A compacted topic under load, beside the others: brokers compact it all the time.

A writer for each partition sends records of few keys, again and again, and now and then a
tombstone; a reader follows from the beginning. Other clients may do the same (`note`). At the end
the topic is read once more, and every replica's files are opened: `tests.checkers.compacted` judges
all of it.
"""

import asyncio
import itertools
import operator
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.checkers.compacted import Read, Sent, problems, table
from tests.checkers.history import FAIL, INFO, OK
from tests.faults.clients import Clients
from tests.integration.running_broker import wait_until

from millrace.broker.storage import inspection
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.client import Admin, Consumer, Producer
from millrace.core.errors import Appended, MillraceError
from millrace.core.ids import TopicId
from millrace.core.records.batch import open_batch

TOPIC: Final = "latest"
PARTITIONS: Final = 2
CONFIG: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "5000",
    "segment.ms": "2000",
}
_KEYS: Final = 400
_SENDS_MAX: Final = 12
_TOMBSTONE_SHARE: Final = 0.1
_PAUSE_SECONDS: Final = 0.1
_VALUE_BYTES: Final = 1_000
_NUMBER: Final = "number"
_POLL_MS: Final = 300
_FINAL_SECONDS_MAX: Final = 90.0


class Latest(Clients):
    """Clients of the compacted topic, on an event loop of their own.

    Attributes:
        acknowledged: how many records were, so far.
    """

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__("latest")
        self.acknowledged = 0
        self._addresses = bootstrap
        self._seed = seed
        self._numbers = itertools.count(1)
        self._sends: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
        self._followed: list[list[list[Read]]] = []  # By life of the reader, and partition.
        self._final: list[list[Read]] = [[] for _ in range(PARTITIONS)]
        self._others: list[tuple[str, list[list[Read]], bool]] = []
        self._lock = threading.Lock()
        self._ends: list[int] = []

    # --- From other threads ------------------------------------------------------------------

    def begin(self) -> None:
        """Start the clients."""
        self.start()
        self.begin_clients([*map(self._write, range(PARTITIONS)), self._follow()])

    def wait_for_more(self, count: int = 30, seconds: float = 30) -> None:
        """Return once so many more records are acknowledged.

        Raises:
            AssertionError: they are not in time.
        """
        wanted = self.acknowledged + count
        wait_until(
            lambda: self.acknowledged >= wanted or self.failure is not None,
            f"{TOPIC} takes {count} writes",
            seconds,
        )
        if self.failure is not None:
            raise self.failure

    def new_number(self) -> int:
        """Return the number of another record."""
        return next(self._numbers)

    def note(self, partition: int, sent: Sent) -> None:
        """Note what has become of a record; those of a key come in the order of their sends."""
        with self._lock:
            self._sends[partition].append(sent)
            self.acknowledged += sent.outcome == OK

    def reader(self, name: str, *, is_whole: bool) -> list[list[Read]]:
        """Return where another reader leaves what it gets, by partition.

        Args:
            name: of it.
            is_whole: whether it reads all after all sends.
        """
        found: list[list[Read]] = [[] for _ in range(PARTITIONS)]
        self._others.append((name, found, is_whole))
        return found

    def read_all(self) -> None:
        """Stop all clients, then read the topic from its beginning to its end."""
        self.stop_clients()
        self.call(self._read_all(), 2 * _FINAL_SECONDS_MAX)

    def judge(self, log_dirs: Mapping[str, Path], topic_id: TopicId) -> list[str]:
        """Return what breaks a promise.

        Args:
            log_dirs: of the stopped brokers, by name.
            topic_id: of the topic.
        """
        failures: list[str] = []
        for partition, sends in enumerate(self._sends):
            readers = [("read last", self._final[partition], True)]
            readers += [
                (f"read by {life}", read[partition], False)
                for life, read in enumerate(self._followed)
            ]
            readers += [(name, read[partition], is_whole) for name, read, is_whole in self._others]
            for name, log_dir in log_dirs.items():
                kept = list(_kept(log_dir, topic_id, partition, self._ends[partition]))
                readers.append((f"kept by {name}", kept, True))
            for who, read, is_whole in readers:
                found = problems(sends, read, is_whole=is_whole)
                failures += [f"{TOPIC}/{partition}, {who}: {problem}" for problem in found]
                if is_whole and table(read) != table(self._final[partition]):
                    failures.append(f"{TOPIC}/{partition}, {who}: not what was read last")
        left = sum(map(len, self._final))
        if left >= self.acknowledged:
            failures.append(f"{TOPIC}: nothing was compacted of {self.acknowledged} records")
        return failures

    def __str__(self) -> str:
        left = sum(map(len, self._final))
        return f"compacted: of {self.acknowledged} records {left} were left"

    # --- On the loop -------------------------------------------------------------------------

    async def _write(self, partition: int) -> None:
        dice = random.Random(f"{self._seed} latest {partition}")
        while not self.is_over.is_set():
            producer = Producer(
                self._addresses,
                linger_ms=1,
                delivery_timeout_ms=90_000,
                request_timeout_ms=10_000,
            )
            try:
                while not self.is_over.is_set():
                    if not await self._send(producer, partition, dice):
                        break  # The outcome of its last record is unknown: it is retired.
                    await asyncio.sleep(dice.uniform(0, 2 * _PAUSE_SECONDS))
            finally:
                with suppress(MillraceError):
                    await producer.close()

    async def _send(self, producer: Producer, partition: int, dice: random.Random) -> bool:
        """Send some records and wait for all; return whether all were acknowledged."""
        handles = []
        for _ in range(dice.randint(1, _SENDS_MAX)):
            key = b"key-%d" % dice.randrange(_KEYS)
            sent = Sent(key, self.new_number(), dice.random() < _TOMBSTONE_SHARE, INFO)
            value, headers = value_for(sent)
            handle = producer.send(TOPIC, value, key, partition=partition, headers=headers)
            handles.append((handle, sent))
        is_all = True
        for handle, sent in handles:
            try:
                done = sent._replace(outcome=OK, offset=(await handle).offset)
            except MillraceError as error:
                done = sent._replace(outcome=FAIL if error.appended is Appended.NO else INFO)
                is_all = False
            self.note(partition, done)
        return is_all

    async def _follow(self) -> None:
        while not self.is_over.is_set():
            self._followed.append([[] for _ in range(PARTITIONS)])
            with suppress(MillraceError):
                await self._read(self._followed[-1], lambda _: self.is_over.is_set())
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _read_all(self) -> None:
        async with Admin(self._addresses) as admin:
            found = await admin.list_offsets(TOPIC)
        self._ends = [found[TOPIC, number].offset for number in range(PARTITIONS)]
        deadline = time.monotonic() + _FINAL_SECONDS_MAX
        # The last records may be gone: only the position tells that all was read.
        await self._read(
            self._final,
            lambda at: time.monotonic() > deadline or all(map(operator.ge, at, self._ends)),
        )

    async def _read(self, found: list[list[Read]], is_done: Callable[[list[int]], bool]) -> None:
        """Read from the beginning until the positions are where they should be."""
        async with Consumer(self._addresses, request_timeout_ms=10_000) as consumer:
            await consumer.assign([TOPIC], start="beginning")
            at = [0] * PARTITIONS
            while not is_done(at):
                for record in await consumer.poll(_POLL_MS):
                    read = read_of(record.offset, record.key, record.value, record.headers)
                    found[record.partition].append(read)
                at = [await consumer.position((TOPIC, number)) for number in range(PARTITIONS)]


def _kept(log_dir: Path, topic_id: TopicId, number: int, end: int) -> Iterator[Read]:
    """Yield the committed records in the files of a replica."""
    files = PosixFileSystem()
    for partition in inspection.partitions(files, str(log_dir)):
        if partition.topic_partition != (topic_id, number):
            continue
        for path, position, header in inspection.batches(files, partition):
            with Path(path).open("rb") as file:
                file.seek(position)
                batch = file.read(header.length)
            opened = open_batch(partition.topic_partition, header, batch, header.inflated_length)
            for row in opened.to_pylist():
                if row["offset"] < end:
                    headers = [(header["key"], header["value"]) for header in row["headers"]]
                    yield read_of(row["offset"], row["key"], row["value"], headers)


def value_for(sent: Sent) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Return the value and the headers of a record."""
    number = b"%d" % sent.number
    return None if sent.is_tombstone else number + bytes(_VALUE_BYTES), [(_NUMBER, number)]


def read_of(
    offset: int, key: bytes, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> Read:
    """Return what was read."""
    number = dict(headers)[_NUMBER]
    assert number is not None
    return Read(offset, key, int(number), value is None)
