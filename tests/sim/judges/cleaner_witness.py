"""A witness of what cleaners do with compacted logs (P57): it checks each step against its rule.

- A log is taken up if its settings say so, and else left alone: dirty ratio, lags, horizons.
- A segment is replaced only below the last stable offset, never the active one, and not within
  `min.compaction.lag.ms`; a copy is no larger than a segment may be.
- The copy has the offsets, the leader epochs and the order of what it replaces, and the last batch
  of each producer. Records of aborted transactions are gone. Another record is missing only if a
  later one of its key is in the cleaned part, or if it is a tombstone whose horizon is over, which
  no other replica holds back, and whose key has no other record left before it. A tombstone gets a
  horizon once, by the first pass over it.
- Below the cleaner point each key has one record; and a log never ends below its cleaner point,
  also not the one that is durable.

The witness reads whole logs from the simulated disk: they are small.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from tests.sim.machines.machine import BrokerMachine
from tests.sim.world import Violation

from millrace.broker.storage.cleaner_point import FILE_NAME, read_point
from millrace.broker.storage.log.cleaner import LogCleaner
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.segment import Segment
from millrace.core.ids import NO_TIMESTAMP, Offset, TopicPartition, WallMs
from millrace.core.records.batch import open_batch, walk
from millrace.core.records.header import BatchHeader
from millrace.core.replica.compaction.batches import CleaningRules
from millrace.core.replica.compaction.cleanable import Cleanable
from millrace.core.replica.compaction.ended_transactions import AbortedBatches

_NONE_ABORTED: Final = AbortedBatches()


class _Record(NamedTuple):
    offset: Offset
    timestamp: WallMs
    key: bytes | None
    value: bytes | None
    horizon: WallMs


class _Contents(NamedTuple):
    headers: list[BatchHeader]
    records: dict[Offset, _Record]


class CleanerWitness:
    """One witness for the cleaners of all machines."""

    def __init__(self) -> None:
        # The last record of each key in the part that a machine's present cleaning is about.
        self._last: dict[str, tuple[CleaningRules, Mapping[bytes, Offset]]] = {}

    def on_looked_at(self, cleaner: LogCleaner, found: Cleanable, now: WallMs) -> None:
        """A cleaner has decided whether a log is due."""
        state = cleaner._state
        lags, point = state.config.lags, state.cleaner_point
        closed = list(
            takewhile(
                lambda segment: (
                    segment.next_offset <= state.last_stable_offset
                    and now - segment.closing_time(now) >= lags.min_lag_ms
                ),
                state.segments[:-1],
            )
        )
        dirty = [segment for segment in closed if segment.next_offset > point.offset]
        dirty_bytes, all_bytes = (sum(segment.size for segment in some) for some in (dirty, closed))
        is_due = bool(closed) and (
            dirty_bytes > lags.min_dirty_ratio * all_bytes
            or any(
                now - min(segment.created_at, segment.closing_time(now)) > lags.max_lag_ms
                for segment in dirty
            )
            or (
                NO_TIMESTAMP < point.next_horizon <= now
                and point.next_end <= min(cleaner.tombstones_end, point.offset)
            )
        )
        if found.is_due is not is_due:
            raise Violation(
                f"{state.topic_partition} is {'' if found.is_due else 'not '}cleaned, with "
                f"{dirty_bytes} of {all_bytes} bytes dirty, and {lags}, {point}, {now}"
            )

    def on_replacing(
        self,
        machine: BrokerMachine,
        state: LogState,
        group: Sequence[Segment],
        copy_path: str,
        rules: CleaningRules,
    ) -> None:
        """A copy is about to replace segments."""
        what = f"{machine.name} cleans {state.topic_partition} up to {group[-1].next_offset}"
        lag_ms = state.config.lags.min_lag_ms
        if group[-1] is state.segments[-1] or group[-1].next_offset > state.last_stable_offset:
            raise Violation(f"{what}, and {state.last_stable_offset} is stable")
        if any(rules.now - segment.closing_time(rules.now) < lag_ms for segment in group):
            raise Violation(f"{what} within its lag of {lag_ms} ms")
        if len(group) > 1 and sum(segment.size for segment in group) > state.config.segment_bytes:
            raise Violation(f"{what}: a copy of {len(group)} segments is too large")
        if not all(segment in state.segments for segment in group) or machine.disk.is_damaged:
            return  # It was cut or deleted meanwhile, and is not replaced.
        before = _read(
            state.topic_partition,
            (_bytes_of(machine, segment) for segment in group),
            rules.aborted,
        )
        after = _read(state.topic_partition, [machine.disk.contents(copy_path)])
        try:
            self._judge_headers(before.headers, after.headers, rules)
            self._judge_records(machine, state, before, after, rules)
        except Violation as violation:
            raise Violation(f"{what}: {violation}") from None

    def _judge_headers(
        self, before: Sequence[BatchHeader], after: Sequence[BatchHeader], rules: CleaningRules
    ) -> None:
        at = before[0].base_offset
        for header in after:
            if header.base_offset != at:
                raise Violation(f"a batch begins at {header.base_offset}, and not at {at}")
            at = header.next_offset
        if at != before[-1].next_offset:
            raise Violation(f"the copy ends at {at}")
        if _epochs(before) != _epochs(after):
            raise Violation(f"leader epochs are {_epochs(after)}, and were {_epochs(before)}")
        kept = {(header.producer_id, header.last_offset): header.last_sequence for header in after}
        for header in before:
            last = rules.last_batches.get(header.producer_id)
            if last == header.last_offset:
                sequence = kept.get((header.producer_id, last))
                if sequence != header.last_sequence:
                    raise Violation(
                        f"the last batch of producer {header.producer_id} ends with the sequence "
                        f"{sequence}, and not with {header.last_sequence}"
                    )

    def _judge_records(
        self,
        machine: BrokerMachine,
        state: LogState,
        before: _Contents,
        after: _Contents,
        rules: CleaningRules,
    ) -> None:
        known_rules, last = self._last.get(machine.name, (None, {}))
        if known_rules is not rules:
            last = _last_of_each_key(machine, state, rules)
            self._last[machine.name] = rules, last
        for offset, kept in after.records.items():
            known = before.records.get(offset)
            if known is None or kept[:-1] != known[:-1]:
                raise Violation(f"offset {offset} has {kept}, and had {known}")
            if kept.key is not None and kept.value is None:
                self._judge_horizon(known, kept, rules)
        if list(after.records) != sorted(after.records):
            raise Violation("the order has changed")
        for offset, record in before.records.items():
            if offset in after.records:
                continue
            if record.key is None:
                raise Violation(f"{record} is removed, and has no key")
            if offset < last.get(record.key, offset):
                continue
            is_over = NO_TIMESTAMP < record.horizon <= rules.now and offset < rules.tombstones_end
            if record.value is not None or not is_over:
                raise Violation(f"{record} is removed, and nothing replaces it")
            if self._has_earlier(machine, state, after, record):
                raise Violation(f"{record} is removed, and a record that it deletes is there")

    def _judge_horizon(self, before: _Record, after: _Record, rules: CleaningRules) -> None:
        allowed = [before.horizon]
        if before.horizon == NO_TIMESTAMP and before.offset < rules.end_offset:
            allowed.append(WallMs(rules.now + rules.delete_retention_ms))
        if after.horizon not in allowed:
            raise Violation(f"{after} may go then, and should have one of {allowed}")

    def _has_earlier(
        self, machine: BrokerMachine, state: LogState, after: _Contents, tombstone: _Record
    ) -> bool:
        segments = (
            segment
            for segment in state.segments
            if segment.next_offset <= after.headers[0].base_offset
        )
        earlier = _read(
            state.topic_partition, (_bytes_of(machine, segment) for segment in segments)
        )
        return any(
            record.key == tombstone.key
            and state.log_start_offset <= record.offset < tombstone.offset
            for contents in (earlier, after)
            for record in contents.records.values()
        )

    def on_cleaned(self, machine: BrokerMachine, state: LogState) -> None:
        """A log is clean up to its cleaner point."""
        if machine.disk.is_damaged:
            return
        end = state.cleaner_point.offset
        seen: dict[bytes, Offset] = {}
        for record in _records_of(machine, state):
            if record.key is not None and state.log_start_offset <= record.offset < end:
                if record.key in seen:
                    raise Violation(
                        f"{machine.name} has cleaned {state.topic_partition} up to {end}, and "
                        f"{record.key!r} is left at {seen[record.key]} and {record.offset}"
                    )
                seen[record.key] = record.offset

    def on_cut(self, machine: BrokerMachine, log: LogState) -> None:
        """A log was truncated or opened."""
        disk, path = machine.disk, f"{log.directory}/{FILE_NAME}"
        points = [log.cleaner_point]
        if disk.exists(path):
            points.append(read_point(disk, log.directory, log.topic_partition))
        for point in points:
            if point.offset > log.log_end_offset and not disk.is_damaged:
                raise Violation(
                    f"{machine.name}: {log.topic_partition} ends at {log.log_end_offset}, and is "
                    f"taken for clean up to {point.offset}"
                )


def _epochs(headers: Iterable[BatchHeader]) -> list[tuple[int, int]]:
    """Return the leader epochs and where each begins."""
    found: list[tuple[int, int]] = []
    for header in headers:
        if not found or found[-1][0] != header.leader_epoch:
            found.append((header.leader_epoch, header.base_offset))
    return found


def _last_of_each_key(
    machine: BrokerMachine, state: LogState, rules: CleaningRules
) -> dict[bytes, Offset]:
    return {
        record.key: record.offset
        for record in _records_of(machine, state, rules.aborted)
        if record.key is not None and record.offset < rules.end_offset
    }


def _records_of(
    machine: BrokerMachine, state: LogState, aborted: AbortedBatches = _NONE_ABORTED
) -> Iterable[_Record]:
    contents = _read(
        state.topic_partition,
        (_bytes_of(machine, segment) for segment in state.segments),
        aborted,
    )
    return contents.records.values()


def _bytes_of(machine: BrokerMachine, segment: Segment) -> bytes:
    return machine.disk.contents(segment.path)[: segment.size]


def _read(
    topic_partition: TopicPartition,
    parts: Iterable[bytes],
    aborted: AbortedBatches = _NONE_ABORTED,
) -> _Contents:
    """Return the batches and the records of some files; markers and aborted ones are left out."""
    headers: list[BatchHeader] = []
    records: dict[Offset, _Record] = {}
    for header, batch in _batches(parts):
        headers.append(header)
        if header.is_control or header in aborted:
            continue
        opened = open_batch(topic_partition, header, batch, header.inflated_length)
        for row in opened.to_pylist():
            offset, key, value = row["offset"], row["key"], row["value"]
            records[offset] = _Record(offset, row["timestamp"], key, value, header.delete_horizon)
    return _Contents(headers, records)


def _batches(parts: Iterable[bytes]) -> Iterator[tuple[BatchHeader, memoryview]]:
    for part in parts:
        yield from walk(part)
