"""Faults of brokers' pods: killed, paused, evicted, not found."""

import time

from e2e.cluster.commands import CommandError
from e2e.faults.fault import Scene, fault
from tests.faults.catalogue import NotSeenError
from tests.faults.metadata import View

_EVICTED = (
    *("--ignore-daemonsets", "--delete-emptydir-data"),
    "--pod-selector=app.kubernetes.io/component=broker",
)
_NAMELESS_SECONDS = 10.0


@fault("pod-killed", "the pod of a leader is deleted with no grace")
def kill_a_leaders_pod(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    name = scene.leader(key)
    uid = scene.uids()[name]
    scene.delete_pod(name)
    seen = scene.wait_for_new_leader(key, before)
    scene.wait_for_other_pods({name: uid})
    return f"{name} is another pod; {seen}"


@fault("controller-killed", "the pod of the controller is deleted with no grace")
def kill_the_controllers_pod(scene: Scene) -> str:
    before = scene.view
    name = before.controller
    scene.delete_pod(name)
    return scene.wait_for_new_controller(before)


@fault("names-away", "DNS answers nobody while a leader's pod is replaced, at another address")
def replace_a_pod_without_names(scene: Scene) -> str:
    """F53: it finds nobody, and comes back with the names."""
    key, before = scene.key(), scene.view
    name = scene.leader(key)
    life = before.broker(name).broker_epoch
    with scene.kubernetes.names_away():
        seen = _moved(scene, name, key)
        time.sleep(_NAMELESS_SECONDS)
        if scene.view.broker(name).broker_epoch > life:
            raise NotSeenError(f"{name} found the others all the same")
    scene.wait_for(lambda view: view.broker(name).broker_epoch > life, f"{name} registers anew")
    return f"{seen}; it came back with the names"


@fault("names-late", "a leader's pod is replaced, and DNS still tells others its last address")
def replace_a_pod_before_its_name(scene: Scene) -> str:
    """F53: it finds the others, and leads nothing as long as its address is new."""
    name = scene.away_from_home()
    key, life = scene.led_key(name), scene.view.broker(name).broker_epoch

    def is_new(view: View) -> bool:
        broker = view.broker(name)
        return broker.broker_epoch > life and bool(broker.reluctance)

    with scene.kubernetes.names_late(but=scene.node_of(name)):
        seen = _moved(scene, name, key)
        scene.wait_for(is_new, f"{name} says that its address is new")
        scene.load.wait_for_all()
    while is_new(view := scene.view):
        if led := view.led_by(name):
            raise AssertionError(f"{name} leads {led}, and others may not find it")
        time.sleep(0.1)
    return f"{seen}; it led nothing while that was new"


def _moved(scene: Scene, name: str, key: int) -> str:
    """Replace the pod of a leader; return its addresses, and who leads now."""
    pod, before = scene.pods()[name], scene.view
    scene.delete_pod(name)
    seen = scene.wait_for_new_leader(key, before)
    scene.wait_for_other_pods({name: pod["metadata"]["uid"]})
    scene.until(lambda: _address(scene, name) != "", f"{name} has an address")
    old, new = pod["status"]["podIP"], _address(scene, name)
    if old == new:
        raise NotSeenError(f"{name} has its address again, {old}")
    return f"{name} went from {old} to {new}; {seen}"


def _address(scene: Scene, name: str) -> str:
    address: str = scene.pods()[name]["status"].get("podIP", "")
    return address


@fault("all-pods-killed", "the pods of all brokers are deleted at once with no grace")
def kill_all_pods(scene: Scene) -> str:
    key, before, uids = scene.key(), scene.view, scene.uids()
    for name in uids:
        scene.delete_pod(name)
    scene.wait_for_other_pods(uids)
    return f"{len(uids)} pods are others; " + scene.wait_for_new_leader(key, before)


@fault("container-killed", "SIGKILL of a leader in its container, which starts again in place")
def kill_a_container(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    name = scene.leader(key)
    (status,) = scene.pods()[name]["status"]["containerStatuses"]
    restarts = status["restartCount"]
    scene.signal(name, "SIGKILL")
    seen = scene.wait_for_new_leader(key, before)

    def has_started_again() -> bool:
        (now,) = scene.pods()[name]["status"]["containerStatuses"]
        return bool(now["restartCount"] > restarts)

    scene.until(has_started_again, f"{name} is started again in place")
    return f"{name} was started again in place; {seen}"


@fault("broker-paused", "SIGSTOP of a leader beyond its session, then SIGCONT")
def pause_a_broker(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    name = scene.leader(key)
    scene.signal(name, "SIGSTOP")
    try:
        return f"{name} stood still; {scene.wait_for_new_leader(key, before)}"
    finally:
        scene.signal(name, "SIGCONT")


@fault("stop-cut-short", "a broker is deleted with one second to hand over, then killed")
def cut_a_stop_short(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    name = scene.leader(key)
    uid = scene.uids()[name]
    scene.delete_pod(name, grace_s=1)
    seen = scene.wait_for_new_leader(key, before)
    scene.wait_for_other_pods({name: uid})
    return f"{name} is another pod; {seen}"


@fault("node-drained", "kubectl drain of a broker's node, then uncordon")
def drain_a_node(scene: Scene) -> str:
    name = scene.alone_on_its_node()  # Else the budget keeps the other one there.
    node, uid, before = scene.node_of(name), scene.uids()[name], scene.view
    key = scene.led_key(name)
    try:
        scene.kubernetes.kubectl("drain", node.name, *_EVICTED, "--timeout=180s")
        seen = scene.wait_for_new_leader(key, before)
        scene.wait_for_other_pods({name: uid})
    finally:
        scene.kubernetes.kubectl("uncordon", node.name)
    return f"{name} was evicted from {node.name}; {seen}"


@fault("drain-waits", "kubectl drain of a second node while the broker of the first is away")
def drain_two_nodes(scene: Scene) -> str:
    name = scene.alone_on_its_node()  # Else the budget keeps the other one there.
    first = scene.node_of(name)
    others = [node for node in scene.kubernetes.nodes if node is not first]
    try:
        scene.kubernetes.kubectl("drain", first.name, *_EVICTED, "--timeout=180s")
        on_others = {pod["spec"].get("nodeName") for pod in scene.pods().values()}
        second = next(node for node in others if node.name in on_others)
        before = scene.uids()
        try:
            scene.kubernetes.kubectl("drain", second.name, *_EVICTED, "--timeout=10s")
        except CommandError as error:
            if "disruption budget" not in str(error):
                raise
        else:
            raise AssertionError(f"{second.name} was drained while {name} was away")
        if scene.uids() != before:
            raise AssertionError("a second broker was evicted all the same")
    except StopIteration:
        raise NotSeenError("all brokers are on one node") from None
    finally:
        for node in scene.kubernetes.nodes:
            scene.kubernetes.kubectl("uncordon", node.name)
    return f"{name} was away, and the eviction from {second.name} was refused by the budget"
