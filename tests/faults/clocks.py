"""Faults of clocks, inside one broker's process."""

import time

from tests.faults.catalogue import NotSeenError
from tests.faults.cluster import Node
from tests.faults.fault import Scene, fault
from tests.faults.machine import Need
from tests.faults.metadata import PLACES

from millrace.client import SyncConsumer

_HOUR = 3600.0
_DOUBLE, _HALF = 2000, 500
_STEADY_JUMP_SECONDS = 20


@fault("F19", "the wall clock of a leader jumps an hour ahead or back", Need.PRELOAD)
def jump_the_wall_clock(scene: Scene) -> str:
    key, node = _stamped(scene)
    before = scene.view
    jump = scene.dice.choice([_HOUR, -_HOUR])
    node.control.set_clock(wall_shift_s=jump)
    scene.load.wait_for_more(60)
    shift = _newest_stamp(scene, key) - time.time()
    scene.load.wait_for_more()
    if abs(shift - jump) > 60:
        raise NotSeenError(f"the newest record is {shift:.0f} s off")
    changed = [
        partition
        for partition, state in scene.cluster.look().partitions()
        if state.leader_epoch != before.partition(partition).leader_epoch
    ]
    if changed:
        raise AssertionError(f"a wall clock moved the leaders of {changed}")
    return f"{node.name} stamped records {shift:+.0f} s off; no leader changed"


@fault("F20", "all clocks of a leader run at double or half speed", Need.PRELOAD)
def change_the_rate(scene: Scene) -> str:
    key, node = _stamped(scene)
    rate = scene.dice.choice([_DOUBLE, _HALF])
    node.control.set_clock(rate=rate)
    first, since = _newest_stamp(scene, key), time.time()
    time.sleep(4)
    passed = _newest_stamp(scene, key) - first
    true = time.time() - since
    scene.load.wait_for_more()
    if not 0.5 < passed / true / (rate / 1000) < 2 or abs(passed / true - 1) < 0.2:
        raise NotSeenError(f"its records' times advanced by {passed:.1f} s in {true:.1f} s")
    return f"the times of {node.name} advanced by {passed:.1f} s in {true:.1f} s"


@fault("F21", "the monotonic clocks of a broker jump 20 s ahead", Need.PRELOAD)
def jump_the_steady_clock(scene: Scene) -> str:
    node = scene.dice.choice([scene.cluster.controller, scene.any_node()])
    before, jumps = scene.view, _jumps(node)
    node.control.set_clock(steady_jump_s=_STEADY_JUMP_SECONDS)
    deadline = time.monotonic() + 10
    while _jumps(node) == jumps:
        if time.monotonic() > deadline:
            raise NotSeenError(f"{node.name} did not notice")
        time.sleep(0.1)
    scene.load.wait_for_more(60)
    view = scene.cluster.look()
    moved = [
        key for key, state in before.partitions() if view.partition(key).leader != state.leader
    ]
    epochs = (before.cluster.controller_epoch, view.cluster.controller_epoch)
    return (
        f"{node.name} found itself late by seconds; controller epoch {epochs[0]}, then "
        f"{epochs[1]}; leaders moved: {moved or 'none'}"
    )


def _jumps(node: Node) -> float:
    """How often a broker's loop was late by more than 2 s, by its own metric."""
    found = node.metrics()
    name = "millrace_loop_lag_seconds"
    return found[f"{name}_count"] - found[f'{name}_bucket{{le="2.0"}}']


def _stamped(scene: Scene) -> tuple[int, Node]:
    """A partition whose records have the leader's time, and its leader."""
    key = scene.dice.choice([key for key in PLACES.keys if PLACES.place_of(key)[0] == "t1"])
    return key, scene.leader(key)


def _newest_stamp(scene: Scene, key: int) -> float:
    """The time of the next record of a partition, in seconds."""
    with SyncConsumer(scene.cluster.bootstrap) as consumer:
        consumer.assign([PLACES.place_of(key)], start="end")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if records := consumer.poll(1000):
                return records[-1].timestamp / 1000
    raise NotSeenError(f"nothing was written to key {key}")
