"""How much a micro-batch reads, and how that becomes tasks: pure.

Everything here depends only on its arguments, and the same arguments give the same tasks in the
same order. So (batch, task) keeps its meaning when a batch is planned again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from millrace.core.topics import PartitionName


@dataclass(slots=True, frozen=True, order=True)
class Range:
    """The records `[start, end)` of a partition. There may be fewer: offsets have gaps."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> PartitionName:
        """Return which partition it is of."""
        return self.topic, self.partition

    @property
    def size(self) -> int:
        """Return how many offsets it spans."""
        return self.end - self.start


@dataclass(slots=True, frozen=True)
class Extent:
    """The records of a batch, before filters: it travels with the data source."""

    ranges: tuple[Range, ...]
    topic_ids: Mapping[str, str]
    """Topic ids in hex."""


@dataclass(slots=True, frozen=True)
class Limits:
    """The limits of a micro-batch; None: no limit."""

    records: int | None = None
    size_bytes: int | None = None


def admit(
    backlog: Iterable[Range], limits: Limits, record_bytes: Mapping[PartitionName, float]
) -> dict[PartitionName, int]:
    """Return the end of the batch in each partition, within the batch's limits.

    Each partition gets its share, and at least one record if any waits: a small partition does not
    starve beside a large one, and a limit below one record does not stop the query.

    Args:
        record_bytes: average size of a stored record; without unknown ones.
    """
    waiting = [part for part in backlog if part.size > 0]
    allowed = {part.place: part.size for part in waiting}
    if limits.records is not None:
        _share(waiting, limits.records, sum(part.size for part in waiting), allowed)
    if limits.size_bytes is not None:
        size = sum(part.size * record_bytes.get(part.place, 0.0) for part in waiting)
        _share(waiting, limits.size_bytes, int(size), allowed)
    return {part.place: part.start + allowed[part.place] for part in waiting}


def _share(waiting: list[Range], limit: int, total: int, allowed: dict[PartitionName, int]) -> None:
    if total > limit:
        for part in waiting:
            share = max(1, part.size * limit // total)
            allowed[part.place] = min(allowed[part.place], share)


def share_of_bytes(
    admitted: Mapping[PartitionName, int], limit: int, record_bytes: Mapping[PartitionName, float]
) -> dict[PartitionName, int]:
    """Return how many bytes of a limit each partition may have.

    Args:
        admitted: how many records are to be read.
        record_bytes: average size of a stored record; without any, all records count alike.
    """
    sizes = {place: count * record_bytes.get(place, 0.0) for place, count in admitted.items()}
    if not sum(sizes.values()):
        sizes = {place: float(count) for place, count in admitted.items()}
    total = sum(sizes.values())
    return {place: max(1, int(limit * size / total)) for place, size in sizes.items() if total}


def is_due(waiting_records: int, waited_ms: float, *, at_least: int | None, delay_ms: int) -> bool:
    """Return whether a batch should begin: with enough records, or after long enough."""
    return at_least is None or waiting_records >= at_least or waited_ms >= delay_ms


def plan_tasks(
    ranges: Iterable[Range],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    max_partitions: int | None = None,
) -> list[tuple[Range, ...]]:
    """Return the ranges of each task, in the order of topics, partitions and offsets.

    Args:
        ranges: at most one for each partition.
        min_partitions: least number of tasks, if there are as many records; approximate if
            `max_partitions` makes some share one. max_records: how many offsets a task may span;
            more if `max_partitions` leaves too few tasks. max_partitions: most tasks: small
            partitions share one.
    """
    pieces = sorted(part for part in ranges if part.size > 0)
    if max_records is not None:
        pieces = [piece for part in pieces for piece in _split(part, -(-part.size // max_records))]
    if min_partitions is not None and len(pieces) < min_partitions:
        total = sum(part.size for part in pieces)
        # Rounded up, so that there are never fewer than requested.
        pieces = [
            piece
            for part in pieces
            for piece in _split(part, -(-part.size * min_partitions // total))
        ]
    if max_partitions is None or len(pieces) <= max_partitions:
        return [(part,) for part in pieces]
    return _pack(pieces, max_partitions)


def _split(whole: Range, count: int) -> list[Range]:
    """Cut a range into pieces of nearly equal size."""
    count = min(max(count, 1), whole.size)
    cuts = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [Range(whole.topic, whole.partition, start, end) for start, end in pairwise(cuts)]


def _pack(pieces: list[Range], count: int) -> list[tuple[Range, ...]]:
    """Join neighbours, so that at most `count` tasks have about the same work."""
    total = sum(part.size for part in pieces)
    packed: dict[int, list[Range]] = {}
    before = 0
    for part in pieces:
        # By its middle: so a large piece gets no neighbours.
        task = packed.setdefault((2 * before + part.size) * count // (2 * total), [])
        before += part.size
        if task and task[-1].place == part.place and task[-1].end == part.start:
            task[-1] = Range(part.topic, part.partition, task[-1].start, part.end)
        else:
            task.append(part)
    return [tuple(packed[number]) for number in sorted(packed)]
