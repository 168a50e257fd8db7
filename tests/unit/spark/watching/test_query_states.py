"""What is told of queries follows from the events that Spark tells."""

from typing import Any

from millrace.spark.cluster.offsets import LogPosition, Offsets
from millrace.spark.watching.query_states import QueryState, QueryStates


def offsets(**clicks: int) -> dict[str, Any]:
    positions = {("clicks", int(click[1:])): LogPosition(at, 3) for click, at in clicks.items()}
    return Offsets(positions, {"clicks": "ab"}).to_dict()


def progress(run: str = "r1", **others: Any) -> dict[str, Any]:
    return {
        "name": "etl",
        "runId": run,
        "numInputRows": 100,
        "inputRowsPerSecond": 50.0,
        "processedRowsPerSecond": 200.0,
        "durationMs": {"addBatch": 400, "triggerExecution": 500},
        "sink": {"numOutputRows": 40},
        "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 70}, {"numRowsTotal": 4}],
        "sources": [
            {"endOffset": offsets(p0=10, p1=20), "latestOffset": offsets(p0=15, p1=20, p2=7)},
            {"endOffset": {"offset": 3}, "latestOffset": None},
            {"endOffset": None},
        ],
        **others,
    }


def states() -> QueryStates:
    found = QueryStates()
    found.on_started("etl", "r1", 100.0)
    return found


def only(found: QueryStates) -> QueryState:
    (state,) = found
    return state


def test_a_micro_batch_says_rates_phases_lag_and_how_far_it_has_read() -> None:
    found = states()
    assert found.on_progress(progress(), 101.0) == {
        ("clicks", 0): LogPosition(10, 3),
        ("clicks", 1): LogPosition(20, 3),
    }
    state = only(found)
    assert (state.batches, state.rows, state.written_rows) == (1, 100, 40)
    found.on_progress(progress(sink={"numOutputRows": -1}), 101.0)
    assert state.written_rows == 40
    assert (state.input_rows_per_second, state.processed_rows_per_second) == (50.0, 200.0)
    assert state.phases_s == {"addBatch": 0.4, "triggerExecution": 0.5}
    assert state.lag == {"clicks": 5}  # A partition that has just come is not behind yet.
    assert (state.state_rows, state.state_bytes) == (7, 70)


def test_written_bytes_are_added_up_over_runs_where_a_query_counts_them() -> None:
    found = states()
    found.on_progress(progress(observedMetrics={"other": {"bytes": 5}}), 101.0)
    assert only(found).written_bytes is None
    for run in ("r1", "r2"):
        found.on_started("etl", run, 102.0)
        counted = {"millrace_written": {"bytes": 70}}
        found.on_progress(progress(run, observedMetrics=counted), 103.0)
    found.on_progress(progress("r2", observedMetrics={"millrace_written": {"bytes": None}}), 104.0)
    assert only(found).written_bytes == 140


def test_the_lag_of_topics_that_are_no_longer_read_is_not_told() -> None:
    found = states()
    found.on_progress(progress(), 101.0)
    assert found.on_progress(progress(sources=[]), 102.0) == {}
    assert only(found).lag == {}


def test_rates_are_nothing_while_there_is_nothing_to_do() -> None:
    found = states()
    found.on_progress(progress(), 101.0)
    found.on_idle("r1", 111.0)
    state = only(found)
    assert (state.input_rows_per_second, state.heard_at) == (0.0, 111.0)
    assert state.lag == {"clicks": 5}


def test_a_rate_that_spark_leaves_out_is_nothing() -> None:
    found = states()
    told = progress()
    del told["inputRowsPerSecond"]
    found.on_progress(told, 101.0)
    assert only(found).input_rows_per_second == 0.0


def test_a_silent_query_and_a_failed_one_are_problems() -> None:
    found = states()
    found.on_started("other", "r2", 100.0)
    assert found.problems(160.0, 60.0) == []
    assert found.problems(161.0, 60.0) == [
        "query etl has not made progress for 61 s",
        "query other has not made progress for 61 s",
    ]
    found.on_terminated("r1", None)
    found.on_terminated("r2", "it broke\n  at ...")
    assert found.problems(999.0, 60.0) == ["query other has failed: it broke"]
    assert found.active_runs() == set()


def test_a_query_that_is_started_again_goes_on_counting_and_is_well() -> None:
    found = states()
    found.on_progress(progress(), 101.0)
    found.on_terminated("r1", "it broke")
    found.on_started("etl", "r2", 200.0)
    found.on_progress(progress("r2"), 201.0)
    found.on_terminated("r1", "late news")
    state = only(found)
    assert (state.rows, state.is_active, state.failure) == (200, True, "")
    assert found.active_runs() == {"r2"}


def test_a_start_that_is_told_twice_changes_nothing() -> None:
    found = states()
    found.on_progress(progress(), 101.0)
    found.on_started("etl", "r1", 102.0)
    assert (only(found).rows, only(found).heard_at) == (100, 101.0)


def test_what_is_remembered_of_ended_queries_is_bounded() -> None:
    found = states()
    for number in range(300):
        found.on_started(f"q{number}", f"x{number}", 100.0)
        found.on_terminated(f"x{number}", None)
    names = [state.name for state in found]
    assert len(names) <= 102
    assert "etl" in names
    assert "q299" in names


def test_events_of_unknown_runs_are_left_alone() -> None:
    found = QueryStates()
    assert found.on_progress(progress(), 1.0)
    found.on_idle("r1", 1.0)
    found.on_terminated("r1", None)
    assert list(found) == []
