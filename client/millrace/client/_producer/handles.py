"""The handles of `send()` and `send_batch()`: small, and without work until they are used.

A handle has an intake and an index in it, through which the record's partition and outcome are
looked up. So a million records cost a million small tuples and no future at all.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any, Final, NamedTuple

from millrace.core import words
from millrace.core.client.producer.delivery import Acknowledged, Delivery
from millrace.core.client.producer.intake import Intake
from millrace.core.errors import MillraceError
from millrace.core.ids import Offset, WallMs
from millrace.runtime import host


class RecordMetadata(NamedTuple):
    """Where a record is in the log."""

    topic: str
    partition: int
    offset: Offset
    """-1 with `acks=0`: unknown."""
    timestamp: WallMs
    """Milliseconds UTC: the producer's, or the broker's if the topic stamps append time."""


class RecordHandle:
    """The delivery of one record.

    Await it, or ask `result()` from a thread that runs no event loop:

        metadata = await producer.send("orders", b"...")
        metadata = sync_producer.send("orders", b"...").result(timeout=10)
    """

    __slots__ = ("index", "intake")  # No `__init__`: calling it would cost as much as all else.

    intake: Intake
    index: int

    def done(self) -> bool:
        """Return whether the record was acknowledged or has failed."""
        return self._outcome() is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait, at most `timeout` seconds, and return where the record is.

        Raises:
            MillraceError: it was not delivered; `appended` tells whether it may be in the log.
            TimeoutError: not known yet.
        """
        place = self.intake.locate(self.index)
        if type(place) is tuple:
            delivery, index = place
            outcome = delivery.outcome
            if type(outcome) is Acknowledged:
                return _metadata(delivery, outcome, index)
            is_done = outcome is not None
        else:
            is_done = place is not None
        if not is_done:
            wait_in_thread(self.intake, self.index, self.done, timeout)
        return self._resolved()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        while not self.done():
            yield from wait_on_loop(self.intake, self.index, self.done).__await__()
        return self._resolved()

    def add_done_callback(self, callback: "Callable[[RecordHandle], object]") -> None:
        """Call `callback(handle)` once the outcome is known, on the producer's loop thread.

        A callback must not block; it is called at once when the outcome is known already. What it
        raises on that thread is logged; `sys.exit()` ends an asynchronous program there, and no
        synchronous one.
        """
        if self.done():
            callback(self)
            return
        pending = [callback]  # Called by the thread that pops it: the loop's, or this one.

        def waiter() -> None:
            if pending:
                pending.pop()(self)

        self.intake.add_waiter(waiter, self.index)
        if self.done():
            waiter()

    def _outcome(self) -> tuple[Delivery, int] | MillraceError | None:
        place = self.intake.locate(self.index)
        if type(place) is tuple and place[0].outcome is None:
            return None
        return place

    def _resolved(self) -> RecordMetadata:
        place = self.intake.locate(self.index)
        assert place is not None, "only called when done"
        if isinstance(place, MillraceError):
            raise _told(place, self.index)
        batch, index = place
        outcome = batch.outcome
        assert outcome is not None, "only called when done"
        if isinstance(outcome, MillraceError):
            raise _told(outcome, index)
        return _metadata(batch, outcome, index)

    def __repr__(self) -> str:
        return f"<RecordHandle {self.index} of topic {self.intake.topic!r}, done: {self.done()}>"


_new_tuple: Final[Callable[..., RecordMetadata]] = tuple.__new__


def _metadata(delivery: Delivery, outcome: Acknowledged, index: int) -> RecordMetadata:
    """Return where a record is that was acknowledged."""
    offset: int = outcome.base_offset
    timestamp: int = outcome.append_timestamp
    if offset >= 0:
        offset += index
    if timestamp < 0:
        times = delivery.timestamps
        timestamp = times if type(times) is int else delivery.timestamp_of(index)
    # As `RecordMetadata(...)`, in half of its time.
    return _new_tuple(
        RecordMetadata, (delivery.topic, delivery.topic_partition.partition, offset, timestamp)
    )


@dataclass(slots=True, frozen=True)
class AppendedRange:
    """Neighbouring records of a `send_batch()` in one partition: `[base_offset, next_offset)`."""

    partition: int
    base_offset: Offset
    record_count: int


class BatchMetadata(NamedTuple):
    """Where the records of a `send_batch()` are."""

    topic: str
    record_count: int
    ranges: tuple[AppendedRange, ...]


class BatchHandle:
    """The delivery of all records of one `send_batch()`.

    `len()` is the number of records given; `handle[i]` is the handle of the i-th.
    """

    __slots__ = ("_count", "_intakes", "_rejected", "_rows", "_topic")

    def __init__(
        self,
        topic: str,
        count: int,
        intakes: list[Intake],
        rejected: dict[int, MillraceError],
    ) -> None:
        self._topic = topic
        self._count = count
        self._intakes = intakes
        self._rejected = rejected
        self._rows: list[int] | None = None
        if rejected:
            self._rows = [row for row in range(count) if row not in rejected]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> RecordHandle:
        """Return the handle of one record.

        Raises:
            IndexError: there is no such record.
            SerializationError: the record was never sent, as its serializer raised.
        """
        if not -self._count <= index < self._count:
            raise IndexError(f"{index} of {words.count(self._count, 'record')}")
        index %= self._count
        if index in self._rejected:
            raise own(self._rejected[index])
        if self._rows is not None:
            index = self._rows.index(index)
        for intake in self._intakes:
            if index < intake.record_count:
                handle = RecordHandle()
                handle.intake, handle.index = intake, index
                return handle
            index -= intake.record_count
        raise IndexError(index)

    def done(self) -> bool:
        """Return whether every record was acknowledged or has failed."""
        return all(intake.is_complete for intake in self._intakes)

    def errors(self) -> dict[int, MillraceError]:
        """Return the errors of the records that have failed so far, by their index."""
        errors = dict(self._rejected)
        self._tell()
        rows: Sequence[int] = range(self._count) if self._rows is None else self._rows
        at = 0
        for intake in self._intakes:
            if intake.first_error() is not None:
                for index in range(intake.record_count):
                    place = intake.locate(index)
                    error = place[0].outcome if isinstance(place, tuple) else place
                    if isinstance(error, MillraceError):
                        errors[rows[at + index]] = error
            at += intake.record_count
        return errors

    def result(self, timeout: float | None = None) -> BatchMetadata:
        """Wait, at most `timeout` seconds, and return where the records are.

        Raises:
            MillraceError: the first failure; `errors()` has all of them.
            TimeoutError: not known yet.
        """
        deadline = None if timeout is None else host.monotonic_s() + timeout
        for intake in self._intakes:
            if intake.is_complete:
                continue
            left = None if deadline is None else deadline - host.monotonic_s()
            try:
                wait_in_thread(intake, None, partial(_is_complete, intake), left)
            except TimeoutError:
                raise TimeoutError(f"no outcome within {timeout} s") from None
        return self._resolved()

    def __await__(self) -> Generator[Any, None, BatchMetadata]:
        for intake in self._intakes:
            while not intake.is_complete:
                yield from wait_on_loop(intake, None, partial(_is_complete, intake)).__await__()
        return self._resolved()

    def _when_done(self, callback: Callable[[MillraceError | None], object]) -> None:
        """Call `callback` with the first error, once every outcome is known, on the loop's thread.

        The errors do not count as reported.
        """
        pending = [callback]  # As in `RecordHandle.add_done_callback`.

        def waiter() -> None:
            if self.done() and pending:
                errors = (part.first_error() for part in self._intakes)
                pending.pop()(next(filter(None, errors), None))

        for intake in self._intakes:
            intake.add_waiter(waiter, None)
        waiter()

    def _tell(self) -> None:
        """Note that all failures were reported: `errors()` has them."""
        for intake in self._intakes:
            if intake.error is not None:
                _told(intake.error, 0, intake.record_count)
            for index, error in intake.failures.items():
                _told(error, index)
            for batch, first, count in intake.segments:
                if isinstance(batch.outcome, MillraceError):
                    _told(batch.outcome, first, count)

    def _resolved(self) -> BatchMetadata:
        self._tell()
        for rejection in self._rejected.values():
            raise own(rejection)
        ranges: list[AppendedRange] = []
        for intake in self._intakes:
            error = intake.first_error()
            if error is not None:
                raise own(error)
            for batch, first, count in intake.segments:
                outcome = batch.outcome
                assert isinstance(outcome, Acknowledged), "complete and without error"
                base = Offset(outcome.base_offset + first if outcome.base_offset >= 0 else -1)
                ranges.append(AppendedRange(batch.topic_partition.partition, base, count))
        return BatchMetadata(self._topic, self._count, tuple(ranges))


def own(error: MillraceError) -> MillraceError:
    """Return a copy of an error for one caller.

    All records of a batch share the error, and each raise would add to its traceback, for ever.
    """
    copied = copy(error)
    copied.__cause__, copied.__suppress_context__ = error.__cause__, error.__suppress_context__
    return copied


def _told(error: MillraceError, first: int, count: int = 1) -> MillraceError:
    """Note the records whose error was reported; return a copy of the error for the caller."""
    error.told |= ((1 << count) - 1) << first
    return own(error)


def _is_complete(intake: Intake) -> bool:
    return intake.is_complete


# Of what waits: `index` is that of a record in its intake; None: all of its records are waited for.


def wait_in_thread(
    intake: Intake, index: int | None, done: Callable[[], bool], timeout: float | None
) -> None:
    """Block this thread until `done()`, which it was not just now.

    Raises:
        TimeoutError: it is not within `timeout` seconds.
        RuntimeError: an event loop runs in this thread, which must not be blocked.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError("result() would block the event loop: await the handle instead")
    # A queue in C, and not an event: Ctrl-C in the middle of a wait leaves no lock taken.
    news = host.current.new_queue()
    waiter = partial(news.put, None)
    intake.add_waiter(waiter, index)
    if done():
        return
    try:
        news.get(timeout=None if timeout is None else max(0.0, timeout))
    except BaseException as error:
        if not done():
            intake.forget_waiter(waiter, index)
        if isinstance(error, Empty):
            raise TimeoutError(f"no outcome within {timeout} s") from None
        raise


async def wait_on_loop(intake: Intake, index: int | None, done: Callable[[], bool]) -> None:
    """Wait in this task until `done()`; the producer's loop may be another one."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def set_result() -> None:
        if not future.done():
            future.set_result(None)

    waiter = partial(loop.call_soon_threadsafe, set_result)
    intake.add_waiter(waiter, index)
    if not done():
        try:
            await future
        finally:
            if not done():
                intake.forget_waiter(waiter, index)
