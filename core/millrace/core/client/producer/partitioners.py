"""Which partition a record goes to, decided for a column of records at a time.

- `keyed`, the default: Kafka's hash of the key; records without a key stay together on one
  partition until a batch is full (KIP-480), then move on to one with a short queue (KIP-794).
- `round_robin`: one record after the other, whatever the keys.
- the user's own function of topic, key, value and number of partitions.

A partition that the user names with a record wins over all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from millrace.core.client.producer.intake import Intake
from millrace.core.client.producer.murmur2 import partition_of, partitions_of
from millrace.core.client.producer.sent_columns import SentCells
from millrace.core.errors import InvalidRecordError, MillraceError, UnknownTopicOrPartitionError
from millrace.core.records.arrow_views import validity_of
from millrace.core.records.cells import ByteCells, array_of

STICKY: Final = -1
"""Instead of a partition: the current partition of records without a key."""
FAILED: Final = -2
"""Instead of a partition: the record has none; `Intake.failures` says why."""
_FEW_KEY_BYTES_MAX: Final = 512
"""Bytes of few keys that plain Python hashes in less time than numpy, see `FEW_MAX`."""

PartitionFunction = Callable[[str, bytes | None, bytes | None, int], int]
"""Topic, key, value and number of partitions to a partition."""

Partitions: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


class Partitioner(Protocol):
    """Decides for all records of an intake, whose keys are an array, or a list of few."""

    def partitions(self, intake: Intake, partition_count: int) -> Partitions | list[int] | None:
        """Return a partition or `STICKY` or `FAILED` per record; None: all are `STICKY`."""
        ...


class Keyed:
    """Kafka's default."""

    def partitions(self, intake: Intake, partition_count: int) -> Partitions | list[int] | None:
        """See `Partitioner`."""
        keys: Any = intake.keys
        if keys is None:
            return None
        if isinstance(keys, list):
            if sum(map(len, filter(None, keys))) <= _FEW_KEY_BYTES_MAX:
                return [
                    STICKY if key is None else partition_of(key, partition_count) for key in keys
                ]
            keys = array_of(keys)
        chosen = partitions_of(keys, partition_count)
        if keys.null_count:
            chosen[~validity_of(keys)] = STICKY
        return chosen


class RoundRobin:
    """One partition after the other, per topic."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partitions(self, intake: Intake, partition_count: int) -> Partitions | None:
        """See `Partitioner`."""
        start = self._next.get(intake.topic, 0)
        self._next[intake.topic] = (start + intake.record_count) % partition_count
        return ((np.arange(intake.record_count) + start) % partition_count).astype(np.int32)


class ByFunction:
    """The user's own function, called once per record that has no partition yet.

    A call that raises, or returns no number of a partition, fails its record alone.

    Args:
        function: of topic, key, value and number of partitions.
        caught: what it may raise so; the rest ends what calls it, as `sys.exit()` does a program.
    """

    def __init__(
        self, function: PartitionFunction, caught: type[BaseException] = Exception
    ) -> None:
        self._function = function
        self._caught = caught

    def partitions(self, intake: Intake, partition_count: int) -> Partitions | None:
        """See `Partitioner`."""
        chosen = np.full(intake.record_count, STICKY, np.int32)
        keys = _cells(intake.keys, intake.record_count)
        values = _cells(intake.values, intake.record_count)
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            if intake.partitions is not None and intake.partitions[row] >= 0:
                continue
            try:
                chosen[row] = _checked(
                    self._function(intake.topic, key, value, partition_count), partition_count
                )
            except MillraceError as error:
                intake.failures[row] = error
                chosen[row] = FAILED
            except self._caught as error:
                intake.failures[row] = InvalidRecordError(
                    f"the partitioner raised {error!r} for a record of topic {intake.topic!r}"
                )
                chosen[row] = FAILED
        return chosen


def assign(intake: Intake, partitioner: Partitioner, partition_count: int) -> Partitions | None:
    """Return the choice of `partitioner`; partitions that the user named take precedence."""
    found = partitioner.partitions(intake, partition_count)
    chosen = None if found is None else np.asarray(found, np.int32)
    if intake.partitions is None:
        return chosen
    named = np.asarray(intake.partitions, np.int64)
    wrong = named >= partition_count
    for row in np.flatnonzero(wrong).tolist():
        intake.failures[row] = _unknown(intake.topic, int(named[row]), partition_count)
    otherwise = np.int32(STICKY) if chosen is None else chosen
    return np.where(named >= 0, np.where(wrong, FAILED, named), otherwise).astype(np.int32)


def assign_few(intake: Intake, partitioner: Partitioner, partition_count: int) -> list[int] | None:
    """As `assign`, for few records that came one by one."""
    found = partitioner.partitions(intake, partition_count)
    chosen = found.tolist() if isinstance(found, np.ndarray) else found
    named: list[int] | None = intake.partitions
    if named is None:
        return chosen
    assigned = []
    for row, partition in enumerate(named):
        if partition < 0:
            assigned.append(STICKY if chosen is None else chosen[row])
        elif partition < partition_count:
            assigned.append(partition)
        else:
            intake.failures[row] = _unknown(intake.topic, partition, partition_count)
            assigned.append(FAILED)
    return assigned


def _unknown(topic: str, partition: int, partition_count: int) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(
        f"topic {topic!r} has partitions 0 to {partition_count - 1}, but partition {partition} was "
        "named"
    )


def _cells(column: SentCells | None, count: int) -> Sequence[bytes | None]:
    if column is None:
        return [None] * count
    if isinstance(column, list):
        return column
    if isinstance(column, ByteCells):
        return column.cells()
    cells: list[bytes | None] = column.to_pylist()
    return cells


def _checked(partition: object, partition_count: int) -> int:
    if not isinstance(partition, int) or not 0 <= partition < partition_count:
        raise InvalidRecordError(
            f"the partitioner returned {partition!r}, not a number from 0 to {partition_count - 1}"
        )
    return partition
