"""Records through a function into other topics, exactly once: `Consumer.process_exactly_once`.

One transaction after another: records that a member of a group has read, what the function makes of
them, and the positions after them, all of it or nothing. A transaction is committed when it has
been open for some time, or has read so many bytes.

What fails on the way is aborted. The consumer goes back to the committed positions, and the records
come again, here or at another member. So the function may be called with a record several times,
and what it returned counts once. Three things end the loop: an error of the function, an error that
another attempt cannot cure, and another producer with the transactional id. A commit in doubt is
repeated until it is known what became of it: no record is read before that.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from millrace.client import events
from millrace.client._cluster.pauses import spread
from millrace.client._consumer.records import FetchedRecords
from millrace.client._threads.logs import Log
from millrace.core.errors import (
    AbortedError,
    Appended,
    BufferExhaustedError,
    DeliveryTimedOutError,
    FencedMemberEpochError,
    InvalidRequestError,
    MillraceError,
    OutOfOrderSequenceError,
    StaleMemberEpochError,
    TransactionInDoubtError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from millrace.runtime import host

_log = Log(__name__)

INTERVAL_MS_DEFAULT: Final = 100
BYTES_MAX_DEFAULT: Final = 64 << 20
_POLL_BYTES_MAX: Final = 16 << 20
"""Of records in memory at once: a transaction reads more."""
_WAIT_MS: Final = 1_000
"""How long one poll waits for records while no transaction is open."""
_PAUSE_MS: Final = 100
_PAUSE_MS_MAX: Final = 5_000
"""Pauses before another attempt, which double."""
_LOGGED_LENGTH_MAX: Final = 200


@dataclass(slots=True, frozen=True)
class OutputRecords:
    """Records to be sent, as columns: the arguments of `send_batch`."""

    topic: str
    values: Any = None
    """A sequence, an Arrow array, or a table with the columns of the others."""
    keys: Any = None
    partition: int | None = None
    """Of all records; None: by their keys."""
    headers: Any = None
    timestamps: Any = None


Transform = Callable[[FetchedRecords], Iterable[OutputRecords] | Awaitable[Iterable[OutputRecords]]]
"""Makes of records what is to be sent; a function, also a generator, or a coroutine function."""


class _Transaction(Protocol):
    def send_batch(
        self,
        topic: str,
        values: Any = None,
        keys: Any = None,
        *,
        partition: int | None = None,
        headers: Any = None,
        timestamps: Any = None,
    ) -> object: ...

    async def commit_positions(
        self, consumer: Any, positions: Mapping[tuple[str, int], int] | None = None
    ) -> None: ...


class LoopProducer(Protocol):
    """A transactional `Producer`."""

    def transaction(self, consumer: Any = None) -> AbstractAsyncContextManager[_Transaction]: ...

    async def commit_transaction(self) -> None: ...

    async def outcome(self) -> str | None: ...

    async def wait_for_room(self, size: int) -> None: ...


class TransactionalProducer(Protocol):
    """A `Producer` or a `SyncProducer`, with a transactional id."""

    @property
    def _on_loop(self) -> LoopProducer:
        """The producer for event loops."""


class Reader(Protocol):
    """A `Consumer`."""

    async def poll_batches(
        self, timeout_ms: int = ..., max_bytes: int = ...
    ) -> list[FetchedRecords]: ...


def loop_producer_of(transform: object, producer: TransactionalProducer) -> LoopProducer:
    """Return what `process_exactly_once` sends with, for the arguments that a caller gave.

    Raises:
        InvalidRequestError: they are not a function and a producer.
    """
    if not callable(transform) or not hasattr(producer, "_on_loop"):
        given = ", ".join(type(argument).__name__ for argument in (transform, producer))
        raise InvalidRequestError(
            f"process_exactly_once({given}): give it a function that makes of records what is to "
            "be sent, and then the producer that sends it"
        )
    return producer._on_loop


async def process_exactly_once(
    consumer: Reader,
    transform: Transform,
    producer: LoopProducer,
    *,
    interval_ms: int,
    bytes_max: int,
    group: str,
) -> None:
    """See `Consumer.process_exactly_once`.

    Args:
        consumer: that reads.
        transform: makes of records what is to be sent.
        producer: that sends.
        interval_ms: how long a transaction is open, about.
        bytes_max: of records that a transaction reads, about.
        group: of the consumer, for the log.
    """
    if interval_ms < 1 or bytes_max < 1:
        raise InvalidRequestError(
            f"interval_ms={interval_ms}, bytes_max={bytes_max}: must be 1 at least"
        )
    failures = 0
    while True:
        try:
            batches = await consumer.poll_batches(_WAIT_MS, min(bytes_max, _POLL_BYTES_MAX))
            if not batches:
                continue
            await _process(
                consumer, batches, transform, producer, interval_ms=interval_ms, bytes_max=bytes_max
            )
        except TransactionInDoubtError as error:
            _log_retry(group, error)
            await _settle(producer, group)
        except MillraceError as error:
            if not _may_be_cured(error):
                raise
            _log_retry(group, error)
            pause_ms = min(_PAUSE_MS * 2**failures, _PAUSE_MS_MAX)
            failures = min(failures + 1, 10)
            await asyncio.sleep(spread(pause_ms)[0] / 1000)
        else:
            failures = 0


async def _process(
    consumer: Reader,
    batches: list[FetchedRecords],
    transform: Transform,
    producer: LoopProducer,
    *,
    interval_ms: int,
    bytes_max: int,
) -> None:
    """Process records in one transaction: those that were read, and those that come meanwhile."""
    ends_at = host.monotonic_s() + interval_ms / 1000
    left = bytes_max
    async with producer.transaction(consumer) as transaction:
        while True:
            for records in batches:
                left -= records.records.nbytes
                made = transform(records)
                outputs = await made if inspect.isawaitable(made) else made
                for output in outputs:
                    await _send(transaction, producer, output)
            wait_s = ends_at - host.monotonic_s()
            if wait_s <= 0 or left <= 0:
                break
            batches = await consumer.poll_batches(int(wait_s * 1000), min(left, _POLL_BYTES_MAX))
        await transaction.commit_positions(consumer)


async def _send(transaction: _Transaction, producer: LoopProducer, output: OutputRecords) -> None:
    """Send records, as soon as there is room for them.

    Raises:
        BufferExhaustedError: they need more room than there ever is.
    """
    for is_last in (False, True):
        try:
            transaction.send_batch(
                output.topic,
                output.values,
                output.keys,
                partition=output.partition,
                headers=output.headers,
                timestamps=output.timestamps,
            )
        except BufferExhaustedError as error:
            if is_last or error.appended is Appended.MAYBE:
                raise
            await producer.wait_for_room(2**62)  # Of all that there is.
        else:
            return


async def _settle(producer: LoopProducer, group: str) -> None:
    """Repeat a commit that is in doubt, and ask, until it is known what became of it.

    If it is not committed, the consumer has gone back.

    Raises:
        MillraceError: the producer is fenced, or closed.
    """
    while True:
        await asyncio.sleep(spread(_PAUSE_MS)[0] / 1000)
        try:
            if await producer.outcome() != "open":
                return
            await producer.commit_transaction()
        except AbortedError:
            return
        except MillraceError as error:
            if not (error.retriable or isinstance(error, TransactionInDoubtError)):
                raise
            _log_retry(group, error)
        else:
            return


def _may_be_cured(error: MillraceError) -> bool:
    """Whether another attempt may succeed."""
    if isinstance(error, UnknownTopicOrPartitionError):
        return False  # A topic of the outputs: to create it is for a person.
    return error.retriable or isinstance(
        error,
        AbortedError
        | DeliveryTimedOutError
        | OutOfOrderSequenceError
        | StaleMemberEpochError
        | UnknownMemberIdError
        | FencedMemberEpochError,
    )


def _log_retry(group: str, error: MillraceError) -> None:
    events.TRANSACTION_RETRIED.log(_log, group=group, error=error.message[:_LOGGED_LENGTH_MAX])
