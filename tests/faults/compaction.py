"""Faults of brokers while they compact a log: nothing that must stay is lost, and it goes on."""

import time
from pathlib import Path

from tests.faults.catalogue import SEEN_SECONDS_MAX, NotSeenError
from tests.faults.cluster import Node
from tests.faults.fault import Scene, fault
from tests.faults.latest import TOPIC
from tests.faults.machine import Need
from tests.faults.power import cut_power
from tests.integration.running_broker import wait_until

from millrace.broker.storage import segment, segment_swap
from millrace.broker.storage.sealed_file import TEMPORARY_SUFFIX

_LOOK_SECONDS = 0.002
_CLEANINGS = "millrace_cleaner_cleanings_total"
_REFUSED = "compacting a log was refused"
_DONE_SECONDS = 30.0


def _copies(scene: Scene, node: Node) -> list[Path]:
    """The cleaned segments that a broker writes, or puts in the place of others."""
    topic_id = scene.view.topics[TOPIC].topic_id.hex()
    return [
        path
        for suffix in (segment.SUFFIX + TEMPORARY_SUFFIX, segment_swap.SUFFIX)
        for path in node.log_dirs[0].glob(f"{topic_id}-*/*{suffix}")
    ]


def _compacting(scene: Scene) -> Node:
    """Return a broker that compacts a log at this moment."""
    deadline = time.monotonic() + SEEN_SECONDS_MAX
    while time.monotonic() < deadline:
        for node in scene.dice.sample(scene.cluster.nodes, len(scene.cluster.nodes)):
            if _copies(scene, node):
                return node
        time.sleep(_LOOK_SECONDS)
    raise NotSeenError("no broker compacts a log")


def _wait_until_compacted(node: Node) -> None:
    """Return once a broker has compacted another log."""
    before = node.metrics()[_CLEANINGS]
    wait_until(
        lambda: node.metrics()[_CLEANINGS] > before, f"{node.name} compacts logs", _DONE_SECONDS
    )


@fault("F76", "SIGKILL of a broker while it compacts a log, five times")
def kill_a_cleaner(scene: Scene) -> str:
    killed: list[str] = []
    for _ in range(5):
        before = scene.cluster.look()
        node = _compacting(scene)
        time.sleep(scene.dice.uniform(0, 0.1))
        node.kill()
        killed += [f"{node.name} at {path.name}" for path in _copies(scene, node)]
        node.start()
        scene.wait_for_new_life(node, before)
        scene.cluster.wait_until_whole()
        _wait_until_compacted(node)
    if not killed:
        raise NotSeenError("all copies were done before the kill")
    return f"killed were {', '.join(killed)}; each went on to compact logs"


@fault("F77", "power cut of a broker while it compacts a log", Need.VOLUMES)
def cut_the_power_of_a_cleaner(scene: Scene) -> str:
    before = scene.cluster.look()
    node = _compacting(scene)
    time.sleep(scene.dice.uniform(0, 0.1))
    cut_power([node])
    node.start()
    seen = scene.wait_for_new_life(node, before)
    scene.cluster.wait_until_whole()
    _wait_until_compacted(node)
    return f"{seen} after unflushed bytes were gone, and compacted logs"


@fault("F78", "the disk of a broker is full while it compacts a log", Need.VOLUMES)
def fill_the_disk_of_a_cleaner(scene: Scene) -> str:
    node = _compacting(scene)
    logged = node.log_size()
    node.volume.fill()
    try:
        wait_until(lambda: _REFUSED in node.logged_since(logged), "it is refused", SEEN_SECONDS_MAX)
    except AssertionError as error:
        raise NotSeenError(str(error)) from error
    finally:
        node.volume.heal()
    if not node.is_running:
        raise AssertionError(f"{node.name} ended because its disk was full: {node.log_end()}")
    left = set(_copies(scene, node))  # Other logs are compacted as soon as there is room.

    def are_gone() -> bool:
        left.intersection_update(_copies(scene, node))
        return not left

    wait_until(are_gone, f"{node.name} removes what it cannot end", SEEN_SECONDS_MAX)
    scene.load.wait_for_more()
    scene.wait_until_willing(node)
    return f"compacting was refused at {node.name}; it left no copy, and went on"
