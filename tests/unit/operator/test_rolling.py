"""Which broker is restarted next, and what a restart waits for."""

from dataclasses import replace

from millrace.operator.plan.rolling import (
    BrokerPod,
    Done,
    PartitionHealth,
    Restart,
    Wait,
    may_be_disrupted,
    next_step,
)

NAMES = ("c-b-0", "c-b-1", "c-b-2")


def pod(name: str, **facts: object) -> BrokerPod:
    known = BrokerPod(name=name, uid=f"uid-{name}", is_current=False, is_ready=True)
    return replace(known, **facts)  # type: ignore[arg-type]


def partition(*in_sync: str, min_in_sync: int = 2, place: str = "t-0") -> PartitionHealth:
    return PartitionHealth(place=place, replicas=NAMES, in_sync=in_sync, min_in_sync=min_in_sync)


def step(
    *pods: BrokerPod,
    partitions: list[PartitionHealth] | None = None,
    controller: str | None = "",
    settling: tuple[str, ...] = (),
) -> Restart | Wait | Done:
    healthy = [partition(*NAMES)] if partitions is None else partitions
    return next_step(
        pods,
        healthy,
        pods_wanted=len(NAMES),
        controller=controller if controller != "" else NAMES[0],
        settling=settling,
    )


def test_nothing_is_done_when_every_pod_is_current() -> None:
    assert step(*(pod(name, is_current=True) for name in NAMES)) == Done()


def test_the_controller_s_broker_comes_last() -> None:
    pods = [pod(name) for name in NAMES]
    restarted = step(*pods, controller="c-b-0")
    assert isinstance(restarted, Restart)
    assert restarted.pod.name == "c-b-1"
    others_done = [pods[0], *(replace(pod, is_current=True) for pod in pods[1:])]
    last = step(*others_done, controller="c-b-0")
    assert isinstance(last, Restart)
    assert last.pod.name == "c-b-0"


def test_while_a_pod_is_not_ready_no_other_one_is_restarted() -> None:
    waits = step(pod("c-b-0"), pod("c-b-1", is_current=True, is_ready=False), pod("c-b-2"))
    assert isinstance(waits, Wait)
    assert "c-b-1" in waits.why
    assert not waits.is_stuck


def test_while_a_pod_is_terminating_no_other_one_is_restarted() -> None:
    assert isinstance(step(pod("c-b-0"), pod("c-b-1", is_terminating=True), pod("c-b-2")), Wait)


def test_while_a_pod_is_missing_no_other_one_is_restarted() -> None:
    assert isinstance(step(pod("c-b-0"), pod("c-b-1")), Wait)


def test_a_broken_pod_of_the_newest_revision_stops_the_roll_and_says_why() -> None:
    bad = pod("c-b-1", is_current=True, is_ready=False, is_broken=True, problem="ImagePullBackOff")
    waits = step(pod("c-b-0"), bad, pod("c-b-2"))
    assert isinstance(waits, Wait)
    assert waits.is_stuck
    assert "ImagePullBackOff" in waits.why


def test_a_broken_pod_of_an_older_revision_is_restarted_at_once() -> None:
    bad = pod("c-b-1", is_ready=False, is_broken=True, problem="CrashLoopBackOff")
    restarted = step(pod("c-b-0"), bad, pod("c-b-2"), partitions=None, controller=None)
    assert isinstance(restarted, Restart)
    assert restarted.pod == bad


def test_a_pod_that_never_ran_is_restarted_when_its_cluster_is_corrected() -> None:
    unscheduled = "it cannot be scheduled: 0/3 nodes are available: 3 Insufficient cpu."
    pending = pod("c-b-1", is_ready=False, has_run=False, problem=unscheduled)
    restarted = step(pod("c-b-0"), pending, pod("c-b-2"), partitions=None, controller=None)
    assert restarted == Restart(
        pending, f"its broker has never run, and it is of an older revision: {unscheduled}"
    )
    as_wanted = replace(pending, is_current=True)
    assert isinstance(step(pod("c-b-0"), as_wanted, pod("c-b-2")), Wait)


def test_a_broker_waits_while_a_partition_would_fall_under_its_minimum() -> None:
    short = partition("c-b-0", "c-b-1")
    assert step(*map(pod, NAMES), partitions=[short], controller="c-b-2") == Wait(
        "c-b-0 waits: without it t-0 would fall under min.insync.replicas"
    )


def test_a_broker_that_the_short_partition_does_not_need_is_restarted_meanwhile() -> None:
    short = partition("c-b-0", "c-b-1")
    restarted = step(*map(pod, NAMES), partitions=[short], controller="c-b-0")
    assert isinstance(restarted, Restart)
    assert restarted.pod.name == "c-b-2"


def test_a_partition_that_waiting_does_not_help_holds_nothing_up() -> None:
    single = PartitionHealth(place="s-0", replicas=["c-b-1"], in_sync=["c-b-1"], min_in_sync=1)
    assert isinstance(step(*map(pod, NAMES), partitions=[single]), Restart)


def test_without_a_controller_nothing_is_restarted() -> None:
    assert isinstance(step(*map(pod, NAMES), controller=None), Wait)


def test_when_the_brokers_do_not_answer_nothing_is_restarted() -> None:
    outcome = next_step([pod(name) for name in NAMES], None, pods_wanted=3, controller="c-b-0")
    assert isinstance(outcome, Wait)


def test_a_broker_may_be_evicted_when_all_are_in_sync() -> None:
    pods = [pod(name, is_current=True) for name in NAMES]
    assert may_be_disrupted(pods, [partition(*NAMES)], pods_wanted=3)


def test_no_broker_may_be_evicted_while_one_is_away_or_a_replica_is_behind() -> None:
    pods = [pod(name, is_current=True) for name in NAMES]
    assert not may_be_disrupted(pods[:2], [partition(*NAMES)], pods_wanted=3)
    assert not may_be_disrupted(pods, [partition("c-b-0", "c-b-1")], pods_wanted=3)
    assert not may_be_disrupted(pods, None, pods_wanted=3)
    away = [*pods[:2], replace(pods[2], is_ready=False)]
    assert not may_be_disrupted(away, [partition(*NAMES)], pods_wanted=3)


def test_no_broker_may_be_evicted_while_another_one_is_to_be_restarted() -> None:
    pods = [pod(name, is_current=name != "c-b-2") for name in NAMES]
    assert not may_be_disrupted(pods, [partition(*NAMES)], pods_wanted=3)


def test_a_restart_waits_until_clients_find_somebody_who_leads_instead() -> None:
    pods = [pod("c-b-0", is_current=True), pod("c-b-1", is_current=True), pod("c-b-2")]
    one = step(*pods, settling=("c-b-1",))
    assert isinstance(one, Restart), "the other one leads"
    both = step(*pods, settling=("c-b-0", "c-b-1"))
    assert isinstance(both, Wait)
    assert both.why == (
        "c-b-2 waits: c-b-0, c-b-1 would lead t-0, and clients may not find them yet"
    )
    assert not both.is_stuck
    alone = step(*pods, settling=("c-b-0", "c-b-1"), partitions=[partition("c-b-2", min_in_sync=1)])
    assert not isinstance(alone, Restart), "another replica has to be in sync first"
