"""What Prometheus is told of streaming queries, without Spark."""

from millrace.spark.cluster.offsets import LogPosition, Offsets
from millrace.spark.watching.query_metrics import query_metrics, report_failures
from millrace.spark.watching.query_states import QueryStates


def states() -> QueryStates:
    """Return the states of a query that runs, and of one that has failed."""
    found = QueryStates()
    found.on_started("etl", "r1", 100.0)
    ends = [Offsets({("clicks", 0): LogPosition(at, 3)}, {"clicks": "ab"}) for at in (10, 15)]
    end, latest = (end.to_dict() for end in ends)
    found.on_progress(
        {
            "runId": "r1",
            "numInputRows": 100,
            "durationMs": {"triggerExecution": 500},
            "sink": {"numOutputRows": 40},
            "observedMetrics": {"millrace_written": {"bytes": 900}},
            "sources": [{"endOffset": end, "latestOffset": latest}],
        },
        101.0,
    )
    found.on_started("other", "r2", 100.0)
    found.on_terminated("r2", "out of memory")
    return found


def shown(now: float) -> dict[str, float]:
    return {
        ",".join([sample.name.removeprefix("millrace_spark_"), *sample.labels.values()]): (
            sample.value
        )
        for family in query_metrics(states(), now)
        for sample in family.samples
    }


def test_a_query_shows_its_rows_phases_lag_and_age() -> None:
    found = shown(103.5)
    assert found["active,etl"] == 1
    assert found["rows_total,etl"] == 100
    assert found["written_rows_total,etl"] == 40
    assert found["written_bytes_total,etl"] == 900
    assert "written_bytes_total,other" not in found
    assert found["batches_total,etl"] == 1
    assert found["batch_duration_seconds,etl,triggerExecution"] == 0.5
    assert found["lag_records,etl,clicks"] == 5
    assert found["last_progress_age_seconds,etl"] == 2.5


def test_a_query_that_has_failed_says_so_and_has_no_age() -> None:
    found = shown(103.5)
    assert (found["active,other"], found["failed,other"]) == (0, 1)
    assert (found["active,etl"], found["failed,etl"]) == (1, 0)
    assert "last_progress_age_seconds,other" not in found


def test_reports_that_failed_are_counted() -> None:
    (sample,) = report_failures(3).samples
    assert (sample.name, sample.value) == ("millrace_spark_position_report_failures_total", 3)
