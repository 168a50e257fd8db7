"""`python -m tests.faults.transactor`: writes transactions, as a process that can be paused.

Each transactional id has one producer after another: one is closed, or left within a transaction
while its successor begins, and then tries to go on, which must be refused (P47). A transaction has
records for several partitions; some are aborted. All goes on until SIGTERM. Each line of its file
is an operation: see `notes`.

An error that no client may be told ends the process with its traceback.
"""

import argparse
import asyncio
import contextlib
import itertools
import logging
import random
import signal
import sys
from pathlib import Path
from typing import Final

from tests.checkers.history import FAIL, INFO, INVOKE, OK, Send
from tests.faults.load import text_of
from tests.faults.notes import Notes

from millrace.client import Producer, RecordHandle
from millrace.core.errors import (
    AbortedError,
    ConnectionFailedError,
    DeliveryTimedOutError,
    MillraceError,
    RetriableError,
    StorageError,
    TransactionInDoubtError,
)

TIMEOUT_MS: Final = 5_000
IDS: Final = 2
RECORDS_MAX: Final = 3
RECORD_BYTES: Final = 300
PAUSE_SECONDS: Final = 0.25
ABORTED, LEFT, CLOSED = 0.15, 0.06, 0.06
"""Shares of the transactions that are aborted, or left open as their producer is replaced, and of
those after which another producer begins in order."""
_REPEATS_MAX: Final = 5
"""Attempts of a commit that could not be asked for, before the transaction is aborted."""
_EXPECTED: Final = (
    RetriableError,
    ConnectionFailedError,
    DeliveryTimedOutError,
    StorageError,
    AbortedError,
    TransactionInDoubtError,
)
"""What a writer may be told while brokers fail, or when it was away."""


class Writer:
    """Writes transactions under one id, until `is_over`."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        place: tuple[str, int],
        values: "itertools.count[int]",
        notes: Notes,
    ) -> None:
        self.is_over = asyncio.Event()
        self._name = name
        self._bootstrap = bootstrap
        self._topic, self._partitions = place
        self._values = values
        self._notes = notes
        self._dice = random.Random(name)
        self._first = next(values)  # So names of a later process are others.
        self._numbers = itertools.count()
        self._zombies: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        before: Producer | None = None
        while not self.is_over.is_set():
            producer = Producer(
                self._bootstrap,
                transactional_id=self._name,
                transaction_timeout_ms=TIMEOUT_MS,
                linger_ms=1,
                request_timeout_ms=5_000,
                delivery_timeout_ms=90_000,
            )
            if await self._begin(producer) and before is not None:
                self._zombies.append(asyncio.create_task(self._go_on(before)))
                before = None
            if before is not None:
                await self._close(before)
            before = producer if await self._write(producer) else None
            if before is None:
                await self._close(producer)
        if before is not None:
            await self._close(before)
        await asyncio.gather(*self._zombies)

    async def _begin(self, producer: Producer) -> bool:
        """Initialise; return whether it went well before the end."""
        while not self.is_over.is_set():
            try:
                await producer.init_transactions()
            except MillraceError as error:
                _judge(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return True
        return False

    async def _write(self, producer: Producer) -> bool:
        """Write transactions; return whether the last one is left open."""
        while not self.is_over.is_set():
            if await self._transact(producer):
                return True
            await asyncio.sleep(self._dice.uniform(0, 2 * PAUSE_SECONDS))
            if self._dice.random() < CLOSED:
                return False
        return False

    async def _transact(self, producer: Producer) -> bool:
        """Write one transaction; return whether it is left open."""
        notes, way = self._notes, self._dice.random()
        try:
            await producer.begin_transaction()
        except MillraceError as error:
            _judge(error)
            await asyncio.sleep(PAUSE_SECONDS)
            return False
        process, sends = self._draw()
        notes.add(process, INVOKE, "txn", sends=sends)
        try:
            handles = [self._send(producer, send) for send in sends]
        except MillraceError as error:  # It was aborted by time.
            _judge(error)
            await self._abort(process, producer, sends)
            return False
        await asyncio.sleep(self._dice.choice((0, 0, 0.02, 0.2)))
        if way < LEFT:
            notes.add(process, FAIL, "txn", sends=sends, error="left")
            return True
        if way < LEFT + ABORTED:
            await self._abort(process, producer, sends)
        else:
            await self._commit(process, producer, sends, handles)
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

    def _send(self, producer: Producer, send: Send) -> RecordHandle:
        return producer.send(self._topic, text_of(send.value, RECORD_BYTES), partition=send.key)

    async def _abort(self, process: str, producer: Producer, sends: list[Send]) -> None:
        self._notes.add(process, INVOKE, "end", details="abort")
        try:
            await producer.abort_transaction()
        except MillraceError as error:
            _judge(error)
        self._notes.add(process, FAIL, "txn", sends=sends, error="aborted")

    async def _commit(
        self, process: str, producer: Producer, sends: list[Send], handles: list[RecordHandle]
    ) -> None:
        self._notes.add(process, INVOKE, "end", details="commit")
        outcome, why = await self._committed(producer)
        if outcome == OK:
            sends = [
                Send(send.key, send.value, (await handle).offset)
                for send, handle in zip(sends, handles, strict=True)
            ]
        self._notes.add(process, outcome, "txn", sends=sends, error=why)

    async def _committed(self, producer: Producer) -> tuple[str, str | None]:
        """Commit; return the type of the operation, and the last error."""
        why: str | None = None
        for repeat in itertools.count():
            try:
                await producer.commit_transaction()
            except TransactionInDoubtError as error:
                why = repr(error)
                if self.is_over.is_set():
                    return INFO, why
                if (outcome := await self._outcome(producer)) is not None:
                    return outcome, why
            except MillraceError as error:
                _judge(error)
                why = repr(error)
                if isinstance(error, AbortedError):
                    return FAIL, why
                if not error.retriable or repeat >= _REPEATS_MAX or self.is_over.is_set():
                    with contextlib.suppress(*_EXPECTED):
                        await producer.abort_transaction()
                    return FAIL, why
            else:
                return OK, None
            await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError

    async def _outcome(self, producer: Producer) -> str | None:
        """Sometimes ask what became of a commit in doubt; None: nobody knows yet."""
        if self._dice.random() < 0.5:
            return None
        try:
            outcome = await producer.outcome()
        except MillraceError as error:
            _judge(error)
            return None
        assert outcome != "unknown", f"{self._name}: its last transaction has no outcome (T17)"
        return {"committed": OK, "aborted": FAIL}.get(outcome or "open")

    async def _go_on(self, producer: Producer) -> None:
        """Go on with a producer that was replaced within a transaction: all is refused (P47)."""
        process, sends = self._draw()
        self._notes.add(process, INVOKE, "txn", sends=sends)
        with contextlib.suppress(MillraceError):
            for send in sends:
                self._send(producer, send)
        try:
            await producer.commit_transaction()
        except MillraceError as error:
            self._notes.add(process, FAIL, "txn", sends=sends, error=repr(error))
        else:
            raise AssertionError(f"{self._name} commits, and another producer has its id (P47)")
        await self._close(producer)

    async def _close(self, producer: Producer) -> None:
        with contextlib.suppress(MillraceError):
            await producer.close()


def _judge(error: MillraceError) -> None:
    """Fail on an error that no writer should meet, whatever happens to brokers."""
    if not isinstance(error, _EXPECTED):
        raise error


async def _run(bootstrap: str, topic: str, partitions: int, first_value: int, notes: Notes) -> None:
    values = itertools.count(first_value)
    writers = [
        Writer(f"writer-{number}", bootstrap, (topic, partitions), values, notes)
        for number in range(IDS)
    ]

    def end() -> None:
        for writer in writers:
            writer.is_over.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.transactor", description=__doc__)
    parser.add_argument("bootstrap", help="addresses of brokers")
    parser.add_argument("topic", help="its name")
    parser.add_argument("partitions", type=int, help="of the topic")
    parser.add_argument("first_value", type=int, help="values of this process go on from here")
    parser.add_argument("file", type=Path, help="gets a line for each operation")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    with arguments.file.open("w") as file:
        asyncio.run(
            _run(
                arguments.bootstrap,
                arguments.topic,
                arguments.partitions,
                arguments.first_value,
                Notes(file),
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
