"""Queries are stopped between two micro-batches, in time, and their failures are told."""

import signal
import time
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from millrace.spark.errors import InvalidOptionError
from millrace.spark.pod_settings import micro_batch_grace_s, silent_s_max
from millrace.spark.stopping import await_queries, stop_between_batches

BUSY = {"isTriggerActive": True, "message": "Processing new data", "isDataAvailable": True}
BETWEEN = {"isTriggerActive": True, "message": "Getting offsets from x", "isDataAvailable": False}
CLEANING = {
    "isTriggerActive": True,
    "message": "No new data but cleaning up state",
    "isDataAvailable": False,
}
IDLE = {"isTriggerActive": False, "message": "Waiting for next trigger", "isDataAvailable": True}


class Query:
    """Shows one status after the other, the last one for ever."""

    def __init__(self, *statuses: dict[str, Any], failure: Exception | None = None) -> None:
        self._statuses = list(statuses)
        self._failure = failure
        self.isActive = failure is None
        self.stopped_at: dict[str, Any] | None = None

    @property
    def status(self) -> dict[str, Any]:
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]

    def exception(self) -> Exception | None:
        return self._failure

    def stop(self) -> None:
        self.stopped_at = self._statuses[0]
        self.isActive = False

    def awaitTermination(self, seconds: float) -> bool:
        if self._failure is not None:
            raise self._failure
        time.sleep(min(seconds, 0.01))
        return not self.isActive


@pytest.mark.parametrize("between", [BETWEEN, IDLE])
def test_a_query_is_stopped_when_none_of_its_tasks_runs(between: dict[str, Any]) -> None:
    query = Query(BUSY, CLEANING, BUSY, between)
    stop_between_batches(query)
    assert query.stopped_at == between


def test_a_micro_batch_that_takes_too_long_is_broken_off() -> None:
    query, other = Query(BUSY), Query(BETWEEN)
    stop_between_batches(query, other, grace_s=0.05)
    assert (query.stopped_at, other.stopped_at) == (BUSY, BETWEEN)


def test_a_micro_batch_has_three_quarters_of_what_its_pod_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert micro_batch_grace_s() == 90
    monkeypatch.setenv("MILLRACE_GRACE_SECONDS", "600")
    assert micro_batch_grace_s() == 450
    monkeypatch.setenv("MILLRACE_GRACE_SECONDS", "0")
    query = Query(BUSY)
    broken = Query(BUSY, failure=ValueError("it broke"))
    with pytest.raises(ValueError, match="it broke"):
        await_queries(query, broken)
    assert query.stopped_at == BUSY
    monkeypatch.setenv("MILLRACE_GRACE_SECONDS", "10m")
    with pytest.raises(InvalidOptionError, match="MILLRACE_GRACE_SECONDS='10m': give a whole num"):
        await_queries(query)


def test_how_long_a_query_may_be_silent_is_what_its_pod_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert silent_s_max() == 60
    monkeypatch.setenv("MILLRACE_SILENT_SECONDS_MAX", "1200")
    assert silent_s_max() == 1200


def test_sigterm_stops_all_queries() -> None:
    queries = Query(IDLE), Query(BUSY, BUSY, IDLE)
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        await_queries(*queries)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [query.stopped_at for query in queries] == [IDLE, IDLE]
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_failure_stops_the_others_and_is_raised() -> None:
    broken, other = Query(BUSY, failure=ValueError("it broke")), Query(BUSY, BETWEEN)
    with pytest.raises(ValueError, match="it broke"):
        await_queries(other, broken)
    assert other.stopped_at == BETWEEN


def test_queries_that_have_ended_are_not_waited_for() -> None:
    query = Query(IDLE)
    query.isActive = False
    await_queries(query)
    assert query.stopped_at is None
