"""A broker that ends by itself under a fault is told from one that was killed."""

from e2e.faults.fault import Document, failures_of


def pod(**terminated: object) -> Document:
    state = {"terminated": {"finishedAt": "2026-11-29T20:02:35Z", **terminated}}
    return {
        "metadata": {"name": "logs-brokers-1"},
        "status": {"containerStatuses": [{"name": "broker", "lastState": state}]},
    }


def test_a_broker_that_was_killed_or_stopped_has_not_failed() -> None:
    for status in ({}, {"containerStatuses": [{"name": "broker", "lastState": {}}]}):
        assert failures_of({"metadata": {"name": "logs-brokers-1"}, "status": status}) == []
    assert failures_of(pod(exitCode=137)) == []
    assert failures_of(pod(exitCode=0, message="")) == []


def test_a_broker_that_ended_by_an_error_says_which() -> None:
    (said,) = failures_of(pod(exitCode=1, message='{"error": "gone", "event": "broker_failed"}'))
    assert said.startswith("logs-brokers-1 ended at 2026-11-29T20:02:35Z")
    assert "gone" in said
