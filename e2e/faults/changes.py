"""Changes by users while clients work: restarts, upgrades, more and fewer brokers, topics."""

from typing import Any

from e2e.faults.fault import (
    BROKERS,
    CLUSTER,
    PARTITIONS,
    POOL,
    SETTINGS,
    Scene,
    fault,
)
from e2e.installed import topic
from tests.faults.catalogue import NotSeenError

_ROLL_SECONDS = 300.0
_SCALE_SECONDS = 300.0
_MORE = 2


def load_topic(replicas: int = 3) -> dict[str, Any]:
    """Return the spec of a Topic of the load."""
    config = {"min.insync.replicas": 2, "segment.bytes": 1 << 20}
    return {"partitions": PARTITIONS, "replicas": replicas, "config": config}


def begin_restart(scene: Scene) -> None:
    """Request a restart of all brokers."""
    scene.namespace("rollout", "restart", f"statefulset/{CLUSTER}-{POOL}")


@fault("rolling-restart", "kubectl rollout restart of the StatefulSet")
def restart_all(scene: Scene) -> str:
    before = scene.uids()
    begin_restart(scene)
    return _rolled(scene, before)


@fault("upgrade", "another version is set, whose image has this code under that version")
def upgrade(scene: Scene) -> str:
    before = scene.uids()
    old, new = scene.releases
    scene.releases.reverse()
    scene.apply(version=new)
    seen = _rolled(scene, before)
    told = {pod: scene.namespace("exec", pod, "--", "millrace", "--version") for pod in before}
    assert all(new in answer.split() for answer in told.values()), told
    return f"{seen}, of version {new} after {old}"


@fault("setting-changed", "a setting of the brokers is changed in the Cluster")
def change_a_setting(scene: Scene) -> str:
    before = scene.uids()
    old = scene.spec["config"].get("storage", {}).get("file_handles_max", 1000)
    scene.apply(config=SETTINGS | {"storage": {"file_handles_max": 3000 - old}})
    return f"{_rolled(scene, before)}, with file_handles_max {3000 - old} after {old}"


@fault("bad-image", "a version of which there is no image is set; then the good one again")
def roll_out_a_bad_image(scene: Scene) -> str:
    good, before = scene.spec["version"], scene.uids()
    scene.apply(version="no-such-version")
    try:
        message = scene.wait_for_condition("RolledOut", "Stuck")
        left = {name for name, uid in scene.uids().items() if before.get(name) == uid}
        assert len(left) == len(before) - 1, f"only {left} are left"
    finally:
        scene.apply(version=good)
    return f"it stopped at the first one: {message[:80]}"


@fault("scale-up", "two more brokers are asked for")
def scale_up(scene: Scene) -> str:
    brokers = len(scene.view.cluster.brokers)
    scene.scale(scene.wanted + _MORE)
    wait_for_share(scene, brokers + _MORE)
    return f"{brokers} brokers, then {brokers + _MORE}, and the new ones hold replicas"


@fault("scale-down", "two brokers less are asked for")
def scale_down(scene: Scene) -> str:
    brokers = len(scene.view.cluster.brokers)
    if brokers < BROKERS + _MORE:
        raise NotSeenError(f"there are only {brokers}")
    scene.scale(scene.wanted - _MORE)
    wait_until_gone(scene, brokers - _MORE)
    return f"{brokers} brokers, then {brokers - _MORE}, and no claim is left of the others"


def wait_for_share(scene: Scene, brokers: int) -> None:
    """Wait for a number of brokers, each with replicas of the load."""

    def all_hold_something() -> bool:
        view = scene.view
        held = {replica for _, state in view.partitions() for replica in state.replicas}
        moving = any(state.adding or state.removing for _, state in view.partitions())
        return len(view.cluster.brokers) == brokers and len(held) == brokers and not moving

    scene.until(all_hold_something, f"{brokers} brokers hold replicas", _SCALE_SECONDS)


def wait_until_gone(scene: Scene, brokers: int) -> None:
    """Wait for a number of brokers, without pods and claims of others."""

    def are_gone() -> bool:
        claims = scene.namespace.get("pvc")["items"]
        counts = {len(scene.view.cluster.brokers), len(scene.pods()), len(claims)}
        return counts == {brokers}

    scene.until(are_gone, f"{brokers} brokers are left", _SCALE_SECONDS)


def set_replicas(scene: Scene, name: str, replicas: int) -> None:
    """Request another number of replicas for one of the load's topics."""
    scene.namespace.apply(topic(name, CLUSTER, **load_topic(replicas)))


def wait_for_replicas(scene: Scene, name: str, replicas: int) -> None:
    """Wait until every partition of a topic has so many replicas, and none moves."""

    def have_them() -> bool:
        found = scene.view.topics[f"{scene.namespace.name}/{name}"].partitions
        return all(
            len(partition.replicas) == replicas and not partition.adding and not partition.removing
            for partition in found
        )

    scene.until(have_them, f"{name} has {replicas} replicas", _SCALE_SECONDS)


@fault("replicas-change", "a Topic is given two replicas, then three again")
def change_replicas(scene: Scene) -> str:
    name = scene.any_topic()
    for replicas in (2, 3):
        set_replicas(scene, name, replicas)
        wait_for_replicas(scene, name, replicas)
    return f"{name} had two replicas, then three"


@fault("topic-made-anew", "a Topic is deleted and made anew while a broker is down")
def recreate_a_topic(scene: Scene) -> str:
    name = f"again{scene.dice.randrange(10**6)}"
    place = f"{scene.namespace.name}/{name}"
    spec = {"partitions": 3, "replicas": 3, "config": {"min.insync.replicas": 2}}
    scene.namespace.make_topic(name, CLUSTER, **spec)
    _produce(scene, place, [f"old {number}" for number in range(30)])
    pod = scene.away_from_home()
    node, uid = scene.node_of(pod), scene.uids()[pod]
    scene.kubernetes.kubectl("cordon", node.name)
    try:
        scene.delete_pod(pod)
        scene.wait_for(lambda view: view.broker(pod).is_fenced, f"{pod} is away")
        old = scene.view.topics[place].topic_id
        scene.namespace("delete", f"topic.millrace.dev/{name}", "--timeout=60s")
        # A topic needs all its replicas at its creation: now there are brokers for two.
        scene.namespace.apply(topic(name, CLUSTER, **spec | {"replicas": 2}))
        scene.wait_for(
            lambda view: place in view.topics and view.topics[place].topic_id != old,
            f"{name} is made anew",
        )
        new = [f"new {number}" for number in range(30)]
        _produce(scene, place, new)
    finally:
        scene.kubernetes.kubectl("uncordon", node.name)
    scene.wait_for_other_pods({pod: uid})
    scene.wait_until_whole()
    read = scene.load.consume(place, len(new))
    assert sorted(read) == sorted(new), f"read {read}"
    scene.namespace("delete", f"topic.millrace.dev/{name}", "--timeout=60s")
    return (
        f"{pod} was away while {name} became another topic, whose {len(new)} records alone are read"
    )


def _produce(scene: Scene, place: str, records: list[str]) -> None:
    scene.load.millrace("produce", place, input="".join(f"{record}\n" for record in records))


def _rolled(scene: Scene, before: dict[str, str]) -> str:
    scene.wait_for_other_pods(before, _ROLL_SECONDS)
    scene.wait_for_condition("RolledOut", "Current")
    return f"{len(before)} pods were replaced, one at a time"
