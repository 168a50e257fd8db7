"""Reads a stream: one reader in the driver for the whole life of a query, and copies in executors.

Spark asks for an end, writes it to its log, and asks for tasks between the last end and that; after
a restart it asks for the same tasks, by its log. So an end is decided once, and a range is always
read up to it; and where no batch has ended before, from the beginning that the end names.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millrace.client import MillraceError, UnknownTopicOrPartitionError
from millrace.core.topics import PartitionName
from millrace.spark import events
from millrace.spark.cluster.lookups import Lookups
from millrace.spark.cluster.offsets import Log, LogPosition, Offsets
from millrace.spark.options.option import Use, credential_files
from millrace.spark.options.source_options import SourceOptions
from millrace.spark.source.data_loss import (
    Loss,
    as_planned,
    check_is_of_this_query,
    is_of_other_topic,
    losses,
    losses_before,
    losses_of_new,
    raise_for,
    read_on,
    told,
    what_to_do,
)
from millrace.spark.source.initial_offsets import keep_initial
from millrace.spark.source.planning import Limits, Range, admit, is_due, plan_tasks, share_of_bytes
from millrace.spark.source.range_reader import Task, read_task
from millrace.spark.watching.position_reports import PositionReporter

_RECORD_BYTES_AGE_S = 10.0

_log = logging.getLogger(__name__)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the error of a missing reader at its first call.

    If `streamReader` itself raises, Spark shows an error of its own process instead.
    """

    def __init__(self, why: MillraceError) -> None:
        self._why = why

    def initialOffset(self) -> NoReturn:  # Spark's name, as those below.
        """Raise the error. Spark calls this first, or one of the next two."""
        raise self._why

    def getDefaultReadLimit(self) -> NoReturn:
        """Raise the error."""
        raise self._why

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        """Raise the error."""
        raise self._why

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:
        """Raise the error: a query with a checkpoint needs no beginning."""
        raise self._why

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        """Raise the error: a query that repeats its last batch calls this."""
        raise self._why

    def read(self, partition: InputPartition) -> NoReturn:
        """Raise the error; it is never planned."""
        raise self._why


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._lookups = Lookups(options)
        self._reporter: PositionReporter | None = None
        self._initial: dict[str, Any] | None = None
        self._target: Offsets | None = None
        """The end of a query that reads only present records."""
        self._latest: Offsets | None = None
        """The log's end at the last look-up."""
        self._decided: dict[str, Any] | None = None
        """The end decided from that."""
        self._last_batch_at = -math.inf  # The first batch waits for nothing.
        self._record_bytes: dict[PartitionName, float] = {}
        self._record_bytes_until = 0.0

    # In the driver.

    def initialOffset(self) -> dict[str, Any]:  # Spark's name, as those below.
        """Return where the query begins. Spark asks twice, and again after a first batch failed."""
        if self._initial is None:
            self._initial = self._lookups.settle(self._begin).to_dict()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that Spark passes with each trigger.

        A trigger that wants all records passes another one, and then no option limits the batch.
        """
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself where there is none.

        Raises:
            DataLossError: records from `start` on are gone.
            CheckpointError: `start` is not of this query.
        """
        begin = Offsets.from_dict(start)
        is_first = start == self._initial
        end = self._lookups.settle(lambda: self._next_end(begin, limit, is_first=is_first))
        if end is None or (end.positions, end.topic_ids) == (begin.positions, begin.topic_ids):
            return start
        self._last_batch_at = time.monotonic()
        self._decided = end.to_dict()
        return self._decided

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the log's end at the last look-up: Spark calls this in every trigger."""
        return None if self._latest is None else self._latest.to_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the log ends: the query reads so far and then ends."""
        self._target = self._lookups.settle(lambda: self._lookups.ends(self._lookups.places_left()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return what each task reads between two offsets: always the same for the same.

        Raises:
            DataLossError: records between them are gone.
            CheckpointError: they are not of this query.
        """
        begin, until = Offsets.from_dict(start), Offsets.from_dict(end)
        ranges, topic_ids = self._lookups.settle(
            lambda: self._ranges(begin, until, self._log_of(end))
        )
        tasks = plan_tasks(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
            max_partitions=self._options.max_partitions,
        )
        return [InputPartition(Task(task, topic_ids, Use.STREAM)) for task in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        """Report how far the query is, for people: the checkpoint keeps the offsets.

        Spark says so when the next micro-batch is planned, and does not wait here.
        """
        name = self._options.group_id
        if name and self._options.commit_offsets is not False:
            if self._reporter is None:
                self._reporter = PositionReporter(
                    self._options.bootstrap_servers, credential_files(self._options)
                )
            self._reporter.report(name, Offsets.from_dict(end).positions)

    def stop(self) -> None:
        """Let go of the connections."""
        if self._reporter is not None:
            self._reporter.close()
            self._reporter = None
        self._lookups.close()

    # In executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of a task."""
        if partition.value is None:
            return iter(())
        return read_task(
            partition.value, self._options, to_arrow_schema(self._schema, timezone="UTC")
        )

    # Decisions of the driver.

    def _begin(self) -> Offsets:
        """Return where the query begins, or began."""
        option, where = self._options.start(Use.STREAM)
        start = self._lookups.resolve(option, where, at_start=True)
        name = self._options.group_id
        return keep_initial(self._lookups, name, start, option, where) if name else start

    def _next_end(self, begin: Offsets, limit: ReadLimit, *, is_first: bool) -> Offsets | None:
        """Return where the next batch ends; None: it is not due yet."""
        self._latest = ends = latest = self._wait_for_news(begin)
        check_is_of_this_query(begin, self._options.subscription)
        if self._target is not None:
            ends = self._up_to_target(begin, ends)
        backlog = self._backlog(begin, ends)
        # A query that has read uncommitted records before waits where it is, and never goes back.
        if ahead := {part.place: LogPosition(part.start) for part in backlog if part.size < 0}:
            ends = replace(ends, positions={**ends.positions, **ahead})
            self._latest = replace(latest, positions={**latest.positions, **ahead})
        is_limited = not isinstance(limit, ReadAllAvailable)
        if is_limited and not self._options.fail_on_data_loss:
            backlog = self._without_deleted(backlog)
        if is_limited and self._target is None and not self._is_due(backlog):
            return None
        limits = Limits()
        if is_limited:
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            limits = Limits(rows, self._options.max_bytes_per_trigger)
        sizes = self._sizes(backlog, limits)
        until = admit(backlog, limits, sizes)
        if limits.size_bytes is not None:
            until = self._within_bytes(backlog, until, limits.size_bytes, sizes)
        positions = {
            place: LogPosition(until.get(place, position.offset), position.leader_epoch)
            for place, position in ends.positions.items()
        }
        end = Offsets(positions, ends.topic_ids).with_known_epochs(begin)
        starts = {
            part.place: begin.positions.get(part.place, LogPosition(part.start))
            for part in backlog
            if is_first or part.place not in begin.positions
        }
        ids = {**ends.topic_ids, **begin.topic_ids}
        return replace(end, begin=Offsets(starts, ids)) if starts else end

    def _ranges(
        self, begin: Offsets, until: Offsets, log: Log
    ) -> tuple[list[Range], dict[str, str]]:
        """Return what is to be read between two offsets, and of which topics."""
        for offsets in (begin, until):  # Of a batch that is repeated both are the checkpoint's.
            check_is_of_this_query(offsets, self._options.subscription)
        begin = self._without_losses(as_planned(begin, until), log)
        self._tell(list(losses_before(until, begin, log)))
        ranges = [
            Range(
                *place,
                begin.positions[place].offset,
                min(position.offset, log.ends.positions[place].offset),
            )
            for place, position in until.positions.items()
            # Of another topic the next batch reads all, from its beginning.
            if place in begin.positions and not is_of_other_topic(until, log, place[0])
        ]
        return ranges, dict(log.ends.topic_ids)

    def _log_of(self, end: dict[str, Any]) -> Log:
        """Return where the log begins now, and where it ends: known of an end of a moment ago."""
        if self._latest is not None and end == self._decided:
            with suppress(UnknownTopicOrPartitionError):  # A topic has gone since.
                return self._lookups.log(self._latest.positions, self._latest)
        return self._lookups.log(self._lookups.places_left())

    def _wait_for_news(self, begin: Offsets) -> Offsets:
        """Return where the log ends, as soon as that is not `begin`, or the wait is over."""
        deadline = time.monotonic() + self._options.latest_offset_wait_ms / 1000
        while True:
            ends = self._lookups.ends(self._lookups.places_left())
            is_news = any(
                place not in begin.positions or begin.positions[place].offset != end.offset
                for place, end in ends.positions.items()
            )
            left = deadline - time.monotonic()
            if is_news or left <= 0 or self._target is not None:
                return ends
            self._lookups.wait_for_news(ends, left)

    def _up_to_target(self, begin: Offsets, ends: Offsets) -> Offsets:
        """Return the ends as far as a query that ends reads; a restart may be further already."""
        assert self._target is not None
        # The broker that told the target may lag behind the one that told the beginning.
        unknown = (begin.positions.keys() & ends.positions.keys()) - self._target.positions.keys()
        if unknown:
            late = {place: ends.positions[place] for place in unknown}
            self._target = replace(self._target, positions={**self._target.positions, **late})
        positions, found = {}, []
        for place, target in self._target.positions.items():
            end = ends.positions.get(place)
            if end is None:
                found.append(Loss.of_partition(place))
                continue
            if end.offset < target.offset:
                found.append(Loss.of_end(place, end.offset, target.offset))
                target = end
            at = begin.positions.get(place, target)
            # Never beyond the end: that the log became shorter is a loss.
            positions[place] = at if target.offset < at.offset <= end.offset else target
        self._tell(found)
        return Offsets(positions, ends.topic_ids)

    def _backlog(self, begin: Offsets, ends: Offsets) -> list[Range]:
        """Return what waits from `begin` on; partitions that have come are read from their start.

        Raises:
            DataLossError: some of it is gone.
        """
        new = [place for place in ends.positions if place not in begin.positions]
        moved = [
            place
            for place in begin.positions
            if place not in ends.positions
            or begin.positions[place].offset > ends.positions[place].offset
            or begin.topic_ids.get(place[0]) != ends.topic_ids[place[0]]
        ]
        if moved:
            begin = self._without_losses(begin, self._lookups.log(ends.positions))
        starts = self._lookups.offsets(dict.fromkeys(new, "beginning")) if new else {}
        self._tell(
            list(losses_of_new(begin, {place: start.offset for place, start in starts.items()}))
        )
        return [
            Range(
                *place,
                starts[place].offset if place in starts else begin.positions[place].offset,
                end.offset,
            )
            for place, end in sorted(ends.positions.items())
        ]

    def _without_deleted(self, backlog: list[Range]) -> list[Range]:
        """Return what waits without what retention has deleted, so that limits count what is there.

        A query that was away for long would have batches of nothing else, one after the other,
        while retention goes on. `partitions` tells of the loss.
        """
        waiting = [part.place for part in backlog if part.size > 0]
        found = self._lookups.offsets(dict.fromkeys(waiting, "beginning")) if waiting else {}
        return [
            replace(part, start=min(part.end, max(part.start, found[part.place].offset)))
            if part.place in found
            else part
            for part in backlog
        ]

    def _without_losses(self, begin: Offsets, log: Log) -> Offsets:
        """Return where to read on; what is gone is an error, or is told."""
        there = {
            place: position
            for place, position in begin.positions.items()
            if place in log.beginnings
        }
        elected = {
            place: position
            for place, position in there.items()
            if position.leader_epoch != log.ends.positions[place].leader_epoch
            and begin.topic_ids.get(place[0]) == log.ends.topic_ids[place[0]]
        }
        lost_from = self._lookups.lost_from(Offsets(elected)) if elected else {}
        found = list(losses(begin, log, lost_from))
        self._tell(found)
        return read_on(begin, found, log) if found else begin

    def _tell(self, found: list[Loss]) -> None:
        """Raise losses, or write them to the log."""
        subscription = self._options.subscription
        found = [loss if subscription.has(loss.place) else loss.of_options() for loss in found]
        if any(loss.is_of_topic for loss in found):
            self._lookups.make_sure()
        if self._options.fail_on_data_loss:
            raise_for(found, what_to_do(Use.STREAM, self._options.group_id))
        elif found:
            events.QUERY_RECORDS_GONE.log(_log, problem=told(found))

    def _is_due(self, backlog: list[Range]) -> bool:
        return is_due(
            sum(max(0, part.size) for part in backlog),
            (time.monotonic() - self._last_batch_at) * 1000,
            at_least=self._options.min_offsets_per_trigger,
            delay_ms=self._options.max_trigger_delay_ms,
        )

    def _within_bytes(
        self,
        backlog: list[Range],
        until: dict[PartitionName, int],
        limit: int,
        record_bytes: dict[PartitionName, float],
    ) -> dict[PartitionName, int]:
        """Cut ends by what is there: records may be larger than they are elsewhere."""
        starts = {part.place: part.start for part in backlog if part.place in until}
        admitted = {place: end - starts[place] for place, end in until.items()}
        reached = self._lookups.within_bytes(starts, share_of_bytes(admitted, limit, record_bytes))
        return {
            place: max(starts[place] + 1, min(end, reached.positions[place].offset))
            for place, end in until.items()
        }

    def _sizes(self, backlog: list[Range], limits: Limits) -> dict[PartitionName, float]:
        if limits.size_bytes is not None and time.monotonic() >= self._record_bytes_until:
            self._record_bytes = self._lookups.record_bytes({part.topic for part in backlog})
            self._record_bytes_until = time.monotonic() + _RECORD_BYTES_AGE_S
        return self._record_bytes
