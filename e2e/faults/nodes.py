"""Faults of nodes and of the volumes on them."""

import contextlib
from collections.abc import Iterator

from e2e.cluster.node import Node
from e2e.faults.fault import Scene, fault
from tests.faults.catalogue import NotSeenError

_NOT_READY_SECONDS = 120.0
_STOPPED_SECONDS = 5.0
_GROWTH_MEBIBYTES = 300


@contextlib.contextmanager
def _off(scene: Scene, node: Node) -> Iterator[None]:
    node.power_off()
    try:
        yield
    finally:
        node.start()
        scene.until(lambda: scene.is_node_ready(node), f"{node.name} is ready", 180.0)


@fault("node-off", "the power of a broker's node is cut until Kubernetes notices; then it is back")
def cut_the_power(scene: Scene) -> str:
    name = scene.away_from_home()
    node, key, before = scene.node_of(name), scene.led_key(name), scene.view
    with _off(scene, node):
        seen = scene.wait_for_new_leader(key, before)
        scene.until(
            lambda: not scene.is_node_ready(node), f"{node.name} is not ready", _NOT_READY_SECONDS
        )
    return f"{node.name} was not ready; {seen}"


@fault("link-cut", "the cable of a broker's node is pulled until Kubernetes notices; then put back")
def cut_the_link(scene: Scene) -> str:
    name = scene.away_from_home()
    node, key, before = scene.node_of(name), scene.led_key(name), scene.view
    node.set_link(is_up=False)
    try:
        seen = scene.wait_for_new_leader(key, before)
        scene.until(
            lambda: not scene.is_node_ready(node), f"{node.name} is not ready", _NOT_READY_SECONDS
        )
    finally:
        node.set_link(is_up=True)
    return f"{node.name} was not ready; {seen}"


@fault("node-lost", "the power of a broker's node is cut and its Node deleted: it begins elsewhere")
def lose_a_node(scene: Scene) -> str:
    name = scene.away_from_home()
    node, claim = scene.node_of(name), f"pvc/data-{name}"
    uid = scene.namespace.get(claim)["metadata"]["uid"]
    with _off(scene, node):
        scene.kubernetes.kubectl("delete", "node", node.name)
        scene.until(
            lambda: scene.namespace.get(claim)["metadata"]["uid"] != uid,
            f"{name} has another claim",
            300.0,
        )
        scene.until(
            lambda: scene.pods()[name]["spec"].get("nodeName") not in (None, node.name),
            f"{name} is on another node",
        )
        scene.wait_for(lambda view: not view.what_is_missing(), "every replica is in sync", 180.0)
        return f"{name} went from {node.name} to {scene.node_of(name).name} with an empty volume"


@fault("volume-wiped", "a broker is stopped, its volume emptied, and it starts again")
def wipe_a_volume(scene: Scene) -> str:
    name = scene.dice.choice(sorted(scene.pods()))
    node, uid = scene.node_of(name), scene.uids()[name]
    before = scene.view.broker(name)
    scene.kubernetes.kubectl("cordon", node.name)
    try:
        scene.delete_pod(name, grace_s=30)
        scene.wait_for_other_pods({name: uid})
        scene.kubernetes.wipe_volume(f"data-{name}", scene.namespace.name)
    finally:
        scene.kubernetes.kubectl("uncordon", node.name)
    view = scene.wait_for(
        lambda view: view.broker(name).directory_ids != before.directory_ids,
        f"{name} comes with another log directory",
        120.0,
    )
    epochs = f"broker epoch {before.broker_epoch}, then {view.broker(name).broker_epoch}"
    return f"{name} came with an empty disk; {epochs}"


@fault("volume-full", "the volume of a leader has no room left; later it has room again")
def fill_a_volume(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    name = scene.leader(key)
    with _filled(scene, name):
        scene.wait_for(lambda view: view.broker(name).reluctance, f"{name} says so", 90.0)
        return f"{name} said that its disk is full; {scene.wait_for_new_leader(key, before)}"


@fault(
    "volumes-full", "no broker's volume has room left: writes stop, and go on when there is some"
)
def fill_all_volumes(scene: Scene) -> str:
    with contextlib.ExitStack() as filled:
        for name in scene.pods():
            filled.enter_context(_filled(scene, name))
        scene.until(lambda: _took_nothing(scene), "writes stop", 90.0)
    scene.load.wait_for_all()
    return "writes stopped while all volumes were full, and went on afterwards"


@fault("volumes-grown", "no broker's volume has room left, and the Cluster asks for larger ones")
def grow_full_volumes(scene: Scene) -> str:
    (pool,) = scene.spec["pools"]
    (volume,) = pool["volumes"]
    old = int(volume["size"].removesuffix("Mi"))
    with contextlib.ExitStack() as filled:
        for name in scene.pods():
            filled.enter_context(_filled(scene, name))
        scene.until(lambda: _took_nothing(scene), "writes stop", 90.0)
        grown = volume | {"size": f"{old + _GROWTH_MEBIBYTES}Mi"}
        scene.apply(pools=[pool | {"volumes": [grown]}])
        scene.load.wait_for_all()
    return f"writes stopped while all volumes were full, and went on when they had {grown['size']}"


def _took_nothing(scene: Scene) -> bool:
    before = scene.load.status().acknowledged
    try:
        scene.until(lambda: scene.load.status().acknowledged > before, "a write", _STOPPED_SECONDS)
    except NotSeenError:
        return True
    return False


@contextlib.contextmanager
def _filled(scene: Scene, name: str) -> Iterator[None]:
    node, path = scene.kubernetes.volume_of(f"data-{name}", scene.namespace.name)
    filler = f"{path}/filler"
    room = 'df --output=avail --block-size=1 "$0" | tail -1'
    rest = 'dd if=/dev/zero of="$0/filler" bs=4k oflag=append conv=notrunc 2>/dev/null || true'
    try:
        node.machine.run("sh", "-c", f'fallocate -l $({room}) "$0/filler" || true; {rest}', path)
        yield
    finally:
        node.machine.run("rm", "-f", filler)
