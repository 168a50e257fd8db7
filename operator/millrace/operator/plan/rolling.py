"""Which broker to restart next, and what a restart has to wait for.

A pod that does not run its StatefulSet's newest revision has to be recreated: after another image,
other settings, or `kubectl rollout restart`. Kubernetes would restart pods by number, as it does
not know replicas. So the StatefulSets are `OnDelete`, and the operator deletes pods, one at a time:

1. a broken pod is restarted first, whatever its number, and so is one whose broker has never run,
   as no node has room for it: neither serves a client, and a new revision may repair it;
2. while another pod is not ready, or the cluster has no controller, nothing is restarted;
3. a broker waits while a partition would fall under its `min.insync.replicas` without it, and
   another replica of that partition is not in sync yet. A partition that would fall under it even
   with all replicas in sync, such as one with a single replica, does not count: the restart would
   wait for ever;
4. the controller's broker comes last, so that the controller moves only once.

A restarted broker that does not become ready holds up all others by rule 2: a bad image or setting
stops at the first one.

Source: the idea of Strimzi's KafkaRoller, with the ISR rule of KIP-966.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from millrace.core.words import count, some


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPod:
    """The state of a broker's pod.

    Attributes:
        image: that it runs.
        uid: of the pod, so that no other one of its name is deleted.
        is_current: it runs its StatefulSet's newest revision, and has no other reason to be
            restarted.
        why_outdated: why it is not current.
        is_broken: its container cannot start, or ended again and again until a few minutes ago.
        is_unscheduled: no node was found for it.
        has_run: its broker was started in it at least once.
        problem: why it is not ready, in words, by its status.
        is_revision_known: whether Kubernetes has said which revision it should run. It has not for
            a moment after each change of a StatefulSet, and while one is recreated.
    """

    name: str
    uid: str
    is_current: bool
    is_ready: bool
    image: str = ""
    is_terminating: bool = False
    is_broken: bool = False
    is_unscheduled: bool = False
    has_run: bool = True
    problem: str = ""
    is_revision_known: bool = True
    why_outdated: str = "it is of an older revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHealth:
    """A partition, by names of brokers.

    Attributes:
        place: its name for people.
    """

    place: str
    replicas: Collection[str]
    in_sync: Collection[str]
    min_in_sync: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Delete this pod, which is then recreated."""

    pod: BrokerPod
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing now.

    Attributes:
        is_stuck: it will not go on by itself: a person has to act.
    """

    why: str
    is_stuck: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Every pod is as it should be."""


def next_step(
    pods: Sequence[BrokerPod],
    partitions: Iterable[PartitionHealth] | None,
    *,
    pods_wanted: int,
    controller: str | None,
    settling: Collection[str] = (),
) -> Restart | Wait | Done:
    """Return what to do about the pods.

    Args:
        partitions: None: the brokers did not answer.
        controller: name of the broker that is the controller; None: there is none now.
        settling: brokers that clients may not find yet, as they have just started.
    """
    outdated = [pod for pod in pods if not pod.is_current and not pod.is_terminating]
    for pod in outdated:
        if pod.is_broken:
            return Restart(pod, f"it does not work, and {pod.why_outdated}: {pod.problem}")
        if not pod.has_run:
            problem = f": {pod.problem}" if pod.problem else ""
            return Restart(pod, f"its broker has never run, and {pod.why_outdated}{problem}")
    away = [pod for pod in pods if not pod.is_ready or pod.is_terminating]
    if away or len(pods) < pods_wanted:
        return _wait_for(away, pods_wanted - len(pods))
    if unknown := [pod.name for pod in pods if not pod.is_revision_known]:
        return Wait(f"Kubernetes has yet to say which revision {some(unknown)} should run")
    if not outdated:
        return Done()
    if partitions is None or controller is None:
        return Wait("the brokers do not say how partitions are, or there is no controller now")
    partitions = list(partitions)
    ordered = sorted(outdated, key=lambda pod: (pod.name == controller, pod.name))
    blocked = ""
    for pod in ordered:
        if pod.name == controller and len(ordered) > 1:
            break
        why_not = _why_not(pod.name, partitions, settling)
        if not why_not:
            return Restart(pod, pod.why_outdated)
        blocked = blocked or f"{pod.name} waits: {why_not}"
    return Wait(blocked)


def may_be_disrupted(
    pods: Sequence[BrokerPod], partitions: Iterable[PartitionHealth] | None, *, pods_wanted: int
) -> bool:
    """Return whether any one broker may be evicted now without a partition losing its minimum.

    None may while one is to be restarted: both would be away at once.
    """
    is_whole = len(pods) >= pods_wanted and all(pod.is_ready and pod.is_current for pod in pods)
    if partitions is None or not is_whole:
        return False
    return not any(
        _needs(partition, name) for partition in partitions for name in partition.replicas
    )


def _why_not(broker: str, partitions: Sequence[PartitionHealth], settling: Collection[str]) -> str:
    """Return why a broker cannot be restarted now; empty: it can."""
    if needing := [partition.place for partition in partitions if _needs(partition, broker)]:
        return f"without it {some(needing)} would fall under min.insync.replicas"
    for partition in partitions:
        heirs = set(partition.in_sync) - {broker}
        if broker in partition.in_sync and heirs and heirs.issubset(settling):
            found = ", ".join(sorted(heirs))
            return f"{found} would lead {partition.place}, and clients may not find them yet"
    return ""


def _needs(partition: PartitionHealth, broker: str) -> bool:
    """Whether a partition would fall under its minimum, and waiting can change that."""
    if broker not in partition.in_sync:
        return False
    left = len(partition.in_sync) - 1
    can_be_more = len(partition.in_sync) < len(partition.replicas)
    return left < partition.min_in_sync and can_be_more


def _wait_for(away: Sequence[BrokerPod], missing: int) -> Wait:
    broken = [pod for pod in away if pod.is_broken]
    if broken:
        first = broken[0]
        return Wait(f"{first.name} does not work: {first.problem}", is_stuck=True)
    if away:
        first = away[0]
        problem = f": {first.problem}" if first.problem else ""
        return Wait(f"{first.name} is not ready yet{problem}")
    return Wait(f"{count(missing, 'pod is', 'pods are')} still to be made")
