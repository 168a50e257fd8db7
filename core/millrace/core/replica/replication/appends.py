"""The appends of a leader that are not done: those on their way to the disk or waited for.

Those that wait for all in-sync replicas stand apart from those that wait for the leader alone:
acks=1 must not queue up behind acks=all.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from millrace.core.errors import MillraceError
from millrace.core.ids import NO_PRODUCER_ID, Offset, ProducerId, WallMs
from millrace.core.replica.log.producer_snapshot import ProducerEntry
from millrace.core.replica.log.producer_states import ProducerStates


class Acks(Enum):
    """The replicas that an append waits for."""

    LEADER = 1
    """This replica has it."""
    ALL = -1
    """All in-sync replicas have it."""


@dataclass(slots=True)
class Waiter:
    """An append that a caller waits for; `is_done` once it is acknowledged or has failed.

    `append_timestamp` is -1 unless the topic stamps append time.
    """

    owner: object
    """The shell's own: the receiver of the outcome."""

    base_offset: Offset
    last_offset: Offset
    append_timestamp: WallMs
    acks: Acks
    is_duplicate: bool = False
    is_done: bool = False
    error: MillraceError | None = None


@dataclass(slots=True)
class _Given:
    """A batch that has offsets but is not written, with all that undoing it needs."""

    base_offset: Offset
    next_offset: Offset
    producer_before: ProducerEntry | None
    producer_id: ProducerId
    ended_before: Sequence[tuple[ProducerId, ProducerEntry | None]] = ()
    """Of a control batch: the producers whose transactions it ends, in its order."""


class OpenAppends:
    """What waits for the disk, and what waits for acknowledgement. Appends complete in the order of
    offsets.
    """

    __slots__ = ("_given", "_waiters_made", "_waiting", "_waiting_for_all")

    def __init__(self) -> None:
        self._given: deque[_Given] = deque()
        # Heaps by last offset, then by age.
        self._waiting: list[tuple[Offset, int, Waiter]] = []
        self._waiting_for_all: list[tuple[Offset, int, Waiter]] = []
        self._waiters_made = 0

    # --- On their way to the disk ------------------------------------------------------------

    def give(
        self,
        base_offset: Offset,
        next_offset: Offset,
        producer_id: ProducerId,
        producer_before: ProducerEntry | None,
    ) -> None:
        """Note that a batch has these offsets, and what its producer had done before."""
        self._given.append(_Given(base_offset, next_offset, producer_before, producer_id))

    def give_markers(
        self,
        base_offset: Offset,
        next_offset: Offset,
        ended_before: Sequence[tuple[ProducerId, ProducerEntry | None]],
    ) -> None:
        """Likewise of a control batch, and what the producers had done before its markers."""
        self._given.append(_Given(base_offset, next_offset, None, NO_PRODUCER_ID, ended_before))

    def on_written(self, end_offset: Offset) -> None:
        """All before an offset is in the file, and cannot be taken back."""
        while self._given and self._given[0].next_offset <= end_offset:
            self._given.popleft()

    def take_back(
        self, base_offset: Offset, producers: ProducerStates, error: MillraceError
    ) -> list[Waiter]:
        """Take back the batches from an offset on, with the sequences of their producers.

        Returns:
            The appends that failed: nothing of them is in the log.
        """
        while self._given and self._given[-1].base_offset >= base_offset:
            given = self._given.pop()
            if given.producer_id != NO_PRODUCER_ID:
                producers.put(given.producer_id, given.producer_before)
            for producer_id, before in reversed(given.ended_before):
                producers.put(producer_id, before)
        producers.end_at(base_offset)
        waiting = self._waiting + self._waiting_for_all
        self._waiting = [entry for entry in self._waiting if entry[0] < base_offset]
        self._waiting_for_all = [entry for entry in self._waiting_for_all if entry[0] < base_offset]
        heapq.heapify(self._waiting)
        heapq.heapify(self._waiting_for_all)
        return _fail([entry for entry in waiting if entry[0] >= base_offset], error)

    # --- Waited for --------------------------------------------------------------------------

    def wait(self, waiter: Waiter) -> None:
        """Let an append wait."""
        self._waiters_made += 1
        waiting = self._waiting_for_all if waiter.acks is Acks.ALL else self._waiting
        heapq.heappush(waiting, (waiter.last_offset, self._waiters_made, waiter))

    @property
    def wait_for_all(self) -> bool:
        """Whether any waits for all in-sync replicas."""
        return bool(self._waiting_for_all)

    def acknowledge(self, durable_offset: Offset, high_watermark: Offset) -> list[Waiter]:
        """Complete the appends that the leader, or all, have."""
        done = _completed(self._waiting_for_all, high_watermark)
        if self._waiting:
            done += _completed(self._waiting, durable_offset)
            done.sort(key=lambda waiter: waiter.last_offset)
        return done

    def fail_those_for_all(self, error: MillraceError) -> list[Waiter]:
        """Fail the appends that wait for all in-sync replicas."""
        waiting, self._waiting_for_all = self._waiting_for_all, []
        return _fail(waiting, error)

    def fail_all(self, error: MillraceError) -> list[Waiter]:
        """Fail all appends that wait; they stay in the log."""
        waiting = self._waiting + self._waiting_for_all
        self._waiting, self._waiting_for_all = [], []
        return _fail(waiting, error)


def _completed(waiting: list[tuple[Offset, int, Waiter]], end: Offset) -> list[Waiter]:
    done = []
    while waiting and waiting[0][0] < end:
        waiter = heapq.heappop(waiting)[2]
        waiter.is_done = True
        done.append(waiter)
    return done


def _fail(waiting: list[tuple[Offset, int, Waiter]], error: MillraceError) -> list[Waiter]:
    failed = []
    for _, _, waiter in sorted(waiting, key=lambda entry: entry[:2]):
        waiter.is_done = True
        waiter.error = error
        failed.append(waiter)
    return failed
