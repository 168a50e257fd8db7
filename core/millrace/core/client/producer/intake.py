"""Records without a partition yet: one open intake per topic, and the memory of all intakes.

`send()` must cost about a microsecond, so it does nothing but append to the topic's open intake.
The partition of a record is decided later, for all records of an intake at once: keys are hashed as
a column, and records without a key go to a partition with a short queue at that moment. Records
also wait here while their topic's metadata is not known.

An open intake reserves room in `buffer_memory` in steps, so that adding a record only compares its
size with the intake's room. An intake is the unit in which memory is given back: when the last of
its records has been delivered or has failed.

Everything here is called by one thread at a time: the shell holds a lock.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np

from millrace.core.client.producer.delivery import Delivery, Waiter
from millrace.core.client.producer.sent_columns import (
    RECORD_OVERHEAD,
    TIMESTAMP_BYTES,
    SentColumns,
    headers_size,
)
from millrace.core.errors import MessageTooLargeError, MillraceError
from millrace.core.ids import MonotonicMs, WallMs
from millrace.core.records.columns import RECORDS_MAX, RecordHeaders

_FIRST_ROOM: Final = 16 * 1024
_ROOM_GROWTH: Final = 4


@dataclass(slots=True, eq=False)
class Intake:
    """Records of one topic, as columns, in the order in which they were sent.

    `values`, `keys` and `headers` are lists while records come one by one, and Arrow arrays when
    they came as columns. `partitions` has the partitions that the user chose, -1 for the others.
    """

    topic: str
    opened_at: MonotonicMs
    timestamp: WallMs
    room: int
    granted: int
    values: Any = field(default_factory=list)
    keys: Any = None
    headers: Any = None
    timestamps: Any = None
    partitions: Any = None
    sizes: Any = None
    """Bytes of each record, where records came as columns."""

    error: MillraceError | None = None
    """Error because of which none of the records reaches a batch."""
    failures: dict[int, MillraceError] = field(default_factory=dict)
    """Records that never reached a batch, by their index."""
    segments: list[tuple[Delivery, int, int]] = field(default_factory=list)
    """Where the records went: delivery, index in it of the first, number of records."""
    order: Any = None
    """Indexes of the records in the order of `segments`; None when it is their own."""
    places: Sequence[int] | None = None
    """The inverse: position in `segments` by index; made when a handle first asks."""
    segment_ends: list[int] | None = None
    """Where each of the `segments` ends; made when a handle first asks beyond the first."""
    is_distributed: bool = False
    batches_open: int = 0
    record_count: int = 0
    """Set at closing, as the columns are released when they have their partitions."""
    waiters: deque[tuple[int | None, Waiter]] = field(default_factory=deque)
    """What is called when it is complete (None), or for a record that has no delivery yet."""

    @property
    def size(self) -> int:
        """Bytes that the records take of `buffer_memory`."""
        return self.granted - self.room

    def fail(self, error: MillraceError) -> None:
        """Fail all records before they have partitions."""
        self.error = error
        self.values = self.keys = self.headers = self.timestamps = self.partitions = None
        self.is_distributed = True

    def first_error(self) -> MillraceError | None:
        """Return the error of a failed record; None: none has failed."""
        if self.error is not None:
            return self.error
        for error in self.failures.values():
            return error
        for batch, _, _ in self.segments:
            if isinstance(batch.outcome, MillraceError):
                return batch.outcome
        return None

    @property
    def is_complete(self) -> bool:
        """Whether every record has been delivered or has failed."""
        return self.is_distributed and self.batches_open == 0

    @property
    def unfinished_records(self) -> int:
        """How many records have neither been delivered nor failed."""
        if self.error is not None:
            return 0
        if not self.is_distributed:
            return self.record_count or len(self.values or ())
        return sum(count for batch, _, count in self.segments if batch.outcome is None)

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: RecordHeaders | None,
        timestamp: WallMs | None,
    ) -> int:
        """Append one record and return its index. The room was taken before."""
        index = len(self.values)
        if key is not None or self.keys is not None:
            self.keys = _append(self.keys, index, key, None)
        if headers is not None or self.headers is not None:
            self.headers = _append(self.headers, index, headers, ())
        if partition is not None or self.partitions is not None:
            self.partitions = _append(self.partitions, index, partition, -1)
        if timestamp is not None or self.timestamps is not None:
            self.timestamps = _append(self.timestamps, index, timestamp, self.timestamp)
        self.values.append(value)  # Last: a record exists from its value on.
        return index

    def close(self) -> None:
        """Fix the number of records."""
        self.granted -= self.room
        self.room = 0
        self.record_count = len(self.values)
        for column in (self.keys, self.headers, self.timestamps, self.partitions):
            if column is not None:
                del column[self.record_count :]

    def locate(self, index: int) -> tuple[Delivery, int] | MillraceError | None:
        """Return a record's delivery and its index there, or its error; None: neither yet."""
        if not self.is_distributed:
            return None
        if self.error is not None:
            return self.error
        if self.failures and index in self.failures:
            return self.failures[index]
        if self.order is not None:
            index = (self.places or self._ranks())[index]
        delivery, first, count = self.segments[0]
        if index < count:
            return delivery, first + index
        ends = self.segment_ends or self._ends()
        at = bisect_right(ends, index)
        delivery, first, count = self.segments[at]
        return delivery, first + index - ends[at] + count

    # Threads add waiters, and the shell's loop calls them. A thread adds one first and looks for
    # the outcome second; the loop sets the outcome first and looks for waiters second. So neither
    # needs a lock.

    def add_waiter(self, waiter: Waiter, index: int | None) -> None:
        """Have `waiter` called when a record has its outcome, or all have (None); any thread.

        A record that has failed before has no use for it: look for the outcome afterwards.
        """
        if index is None or not self.is_distributed:
            self.waiters.append((index, waiter))
            if index is None or not self.is_distributed:
                return
            try:
                self.waiters.remove((index, waiter))
            except ValueError:  # It was passed on meanwhile.
                return
        place = self.locate(index)
        if isinstance(place, tuple):
            place[0].waiters.append(waiter)

    def forget_waiter(self, waiter: Waiter, index: int | None) -> None:
        """Remove a waiter that was given up: the intake may stay for long; any thread."""
        place = None if index is None else self.locate(index)
        with suppress(ValueError):  # The loop has it just now.
            if isinstance(place, tuple):
                place[0].waiters.remove(waiter)
            else:
                self.waiters.remove((index, waiter))

    def pass_waiters_on(self) -> list[Waiter]:
        """Pass the waiters of single records on to their deliveries; called on the loop.

        Returns:
            Those of records that have failed without one.
        """
        failed: list[Waiter] = []
        for _ in range(len(self.waiters)):
            try:
                index, waiter = self.waiters.popleft()
            except IndexError:  # A thread has given up meanwhile.
                break
            place = None if index is None else self.locate(index)
            if type(place) is tuple:
                place[0].waiters.append(waiter)
            elif place is None:
                self.waiters.append((index, waiter))
            else:
                failed.append(waiter)
        return failed

    # Made when a handle first asks, and set at once: other threads may ask meanwhile.

    def _ranks(self) -> Sequence[int]:
        places: Any
        if type(self.order) is list:  # Of few records: see `FEW_MAX`.
            places = [-1] * self.record_count
            for place, row in enumerate(self.order):
                places[row] = place
            self.places = places
        else:
            places = np.full(self.record_count, -1, np.int64)
            places[self.order] = np.arange(len(self.order))
            self.places = memoryview(places)
        return self.places

    def _ends(self) -> list[int]:
        self.segment_ends = list(accumulate(count for _, _, count in self.segments))
        return self.segment_ends


def _append(column: list[Any] | None, index: int, cell: Any, default: Any) -> list[Any]:
    if column is None:
        column = [default] * index
    del column[index:]  # Of a record whose `send()` was interrupted before its value was there.
    column.append(default if cell is None else cell)
    return column


class Intakes:
    """The open intakes of all topics, those that were closed, and the memory they share.

    Args:
        intake_bytes: size at which an intake closes; 0 closes it after every record.
        buffer_memory: bytes of all records that were sent and are not yet delivered.
    """

    def __init__(self, intake_bytes: int, buffer_memory: int) -> None:
        self.plain: dict[str, Intake] = {}
        """Open intakes that hold only values, or keys and values: the shell's shortest path appends
        to them. It compares the size with `room` and subtracts it."""
        self.open: dict[str, Intake] = {}
        self.closed: deque[Intake] = deque()
        """Intakes that await their partitions, in the order sent."""
        self.available = buffer_memory
        self.buffer_memory = buffer_memory
        self.must_wake = False
        """Set when there are new closed intakes to look at; cleared by the shell."""
        self._intake_bytes = intake_bytes
        self._first_room = min(_FIRST_ROOM, intake_bytes)

    def add(  # noqa: PLR0917  # One call per record: keywords cost.
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: RecordHeaders | None,
        timestamp: WallMs | None,
        now: MonotonicMs,
        wall: WallMs,
    ) -> tuple[Intake, int] | None:
        """Append one record.

        Returns:
            its intake and index there, or None when the memory is used up: nothing was kept.

        Raises:
            MessageTooLargeError: it is larger than all of the memory.
        """
        size = RECORD_OVERHEAD + (0 if value is None else len(value))
        if key is not None:
            size += len(key)
        if headers:
            size += headers_size(headers)
        if timestamp is not None:
            size += TIMESTAMP_BYTES
        intake = self._with_room(topic, size, now, wall)
        if intake is None:
            return None
        intake.room -= size
        index = intake.add(value, key, partition, headers or None, timestamp)
        if partition is not None or headers or timestamp is not None:
            self.plain.pop(topic, None)
        if not self._intake_bytes or index + 1 == RECORDS_MAX:
            self.close(topic)
        return intake, index

    def add_columns(
        self, topic: str, columns: SentColumns, size: int, now: MonotonicMs, wall: WallMs
    ) -> Intake | None:
        """Take records that were sent together as an intake of their own; None: no memory."""
        if not self._reserve(size):
            return None
        self.close(topic)  # Earlier records stay before these.
        intake = Intake(topic, now, wall, 0, size)
        intake.values, intake.keys, intake.headers = columns.values, columns.keys, columns.headers
        intake.timestamps, intake.partitions = columns.timestamps, columns.partitions
        intake.sizes = columns.known_sizes
        intake.record_count = columns.record_count
        self.closed.append(intake)
        self.must_wake = True
        return intake

    def close(self, topic: str) -> None:
        """Close the topic's open intake, if there is one, so that it gets its partitions."""
        intake = self.open.pop(topic, None)
        if intake is None:
            return
        self.plain.pop(topic, None)
        self.available += intake.room
        intake.close()
        self.closed.append(intake)
        self.must_wake = True

    def close_opened_until(self, opened_at: MonotonicMs) -> None:
        """Close every intake that was opened at `opened_at` or before."""
        for topic, intake in list(self.open.items()):  # In order of opening.
            if intake.opened_at > opened_at:
                return
            self.close(topic)

    def first_opened_at(self) -> MonotonicMs | None:
        """Return when the oldest open intake was opened."""
        for intake in self.open.values():  # In order of opening.
            return intake.opened_at
        return None

    def release(self, intake: Intake) -> None:
        """Give the memory of a complete intake back."""
        self.available += intake.granted
        intake.granted = 0

    def _with_room(self, topic: str, size: int, now: MonotonicMs, wall: WallMs) -> Intake | None:
        intake = self.open.get(topic)
        if intake is not None:
            if intake.room >= size or self._grow(intake, size):
                return intake
            self.close(topic)
        if size > self.buffer_memory:
            raise MessageTooLargeError(
                f"a record of {size} bytes can never fit into buffer_memory={self.buffer_memory}"
            )
        room = max(size, self._first_room)
        if not self._reserve(room):
            if not self._reserve(size):
                return None
            room = size
        intake = self.open[topic] = self.plain[topic] = Intake(topic, now, wall, room, room)
        self.must_wake = True
        return intake

    def _grow(self, intake: Intake, size: int) -> bool:
        if intake.size + size > self._intake_bytes:
            return False
        target = min(self._intake_bytes, max(intake.granted * _ROOM_GROWTH, intake.size + size))
        step = target - intake.granted
        if not self._reserve(step):
            return False
        intake.granted += step
        intake.room += step
        return True

    def _reserve(self, size: int) -> bool:
        if size > self.available:
            return False
        self.available -= size
        return True
