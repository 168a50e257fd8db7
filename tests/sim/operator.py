"""The people around a simulated cluster: they give a broker a new disk when its own is damaged.

A log that is damaged below what was flushed takes its partition offline until somebody decides
(P65), and so does a log directory that cannot be opened; readers say that what they got does not
match its checksum. Here the decision is always the same one: an empty disk, as of a machine that is
replaced.
"""

from collections.abc import Mapping
from typing import Final

from tests.sim.machine import Machine
from tests.sim.world import SECOND, Violation, World

LOOKS_EVERY_US: Final = SECOND
_STARTS_MAX: Final = 3


class Operator:
    """See the module.

    Attributes:
        replaced: machines that got an empty disk, in the order of time.
        replaced_at: when each of them did last.
    """

    def __init__(self, world: World, machines: Mapping[str, Machine]) -> None:
        self.replaced: list[str] = []
        self.replaced_at: dict[str, int] = {}
        self._world = world
        self._machines = machines
        self._exits: dict[str, int] = {}
        self._reported: dict[str, None] = {}
        world.after(LOOKS_EVERY_US, "operator looks", self._look)

    def hear_of_damage(self, name: str) -> None:
        """Somebody got bytes from a machine that are not what was written there.

        Raises:
            Violation: nobody has damaged its disk.
        """
        if not self._machines[name].disk.is_damaged:
            raise Violation(f"{name} serves damaged batches, and its disk is sound")
        self._reported[name] = None

    def _look(self) -> None:
        for name, machine in self._machines.items():
            is_damaged = getattr(machine.node, "is_damaged", False)
            if machine.node is not None and (is_damaged or name in self._reported):
                if not machine.disk.is_damaged and not machine.disk.failures:
                    raise Violation(f"a log of {name} is damaged, and its disk is sound")
                self._replace(machine)
            tries = len(machine.exits) - self._exits.setdefault(name, 0)
            if tries >= _STARTS_MAX and all(
                reason.startswith("the log directory") for reason in machine.exits[-_STARTS_MAX:]
            ):
                self._replace(machine)
        self._world.after(LOOKS_EVERY_US, "operator looks", self._look)

    def _replace(self, machine: Machine) -> None:
        self._world.note(f"{machine.name} gets an empty disk")
        self._exits[machine.name] = len(machine.exits)
        self._reported.pop(machine.name, None)
        self.replaced.append(machine.name)
        self.replaced_at[machine.name] = self._world.now
        machine.cut_power()
        machine.disk.wipe()
        machine.start()
