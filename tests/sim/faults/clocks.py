"""Clocks jump, and run too fast or too slow."""

from typing import Final

from tests.sim.faults.family import SHORT, Families, Scene, Undo
from tests.sim.machines.clocks import CLOCK_RATE_MAX
from tests.sim.world import MINUTE, SECOND

FAMILIES: Final = Families()
family = FAMILIES.add


@family("F19", "the time of day jumps")
def jump_wall_clock(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    if machine.clock.jumped_us:
        return None  # Two jumps may exceed `message.timestamp.after.max.ms`, an hour.
    by = scene.dice.randrange(-60 * MINUTE, 60 * MINUTE)
    machine.clock.jump_wall(by)
    return lambda: machine.clock.jump_wall(-by)


@family("F20", "a clock runs too fast or too slow")
def change_clock_rate(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.clock.set_rate(scene.dice.uniform(0.5, CLOCK_RATE_MAX))
    return lambda: machine.clock.set_rate(1.0)


@family("F21", "a machine sleeps, and wakes much later by its clocks", SHORT)
def sleep_machine(scene: Scene) -> Undo | None:
    machine = scene.any_machine()
    machine.clock.jump(scene.dice.randrange(SECOND, 10 * MINUTE))
    return lambda: None
