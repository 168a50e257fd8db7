"""Disks are full, slow, fail, or damage what they keep."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from tests.fakes.disk import SECTOR_BYTES
from tests.sim.faults.family import SHORT, Families, Scene, Undo
from tests.sim.faults.processes import killed
from tests.sim.machines.machine import BrokerMachine

from millrace.broker.storage.scan import DAMAGE
from millrace.core.records.batch import walk

FAMILIES: Final = Families()
family = FAMILIES.add


def _with_room_again(machine: BrokerMachine) -> Undo:
    def undo() -> None:
        machine.disk.capacity = None

    return undo


@family("F22", "a disk is full")
def fill_disk(scene: Scene) -> Undo | None:
    machine = scene.pick("leader") or scene.any_machine()
    machine.disk.fill(0)
    return _with_room_again(machine)


@family("F23", "a disk becomes full in the middle of a write")
def nearly_fill_disk(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.disk.fill(scene.dice.randrange(1, 2_000))
    return _with_room_again(machine)


@family("F24", "a flush fails", SHORT)
def fail_flush(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    if machine.node is None:
        return None
    machine.disk.fail_next_flush()

    def undo() -> None:
        machine.disk.fail_flush_at = None
        if scene.dice.random() < 0.5:
            machine.disk.evict_all()
        machine.start()

    return undo


@family("F25", "reads fail", SHORT)
def fail_reads(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.disk.reads_to_fail = 1 + scene.dice.randrange(3)

    def undo() -> None:
        machine.disk.reads_to_fail = 0

    return undo


@family("F26", "a volume becomes read-only")
def make_read_only(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.disk.is_read_only = True

    def undo() -> None:
        machine.disk.is_read_only = False
        machine.start()

    return undo


def _active(machine: BrokerMachine) -> list[str]:
    """The last segment of each partition."""
    last = {path.rpartition("/")[0]: path for path in _segments(machine)}
    return list(last.values())  # Ascending, so that the last one stays.


def _files(machine: BrokerMachine) -> list[str]:
    """The files that its broker uses, without those that were set aside."""
    return [path for path in machine.disk.files() if ".damaged/" not in path]


def _segments(machine: BrokerMachine) -> list[str]:
    return [path for path in _files(machine) if path.endswith(".log")]


def _trusted_bytes(machine: BrokerMachine, path: str) -> int:
    """How much of a segment recovery trusts, so that it recognizes damage in it.

    Damage beyond the recovery point looks like a torn tail, and recovery truncates it. The product
    promises nothing for a replica that is damaged there and also crashes.
    """
    if path not in _active(machine):
        return machine.disk.size(path)
    logs = {} if machine.node is None else machine.node.logs
    name = path.split("/")[-2]
    log = next((log for key, log in logs.items() if str(key) == name), None)
    if log is None:
        return 0
    trusted = 0
    with suppress(*DAMAGE):  # For example where a fault has damaged it before.
        for header, batch in walk(machine.disk.contents(path)):
            if header.next_offset > log.state.recovery_point:
                break
            trusted += len(batch)
    return trusted


def _flip(scene: Scene, sizes: Mapping[str, int]) -> Undo | None:
    """Flip a bit in the first bytes of a file, as many as are given for each."""
    disk = scene.victim.disk
    found = [path for path, size in sizes.items() if size]
    if not found:
        return None
    path = scene.dice.choice(found)
    disk.damaged.append(path)
    disk.flip_bit(path, scene.dice.randrange(sizes[path]), scene.dice.randrange(8))
    scene.world.note(f"a bit of {path} of {scene.victim.name} flips")
    return lambda: None


@family("F28", "a bit flips in a closed segment", SHORT)
def flip_in_closed_segment(scene: Scene) -> Undo | None:
    active = _active(scene.victim)
    closed = [path for path in _segments(scene.victim) if path not in active]
    return _flip(scene, {path: scene.victim.disk.size(path) for path in closed})


@family("F29", "a bit flips in an active segment", SHORT)
def flip_in_active_segment(scene: Scene) -> Undo | None:
    active = _active(scene.victim)
    return _flip(scene, {path: _trusted_bytes(scene.victim, path) for path in active})


@family("F30", "a bit flips in a file that is no segment", SHORT)
def flip_elsewhere(scene: Scene) -> Undo | None:
    files = [path for path in _files(scene.victim) if not path.endswith(".log")]
    return _flip(scene, {path: scene.victim.disk.size(path) for path in files})


_CHECKPOINT: Final = "recovery-checkpoint"
"""The checkpoint and the leader epochs show that a log's first segment is missing; so a fault does
not remove all of them."""


def _sizes_known(machine: BrokerMachine) -> dict[str, int]:
    """Files whose loss or truncation a broker may notice, and their sizes."""
    if any(path.endswith(_CHECKPOINT) for path in machine.disk.damaged):
        return {}
    sizes = {
        path: _trusted_bytes(machine, path) if path.endswith(".log") else machine.disk.size(path)
        for path in _files(machine)
    }
    return {path: size for path, size in sizes.items() if size}


@family("F31", "a file is cut short or gone when its machine comes back")
def lose_file(scene: Scene) -> Undo | None:
    disk = scene.victim.disk
    sizes = {} if disk.is_read_only else _sizes_known(scene.victim)
    undo = killed(scene.victim) if sizes else None
    if undo is None:
        return None
    path = scene.dice.choice(list(sizes))
    if disk.is_damaged and path.endswith(_CHECKPOINT):
        path = next(path for path in sizes if not path.endswith(_CHECKPOINT))
    disk.damaged.append(path)
    scene.world.note(f"{path} of {scene.victim.name} is damaged")
    if scene.dice.random() < 0.5:
        disk.write(path, disk.contents(path)[: scene.dice.randrange(sizes[path])])
    else:
        disk.unlink(path)
        disk.fsync_directory(path.rpartition("/")[0] or "/")
    return undo


@family("F32", "a write goes to the wrong place")
def misdirect_write(scene: Scene) -> Undo | None:
    disk = scene.victim.disk
    # Only whole ones: a batch that begins after the trusted part would look like a torn tail.
    sectors = {
        path: size // SECTOR_BYTES
        for path, size in _sizes_known(scene.victim).items()
        if path.endswith(".log") and size >= SECTOR_BYTES
    }
    undo = killed(scene.victim) if len(sectors) > 1 else None
    if undo is None:
        return None
    source, target = scene.dice.sample(list(sectors), 2)
    at = scene.dice.randrange(sectors[target]) * SECTOR_BYTES
    disk.damaged.append(target)
    scene.world.note(f"{target} of {scene.victim.name} gets bytes of {source}")
    disk.copy_sector(source, 0, target, at)
    return undo


@family("F33", "a disk is slow")
def slow_disk(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.disk.times.stall_us = scene.dice.choice((20_000, 200_000, 2_000_000))

    def undo() -> None:
        machine.disk.times.stall_us = 0

    return undo


@family("F36", "a machine comes back with an empty disk")
def replace_disk(scene: Scene) -> Undo | None:
    if scene.victim.node is None:
        return None
    scene.victim.cut_power()
    scene.victim.disk.wipe()
    return scene.victim.start
