"""Reading partitions from where the user says up to where the user says."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

import click

from millrace.cli.arguments.read_start import AtOffset, AtTime, End, Last, Position
from millrace.cli.cluster import offsets_at
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.interruption import Interruption
from millrace.cli.console.measures import Transfer, payload_bytes
from millrace.cli.console.output import say
from millrace.cli.console.progress import Progress
from millrace.cli.transfer.stall_notices import Reading, Stall
from millrace.core.isolation import READ_COMMITTED, Isolation
from millrace.core.topics import PartitionName
from millrace.core.words import listed

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.client import FetchedRecords, SyncAdmin, SyncConsumer

LOOK_MS: Final = 10_000
"""How often to look for new partitions, and for new topics of a pattern."""
POLL_MS: Final = 500

Ranges = Mapping[PartitionName, tuple[int, int]]
"""The log start offset and the end offset of each partition."""


class RecordTaker(Protocol):
    """Takes the records that are read."""

    def write(self, topic: str, partition: int, records: "pa.RecordBatch") -> None:
        """Take the records of one partition, in order."""


def ends_of(
    admin: "SyncAdmin",
    ranges: Ranges,
    until: Position | None,
    *,
    follow: bool,
    isolation: Isolation = READ_COMMITTED,
) -> dict[PartitionName, int] | None:
    """Return the offset before which to end, by partition; None: there is no end.

    Args:
        until: the position before which to end; None: where they end now, or never.
        follow: whether to wait for records that are not there yet.
        isolation: of who reads; that of `ranges`.

    Raises:
        click.UsageError: the position is none that can be waited for.
    """
    if follow:
        match until:
            case None:
                return None
            case AtOffset(offset):
                return dict.fromkeys(ranges, offset)
        raise click.UsageError("--follow waits for records to come: --to must be an offset")
    found = offsets_at(admin, ranges, End() if until is None else until, isolation)
    return {
        partition: min(max(found[partition], first), end)
        for partition, (first, end) in ranges.items()
    }


def assign_partitions(
    consumer: "SyncConsumer",
    ranges: Ranges,
    start: Position,
    ends: Mapping[PartitionName, int] | None = None,
    *,
    grows: bool = False,
    pattern: str = "",
) -> None:
    """Give the consumer its partitions and the position in each.

    Args:
        ends: of each partition; None: there are none.
        grows: whether partitions that the topics get later are read, too, from their start.
        pattern: with `grows`, topics that come later are read, too, if their name matches it.

    Raises:
        Failure: no partition has the requested offset.
    """
    if isinstance(start, AtOffset) and not any(
        first <= start.offset <= end for first, end in ranges.values()
    ):
        shown = ", ".join(
            f"{topic}-{partition} has [{first}, {end})"
            for (topic, partition), (first, end) in ranges.items()
        )
        raise Failure(
            f"no partition has offset {start.offset}: {shown}", exit_code=ExitCode.NOT_FOUND
        )
    begin: Literal["beginning", "end"] = "end" if isinstance(start, End) else "beginning"
    topics = {topic for topic, _ in ranges}
    if grows:
        consumer.subscribe(topics, pattern=pattern, start=begin)
    else:
        consumer.assign(list(ranges), start=begin, ends=ends or {})
    for place in consumer.assignment():
        if place not in ranges:  # It has come meanwhile.
            consumer.seek(place, "beginning")
    match start:
        case AtTime(timestamp_ms):
            consumer.seek_to_time(timestamp_ms)
        case AtOffset(offset):
            for place, (first, end) in ranges.items():
                consumer.seek(place, min(max(offset, first), end))
        case Last(records):
            for place, (first, end) in ranges.items():
                consumer.seek(place, max(first, end - records))


class Reader:
    """Reads records until the ends are reached, or for ever.

    Args:
        consumer: has its partitions, and stands where to begin.
        ends: of each partition; None: there are none.
        keys: only records with one of these keys; none: all records.
        records_max: end after so many; None: no limit.
        timeout_s: give up when nothing came for so long; None: never.

    Attributes:
        transfer: what the taker got.
        passed: by partition: the taker has all records before it that it should get.
        gone: partitions that were not read to their end, as their topic was deleted.
    """

    def __init__(
        self,
        consumer: "SyncConsumer",
        ends: Mapping[PartitionName, int] | None,
        *,
        keys: Sequence[bytes] = (),
        records_max: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._consumer, self._ends, self._keys = consumer, ends, keys
        self._records_max, self._timeout_s = records_max, timeout_s
        self._read = 0
        """Records read, also those with another key."""
        self.transfer = Transfer()
        self.passed: dict[PartitionName, int] = {}
        self.gone: set[PartitionName] = set()

    def run(
        self,
        taker: RecordTaker,
        flush: Callable[[], None],
        *,
        title: str = "read",
        is_shown: bool = True,
        interruption: Interruption | None = None,
    ) -> None:
        """Read the records.

        Args:
            flush: called when there are no more records for the moment, as a person may be
                watching.
            is_shown: whether there may be one.
            interruption: ends it, too.

        Raises:
            Failure: nothing came for too long.
        """
        consumer, ends = self._consumer, self._ends
        until = ends or {}
        reading = Reading(until)
        if ends is None:
            reading.again = "all partitions are read again"
        stall = Stall(reading, say)
        started = last_came = time.monotonic()
        before: dict[PartitionName, int] = {}
        positions: dict[PartitionName, int] = {}
        total = self._total() if is_shown else None
        with Progress(title, total, is_shown=is_shown) as progress:
            while (ends is None or reading.left) and not (interruption and interruption.came):
                batches = consumer.poll_batches(POLL_MS)
                for batch in batches:
                    self._take(taker, batch)
                    if self.is_full:
                        break
                now = time.monotonic()
                self.transfer.seconds = now - started
                if self.is_full:
                    return
                flush()
                progress.update(self._read, self.transfer)
                if ends is None:  # Regardless of records of the others.
                    reading.left = consumer.awaited_partitions()
                else:
                    reading.count += len(batches)
                    there = set(consumer.assignment())
                    self.gone.update(
                        partition for partition in reading.left if partition not in there
                    )
                    before, positions = (
                        positions,
                        {
                            partition: consumer.position(partition)
                            for partition in reading.left
                            if partition in there
                        },
                    )
                    reading.left = [
                        partition for partition, at in positions.items() if at < until[partition]
                    ]
                stall.look(now)
                if batches or positions != before:  # What is of no record comes, too.
                    last_came = now
                elif (
                    self._timeout_s is not None
                    and now - last_came > self._timeout_s
                    and (ends is None or reading.left)
                ):
                    raise _nothing_came(self._timeout_s, reading)

    @property
    def is_full(self) -> bool:
        """Whether the taker has as many records as were wanted."""
        return self.transfer.records == self._records_max

    def _total(self) -> int | None:
        """Return how many records there will be, if that is known."""
        most = None if self._keys else self._records_max
        if self._ends is None:
            return most
        left = sum(
            max(0, end - self._consumer.position(partition))
            for partition, end in self._ends.items()
        )
        return left if most is None else min(left, most)

    def _take(self, taker: RecordTaker, batch: "FetchedRecords") -> None:
        records = batch.records
        if self._ends is not None:  # Later records are left for the next run.
            end = self._ends[batch.topic, batch.partition]
            records = records.slice(0, int((records.column("offset").to_numpy() < end).sum()))
        if not records.num_rows:
            return
        self._read += records.num_rows
        next_offset = records.column("offset")[-1].as_py() + 1
        if self._keys:
            records = _with_keys(records, self._keys)
        if self._records_max is not None:
            left = self._records_max - self.transfer.records
            if records.num_rows > left:
                records = records.slice(0, left)
                next_offset = records.column("offset")[-1].as_py() + 1
        if records.num_rows:
            taker.write(batch.topic, batch.partition, records)
            self.transfer.records += records.num_rows
            self.transfer.size_bytes += payload_bytes(records)
        self.passed[batch.topic, batch.partition] = next_offset


def _with_keys(records: "pa.RecordBatch", keys: Sequence[bytes]) -> "pa.RecordBatch":
    import pyarrow as pa
    import pyarrow.compute as pc

    return records.filter(pc.is_in(records.column("key"), pa.array(keys, pa.binary())))


def _nothing_came(timeout_s: float, reading: Reading) -> Failure:
    return Failure(
        f"nothing came for {timeout_s:g} s"
        + (f", and {listed(reading.left)} are not read to their end" if reading.left else ""),
        "`millrace cluster health` says what is missing" if reading.left else "",
        exit_code=ExitCode.TIMED_OUT,
    )
