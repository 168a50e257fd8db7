"""Faults of the operator during its work."""

from e2e.faults import changes
from e2e.faults.fault import CLUSTER, Scene, fault
from e2e.installed import SYSTEM, topic

_TOPICS = 20


@fault("operator-killed-in-restart", "all operators are killed when one broker is restarted")
def kill_it_in_a_restart(scene: Scene) -> str:
    before = _begin_restart(scene)
    seen = scene.kill_operators()
    scene.wait_for_other_pods(before, 300.0)
    scene.wait_for_condition("RolledOut", "Current")
    return f"{seen} after the first broker; all were restarted"


@fault("operator-killed-in-scale-up", "all operators are killed when a new broker's pod is there")
def kill_it_in_scale_up(scene: Scene) -> str:
    brokers = len(scene.view.cluster.brokers)
    scene.scale(scene.wanted + 1)
    scene.until(lambda: len(scene.pods()) > brokers, "the new pod is there")
    seen = scene.kill_operators()
    changes.wait_for_share(scene, brokers + 1)
    return f"{seen} before replicas moved; the new broker holds some"


@fault("operator-killed-in-scale-down", "all operators are killed when a broker is being emptied")
def kill_it_in_scale_down(scene: Scene) -> str:
    brokers = len(scene.view.cluster.brokers)
    scene.scale(scene.wanted - 1)
    scene.wait_for(
        lambda view: any(broker.is_drained for broker in view.cluster.brokers.values()),
        "a broker is drained",
    )
    seen = scene.kill_operators()
    changes.wait_until_gone(scene, brokers - 1)
    return f"{seen} when a broker was drained; it is gone with its claim"


@fault("operator-killed-in-reassignment", "all operators are killed when replicas change")
def kill_it_in_a_reassignment(scene: Scene) -> str:
    name = scene.any_topic()
    changes.set_replicas(scene, name, 2)
    seen = scene.kill_operators()
    changes.wait_for_replicas(scene, name, 2)
    changes.set_replicas(scene, name, 3)
    changes.wait_for_replicas(scene, name, 3)
    return f"{seen} when {name} was to have two replicas; it had, and three again"


@fault("operator-killed-in-topics", "all operators are killed while 20 Topics are made")
def kill_it_making_topics(scene: Scene) -> str:
    names = [f"many{number}" for number in range(_TOPICS)]
    scene.namespace.apply(*(topic(name, CLUSTER, partitions=1, replicas=3) for name in names))
    place = scene.namespace.name
    scene.wait_for(lambda view: any(f"{place}/{name}" in view.topics for name in names), "a topic")
    seen = scene.kill_operators()
    resources = [f"topic.millrace.dev/{name}" for name in names]
    scene.namespace("wait", *resources, "--for=condition=Ready", "--timeout=180s")
    scene.namespace("delete", *resources, "--timeout=180s")
    left = [name for name in names if f"{place}/{name}" in scene.view.topics]
    assert not left, f"{left} are still there"
    return f"{seen} between the first and the last of {_TOPICS} Topics; all were made, and deleted"


@fault("operator-paused", "SIGSTOP of the acting operator in a restart, SIGCONT when another acts")
def pause_it_in_a_restart(scene: Scene) -> str:
    before = _begin_restart(scene)
    paused = scene.acting_operator
    scene.signal(paused, "SIGSTOP", SYSTEM)
    try:
        scene.until(lambda: scene.acting_operator not in ("", paused), "another operator acts", 60)
    finally:
        scene.signal(paused, "SIGCONT", SYSTEM)
    acting = scene.acting_operator
    scene.wait_for_other_pods(before, 300.0)
    scene.wait_for_condition("RolledOut", "Current")
    return f"{paused} stood still, {acting} took over, and every broker was restarted"


@fault("operator-lease-stolen", "somebody else is written into the operator's Lease in a restart")
def steal_its_lease(scene: Scene) -> str:
    before = _begin_restart(scene)
    scene.take_operator_lease("thief")
    scene.until(lambda: scene.acting_operator != "thief", "the thief's time is up", 60)
    scene.wait_for_other_pods(before, 300.0)
    scene.wait_for_condition("RolledOut", "Current")
    return f"nobody acted until the thief's time was up; then {scene.acting_operator} went on"


def _begin_restart(scene: Scene) -> dict[str, str]:
    before = scene.uids()
    changes.begin_restart(scene)
    scene.until(lambda: scene.uids() != before, "the first broker is restarted")
    return before
