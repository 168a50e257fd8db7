"""Processes die, stand still and are restarted; machines lose power."""

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.sim.faults.family import SHORT, Families, Family, Scene, Undo, all_of, together
from tests.sim.machines.disk import SimulatedDisk
from tests.sim.machines.machine import BrokerMachine
from tests.sim.world import MILLISECOND, MINUTE, SECOND

from millrace.broker.storage.segment_swap import SUFFIX as SWAP
from millrace.broker.storage.tier import FILE_NAME as TIER

FAMILIES: Final = Families()
family = FAMILIES.add


def killed(machine: BrokerMachine | None) -> Undo | None:
    if machine is None or machine.node is None:
        return None
    machine.kill()
    return machine.start


def powerless(machine: BrokerMachine | None) -> Undo | None:
    if machine is None or machine.node is None:
        return None
    machine.cut_power()
    return machine.start


def _freeze(machine: BrokerMachine | None) -> Undo | None:
    if machine is None or machine.node is None or machine.is_frozen:
        return None
    machine.freeze()
    return machine.thaw


@family("F01", "a follower is killed")
def kill_follower(scene: Scene) -> Undo | None:
    return killed(scene.pick("follower"))


@family("F02", "a leader is killed")
def kill_leader(scene: Scene) -> Undo | None:
    return killed(scene.pick("leader"))


@family("F03", "all processes are killed", SHORT)
def kill_all(scene: Scene) -> Undo | None:
    return together([killed(machine) for machine in scene.machines.values()])


@family("F04", "a machine loses power")
def cut_power(scene: Scene) -> Undo | None:
    return powerless(scene.any_machine())


@family("F05", "one machine stands still while another loses power, and the first goes on alone")
def pause_and_cut_power(scene: Scene) -> Undo | None:
    if len(scene.machines) < 3:
        return None
    first, second, third = scene.dice.sample(list(scene.machines.values()), 3)
    thaw_first = _freeze(first)
    steps: list[Undo | None] = [thaw_first]
    step = scene.duration_us // 3

    def cut_second() -> None:
        steps.append(powerless(second))
        steps.append(_freeze(third))
        if thaw_first is not None:
            thaw_first()

    event = scene.world.after(step, "F05 goes on", cut_second)

    return all_of([event.cancel, all_of(steps)])


@family("F06", "all machines lose power", SHORT)
def cut_all_power(scene: Scene) -> Undo | None:
    return together([powerless(machine) for machine in scene.machines.values()])


@family("F07", "the last replica in sync loses power")
def cut_power_of_the_last_in_sync(scene: Scene) -> Undo | None:
    leader = scene.pick("leader")
    if leader is None:
        return None
    heal = scene.cut([leader.name], scene.role("follower"))
    steps: list[Undo | None] = [heal]

    def cut_leader() -> None:
        steps.append(powerless(leader))
        heal()

    event = scene.world.after(scene.duration_us * 2 // 3, "F07 goes on", cut_leader)

    return all_of([event.cancel, all_of(steps)])


@family("F08", "a leader stands still", (SECOND, MINUTE))
def freeze_leader(scene: Scene) -> Undo | None:
    return _freeze(scene.pick("leader"))


@family("F09", "a follower stands still", (SECOND, MINUTE))
def freeze_follower(scene: Scene) -> Undo | None:
    return _freeze(scene.pick("follower"))


@family("F10", "a process stands still for a moment", SHORT)
def stall_process(scene: Scene) -> Undo | None:
    return _freeze(scene.any_machine())


@family("F47", "a machine is restarted in order")
def restart_in_order(scene: Scene) -> Undo | None:
    return _terminate(scene, patience_us=scene.duration_us)


@family("F49", "a process that is told to leave is killed before it has left")
def restart_in_a_hurry(scene: Scene) -> Undo | None:
    return _terminate(scene, patience_us=scene.dice.randrange(100 * MILLISECOND))


def _terminate(scene: Scene, patience_us: int) -> Undo | None:
    machine = scene.any_machine()
    if machine.node is None or machine.is_terminating:
        return None
    machine.terminate()
    event = scene.world.after(patience_us, f"{machine.name} has to be gone", machine.kill)
    return all_of([event.cancel, machine.kill, machine.start])


def _cut_power_soon(scene: Scene, soon: Callable[[SimulatedDisk], None]) -> Undo | None:
    """Let the power of a machine go when its disk does what `soon` says."""
    machine = scene.any_machine()
    if machine.node is None:
        return None
    soon(machine.disk)

    def undo() -> None:
        machine.disk.cut_power_at = None
        machine.start()

    return undo


@family("F27", "power goes in the middle of a write", SHORT)
def cut_power_in_a_write(scene: Scene) -> Undo | None:
    return _cut_power_soon(scene, lambda disk: disk.cut_power_soon(1 + scene.dice.randrange(20)))


def _cut_power_after_rename(scene: Scene, name: str, calls_max: int) -> Undo | None:
    return _cut_power_soon(
        scene,
        lambda disk: disk.cut_power_after_rename(name, 1 + scene.dice.randrange(calls_max)),
    )


@family("F69", "power goes while cleaned segments replace others")
def cut_power_in_a_replacement(scene: Scene) -> Undo | None:
    return _cut_power_after_rename(scene, SWAP, 12)


MOVE_CUT: Final = Family(
    "F75",
    "power goes while a segment moves to an HDD",
    partial(_cut_power_after_rename, name=f"/{TIER}", calls_max=6),
    SHORT,
)
"""For tiered topics."""


@family("F38", "the controller is killed")
def kill_controller(scene: Scene) -> Undo | None:
    return killed(scene.pick("controller"))


@family("F39", "the controller stands still for longer than its lease", (8 * SECOND, 30 * SECOND))
def freeze_controller(scene: Scene) -> Undo | None:
    return _freeze(scene.pick("controller"))
