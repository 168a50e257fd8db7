"""Damage to files: torn tails, flipped bits, missing files. Of one broker at a time."""

import random
import time
from contextlib import suppress
from pathlib import Path

from tests.faults.catalogue import NotSeenError
from tests.faults.cluster import Node
from tests.faults.fault import Scene, fault
from tests.faults.metadata import PLACES
from tests.integration.running_broker import wait_until

from millrace.client import SyncConsumer
from millrace.core.errors import MillraceError

_SEEN_SECONDS = 25.0
_READ_SECONDS = 2.0
_OFFLINE = "partition is offline"
_SET_ASIDE = "a damaged log was set aside"


def directory_of(scene: Scene, node: Node, key: int) -> Path:
    """The directory of a partition at a broker."""
    topic, partition = PLACES.place_of(key)
    return node.partition_directory(scene.view.topics[topic].topic_id, partition)


def segments(directory: Path) -> list[Path]:
    """The segments of a partition, the active one last."""
    return sorted(directory.glob("*.log"))


def flip(path: Path, dice: random.Random, begin: float = 0.0, end: float = 1.0) -> int:
    """Flip one bit of a file, somewhere in a part of it; return its position."""
    size = path.stat().st_size
    if size == 0:
        raise NotSeenError(f"{path.name} is empty")
    at = min(int(size * dice.uniform(begin, end)), size - 1)
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << dice.randrange(8)]))
    return at


def closed_segment(scene: Scene, node: Node, key: int) -> Path:
    found = segments(directory_of(scene, node, key))[:-1]
    if not found:
        raise NotSeenError("no segment is closed yet")
    return scene.dice.choice(found)


@fault("F27", "SIGKILL, and the end of the active segment is torn or followed by garbage")
def tear_the_tail(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    node = scene.leader(key)
    node.kill()
    active = segments(directory_of(scene, node, key))[-1]
    whole = active.stat().st_size
    garbage = scene.dice.randbytes(scene.dice.randint(1, 5000))
    content = active.read_bytes()
    copied = content[: scene.dice.randint(1, min(len(content), 5000))] if content else b""
    # Part of a batch, random bytes, or zeros that a journal left.
    torn = scene.dice.choice([garbage, copied, bytes(len(garbage))]) or garbage
    with active.open("ab") as file:
        file.write(torn)
    seen = scene.wait_for_new_leader(key, before)
    node.start()
    scene.wait_for_new_life(node, before)
    scene.cluster.wait_until_whole()
    after = active.read_bytes()[whole : whole + len(torn)]
    if after == torn and len(torn) > 8:
        raise AssertionError(f"{active} kept {len(torn)} torn bytes after {whole}")
    return f"{seen}; {len(torn)} torn bytes were cut off"


@fault("F28", "a bit of a closed segment flips while its broker runs")
def flip_a_closed_segment(scene: Scene) -> str:
    key = scene.key()
    node = scene.dice.choice([scene.leader(key), scene.follower(key)])
    path = closed_segment(scene, node, key)
    logged = node.log_size()
    at = flip(path, scene.dice)
    return _wait_until_renewed(scene, node, logged, f"{path.name} at {at}")


@fault("F29", "a bit of a leader's active segment flips, and the leader is killed")
def flip_the_active_segment(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    node = scene.leader(key)
    node.kill()
    path = segments(directory_of(scene, node, key))[-1]
    logged = node.log_size()
    at = flip(path, scene.dice)
    spoilt = path.read_bytes()[at : at + 1]
    node.is_spoilt = True
    seen = scene.wait_for_new_leader(key, before)
    node.start()
    # Recovery did not read the damaged part; its first reader finds it, at the present leader.
    deadline = time.monotonic() + _SEEN_SECONDS
    while True:
        if _OFFLINE in node.logged_since(logged):
            return f"{seen}; the bit at {at} took the replica offline"
        if path.exists() and path.read_bytes()[at : at + 1] != spoilt:
            return f"{seen}; the bit at {at} was cut off with the tail, and copied anew"
        if time.monotonic() > deadline:
            raise NotSeenError(f"{path.name} at {at}: nobody has read it")
        _read_through(scene.cluster.bootstrap, key)


def _read_through(bootstrap: str, key: int) -> None:
    """Read a partition from its beginning for a while; writes go on."""
    deadline = time.monotonic() + _READ_SECONDS
    with SyncConsumer(bootstrap) as consumer, suppress(MillraceError):
        consumer.assign([PLACES.place_of(key)], start="beginning")
        while time.monotonic() < deadline:
            consumer.poll(500)


@fault("F30", "a bit flips in what a broker keeps beside its logs, while it is down")
def flip_beside_the_logs(scene: Scene) -> str:
    key, before = scene.key(), scene.view
    node = scene.leader(key)
    if scene.dice.random() < 0.5:
        node.stop()
    else:
        node.kill()
    directory = directory_of(scene, node, key)
    outdated = sorted(directory.glob("*.snapshot"))[:-1]  # Kept, but never read.
    candidates = [
        path
        for path in (
            *(path for path in directory.iterdir() if path not in outdated),
            *(node.log_dirs[0] / name for name in ("recovery-checkpoint", "clean-shutdown")),
        )
        if path.suffix != ".log" and path.is_file() and path.stat().st_size
    ]
    path = scene.dice.choice(sorted(candidates))
    at = flip(path, scene.dice)
    spoilt, logged = path.read_bytes(), node.log_size()
    node.start()
    scene.wait_for_new_life(node, before)
    is_offline = _OFFLINE in node.logged_since(logged)
    node.is_spoilt = is_offline
    if not is_offline:
        scene.cluster.wait_until_whole()
        deadline = time.monotonic() + _SEEN_SECONDS
        while path.exists() and path.read_bytes() == spoilt and path.parent == directory:
            if time.monotonic() > deadline:
                raise NotSeenError(f"{path.name} is still as it was damaged")
            time.sleep(0.1)  # The scrub finds it, unless a reader reads the segment first.
    return (
        f"{path.name} at {at}: "
        f"{'the replica went offline' if is_offline else 'it was made anew, or not used'}"
    )


@fault("F31", "a closed segment is cut short or gone when its broker starts")
def lose_a_segment(scene: Scene) -> str:
    key = scene.key()
    node = scene.follower(key)
    node.kill()
    path = closed_segment(scene, node, key)
    if scene.dice.random() < 0.5:
        path.unlink()
        what = "gone"
    else:
        with path.open("r+b") as file:
            file.truncate(scene.dice.randrange(path.stat().st_size))
        what = "cut short"
    logged = node.log_size()
    node.start()
    return _wait_until_renewed(scene, node, logged, f"{path.name} {what}")


def _wait_until_renewed(scene: Scene, node: Node, logged: int, what: str) -> str:
    """Return once a broker has found the damage, set the log aside, and fetched it again."""
    node.is_spoilt = True
    try:
        wait_until(lambda: _OFFLINE in node.logged_since(logged), "it is noticed", _SEEN_SECONDS)
    except AssertionError as error:
        raise NotSeenError(f"{what}: {error}") from error
    wait_until(lambda: _SET_ASIDE in node.logged_since(logged), "it is set aside", _SEEN_SECONDS)
    scene.cluster.wait_until_whole()
    node.is_spoilt = False
    return f"{what}: {node.name} took the replica offline, said so, and fetched it anew"
