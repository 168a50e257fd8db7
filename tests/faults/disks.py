"""Faults of a running broker's disk, and foreign disks."""

import errno
import shutil
import time

from tests.faults.catalogue import NotSeenError
from tests.faults.cluster import Node
from tests.faults.fault import Scene, fault
from tests.faults.machine import Need
from tests.integration.running_broker import wait_until

_SLOW_SECONDS = 3.0


def refusals(node: Node, error: str) -> float:
    """How often a broker has refused a request with this error."""
    return sum(
        value
        for series, value in node.metrics().items()
        if series.startswith(f'millrace_refusals_total{{error="{error}",')
    )


def hits(node: Node, name: str, before: int, seconds: float = 15) -> int:
    """Return how often the preloaded library has caused a fault, once it has.

    Raises:
        NotSeenError: it has not.
    """
    deadline = time.monotonic() + seconds
    while node.control[name] == before:
        if time.monotonic() > deadline:
            raise NotSeenError(f"{name}: there was no occasion")
        time.sleep(0.02)
    return node.control[name] - before


@fault("F22", "the disk of a leader is full; later it has space again", Need.VOLUMES)
def fill_the_disk(scene: Scene) -> str:
    key, view = scene.key(), scene.view
    leader = scene.leader(key)
    before = refusals(leader, "STORAGE_FULL")
    leader.volume.fill()
    try:
        wait_until(lambda: refusals(leader, "STORAGE_FULL") > before, "a write is refused", 20)
        moved = scene.wait_for_new_leader(key, view)
    except AssertionError as error:
        raise NotSeenError(str(error)) from error
    finally:
        leader.volume.heal()
    scene.load.wait_for_more()
    if not leader.is_running:
        raise AssertionError(f"{leader.name} ended because its disk was full: {leader.log_end()}")
    scene.wait_until_willing(leader)
    count = refusals(leader, "STORAGE_FULL") - before
    return f"{count:.0f} writes refused by {leader.name}; {moved}; then it was ready to lead again"


@fault("F23", "a write of a batch ends in its middle, with ENOSPC", Need.PRELOAD)
def write_short(scene: Scene) -> str:
    leader = scene.leader(scene.key())
    before = leader.control["writes_hit"]
    leader.control["write_room"] = scene.dice.randrange(1, 2000)
    count = hits(leader, "writes_hit", before)
    time.sleep(1)
    leader.control["write_room"] = -1
    scene.load.wait_for_more()
    if not leader.is_running:
        raise AssertionError(f"{leader.name} ended because its disk was full: {leader.log_end()}")
    return f"{count} writes of {leader.name} were cut short or refused; it went on"


@fault("F24", "EIO from fsync at a leader", Need.PRELOAD)
def fail_to_flush(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    leader = scene.leader(key)
    logged, count = leader.log_size(), leader.control["syncs_hit"]
    leader.control["sync_error"] = errno.EIO
    hits(leader, "syncs_hit", count)
    try:
        wait_until(lambda: not leader.is_running, f"{leader.name} ends", 20)
    finally:
        leader.control["sync_error"] = 0
    if "log directory failed" not in leader.logged_since(logged):
        raise AssertionError(f"{leader.name} did not say that its disk failed")
    return f"{leader.name} ended; {scene.wait_for_new_leader(key, before)}"


@fault("F25", "EIO from reads of log files at a leader", Need.PRELOAD)
def fail_to_read(scene: Scene) -> str:
    key = scene.key()
    leader = scene.leader(key)
    logged, count = leader.log_size(), leader.control["reads_hit"]
    leader.control["read_error"] = errno.EIO
    reads = hits(leader, "reads_hit", count)
    try:
        wait_until(
            lambda: "error" in leader.logged_since(logged) or not leader.is_running,
            f"{leader.name} says so",
        )
    except AssertionError as error:
        raise NotSeenError(str(error)) from error
    finally:
        leader.control["read_error"] = 0
    if leader.is_running:  # It trusts the disk again only after a restart.
        leader.kill()
    return f"{reads} reads of {leader.name} failed, and it said so"


@fault("F26", "the disk of a leader is detached", Need.VOLUMES)
def detach_the_disk(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    leader = scene.leader(key)
    leader.volume.detach()
    wait_until(lambda: not leader.is_running, f"{leader.name} ends", 20)
    return f"{leader.name} ended; {scene.wait_for_new_leader(key, before)}"


@fault("F33", "every flush of a follower, then of a leader, takes 3 s", Need.PRELOAD)
def slow_the_disk(scene: Scene) -> str:
    key = scene.key()
    follower = scene.follower(key)
    _slow_down(follower)
    left = scene.wait_until_out_of_sync(key, follower)
    follower.control.heal()
    scene.cluster.wait_until_whole()
    leader, key = scene.leader_beside_the_controller()
    before = scene.cluster.look()
    _slow_down(leader)
    moved = scene.wait_for_new_leader(key, before)
    leader.control.heal()
    scene.wait_until_willing(leader)
    scene.load.wait_for_more()
    return f"{left}; {moved}; then {leader.name} was ready to lead again"


def _slow_down(node: Node) -> None:
    count = node.control["syncs_hit"]
    node.control["sync_delay"] = round(_SLOW_SECONDS * 1e9)
    hits(node, "syncs_hit", count)


@fault("F36", "a broker comes back with an empty disk")
def empty_the_disk(scene: Scene) -> str:
    node = scene.any_node()
    before = scene.view.broker(node.name)
    node.kill()
    node.disk.empty()
    node.start()
    view = scene.cluster.wait_for(
        lambda view: view.broker(node.name).directory_ids != before.directory_ids,
        "another directory is registered",
        20,
    )
    broker_id = before.broker_id
    if before.broker_id != view.broker(node.name).broker_id:
        raise AssertionError(f"{node.name} got another number")
    scene.cluster.wait_until_whole()
    return f"{node.name} registered an empty directory; broker {broker_id} copied everything anew"


@fault("F37", "a second broker is started on a disk in use, and on a copy of it")
def share_a_disk(scene: Scene) -> str:
    node, before = scene.any_node(), scene.view
    with node.twin(node.log_dirs[0]) as twin:
        code, said = twin.refused_start()
    copy = scene.cluster.folder / "copied"
    node.pause()  # A file that disappears during the copy would end the copying.
    try:
        shutil.copytree(node.log_dirs[0], copy)
    finally:
        node.resume()
    try:
        with node.twin(copy) as twin:
            copied_code, copied_said = twin.refused_start()
    finally:
        shutil.rmtree(copy)
    if not (code and copied_code):
        raise AssertionError("a second broker was let in")
    if scene.cluster.look().broker(node.name) != before.broker(node.name):
        raise AssertionError(f"{node.name} was put aside by a copy of itself")
    return f"both refused: {_error_in(said)}; {_error_in(copied_said)}"


def _error_in(said: str) -> str:
    """Return the short form of a program's error message."""
    return next((line[:120] for line in said.splitlines() if "error" in line), "?")
