"""Clients of Kafka beside the load: librdkafka writes to the same partitions, and reads them.

A writer for each topic sends unique values with `acks=all`, idempotent, a few at a time, and waits.
Readers of committed records follow all partitions from their beginning. The history is that of the
load: so what clients of one protocol wrote is judged together with what those of the other read.
"""

import functools
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tests.checkers.history import FAIL, INFO, INVOKE, OK, Send
from tests.faults.history import History
from tests.faults.kafka import clients
from tests.faults.kafka.threads import KafkaThreads
from tests.faults.load import Places, text_of, value_of

READERS: Final = 2
_FIRST_VALUE: Final = 10**12
"""Values of these writers are others than those of the load."""
_SENDS_MAX: Final = 12
_PAUSE_SECONDS: Final = 0.15
_POLL_SECONDS: Final = 0.3
_RECORDS_MAX: Final = 1_000
_LOOK_SECONDS: Final = 0.02
_FINAL_SECONDS_MAX: Final = 90.0

Pairs = dict[int, list[tuple[int, int]]]


class KafkaLoad(KafkaThreads):
    """The clients. Stop it at the end.

    Args:
        bootstrap: returns the addresses of the brokers, when the clients begin.
        history: gets every operation.
        seed: for the order and time of operations.
        places: the partitions.

    Attributes:
        acknowledged_of: number of values by key.
        errors: what clients were told, by its name.
    """

    def __init__(
        self, bootstrap: Callable[[], str], history: History, seed: int, places: Places
    ) -> None:
        super().__init__()
        self.acknowledged_of = dict.fromkeys(places.keys, 0)
        self.errors: Counter[str] = Counter()
        self._bootstrap = bootstrap
        self._history = history
        self._seed = seed
        self._places = {key: places.place_of(key) for key in places.keys}
        self._keys = {place: key for key, place in self._places.items()}
        self._values = itertools.count(_FIRST_VALUE)
        self._lives = itertools.count(1)

    def begin(self) -> None:
        """Start the clients."""
        for topic in dict.fromkeys(topic for topic, _ in self._places.values()):
            self.start(f"writes {topic}", functools.partial(self._write, topic))
        for number in range(READERS):
            self.start(f"reads {number}", functools.partial(self._read, number))

    def wait_for_all(self, count: int = 5, seconds: float = 40) -> None:
        """Return once so many more values of every key are acknowledged.

        Raises:
            AssertionError: they are not within `seconds`; says of which keys.
        """
        wanted = {key: before + count for key, before in self.acknowledged_of.items()}
        deadline = time.monotonic() + seconds
        while late := [key for key in wanted if self.acknowledged_of[key] < wanted[key]]:
            if self.failure is not None:
                raise self.failure
            assert time.monotonic() < deadline, (
                f"keys {late} took no writes of Kafka's clients for {seconds} s; {self}"
            )
            time.sleep(_LOOK_SECONDS)

    def read_all(self, ends: Mapping[int, int]) -> None:
        """Read every partition from its beginning to its end, by a client of Kafka.

        Args:
            ends: of the partitions, by key.

        Raises:
            AssertionError: it does not get there.
        """
        waiting = {key for key in self._places if ends[key] > 0}
        deadline = time.monotonic() + _FINAL_SECONDS_MAX
        reader = clients.consumer(self._bootstrap())
        try:
            reader.assign(clients.beginning(self._places))
            polls: list[Pairs] = []
            self._history.record("final by Kafka", INVOKE, "final")
            while waiting:
                assert time.monotonic() < deadline, f"keys {waiting} are not read; {self}"
                messages = reader.consume(_RECORDS_MAX, _POLL_SECONDS)
                self._note_errors(messages)
                found = self._by_key(messages)
                polls.append(found)
                waiting -= {key for key, read in found.items() if read[-1][0] + 1 >= ends[key]}
            self._history.record("final by Kafka", OK, "final", polled=polls)
        finally:
            reader.close()

    def __str__(self) -> str:
        total = sum(self.acknowledged_of.values())
        return f"Kafka's clients: {total} records acknowledged; told: {dict(self.errors)}"

    # --- In threads of their own -------------------------------------------------------------

    def _write(self, topic: str) -> None:
        dice = random.Random(f"{self._seed} writes {topic} by Kafka")
        keys = [key for key, (name, _) in self._places.items() if name == topic]
        while not self.is_over.is_set():
            name = f"kw-{topic}.{next(self._lives)}"
            producer = clients.producer(self._bootstrap())
            while not self.is_over.is_set():
                count = dice.randint(1, _SENDS_MAX)
                sends = [Send(dice.choice(keys), next(self._values)) for _ in range(count)]
                if not self._send(producer, name, sends):
                    break  # The outcome of its last record is unknown: the process is retired.
                self.is_over.wait(dice.uniform(0, 2 * _PAUSE_SECONDS))

    def _send(self, producer: Producer, name: str, sends: list[Send]) -> bool:
        """Send values and wait for all; return whether all were acknowledged."""
        record = self._history.record
        outcomes: dict[Send, tuple[str, Send, str | None]] = {}

        def told(send: Send, error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                known = send._replace(offset=offset if offset >= 0 else None)
                outcomes[send] = OK, known, None
            else:
                self._note(error)
                outcomes[send] = INFO, send, clients.said(error)

        record(name, INVOKE, "send", sends=sends)
        for send in sends:
            topic, partition = self._places[send.key]
            try:
                producer.produce(
                    topic,
                    text_of(send.value),
                    partition=partition,
                    on_delivery=functools.partial(told, send),
                )
            except (BufferError, KafkaException) as error:
                outcomes[send] = FAIL, send, repr(error)
        while len(outcomes) < len(sends):
            producer.poll(_POLL_SECONDS)
        done = [outcomes[send][1] for send in sends if outcomes[send][0] == OK]
        if done:
            record(name, OK, "send", sends=done)
        for key, _, _ in done:
            self.acknowledged_of[key] += 1
        for kind, send, why in outcomes.values():
            if kind != OK:
                record(name, kind, "send", sends=[send], error=why)
        return len(done) == len(sends)

    def _read(self, number: int) -> None:
        record = self._history.record
        while not self.is_over.is_set():
            name = f"kr{number}.{next(self._lives)}"
            reader = clients.consumer(self._bootstrap())
            try:
                reader.assign(clients.beginning(self._places))
                record(name, OK, "assign", details=list(self._places))
                while not self.is_over.is_set():
                    record(name, INVOKE, "poll")
                    messages = reader.consume(_RECORDS_MAX, _POLL_SECONDS)
                    record(name, OK, "poll", polled=[self._by_key(messages)])
                    if errors := self._note_errors(messages):
                        record(name, INFO, "poll", error="; ".join(errors))
                        break
                    self.is_over.wait(_PAUSE_SECONDS)
            finally:
                reader.close()

    def _by_key(self, messages: Iterable[Message]) -> Pairs:
        found: Pairs = {}
        for message in messages:
            if message.error() is None:
                key = self._keys[message.topic(), message.partition()]
                found.setdefault(key, []).append((message.offset(), value_of(message.value())))
        return found

    def _note_errors(self, messages: Iterable[Message]) -> list[str]:
        errors: list[Any] = [message.error() for message in messages if message.error()]
        for error in errors:
            self._note(error)
        return [clients.said(error) for error in errors]

    def _note(self, error: KafkaError) -> None:
        self.errors[error.name()] += 1
