"""The states of streaming queries, from Spark's events: pure.

Times are seconds of one clock, which the caller reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.core.topics import PartitionName
from millrace.spark.cluster.offsets import LogPosition, Offsets
from millrace.spark.errors import CheckpointError

OBSERVED: Final = "millrace_written"
"""Name of the observed metric with the bytes that a micro-batch has written."""
_ENDED_MAX: Final = 100
"""Ended queries that are still shown."""


@dataclass(slots=True)
class QueryState:
    """One query, by its name, or its id if it has none."""

    name: str
    run_id: str
    heard_at: float
    is_active: bool = True
    failure: str = ""
    """Why it has failed, if it has."""
    batches: int = 0
    rows: int = 0
    written_rows: int = 0
    written_bytes: int | None = None
    """Of keys and values; None: the query does not count them."""
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    """How long each part of the last micro-batch took; `triggerExecution` is all of it."""
    lag: dict[str, int] = field(default_factory=dict)
    """Records of each topic that the last micro-batch left unread."""
    state_rows: int = 0
    state_bytes: int = 0


class QueryStates:
    """All queries of a session."""

    def __init__(self) -> None:
        self._states: dict[str, QueryState] = {}
        self._names: dict[str, str] = {}
        """By the id of a run: some events have nothing else."""

    def __iter__(self) -> Iterator[QueryState]:
        return iter(list(self._states.values()))

    def active_runs(self) -> set[str]:
        """Return the runs that have begun, without an event of their end."""
        return {state.run_id for state in self._states.values() if state.is_active}

    def on_started(self, name: str, run_id: str, now: float) -> None:
        """A run of a query has begun; counts of an earlier run go on. Repeated events are
        ignored."""
        if run_id in self._names:
            return
        before = self._states.pop(name, None)
        state = self._states[name] = QueryState(name, run_id, now)
        if before is not None:
            state.batches, state.rows = before.batches, before.rows
            state.written_rows = before.written_rows
            state.written_bytes = before.written_bytes
            self._names.pop(before.run_id, None)
        self._names[run_id] = name
        ended = [state for state in self._states.values() if not state.is_active]
        for old in ended[: max(0, len(ended) - _ENDED_MAX)]:
            del self._states[old.name]
            self._names.pop(old.run_id, None)

    def on_progress(
        self, progress: Mapping[str, Any], now: float
    ) -> dict[PartitionName, LogPosition]:
        """A micro-batch is done; return its positions in Millrace's topics.

        Args:
            progress: as Spark writes it in JSON.
        """
        reads = [_offsets(source) for source in progress["sources"]]
        state = self._of_run(progress["runId"])
        if state is not None:
            state.heard_at = now
            state.batches += 1
            state.rows += _number(progress.get("numInputRows"))
            written = progress.get("sink", {}).get("numOutputRows")
            state.written_rows += max(0, _number(written))  # -1: the sink does not count.
            observed = progress.get("observedMetrics", {}).get(OBSERVED)
            if observed is not None:
                state.written_bytes = (state.written_bytes or 0) + _number(observed.get("bytes"))
            state.input_rows_per_second = _rate(progress.get("inputRowsPerSecond"))
            state.processed_rows_per_second = _rate(progress.get("processedRowsPerSecond"))
            state.phases_s = {
                phase: took / 1000 for phase, took in progress.get("durationMs", {}).items()
            }
            operators = progress.get("stateOperators", ())
            state.state_rows = sum(_number(operator.get("numRowsTotal")) for operator in operators)
            state.state_bytes = sum(
                _number(operator.get("memoryUsedBytes")) for operator in operators
            )
            state.lag = {}
            for end, latest in reads:
                for place, position in latest.items():
                    behind = position.offset - end[place].offset if place in end else 0
                    state.lag[place[0]] = state.lag.get(place[0], 0) + max(0, behind)
        return {place: at for end, _ in reads for place, at in end.items()}

    def on_idle(self, run_id: str, now: float) -> None:
        """A query has found nothing to do."""
        state = self._of_run(run_id)
        if state is not None:
            state.heard_at = now
            state.input_rows_per_second = state.processed_rows_per_second = 0.0

    def on_terminated(self, run_id: str, failure: str | None) -> None:
        """A run has ended."""
        state = self._of_run(run_id)
        if state is not None:
            state.is_active = False
            state.failure = failure or ""
            state.input_rows_per_second = state.processed_rows_per_second = 0.0

    def problems(self, now: float, stale_after_s: float) -> list[str]:
        """Return the problems, for a person or a probe."""
        found = []
        for state in self._states.values():
            age = now - state.heard_at
            if state.failure:
                found.append(f"query {state.name} has failed: {state.failure.splitlines()[0]}")
            elif state.is_active and age > stale_after_s:
                found.append(f"query {state.name} has not made progress for {age:.0f} s")
        return found

    def _of_run(self, run_id: str) -> QueryState | None:
        return self._states.get(self._names.get(run_id, ""))


def _offsets(
    source: Mapping[str, Any],
) -> tuple[Mapping[PartitionName, LogPosition], Mapping[PartitionName, LogPosition]]:
    """Return how far a source was read, and where it ends; empty for other sources."""
    try:
        end = Offsets.from_dict(source["endOffset"])
        latest = source.get("latestOffset")
        return end.positions, {} if latest is None else Offsets.from_dict(latest).positions
    except CheckpointError:
        return {}, {}


def _number(value: Any) -> int:
    return int(value or 0)


def _rate(value: Any) -> float:
    """Return a rate; Spark leaves out what it cannot divide."""
    return float(value or 0.0)
