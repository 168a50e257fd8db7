"""Records whose processing has failed: when each is tried again, and when it is given up.

A record that failed is still the next one of its partition. The partition pauses, longer after each
failure, and other partitions are read meanwhile. So the records of a partition stay in order. After
its last attempt a record is given up, and the partition goes on with the next record.

Invariant: at most one record of a partition waits, the first one that is not done.

Attempts are counted in memory. The count begins again when another member gets the partition, and
after a restart of the program.

Source: Spring Kafka's DefaultErrorHandler, which seeks to the failed record.
"""

from dataclasses import dataclass

from millrace.core.topics import PartitionName


@dataclass(slots=True)
class _Failed:
    """A record that waits for its next attempt, or is being tried again.

    Attributes:
        offset: of the record.
        attempts: how many have failed.
        due_at: when to try again, in ms of the monotonic clock; None: the partition is not paused.
    """

    offset: int
    attempts: int
    due_at: int | None = None


class Retries:
    """The records of one consumer that have failed, at most one of each partition.

    Args:
        attempts_max: attempts after which a record is given up.
        backoff_ms: the first pause; each further one is twice as long.
        backoff_ms_max: the longest pause.
    """

    def __init__(self, attempts_max: int, backoff_ms: int, backoff_ms_max: int) -> None:
        self._attempts_max = attempts_max
        self._backoff_ms = backoff_ms
        self._backoff_ms_max = backoff_ms_max
        self._failed: dict[PartitionName, _Failed] = {}

    def on_failed(self, place: PartitionName, offset: int) -> int:
        """Count a failed attempt; return how many attempts of this record have failed."""
        failed = self._failed.get(place)
        if failed is None or failed.offset != offset:
            failed = self._failed[place] = _Failed(offset, 0)
        failed.attempts += 1
        return failed.attempts

    def pause_ms(self, attempts: int) -> int | None:
        """Return the pause after so many failed attempts; None: the record is given up."""
        if attempts >= self._attempts_max:
            return None
        # Not 2 ** attempts, which may be a very large number.
        return min(self._backoff_ms << min(attempts - 1, 40), self._backoff_ms_max)

    def on_paused(self, place: PartitionName, due_at: int) -> None:
        """Note that the partition of a failed record is paused until then."""
        self._failed[place].due_at = due_at

    def on_done(self, place: PartitionName) -> None:
        """Forget what has failed in a partition: the record is processed or given up."""
        self._failed.pop(place, None)

    def take_due(self, now: int) -> list[PartitionName]:
        """Return the paused partitions whose pause is over, once."""
        due = [
            place
            for place, failed in self._failed.items()
            if failed.due_at is not None and failed.due_at <= now
        ]
        for place in due:
            self._failed[place].due_at = None
        return due

    def next_due(self) -> int | None:
        """Return when the next pause ends; None: no partition is paused."""
        return min(
            (failed.due_at for failed in self._failed.values() if failed.due_at is not None),
            default=None,
        )
