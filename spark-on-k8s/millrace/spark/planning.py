"""How much a micro-batch reads, and how that becomes tasks: pure.

Everything here is a function of its arguments alone, and the same arguments give the same tasks in
the same order. That is what keeps (batch, task) meaningful when a batch is planned again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from millrace.spark.offsets import Place


@dataclass(slots=True, frozen=True, order=True)
class Range:
    """The records `[start, end)` of a partition. There may be fewer: offsets have gaps."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> Place:
        """Return which partition it is of."""
        return self.topic, self.partition

    @property
    def size(self) -> int:
        """Return how many offsets it spans."""
        return self.end - self.start


@dataclass(slots=True, frozen=True)
class Extent:
    """What a batch reads, before filters: it travels with the data source."""

    ranges: tuple[Range, ...]
    topic_ids: Mapping[str, str]
    """Topic ids in hex."""


@dataclass(slots=True, frozen=True)
class Limits:
    """What a micro-batch may hold; None: as much as there is."""

    records: int | None = None
    size_bytes: int | None = None


def admit(
    backlog: Iterable[Range], limits: Limits, record_bytes: Mapping[Place, float]
) -> dict[Place, int]:
    """Return up to where each partition is read, so that the batch stays within its limits.

    Each partition gets its share of what waits, and at least one record where any does: a small
    partition does not starve beside a large one, and a limit below one record is no standstill.

    Args:
        backlog: what waits.
        limits: what the batch may hold.
        record_bytes: about how large a stored record is; where it is not known, nothing is said.
    """
    waiting = [each for each in backlog if each.size > 0]
    allowed = {each.place: each.size for each in waiting}
    if limits.records is not None:
        _share(waiting, limits.records, sum(each.size for each in waiting), allowed)
    if limits.size_bytes is not None:
        size = sum(each.size * record_bytes.get(each.place, 0.0) for each in waiting)
        _share(waiting, limits.size_bytes, int(size), allowed)
    return {each.place: each.start + allowed[each.place] for each in waiting}


def _share(waiting: list[Range], limit: int, total: int, allowed: dict[Place, int]) -> None:
    if total > limit:
        for each in waiting:
            share = max(1, each.size * limit // total)
            allowed[each.place] = min(allowed[each.place], share)


def share_of_bytes(
    admitted: Mapping[Place, int], limit: int, record_bytes: Mapping[Place, float]
) -> dict[Place, int]:
    """Return how many bytes of a limit each partition may have.

    Args:
        admitted: how many records are to be read.
        limit: bytes of all together.
        record_bytes: about how large a stored record is; records count alike where none is known.
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
    """Return what each task reads, in the order of topics, partitions and offsets.

    Args:
        ranges: at most one for each partition.
        min_partitions: as many tasks at least, where there are as many records; about as many
            where `max_partitions` makes some share one.
        max_records: how many offsets a task may span; more where `max_partitions` leaves too few
            tasks.
        max_partitions: as many tasks at most: small partitions share one.
    """
    pieces = sorted(each for each in ranges if each.size > 0)
    if max_records is not None:
        pieces = [piece for each in pieces for piece in _split(each, -(-each.size // max_records))]
    if min_partitions is not None and len(pieces) < min_partitions:
        total = sum(each.size for each in pieces)
        # Rounded up, so that there are never fewer than were asked for.
        pieces = [
            piece
            for each in pieces
            for piece in _split(each, -(-each.size * min_partitions // total))
        ]
    if max_partitions is None or len(pieces) <= max_partitions:
        return [(each,) for each in pieces]
    return _pack(pieces, max_partitions)


def _split(whole: Range, count: int) -> list[Range]:
    """Cut a range into pieces of as equal a size as can be."""
    count = min(max(count, 1), whole.size)
    cuts = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [Range(whole.topic, whole.partition, start, end) for start, end in pairwise(cuts)]


def _pack(pieces: list[Range], count: int) -> list[tuple[Range, ...]]:
    """Put neighbours together, so that at most `count` tasks have about equally much to do."""
    total = sum(each.size for each in pieces)
    packed: dict[int, list[Range]] = {}
    before = 0
    for each in pieces:
        # By where its middle lies: a large piece draws no neighbours in.
        task = packed.setdefault((2 * before + each.size) * count // (2 * total), [])
        before += each.size
        if task and task[-1].place == each.place and task[-1].end == each.start:
            task[-1] = Range(each.topic, each.partition, task[-1].start, each.end)
        else:
            task.append(each)
    return [tuple(packed[number]) for number in sorted(packed)]
