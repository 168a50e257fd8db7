"""The records of a coordinator's log that still count, and how the log stays short.

Each record has a key, and the last one of a key counts; one without a value deletes its key. The
log stays short without snapshots: when most of it is overwritten, each request appends as many of
the oldest records again as it stores itself. Records before the oldest one that counts may be
deleted. So the log is never longer than about three times the state. Its start moves only after the
records that replaced the old ones are committed.

Invariant: the records from `oldest_offset` on alone lead to the same state.

Source: the cleaning of log-structured file systems; Kafka compacts its coordinators' logs.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from millrace.core.ids import Offset

SLACK_RECORDS: Final = 1000
"""The log is not shortened below this number of records."""


class KeyedRecord(Protocol):
    """A record with a key."""

    @property
    def key(self) -> Hashable:
        """What it is about."""
        ...

    @property
    def is_deletion(self) -> bool:
        """Whether nothing is kept under its key any more."""
        ...


RecordT = TypeVar("RecordT", bound=KeyedRecord)


class KeptRecords(Generic[RecordT]):
    """The records that count, in the order of the log.

    Args:
        start_offset: where the log begins.
        slack_records: how many more records the log may have than twice what counts.
    """

    def __init__(self, start_offset: Offset, slack_records: int = SLACK_RECORDS) -> None:
        self._next_offset = start_offset
        self._slack_records = slack_records
        # With the offset of each, the oldest first.
        self._kept: OrderedDict[Hashable, tuple[RecordT, Offset]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def next_offset(self) -> Offset:
        """The offset after the last replayed record."""
        return self._next_offset

    @property
    def oldest_offset(self) -> Offset:
        """The offset of the oldest record that counts; `next_offset` if there is none."""
        return next((offset for _, offset in self._kept.values()), self._next_offset)

    def get(self, key: Hashable) -> RecordT | None:
        """Return the record that counts for a key; None: nothing is kept under it."""
        kept = self._kept.get(key)
        return None if kept is None else kept[0]

    def replay(self, record: RecordT, offset: Offset) -> None:
        """Take a record of the log."""
        assert offset >= self._next_offset
        self._next_offset = Offset(offset + 1)
        if record.is_deletion:
            self._kept.pop(record.key, None)
        else:
            self._kept[record.key] = record, offset
            self._kept.move_to_end(record.key)

    def with_repetitions(self, stored: Sequence[RecordT]) -> list[RecordT]:
        """Return records to store, after repetitions of the oldest ones if the log is too long."""
        length = self._next_offset - self.oldest_offset
        if length <= 2 * len(self._kept) + self._slack_records:
            return list(stored)
        # Before the new ones, which may replace them.
        oldest = islice(self._kept.values(), len(stored))
        return [record for record, _ in oldest] + list(stored)
