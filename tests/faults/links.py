"""Faults of the network between brokers: partitions of every shape, slow links, resets."""

import time

from tests.faults.catalogue import NotSeenError
from tests.faults.fault import Scene, fault
from tests.faults.machine import Need

_THROTTLE_SECONDS = 5.0
_THROTTLE_KILOBITS = 256


@fault("F11", "a leader that is not the controller is cut off from all brokers", Need.NAMESPACES)
def isolate_a_leader(scene: Scene) -> str:
    leader, key = scene.leader_beside_the_controller()
    before = scene.view
    for other in scene.cluster.others(leader):
        scene.cluster.cut(leader.host, other.host)
    seen = scene.wait_for_new_leader(key, before)
    scene.load.wait_for_more()
    return seen


@fault("F12", "a leader is cut off from a follower; the controller sees both", Need.NAMESPACES)
def cut_a_leader_from_its_follower(scene: Scene) -> str:
    leader, key = scene.leader_beside_the_controller()
    before = scene.view.partition(key)
    (follower,) = scene.cluster.others(leader, scene.cluster.controller)
    scene.cluster.cut(leader.host, follower.host)
    seen = scene.wait_until_out_of_sync(key, follower)
    scene.load.wait_for_more()
    if scene.view.partition(key).leader != before.leader:
        raise NotSeenError("the leader changed meanwhile")
    return seen + ", by its leader's word alone"


@fault("F13", "a leader is cut off from the controller alone", Need.NAMESPACES)
def cut_a_leader_from_the_controller(scene: Scene) -> str:
    leader, key = scene.leader_beside_the_controller()
    before = scene.view
    scene.cluster.cut(leader.host, scene.cluster.controller.host)
    return scene.wait_for_new_leader(key, before)


@fault(
    "F14", "one-way: a leader receives nothing, or nothing that it sends arrives", Need.NAMESPACES
)
def cut_one_way(scene: Scene) -> str:
    leader, key = scene.leader_beside_the_controller()
    before = scene.view
    is_deaf = scene.dice.random() < 0.5
    for other in scene.cluster.others(leader):
        if is_deaf:
            scene.cluster.cut(leader.host, other.host, ways=1)
        else:
            scene.cluster.cut(other.host, leader.host, ways=1)
    seen = scene.wait_for_new_leader(key, before)
    scene.load.wait_for_more()
    return f"{leader.name} {'hears nobody' if is_deaf else 'is not heard'}; {seen}"


@fault("F15", "a ring: every broker hears one of the others only", Need.NAMESPACES)
def cut_into_a_ring(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    nodes = scene.cluster.nodes
    for at, node in enumerate(nodes):
        scene.cluster.cut(node.host, nodes[(at + 1) % len(nodes)].host, ways=1)
    view = scene.cluster.wait_for(
        lambda view: len(view.isr_ids(key)) < len(nodes), "replicas leave the ISR", 20
    )
    return f"key {key}: ISR {before.isr_ids(key)}, then {view.isr_ids(key)}"


@fault(
    "F16",
    "what leaves a broker has 256 kbit/s, 200 ms of queue, and then loss",
    Need.NAMESPACES,
    Need.THROTTLE,
)
def throttle(scene: Scene) -> str:
    node = scene.any_node()
    scene.load.slowest_s = 0.0
    node.host.throttle(_THROTTLE_KILOBITS)
    time.sleep(_THROTTLE_SECONDS)
    delayed, dropped = node.host.throttled_packets()
    slowest = scene.load.slowest_s
    if not dropped:
        raise NotSeenError("no packet was lost")
    return (
        f"{delayed} packets of {node.name} waited, {dropped} were lost; the slowest write took "
        f"{slowest:.2f} s"
    )


@fault("F17", "every connection of a broker is reset", Need.NAMESPACES, Need.RESETS)
def reset_connections(scene: Scene) -> str:
    node = scene.any_node()
    logged = [(node, node.log_size()) for node in scene.cluster.nodes]
    count = 0
    for _ in range(3):
        count += node.host.reset_connections()
        time.sleep(0.3)
    scene.load.wait_for_more()
    said = "".join(node.logged_since(size) for node, size in logged)
    broken = said.count("fetching ended") + said.count("fetching broke off")
    if not (count and broken):
        raise NotSeenError(f"{count} connections ended, and {broken} were missed")
    return f"{count} connections of {node.name} ended, {broken} were missed"


@fault(
    "F65",
    "acknowledgements of a leader are lost, and then the leader is killed",
    Need.NAMESPACES,
    Need.RESETS,
)
def lose_acknowledgements(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    leader = scene.leader(key)
    repeated = scene.load.repeated
    scene.cluster.clients_host.drop_from(leader.host.address)
    time.sleep(1.5)
    leader.host.reset_connections()  # Otherwise its kernel delivers them after its death.
    leader.kill()
    seen = scene.wait_for_new_leader(key, before)
    scene.cluster.clients_host.heal()
    deadline = time.monotonic() + 30  # Connections to a dead host time out slowly.
    while scene.load.repeated == repeated:
        if time.monotonic() > deadline:
            raise NotSeenError("no batch had to be sent again")
        time.sleep(0.05)
    return f"{seen}; {scene.load.repeated - repeated} batches were sent again"
