"""What pods, and events about them, say."""

from typing import Any

from millrace.operator.plan.pods import why_not_made


def event(uid: str, message: str, when: str) -> dict[str, Any]:
    return {
        "involvedObject": {"kind": "StatefulSet", "name": "logs-b", "uid": uid},
        "message": message,
        "lastTimestamp": when,
    }


def test_the_newest_event_says_why_a_pod_cannot_be_made() -> None:
    events = [
        event("u1", "exceeded quota", "2026-11-23T10:00:00Z"),
        event("u1", "no PriorityClass", "2026-11-23T11:00:00Z"),
        event("u2", "of an older StatefulSet of the name", "2026-11-23T12:00:00Z"),
    ]
    told = why_not_made(events, [{"metadata": {"uid": "u1"}}])
    assert told.startswith("a pod of logs-b cannot be made: no PriorityClass; correct")
    assert why_not_made(events, [{"metadata": {"uid": "u3"}}]) == ""
