"""Brokers' pods for the plans, from the objects of the API server."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import BROKER, Document, broker_container
from millrace.operator.plan.rolling import BrokerPod

_BROKEN_AFTER_RESTARTS: Final = 2
BROKEN_FOR_S: Final = 600.0
"""For how long a container that runs again may still be broken: longer than the pauses before
Kubernetes starts one again."""
_ERROR: Final = "error: "
"""How the last message of a command begins."""
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_BROKEN_REASONS: Final = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of waiting containers that do not pass by themselves."""


def broker_pods(
    pods: Iterable[Document],
    stateful_sets: Iterable[Document],
    restart: Mapping[str, str],
    *,
    recent: str,
) -> list[BrokerPod]:
    """Return the pods by name.

    Args:
        restart: pods that have to be restarted for another reason than their revision.
        recent: the time `BROKEN_FOR_S` ago, as the API server writes times: such texts compare as
            the times do.
    """
    revisions = {
        stateful_set["metadata"]["name"]: _update_revision(stateful_set)
        for stateful_set in stateful_sets
    }
    found = [_broker_pod(pod, revisions, recent) for pod in pods]
    found = [
        replace(pod, is_current=False, why_outdated=restart[pod.name])
        if pod.is_current and pod.name in restart
        else pod
        for pod in found
    ]
    return sorted(found, key=lambda pod: pod.name)


def own_pods(
    cluster: Cluster, pods: Sequence[Document], stateful_sets: Sequence[Document]
) -> list[Document]:
    """Return the pods of brokers: other pods with their labels are left alone.

    While a StatefulSet is recreated its pods have no owner, and are known by their names.
    """
    ours = {stateful_set["metadata"]["uid"] for stateful_set in stateful_sets}

    def is_ours(pod: Document) -> bool:
        metadata = pod["metadata"]
        owners = metadata.get("ownerReferences") or ()
        prefix, _, number = metadata["name"].rpartition("-")
        is_named = prefix.startswith(f"{cluster.name}-") and number.isdecimal()
        is_owned = not owners or any(owner["uid"] in ours for owner in owners)
        return is_named and is_owned and bool(broker_container(pod))

    return [pod for pod in pods if is_ours(pod)]


def why_not_made(events: Iterable[Document], stateful_sets: Iterable[Document]) -> str:
    """Return why pods of these StatefulSets cannot be created, by the newest event about it.

    With a quota, an unknown priority class, or a policy of the namespace, the API server refuses
    the pod, and only an event shows it.
    """
    uids = {stateful_set["metadata"]["uid"] for stateful_set in stateful_sets}
    found = [event for event in events if event["involvedObject"].get("uid") in uids]
    if not found:
        return ""
    newest = max(found, key=lambda event: event.get("lastTimestamp") or "")
    return (
        f"a pod of {newest['involvedObject']['name']} cannot be made: {newest.get('message', '')}; "
        "correct the Cluster's spec, or what refuses the pod"
    )


def last_words(log: str) -> str:
    """Return why a broker ended, by the end of its log that Kubernetes keeps of a container.

    Of the lines of JSON the last one of the worst level counts. Lines of text are a command's own
    message, which begins with `error:` and may have several lines, or those of a crash. The first
    line may be cut off.
    """
    plain: list[str] = []
    of_error: list[str] | None = None
    worst, logged = -1, ""
    for line in log.splitlines():
        if line.lstrip().startswith("{"):
            level, said = _logged(line)
            if said and level >= worst:
                worst, logged = level, said
        elif line.startswith(_ERROR):
            of_error = [line.removeprefix(_ERROR)]
        elif line.strip():
            plain.append(line)
            if of_error is not None:
                of_error.append(line)
    if of_error is not None:
        return " ".join(line.strip() for line in of_error)
    return logged or (plain[-1].strip() if plain else "")


def _logged(line: str) -> tuple[int, str]:
    """Return level and text of an event of a log; without text if it is cut off."""
    try:
        event = json.loads(line)
    except ValueError:
        return 0, ""
    level = event.get("level")
    told = [event.get("message"), event.get("error")]
    return (
        _LEVELS.index(level) if level in _LEVELS else 0,
        ": ".join(str(part) for part in told if part),
    )


def is_unscheduled(status: Mapping[str, Any]) -> bool:
    """Return whether no node was found for a pod of this status."""
    return any(
        condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        for condition in status.get("conditions") or ()
    )


def _update_revision(stateful_set: Document) -> str | None:
    """Return the newest revision; None while the controller has not computed it."""
    status = stateful_set.get("status") or {}
    if status.get("observedGeneration", 0) < stateful_set["metadata"].get("generation", 0):
        return None
    revision: str | None = status.get("updateRevision")
    return revision


def _broker_pod(pod: Document, revisions: Mapping[str, str | None], recent: str) -> BrokerPod:
    metadata, status = pod["metadata"], pod.get("status") or {}
    owners = [owner["name"] for owner in metadata.get("ownerReferences") or ()]
    revision = next((revisions[owner] for owner in owners if owner in revisions), None)
    runs = metadata.get("labels", {}).get("controller-revision-hash")
    is_ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    is_broken, problem = _trouble(status, recent) if not is_ready else (False, "")
    return BrokerPod(
        name=metadata["name"],
        uid=metadata["uid"],
        is_current=revision is None or runs == revision,
        is_revision_known=revision is not None,
        is_ready=is_ready,
        image=broker_container(pod)["image"],
        is_terminating="deletionTimestamp" in metadata,
        is_broken=is_broken,
        is_unscheduled=is_unscheduled(status),
        has_run=is_ready or _has_run(status),
        problem=problem,
    )


def _has_run(status: Mapping[str, Any]) -> bool:
    """Whether the broker of a pod was ever started. What a node says stays while it is away."""
    if status.get("phase") != "Pending":
        return True
    # Containers that webhooks add may keep a pod pending whose broker runs.
    return any(
        container.get("name") == BROKER
        and bool(
            container.get("restartCount")
            or container.get("lastState")
            or {*(container.get("state") or {})} - {"waiting"}
        )
        for container in status.get("containerStatuses") or ()
    )


def _trouble(status: Mapping[str, Any], recent: str) -> tuple[bool, str]:
    """Return whether a pod is broken, and why it is not ready by its status."""
    for container in (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ):
        waiting = (container.get("state") or {}).get("waiting") or {}
        ended = _last_end(container, recent)
        reason = waiting.get("reason", "")
        words = last_words((ended or {}).get("message") or "")
        told = [reason, words or waiting.get("message", "")]
        text = ": ".join(part.strip() for part in told if part and part.strip())
        is_broken = reason in _BROKEN_REASONS or (
            ended is not None and container.get("restartCount", 0) >= _BROKEN_AFTER_RESTARTS
        )
        if is_broken or text:
            return is_broken, text
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return False, f"it cannot be scheduled: {condition.get('message', '')}"
    return False, ""


def _last_end(container: Mapping[str, Any], recent: str) -> Mapping[str, Any] | None:
    """Return how a container ended last; None: it never did, or was well for a while since then.

    Kubernetes never forgets how often a container was started, and each start of its node counts.
    """
    state = container.get("state") or {}
    ended: Mapping[str, Any] | None = (container.get("lastState") or {}).get("terminated")
    over = state.get("terminated")
    is_well = "running" in state or (over is not None and over.get("exitCode") == 0)
    if not is_well:
        return ended or over
    return ended if ended is not None and (ended.get("finishedAt") or "") > recent else None
