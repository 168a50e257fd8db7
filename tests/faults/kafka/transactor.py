"""`python -m tests.faults.kafka.transactor`: writes transactions with librdkafka, as a process.

As `tests.faults.transactor`: each transactional id has one producer after another; some of its
transactions are aborted, and some left open while the successor begins. The producer that was
replaced goes on, which must be refused (P47). All goes on until SIGTERM; each line of its file is
an operation.

A fatal error retires a producer, and its transaction is in doubt if its commit was asked for.
"""

import argparse
import functools
import itertools
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tests.checkers.history import FAIL, INFO, INVOKE, OK, Send
from tests.faults.kafka import clients
from tests.faults.load import text_of
from tests.faults.notes import Notes
from tests.faults.transactor import (
    ABORTED,
    CLOSED,
    IDS,
    LEFT,
    PAUSE_SECONDS,
    RECORD_BYTES,
    RECORDS_MAX,
    TIMEOUT_MS,
)

CALL_SECONDS: Final = 10.0
_REPEATS_MAX: Final = 12
"""Attempts of a call that says that it may be repeated."""


class FatalError(Exception):
    """A producer can do nothing more."""


def transactional_producer(bootstrap: str, name: str) -> Producer:
    """Return a producer with a transactional id."""
    return clients.producer(
        bootstrap,
        transactional_id=name,
        transaction_timeout_ms=TIMEOUT_MS,
        message_timeout_ms=TIMEOUT_MS,
    )


def persistently(call: Callable[[float], object]) -> None:
    """Repeat a call of a transactional producer while its error says that this may help.

    Raises:
        KafkaException: the transaction has to be aborted.
        FatalError: the producer can do nothing more, or the errors stay.
    """
    for _ in range(_REPEATS_MAX):
        try:
            call(CALL_SECONDS)
        except KafkaException as caught:
            error = caught.args[0]
            if error.txn_requires_abort():
                raise
            if not error.retriable():
                raise FatalError(clients.said(error)) from caught
            logging.warning("%s", clients.said(error))
            last = error
        else:
            return
    raise FatalError(f"the errors stay: {clients.said(last)}")


class Writer:
    """Writes transactions under one id, until `is_over`."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        place: tuple[str, int],
        *,
        values: "itertools.count[int]",
        notes: Notes,
        is_over: threading.Event,
    ) -> None:
        self.failure: BaseException | None = None
        self._name = name
        self._bootstrap = bootstrap
        self._topic, self._partitions = place
        self._values = values
        self._notes = notes
        self._is_over = is_over
        self._dice = random.Random(name)
        self._first = next(values)  # So names of a later process are others.
        self._numbers = itertools.count()

    def run(self) -> None:
        try:
            with clients.damage_is_a_crash():
                self._run()
        except BaseException as error:
            logging.exception("%s failed", self._name)
            self.failure = error

    def _run(self) -> None:
        left: Producer | None = None
        while not self._is_over.is_set():
            producer = transactional_producer(self._bootstrap, self._name)
            try:
                persistently(producer.init_transactions)
                if left is not None:
                    self._go_on(left)
                left = producer if self._write(producer) else None
            except (KafkaException, FatalError) as error:
                logging.warning("%s gets a new producer: %s", self._name, error)
                self._is_over.wait(PAUSE_SECONDS)

    def _write(self, producer: Producer) -> bool:
        """Write transactions; return whether the last one is left open."""
        while not self._is_over.is_set():
            if self._transact(producer):
                return True
            self._is_over.wait(self._dice.uniform(0, 2 * PAUSE_SECONDS))
            if self._dice.random() < CLOSED:
                return False
        return False

    def _transact(self, producer: Producer) -> bool:
        """Write one transaction; return whether it is left open."""
        way = self._dice.random()
        producer.begin_transaction()
        process, sends = self._draw()
        self._notes.add(process, INVOKE, "txn", sends=sends)
        offsets: dict[Send, int] = {}
        try:
            self._send(producer, sends, offsets)
        except KafkaException as error:  # It has to be aborted, as one record was refused.
            logging.warning("%s: %s", process, error)
            way = LEFT
        self._is_over.wait(self._dice.choice((0, 0, 0.02, 0.2)))
        if way < LEFT:
            self._notes.add(process, FAIL, "txn", sends=sends, error="left")
            return True
        if way < LEFT + ABORTED:
            self._abort(process, producer, sends)
        else:
            self._commit(process, producer, sends, offsets)
        return False

    def _draw(self) -> tuple[str, list[Send]]:
        """Return the name of a new transaction, and what it sends."""
        dice = self._dice
        keys = dice.sample(range(self._partitions), dice.randint(1, self._partitions))
        return f"{self._name}#{self._first}.{next(self._numbers)}", [
            Send(key, next(self._values))
            for key in keys
            for _ in range(dice.randint(1, RECORDS_MAX))
        ]

    def _send(self, producer: Producer, sends: list[Send], offsets: dict[Send, int]) -> None:
        def told(send: Send, error: KafkaError | None, message: Message) -> None:
            if error is None and message.offset() >= 0:
                offsets[send] = message.offset()

        for send in sends:
            producer.produce(
                self._topic,
                text_of(send.value, RECORD_BYTES),
                partition=send.key,
                on_delivery=functools.partial(told, send),
            )

    def _abort(self, process: str, producer: Producer, sends: list[Send]) -> None:
        self._notes.add(process, INVOKE, "end", details="abort")
        self._notes.add(process, FAIL, "txn", sends=sends, error="aborted")
        persistently(producer.abort_transaction)

    def _commit(
        self, process: str, producer: Producer, sends: list[Send], offsets: dict[Send, int]
    ) -> None:
        def note(outcome: str, why: str | None) -> None:
            done = [Send(send.key, send.value, offsets.get(send)) for send in sends]
            self._notes.add(process, outcome, "txn", sends=done, error=why)

        self._notes.add(process, INVOKE, "end", details="commit")
        try:
            persistently(producer.commit_transaction)
        except FatalError as error:
            note(INFO, repr(error))
            raise
        except KafkaException as error:
            try:
                persistently(producer.abort_transaction)
            except (KafkaException, FatalError):
                note(INFO, repr(error))
                raise
            note(FAIL, repr(error))
        else:
            note(OK, None)

    def _go_on(self, producer: Producer) -> None:
        """Go on with a producer that was replaced within a transaction: all is refused (P47)."""
        process, sends = self._draw()
        self._notes.add(process, INVOKE, "txn", sends=sends)
        try:
            self._send(producer, sends, {})
            persistently(producer.commit_transaction)
        except (KafkaException, FatalError) as error:
            self._notes.add(process, FAIL, "txn", sends=sends, error=repr(error))
        else:
            raise AssertionError(f"{self._name} commits, and another producer has its id (P47)")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.kafka.transactor", description=__doc__
    )
    parser.add_argument("bootstrap", help="addresses of brokers")
    parser.add_argument("topic", help="its name")
    parser.add_argument("partitions", type=int, help="of the topic")
    parser.add_argument("first_value", type=int, help="values of this process go on from here")
    parser.add_argument("file", type=Path, help="gets a line for each operation")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    values = itertools.count(arguments.first_value)
    place = arguments.topic, arguments.partitions
    with arguments.file.open("w") as file:
        notes = Notes(file)
        writers = [
            Writer(
                f"kafka-writer-{number}",
                arguments.bootstrap,
                place,
                values=values,
                notes=notes,
                is_over=is_over,
            )
            for number in range(IDS)
        ]
        threads = [threading.Thread(target=writer.run, daemon=True) for writer in writers]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread, writer in zip(threads, writers, strict=True):
                thread.join(PAUSE_SECONDS)
                if writer.failure is not None:
                    return 1
    return int(any(writer.failure is not None for writer in writers))


if __name__ == "__main__":
    sys.exit(main())
