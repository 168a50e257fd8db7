"""What Kafka's design promises of a compacted topic, held against what was sent and read.

Each record has a number of its own, which rises with each send to a partition, also in a tombstone.

- Offsets never change: a record stands where its acknowledgement said, and nowhere else.
- The order never changes: offsets ascend, and so do the numbers of a key.
- A reader that begins at the start sees at least the last record of each key. A tombstone may be
  gone, with all that it deletes.
- Replicas may hold different old records at a moment, but the same last ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.checkers.history import FAIL, OK


class Sent(NamedTuple):
    """One record that was sent.

    Attributes:
        key, number: of the record.
        is_tombstone: whether it has no value.
        outcome: OK, FAIL (not in the log for certain) or INFO.
        offset: that was acknowledged; -1: none.
    """

    key: bytes
    number: int
    is_tombstone: bool
    outcome: str
    offset: int = -1


class Read(NamedTuple):
    """One record that was read."""

    offset: int
    key: bytes
    number: int
    is_tombstone: bool


def problems(sends: Sequence[Sent], read: Sequence[Read], *, is_whole: bool) -> Iterator[str]:
    """Yield what breaks a promise.

    Args:
        sends: to one partition, in their order; a key has one writer at a time.
        read: what one reader got of it, in its order.
        is_whole: whether it has read the log from its beginning to an end after all sends.
    """
    by_number = {send.number: send for send in sends}
    last: dict[bytes, Read] = {}
    at = -1
    for record in read:
        if record.offset <= at:
            yield f"{record} follows offset {at}"
        at = record.offset
        sent = by_number.get(record.number)
        if sent is None or (sent.key, sent.is_tombstone) != (record.key, record.is_tombstone):
            yield f"{record} was read, and {sent} was sent"
            continue
        if sent.outcome == FAIL or (sent.outcome == OK and sent.offset != record.offset):
            yield f"{record} was read, and {sent} is its outcome"
        if record.key in last and last[record.key].number >= record.number:
            yield f"{record} follows {last[record.key]}"
        last[record.key] = record
    if is_whole:
        yield from _lost(sends, last)


def _lost(sends: Iterable[Sent], last: dict[bytes, Read]) -> Iterator[str]:
    possible: dict[bytes, list[Sent]] = {}
    for sent in sends:
        if sent.outcome == OK:
            possible[sent.key] = [sent]
        elif sent.outcome != FAIL:
            possible.setdefault(sent.key, []).append(sent)
    for key, some in possible.items():
        found = last.get(key)
        if found is None:
            # The first is acknowledged, or else nothing of the key need be there.
            if some[0].outcome == OK and not any(sent.is_tombstone for sent in some):
                yield f"nothing of {key!r} was read, and {some[0]} was acknowledged"
        elif found.number not in {sent.number for sent in some}:
            yield f"{found} was read last of its key, and should be one of {some}"


def table(read: Iterable[Read]) -> dict[bytes, int]:
    """Return the number of the last record of each key that is not deleted."""
    last = {record.key: record for record in read}
    return {key: write.number for key, write in last.items() if not write.is_tombstone}
