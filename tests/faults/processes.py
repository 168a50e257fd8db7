"""Faults of processes: killed, paused, stalled, restarted, starved."""

import os
import re
import resource
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from tests.faults.catalogue import SEEN_SECONDS_MAX, NotSeenError
from tests.faults.cluster import BROKERS, Node
from tests.faults.fault import UPGRADE, Scene, fault
from tests.faults.machine import Need
from tests.faults.memory import MemoryLimit
from tests.integration.running_broker import wait_until
from tests.releases.last import Release

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.errors import UnsupportedFeatureError

_PAUSE_SECONDS = 3.0
"""Longer than a broker's session, a follower's lag and the controller's lease."""
_HOG_BYTES, _LIMIT_BYTES = 512 << 20, 64 << 20


@fault("F01", "SIGKILL of a follower")
def kill_a_follower(scene: Scene) -> str:
    key = scene.key()
    follower = scene.follower(key)
    follower.kill()
    return scene.wait_until_out_of_sync(key, follower)


@fault("F02", "SIGKILL of a leader")
def kill_a_leader(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    scene.leader(key).kill()
    return scene.wait_for_new_leader(key, before)


@fault("F03", "SIGKILL of all brokers at once")
def kill_all(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    for node in scene.cluster.nodes:
        os.kill(node.pid, signal.SIGKILL)  # Kill all before waiting for the first.
    for node in scene.cluster.nodes:
        node.abandon()
    scene.cluster.start(scene.cluster.nodes)
    for node in scene.cluster.nodes:
        scene.wait_for_new_life(node, before)
    return scene.wait_for_new_leader(key, before)


@fault("F08", "SIGSTOP of a leader beyond its session, then SIGCONT")
def pause_a_leader(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    leader = scene.leader(key)
    leader.pause()
    seen = scene.wait_for_new_leader(key, before)
    scene.load.wait_for_more()
    leader.resume()
    return seen


@fault("F09", "SIGSTOP of a follower beyond its lag, then SIGCONT")
def pause_a_follower(scene: Scene) -> str:
    key = scene.key()
    follower = scene.follower(key)
    follower.pause()
    seen = scene.wait_until_out_of_sync(key, follower)
    scene.load.wait_for_more()
    follower.resume()
    return seen


@fault("F10", "the event loop of a leader stands still beyond its session", Need.PRELOAD)
def stall_the_loop(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    leader = scene.leader(key)
    stalls = leader.control["stalls_hit"]
    leader.control["stall"] = round((_PAUSE_SECONDS + 1) * 1e9)
    seen = scene.wait_for_new_leader(key, before)
    if leader.control["stalls_hit"] == stalls:
        raise NotSeenError("the loop did not stand still")
    return seen


@fault("F38", "SIGKILL of the controller")
def kill_the_controller(scene: Scene) -> str:
    controller = scene.cluster.controller
    before = scene.view
    controller.kill()
    return scene.cluster.wait_for_new_controller(before)


@fault("F39", "SIGSTOP of the controller beyond its lease, then SIGCONT: two of them for a moment")
def pause_the_controller(scene: Scene) -> str:
    controller = scene.cluster.controller
    before, logged = scene.view, controller.log_size()
    controller.pause()
    seen = scene.cluster.wait_for_new_controller(before)
    controller.resume()
    wait_until(
        lambda: "controller resigned" in controller.logged_since(logged),
        f"{controller.name} resigns",
    )
    return f"{seen}; {controller.name} resigned"


@fault("F47", "SIGTERM and start of every broker in turn")
def restart_in_turn(scene: Scene) -> str:
    before = scene.view
    for node in scene.cluster.nodes:
        if node.stop() != 0:
            raise AssertionError(f"{node.name} did not stop in good order: {node.log_end()}")
        node.start()
        scene.wait_for_new_life(node, before)
        scene.cluster.wait_until_whole()
    return "every broker registered anew"


@fault(UPGRADE, "each broker of the last release becomes one of this; one goes back")
def upgrade_in_turn(scene: Scene) -> str:
    """Stop a broker in order, kill the next one, and take it back to the last release meanwhile.

    Transactions are refused until the last one is upgraded (T16), and are part of the load then.
    """
    last = scene.cluster.release
    if last is None or any(node.release is None for node in scene.cluster.nodes):
        raise NotSeenError("the brokers were not of the last release")
    first, second, third = scene.cluster.nodes
    versions = [_version(node) for node in scene.cluster.nodes]
    steps: list[tuple[Node, Release | None, Callable[[], object]]] = [
        (first, None, first.stop),
        (second, None, second.kill),
        (second, last, second.stop),
        (second, None, second.stop),
        (third, None, third.stop),
    ]
    for number, (node, release, end) in enumerate(steps):
        before = scene.cluster.look()
        if problem := _begins_transactions(scene):
            raise AssertionError(problem)
        if end():
            raise AssertionError(f"{node.name} did not stop in good order: {node.log_end()}")
        node.release = release
        node.start()
        scene.wait_for_new_life(node, before)
        with SyncAdmin(scene.cluster.bootstrap) as admin:
            admin.create_topic(f"upgrade-{number}", replication_factor=BROKERS)
        scene.cluster.wait_until_whole()
        scene.load.wait_for_all()
        scene.members.wait_until_shared()
    with SyncAdmin(scene.cluster.bootstrap) as admin:
        for number in range(len(steps)):
            admin.delete_topic(f"upgrade-{number}")
    wait_until(lambda: _begins_transactions(scene), "transactions can begin", SEEN_SECONDS_MAX)
    scene.transactional.begin()
    scene.transactional.wait_for_more()
    scene.kafka.begin()
    scene.kafka.wait_for_more()
    if {*versions} != {last.version}:
        raise AssertionError(f"the brokers of {last.version} were of {versions}")
    return f"{versions} became {[_version(node) for node in scene.cluster.nodes]}"


def _begins_transactions(scene: Scene) -> str:
    """Say that the brokers begin transactions; empty: they refuse it, as one does not know them."""
    with SyncProducer(
        scene.cluster.bootstrap, transactional_id="too-early", request_timeout_ms=10_000
    ) as producer:
        try:
            producer.init_transactions()
        except UnsupportedFeatureError:
            return ""
    return f"a transaction may begin with {[_version(node) for node in scene.cluster.nodes]}"


def _version(node: Node) -> str:
    (sample,) = (name for name in node.metrics() if name.startswith("millrace_build_info{"))
    (version,) = re.findall(r'\bversion="([^"]*)"', sample)
    return str(version)


@fault("F49", "SIGTERM, and SIGKILL before the stop is done")
def kill_while_stopping(scene: Scene) -> str:
    node, before = scene.any_node(), scene.view
    os.kill(node.pid, signal.SIGTERM)
    time.sleep(scene.dice.uniform(0, 0.3))
    if not node.is_running:
        raise NotSeenError("it had stopped before")
    node.kill()
    node.start()
    return scene.wait_for_new_life(node, before) + " after a stop that was cut short"


@fault("F50", "the kernel kills a leader that takes too much memory", Need.MEMORY, Need.PRELOAD)
def run_out_of_memory(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    leader = scene.leader(key)
    with MemoryLimit(f"millrace-faults-{os.getpid()}-{leader.name}", _LIMIT_BYTES) as limit:
        limit.take(leader.pid)
        leader.control["hog"] = _HOG_BYTES
        try:
            wait_until(lambda: not leader.is_running, f"{leader.name} is killed")
        finally:
            leader.abandon()
        if limit.kills() == 0:
            raise NotSeenError("the kernel did not kill it")
    return "killed by the kernel; " + scene.wait_for_new_leader(key, before)


@fault("F51", "a leader may open no more files and connections", Need.RESETS)
def run_out_of_descriptors(scene: Scene) -> str:
    leader = scene.leader(scene.key())
    limits = resource.prlimit(leader.pid, resource.RLIMIT_NOFILE)
    logged = leader.log_size()
    free = leader.first_free_descriptor()
    resource.prlimit(leader.pid, resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        # Closed connections free their descriptors. So the limit follows the first one that is
        # free, and one more client exceeds it.
        leader.host.reset_connections()
        deadline = time.monotonic() + SEEN_SECONDS_MAX
        while "Too many open files" not in leader.logged_since(logged):
            if time.monotonic() > deadline:
                raise NotSeenError("nothing was refused for want of a descriptor")
            free = min(free, leader.first_free_descriptor())
            resource.prlimit(leader.pid, resource.RLIMIT_NOFILE, (free, limits[1]))
            with (
                suppress(OSError),
                socket.create_connection(
                    (leader.host.address, int(leader.address.rpartition(":")[2])), timeout=1
                ),
            ):
                time.sleep(0.1)
    finally:
        if leader.is_running:
            resource.prlimit(leader.pid, resource.RLIMIT_NOFILE, limits)
    if "the broker stops" in leader.logged_since(logged):
        wait_until(lambda: not leader.is_running, f"{leader.name} ends")
        return f"{leader.name} had no descriptor left, said so, and ended"
    return f"{leader.name} had no descriptor left, and said so"
