"""Clients of a cluster: one writer for each partition, and readers of all of them.

Writers send unique values with `acks=all`, idempotent, a few at a time, and wait. To some topics
they send with `acks=1` and `acks=0`, which promise less. Readers poll all the time, some from the
broker of their zone, and one client asks for end offsets. The history gets every operation. Values
are padded, so that segments fill.

The load does not depend on how the brokers run: it works with processes and in a pod.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tests.checkers.history import FAIL, INFO, INVOKE, OK, Send
from tests.faults.clients import Clients
from tests.faults.history import History

from millrace.client import Admin, Consumer, Producer
from millrace.client._consumer.records import Records
from millrace.core.errors import Appended, MillraceError

Acks = Literal["all", 1, 0]

_POLL_MS: Final = 300
_SENDS_MAX: Final = 12
_NUMBER_BYTES: Final = 20
_SMALL, _LARGE = 1_000, 16_000
_FINAL_SECONDS_MAX: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The partitions under load: as many of each topic.

    A key of the history is partition `key % partitions` of the topic of number `key // partitions`.

    Attributes:
        acks: of topics that are written with less than `all`.
    """

    topics: tuple[str, ...]
    partitions: int
    acks: Mapping[str, Acks] = field(default_factory=dict)

    @property
    def keys(self) -> range:
        """All of them."""
        return range(len(self.topics) * self.partitions)

    def place_of(self, key: int) -> tuple[str, int]:
        """The topic and partition of a key."""
        return self.topics[key // self.partitions], key % self.partitions

    def key_of(self, topic: str, partition: int) -> int:
        """The key of a partition."""
        return self.topics.index(topic) * self.partitions + partition

    def acks_of(self, key: int) -> Acks:
        """The `acks` of the writers of a partition."""
        return self.acks.get(self.place_of(key)[0], "all")

    def is_sure(self, key: int) -> bool:
        """Whether its acknowledged records are promised to stay."""
        return self.acks_of(key) == "all"


def text_of(value: int, size: int = _SMALL) -> bytes:
    """The record of a value."""
    return (b"%0*d" % (_NUMBER_BYTES, value)).ljust(size, b".")


def value_of(record: bytes) -> int:
    return int(record[:_NUMBER_BYTES])


class Load(Clients):
    """All clients, on an event loop of their own.

    Args:
        bootstrap: addresses of the brokers.
        history: gets every operation.
        seed: for the order and time of operations.
        places: the partitions.
        zones: of the readers; an empty one reads from leaders, any other from the broker of that
            zone.
        newest_epoch: returns the leader epoch of a key by the present metadata; None: no client
            asks for end offsets, because the answers of deposed leaders cannot be recognized.
        pause_s: the average pause between two operations of a client.
        record_bytes: the size of every record.
        client: further settings of all clients.

    Attributes:
        acknowledged: number of values with `acks=all` so far.
        acknowledged_of: number of values by key; unknown with `acks=0`.
        slowest_s: the longest time to an acknowledgement since it was last set to 0.
        repeated: batches that were acknowledged after a retry.
    """

    def __init__(
        self,
        bootstrap: str,
        history: History,
        seed: int,
        places: Places,
        *,
        zones: Sequence[str] = ("", ""),
        newest_epoch: Callable[[int], int] | None = None,
        pause_s: float = 0.05,
        record_bytes: int = _SMALL,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("load")
        self._client = dict(client or {})
        self.acknowledged = 0
        self.acknowledged_of = dict.fromkeys(places.keys, 0)
        self.slowest_s = 0.0
        self._addresses = bootstrap
        self._history = history
        self._seed = seed
        self._places = places
        self._zones = zones
        self._newest_epoch = newest_epoch
        self._pause_s = pause_s
        self._record_bytes = record_bytes
        self._values = itertools.count(1)
        self._lives = itertools.count(1)
        self._producers: dict[int, Producer] = {}
        self._repeated = 0

    # --- From other threads ------------------------------------------------------------------

    def fill(self, bytes_each: int) -> None:
        """Write so many bytes to every `acks=all` partition, in large records, before the load."""

        async def fill_all() -> None:
            sure = filter(self._places.is_sure, self._places.keys)
            await asyncio.gather(*(self._fill(key, bytes_each) for key in sure))

        self.call(fill_all())

    def begin(self) -> None:
        """Start the clients."""
        work = [self._write(key) for key in self._places.keys]
        work += [self._read(number, zone) for number, zone in enumerate(self._zones)]
        if self._newest_epoch is not None:
            work.append(self._ask_ends(self._newest_epoch))
        self.begin_clients(work)

    def read_all(self) -> dict[int, int]:
        """Stop all clients, then read every partition from its beginning to its end.

        Returns:
            The end of each partition, by key.
        """
        self.stop_clients()
        ends: dict[int, int] = self.call(self._read_all(), 2 * _FINAL_SECONDS_MAX)
        return ends

    def wait_for_more(self, count: int = 30, seconds: float = 30) -> None:
        """Return once so many more values are acknowledged.

        Raises:
            AssertionError: they are not within `seconds`.
        """
        wanted = self.acknowledged + count
        deadline = time.monotonic() + seconds
        while self.acknowledged < wanted:
            assert time.monotonic() < deadline, f"no {count} writes in {seconds} s"
            time.sleep(0.02)

    def wait_for_all(self, count: int = 5, seconds: float = 30) -> None:
        """Return once so many more values of every key are acknowledged.

        Raises:
            AssertionError: they are not within `seconds`; says of which keys.
        """
        wanted = {
            key: before + count
            for key, before in self.acknowledged_of.items()
            if self._places.acks_of(key) != 0
        }
        deadline = time.monotonic() + seconds
        while late := [key for key in wanted if self.acknowledged_of[key] < wanted[key]]:
            assert time.monotonic() < deadline, f"keys {late} took no writes for {seconds} s"
            time.sleep(0.02)

    @property
    def repeated(self) -> int:
        return self._repeated + sum(
            producer.metrics()["repeated_batches"] for producer in list(self._producers.values())
        )

    # --- On the loop -------------------------------------------------------------------------

    async def _fill(self, key: int, size: int) -> None:
        producer = self._producer()
        name = f"fill{key}"
        try:
            while size > 0:
                values = [next(self._values) for _ in range(20)]
                await self._send(producer, name, key, values, _LARGE)
                size -= 20 * _LARGE
        finally:
            await producer.close()

    def _producer(self, acks: Acks = "all") -> Producer:
        return Producer(
            self._addresses,
            acks=acks,
            linger_ms=1,
            delivery_timeout_ms=90_000,
            request_timeout_ms=10_000,
            **self._client,
        )

    async def _write(self, key: int) -> None:
        dice = random.Random(f"{self._seed} writes {key}")
        acks = self._places.acks_of(key)
        pause = self._pause_s * (1 if acks == "all" else 4)
        while not self.is_over.is_set():
            producer = self._producers[key] = self._producer(acks)
            name = f"w{key}.{next(self._lives)}"
            try:
                while not self.is_over.is_set():
                    count = dice.randint(1, _SENDS_MAX)
                    values = [next(self._values) for _ in range(count)]
                    if not await self._send(producer, name, key, values, self._record_bytes):
                        break  # The outcome of its last record is unknown: the process is retired.
                    await asyncio.sleep(dice.uniform(0, 2 * pause))
            finally:
                self._repeated += self._producers.pop(key).metrics()["repeated_batches"]
                with suppress(MillraceError):
                    await producer.close()

    async def _send(
        self, producer: Producer, name: str, key: int, values: Sequence[int], size: int
    ) -> bool:
        """Send values and wait for all; return whether all were acknowledged, or sent."""
        topic, partition = self._places.place_of(key)
        acks = self._places.acks_of(key)
        record = self._history.record
        record(name, INVOKE, "send", sends=[Send(key, value) for value in values])
        since = time.monotonic()
        handles = [
            producer.send(topic, text_of(value, size), partition=partition) for value in values
        ]
        done: list[Send] = []
        failed: list[tuple[int, MillraceError]] = []
        for value, handle in zip(values, handles, strict=True):
            try:
                done.append(Send(key, value, (await handle).offset))
            except MillraceError as error:
                failed.append((value, error))
        if acks == "all":
            self.slowest_s = max(self.slowest_s, time.monotonic() - since)
            self.acknowledged += len(done)
        else:  # Records that only the leader has may be lost, and their offsets be used again.
            done = [Send(key, value) for _, value, _ in done]
        if acks != 0:
            self.acknowledged_of[key] += len(done)
        if done:
            record(name, INFO if acks == 0 else OK, "send", sends=done)
        for value, why in failed:
            kind = FAIL if why.appended is Appended.NO else INFO
            record(name, kind, "send", sends=[Send(key, value)], error=repr(why))
        return not failed

    async def _read(self, number: int, zone: str) -> None:
        while not self.is_over.is_set():
            name = f"r{number}.{next(self._lives)}"
            consumer = Consumer(
                self._addresses,
                request_timeout_ms=10_000,
                client_rack=zone,
                metadata_max_age_ms=2_000,  # It soon asks again where to read.
                **self._client,
            )
            try:
                await consumer.assign(self._places.topics, start="beginning")
                self._history.record(name, OK, "assign", details=list(self._places.keys))
                while not self.is_over.is_set():
                    self._history.record(name, INVOKE, "poll")
                    records = await consumer.poll(_POLL_MS)
                    self._history.record(name, OK, "poll", polled=[self._by_key(records)])
                    await asyncio.sleep(self._pause_s)
            except MillraceError as error:
                self._history.record(name, INFO, "poll", error=repr(error))
                await asyncio.sleep(self._pause_s)
            finally:
                with suppress(MillraceError):
                    await consumer.close()

    async def _ask_ends(self, newest_epoch: Callable[[int], int]) -> None:
        """Ask for end offsets all the time, of one topic after another."""
        record = self._history.record
        name = f"asker.{next(self._lives)}"
        async with Admin(self._addresses, request_timeout_ms=5_000, **self._client) as admin:
            for topic in itertools.cycle(self._places.topics):
                if self.is_over.is_set():
                    return
                keys = [
                    self._places.key_of(topic, number) for number in range(self._places.partitions)
                ]
                record(name, INVOKE, "list_offsets", details=dict.fromkeys(keys))
                try:
                    found = await admin.list_offsets(topic)
                except MillraceError as error:
                    record(name, INFO, "list_offsets", error=repr(error))
                    name = f"asker.{next(self._lives)}"
                else:
                    newest = {key: await asyncio.to_thread(newest_epoch, key) for key in keys}
                    # A deposed leader that has not heard of its successor answers with its last
                    # state (P40): that is no promise.
                    ends = {
                        key: end.offset
                        for (_, partition), end in found.items()
                        if end.leader_epoch >= newest[key := self._places.key_of(topic, partition)]
                    }
                    record(name, OK, "list_offsets", details=ends)
                await asyncio.sleep(self._pause_s)

    async def _read_all(self) -> dict[int, int]:
        async with Admin(self._addresses, **self._client) as admin:
            ends: dict[int, int] = {}
            for topic in self._places.topics:
                for (_, partition), end in (await admin.list_offsets(topic)).items():
                    ends[self._places.key_of(topic, partition)] = end.offset
        deadline = time.monotonic() + _FINAL_SECONDS_MAX
        async with Consumer(self._addresses, **self._client) as consumer:
            await consumer.assign(self._places.topics, start="beginning")
            waiting = {key for key, end in ends.items() if end > 0}
            polled = []
            self._history.record("final", INVOKE, "final")
            while waiting and time.monotonic() < deadline:
                found = self._by_key(await consumer.poll(_POLL_MS))
                polled.append(found)
                waiting -= {key for key, read in found.items() if read[-1][0] + 1 >= ends[key]}
            self._history.record("final", OK, "final", polled=polled)
        return ends

    def _by_key(self, records: Records) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for record in records:
            key = self._places.key_of(record.topic, record.partition)
            found.setdefault(key, []).append((record.offset, value_of(record.value)))
        return found
