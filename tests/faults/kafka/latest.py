"""Clients of Kafka in the compacted topic: a writer for each partition, with keys of its own, and a
reader that follows from the beginning. `Latest` judges them with the others."""

import functools
import random
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from tests.checkers.compacted import Read, Sent
from tests.checkers.history import INFO, OK
from tests.faults.kafka import clients
from tests.faults.kafka.threads import KafkaThreads
from tests.faults.latest import PARTITIONS, TOPIC, Latest, read_of, value_for

_KEYS: Final = 200
_SENDS_MAX: Final = 12
_PAUSE_SECONDS: Final = 0.2
_TOMBSTONE_SHARE: Final = 0.1
_POLL_SECONDS: Final = 0.3
_RECORDS_MAX: Final = 1_000
_FINAL_SECONDS_MAX: Final = 90.0


class KafkaLatest(KafkaThreads):
    """The clients.

    Args:
        bootstrap: returns the addresses of the brokers, when the clients begin.
        latest: the other clients of the topic.
        seed: for the order and time of operations.
    """

    def __init__(self, bootstrap: Callable[[], str], latest: Latest, seed: int) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._latest = latest
        self._seed = seed

    def begin(self) -> None:
        """Start the clients."""
        for partition in range(PARTITIONS):
            self.start(f"writes {TOPIC} {partition}", functools.partial(self._write, partition))
        self.start(f"reads {TOPIC}", self._follow)

    def read_all(self) -> None:
        """Read the topic once more from its beginning to its end; all writers have stopped.

        Raises:
            AssertionError: it does not get there.
        """
        found = self._latest.reader("read last by Kafka", is_whole=True)
        deadline = time.monotonic() + _FINAL_SECONDS_MAX
        ended: set[int] = set()
        self._read(
            found, ended.add, lambda: len(ended) == PARTITIONS or time.monotonic() > deadline
        )
        assert len(ended) == PARTITIONS, f"of {TOPIC} only {ended} were read to their end"

    def _write(self, partition: int) -> None:
        dice = random.Random(f"{self._seed} latest {partition} by Kafka")
        while not self.is_over.is_set():
            producer = clients.producer(self._bootstrap())
            while not self.is_over.is_set():
                if not self._send(producer, partition, dice):
                    break  # The outcome of its last record is unknown: it is retired.
                self.is_over.wait(dice.uniform(0, 2 * _PAUSE_SECONDS))

    def _send(self, producer: Producer, partition: int, dice: random.Random) -> bool:
        """Send some records and wait for all; return whether all were acknowledged."""
        done: dict[int, Sent] = {}

        def told(sent: Sent, error: KafkaError | None, message: Message) -> None:
            is_known = error is None and message.offset() >= 0
            done[sent.number] = sent._replace(
                outcome=OK if is_known else INFO, offset=message.offset() if is_known else -1
            )

        sends = []
        for _ in range(dice.randint(1, _SENDS_MAX)):
            key = b"kafka-key-%d" % dice.randrange(_KEYS)
            sent = Sent(key, self._latest.new_number(), dice.random() < _TOMBSTONE_SHARE, INFO)
            value, headers = value_for(sent)
            producer.produce(
                TOPIC,
                value,
                key,
                partition,
                headers=headers,
                on_delivery=functools.partial(told, sent),
            )
            sends.append(sent)
        while len(done) < len(sends):
            producer.poll(_POLL_SECONDS)
        for sent in sends:
            self._latest.note(partition, done[sent.number])
        return all(sent.outcome == OK for sent in done.values())

    def _follow(self) -> None:
        while not self.is_over.is_set():
            found = self._latest.reader("read by Kafka", is_whole=False)
            self._read(found, lambda _: None, self.is_over.is_set)

    def _read(
        self,
        found: list[list[Read]],
        on_end: Callable[[int], object],
        is_done: Callable[[], bool],
    ) -> None:
        """Read from the beginning until it is done, or an error comes."""
        reader = clients.consumer(self._bootstrap(), enable_partition_eof=True)
        try:
            reader.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
            while not is_done():
                for message in reader.consume(_RECORDS_MAX, _POLL_SECONDS):
                    partition, error = message.partition(), message.error()
                    if error is None:
                        headers = message.headers() or ()
                        read = read_of(message.offset(), message.key(), message.value(), headers)
                        found[partition].append(read)
                    elif clients.is_end(error):
                        on_end(partition)
                    else:
                        return
        finally:
            reader.close()
