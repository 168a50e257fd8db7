"""Faults of brokers' pods: killed, paused, evicted."""

from e2e.cluster.commands import CommandError
from e2e.faults.fault import Scene, fault
from tests.faults.catalogue import NotSeenError

_EVICTED = (
    *("--ignore-daemonsets", "--delete-emptydir-data"),
    "--pod-selector=app.kubernetes.io/component=broker",
)


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
    name = scene.away_from_home()
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
    name = scene.away_from_home()
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
