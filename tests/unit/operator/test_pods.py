"""What pods, and events about them, say."""

from typing import Any

import pytest

from millrace.operator.plan.pods import broker_pods, last_words, why_not_made

FAILED = (
    '{"level": "critical", "event": "broker_failed", "message": "the broker stops", '
    '"error": "broker \'b-0\': an older copy was put back"}'
)
STARTS = '{"level": "info", "event": "broker_starts", "message": "it starts"}'


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


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            f'er": "b"}}\n{STARTS}\n{FAILED}\n{STARTS}',
            "the broker stops: broker 'b-0': an older copy was put back",
        ),
        (f"{STARTS}\nerror: broker.toml:\n  x: no such setting", "broker.toml: x: no such setting"),
        ("Traceback (most recent call last):\n  File\nKilled: 9", "Killed: 9"),
        ('{"level": "critical", "message": "cut o', ""),
        ("", ""),
    ],
)
def test_a_broker_s_last_words_are_a_sentence_and_no_line_of_json(log: str, words: str) -> None:
    assert last_words(log) == words


def test_a_pod_that_crashes_says_its_reason_and_then_the_broker_s_words() -> None:
    container = {
        "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s ..."}},
        "lastState": {"terminated": {"message": f"{STARTS}\n{FAILED}"}},
    }
    pod = {
        "metadata": {"name": "c-b-0", "uid": "u"},
        "spec": {"containers": [{"image": "millrace:1"}]},
        "status": {"containerStatuses": [container]},
    }
    (found,) = broker_pods([pod], [], {})
    assert found.problem == (
        "CrashLoopBackOff: the broker stops: broker 'b-0': an older copy was put back"
    )
