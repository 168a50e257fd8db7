"""What pods, and events about them, say."""

from typing import Any

import pytest

from millrace.operator.plan.pods import broker_pods, last_words, own_pods, why_not_made
from millrace.operator.plan.rolling import Restart, Wait, next_step
from millrace.operator.reconcile.resources import cluster_of

RECENT = "2026-11-30T11:50:00Z"

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
        "spec": {"containers": [{"name": "broker", "image": "millrace:1"}]},
        "status": {"containerStatuses": [container]},
    }
    (found,) = broker_pods([pod], [], {}, recent=RECENT)
    assert found.problem == (
        "CrashLoopBackOff: the broker stops: broker 'b-0': an older copy was put back"
    )


def test_a_broker_runs_its_own_image_beside_containers_that_webhooks_add() -> None:
    sidecar, broker = (
        {"name": "istio-proxy", "image": "istio:9"},
        {"name": "broker", "image": "m:1"},
    )
    for containers in ([sidecar, broker], [broker, sidecar]):
        pod = {"metadata": {"name": "c-b-0", "uid": "u"}, "spec": {"containers": containers}}
        (found,) = broker_pods([pod], [], {}, recent=RECENT)
        assert found.image == "m:1"


def test_the_revision_of_a_pod_is_its_stateful_set_s_beside_other_owners() -> None:
    stateful_set = {"metadata": {"name": "c-b"}, "status": {"updateRevision": "r2"}}
    pod = {
        "metadata": {
            "name": "c-b-0",
            "uid": "u",
            "labels": {"controller-revision-hash": "r1"},
            "ownerReferences": [{"name": "another"}, {"name": "c-b"}],
        },
        "spec": {"containers": [{"name": "broker", "image": "m:1"}]},
    }
    (found,) = broker_pods([pod], [stateful_set], {}, recent=RECENT)
    assert (found.is_revision_known, found.is_current) == (True, False)


def test_a_pod_without_the_broker_s_container_is_no_broker_s() -> None:
    spec = {"pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}]}
    metadata = {"namespace": "n", "name": "c", "uid": "u", "generation": 1}
    cluster = cluster_of({"metadata": metadata, "spec": spec})
    stray, broker = (
        {"metadata": {"name": name}, "spec": {"containers": [{"name": container}]}}
        for name, container in (("c-b-1", "theirs"), ("c-b-0", "broker"))
    )
    assert own_pods(cluster, [stray, broker], []) == [broker]


def ended(at: str | None, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": 137, "finishedAt": at, **more}}


RUNS = {"running": {"startedAt": "2026-08-02T00:00:00Z"}}
AUGUST = ended("2026-08-02T00:00:00Z", message="error: the disk was full")
JUST_NOW = ended("2026-11-30T11:51:00Z")


@pytest.mark.parametrize(
    ("state", "last", "is_broken"),
    [
        (RUNS, AUGUST, False),
        (RUNS, ended(None), False),
        (RUNS, {}, False),
        (RUNS, ended("2026-11-30T11:49:00Z"), False),
        (RUNS, JUST_NOW, True),
        ({"waiting": {"reason": "PodInitializing"}}, AUGUST, True),
        (ended("2026-11-30T11:59:59Z"), {}, True),
        (ended("2026-11-30T11:59:59Z", exitCode=0), AUGUST, False),
    ],
    ids=[
        "runs since August",
        "it is not known when it ended",
        "its restarts are long forgotten",
        "runs for ten minutes",
        "runs again",
        "does not run",
        "has just ended",
        "has done its work",
    ],
)
def test_restarts_of_long_ago_break_no_container_that_is_well(
    state: dict[str, Any], last: dict[str, Any], is_broken: bool
) -> None:
    outdated, waits = (
        {
            "metadata": {
                "name": f"c-b-{number}",
                "uid": "u",
                "labels": {"controller-revision-hash": revision},
                "ownerReferences": [{"name": "c-b"}],
            },
            "spec": {"containers": [{"name": "broker", "image": "millrace:1"}]},
            "status": {"containerStatuses": [container]},
        }
        for number, revision, container in (
            (1, "r1", {"restartCount": 2, "state": state, "lastState": last}),
            (0, "r2", {"restartCount": 0, "state": RUNS}),
        )
    )
    stateful_set = {"metadata": {"name": "c-b"}, "status": {"updateRevision": "r2"}}
    pods = broker_pods([outdated, waits], [stateful_set], {}, recent=RECENT)
    step = next_step(pods, None, pods_wanted=2, controller=None)
    assert isinstance(step, Restart if is_broken else Wait)
    assert is_broken or (not pods[1].problem and step.why == "c-b-0 is not ready yet")


@pytest.mark.parametrize(
    ("phase", "containers", "has_run"),
    [
        ("Pending", [], False),
        ("Pending", [("broker", {"state": {"waiting": {"reason": "ContainerCreating"}}})], False),
        ("Pending", [("istio-proxy", {"state": RUNS})], False),
        ("Pending", [("broker", {"state": RUNS}), ("istio-proxy", {})], True),
        ("Pending", [("broker", {"state": {"waiting": {}}, "lastState": AUGUST})], True),
        ("Running", [("broker", {"state": {"waiting": {}}})], True),
        (None, [], True),
    ],
    ids=[
        "no node has room for it",
        "a Secret that it mounts is missing",
        "only a container beside it runs",
        "the broker runs, and the one beside it cannot",
        "it ran before",
        "its phase says that it runs",
        "nothing is known",
    ],
)
def test_a_pod_says_whether_its_broker_has_ever_run(
    phase: str | None, containers: list[tuple[str, dict[str, Any]]], has_run: bool
) -> None:
    told = [{"name": name, **container} for name, container in containers]
    pod = {
        "metadata": {"name": "c-b-0", "uid": "u"},
        "spec": {"containers": [{"name": "broker", "image": "m:1"}]},
        "status": {"phase": phase, "containerStatuses": told},
    }
    (found,) = broker_pods([pod], [], {}, recent=RECENT)
    assert found.has_run == has_run
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    (found,) = broker_pods([{**pod, "status": ready}], [], {}, recent=RECENT)
    assert found.has_run
