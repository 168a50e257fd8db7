"""Checks of the records that were read: all of them, once, in order, unchanged.

Every check compares with the source table, not with the producer's belief. The content hash takes
the long way: the values are parsed into a table again, and the text of that table must have the
same hash as the text of the source.
"""

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from demo.dataset import Records, table_of


@dataclass(frozen=True, slots=True)
class Consumed:
    """Records as they were read, in the order of reading; columns of equal length."""

    partitions: pa.Array
    offsets: pa.Array
    keys: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about the records, whether it is true, and its figures."""

    statement: str
    holds: bool
    detail: str


def check_all(source: Records, consumed: Consumed) -> Iterator[Check]:
    """Yield every check, the simplest first."""
    yield _check_count(source, consumed)
    sent = Counter(zip(source.keys.to_pylist(), source.values.to_pylist(), strict=True))
    came = Counter(zip(consumed.keys.to_pylist(), consumed.values.to_pylist(), strict=True))
    yield _check_difference("nothing is lost", sent - came)
    yield _check_difference("nothing is doubled or foreign", came - sent)
    yield _check_offsets(consumed)
    yield _check_key_partitions(consumed)
    yield _check_order(source, consumed)
    yield _check_content(source, consumed)


def _check_count(source: Records, consumed: Consumed) -> Check:
    detail = f"{len(consumed):,} records came back of {len(source):,}"
    return Check("the count is right", len(consumed) == len(source), detail)


def _check_difference(statement: str, records: Counter[tuple[bytes, bytes]]) -> Check:
    if not records:
        return Check(statement, True, "0 records")
    key, value = next(iter(records))
    return Check(statement, False, f"{records.total():,} records, such as {key!r}: {value!r:.80}")


def _check_offsets(consumed: Consumed) -> Check:
    partitions, offsets = consumed.partitions.to_numpy(), consumed.offsets.to_numpy()
    wrong = []
    for partition in np.unique(partitions):
        found = offsets[partitions == partition]
        if not np.array_equal(found, np.arange(len(found))):
            wrong.append(int(partition))
    detail = f"{len(np.unique(partitions))} partitions from offset 0"
    if wrong:
        detail = f"gaps or steps back in partitions {wrong}"
    return Check("offsets rise by one in every partition", not wrong, detail)


def _check_key_partitions(consumed: Consumed) -> Check:
    places = set(zip(consumed.keys.to_pylist(), consumed.partitions.to_pylist(), strict=True))
    keys = {key for key, _ in places}
    scattered = len(places) - len(keys)
    detail = f"{scattered:,} keys in several" if scattered else f"{len(keys):,} keys"
    return Check("every key is in one partition", not scattered, detail)


def _check_order(source: Records, consumed: Consumed) -> Check:
    expected = _by_key(source.keys, source.values)
    found = _by_key(consumed.keys, consumed.values)
    wrong = [key for key in expected | found if expected.get(key) != found.get(key)]
    detail = f"{len(wrong):,} keys, such as {wrong[0]!r}" if wrong else f"{len(expected):,} keys"
    return Check("every key's records are in the order of the source", not wrong, detail)


def _by_key(keys: pa.Array, values: pa.Array) -> dict[bytes | None, list[bytes | None]]:
    sequences: dict[bytes | None, list[bytes | None]] = {}
    for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
        sequences.setdefault(key, []).append(value)
    return sequences


def _check_content(source: Records, consumed: Consumed) -> Check:
    statement = "the content hash is that of the source"
    expected = _content_hash(source.table, source.keys)
    try:
        found = _content_hash(table_of(consumed.values, source.table.schema), consumed.keys)
    except (ValueError, TypeError) as error:
        return Check(statement, False, f"the values cannot be read as rows: {error}")
    detail = f"SHA-256 {found[:16]}…"
    if found != expected:
        detail += f" instead of {expected[:16]}…"
    return Check(statement, found == expected, detail)


def _content_hash(rows: pa.Table, keys: pa.Array) -> str:
    """Return the SHA-256 of the rows' text, sorted by key, each key's rows in their order."""
    order = pc.sort_indices(pa.table({"key": keys}), [("key", "ascending")])  # A stable sort.
    digest = _Digest()
    pyarrow.csv.write_csv(rows.take(order), digest)
    return digest.sha256.hexdigest()


class _Digest(io.RawIOBase):
    """A file that keeps only the hash of what is written."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return len(data)
