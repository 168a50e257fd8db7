"""The operators of a simulated cluster: they replace a broker's disk when it cannot repair itself.

A broker with a damaged log fetches it again from the leader (P65), without an operator. It cannot
open a log directory whose own files are damaged, notice damage that only its readers see, or find
another leader when there is none. Operators wait for a while, and then always do the same: they
give the broker an empty disk, as when a machine is replaced.
"""

from collections.abc import Mapping
from typing import Final

from tests.sim.machines.machine import BrokerMachine
from tests.sim.settings import DIRECTORIES
from tests.sim.world import MINUTE, SECOND, Violation, World

LOOKS_EVERY_US: Final = SECOND
PATIENCE_US: Final = 6 * SECOND
"""How long damage may last before a disk is replaced."""
_STARTS_MAX: Final = 3
_LATE_US: Final = MINUTE
"""How long bytes may be in flight."""


class Operator:
    """Watches all machines, and replaces disks.

    Attributes:
        replaced: machines that got an empty disk, in the order of time.
        replaced_at: when each of them last got one.
    """

    def __init__(self, world: World, machines: Mapping[str, BrokerMachine]) -> None:
        self.replaced: list[str] = []
        self.replaced_at: dict[str, int] = {}
        self._world = world
        self._machines = machines
        self._exits: dict[str, int] = {}
        # The first and the last time that damage was seen; dropped after a while without damage.
        self._damaged: dict[str, tuple[int, int]] = {}
        world.after(LOOKS_EVERY_US, "operator looks", self._look)

    def hear_of_damage(self, name: str) -> None:
        """Note that a client got damaged bytes from a machine.

        Raises:
            Violation: no fault has damaged its disk.
        """
        if not self._machines[name].disk.is_damaged:
            if self._world.now - self.replaced_at.get(name, -_LATE_US) < _LATE_US:
                return  # It was sent before the disk was replaced.
            raise Violation(f"{name} serves damaged batches, and its disk is sound")
        self._note(name)

    def _note(self, name: str) -> None:
        since, seen = self._damaged.get(name, (self._world.now, self._world.now))
        if self._world.now - seen > 2 * LOOKS_EVERY_US:
            since = self._world.now
        self._damaged[name] = (since, self._world.now)

    def _look(self) -> None:
        for name, machine in self._machines.items():
            if machine.node is not None and machine.node.failed:
                if not machine.disk.is_damaged and not machine.disk.failures:
                    raise Violation(f"a log of {name} is damaged, and its disk is sound")
                self._note(name)
            since, seen = self._damaged.get(name, (0, 0))
            if machine.node is not None and seen - since >= PATIENCE_US:
                self._replace(machine)
            tries = len(machine.exits) - self._exits.setdefault(name, 0)
            if tries >= _STARTS_MAX and all(
                any(path in reason for path in DIRECTORIES)
                for reason in machine.exits[-_STARTS_MAX:]
            ):
                self._replace(machine)
        self._world.after(LOOKS_EVERY_US, "operator looks", self._look)

    def _replace(self, machine: BrokerMachine) -> None:
        self._world.note(f"{machine.name} gets an empty disk")
        self._exits[machine.name] = len(machine.exits)
        self._damaged.pop(machine.name, None)
        self.replaced.append(machine.name)
        self.replaced_at[machine.name] = self._world.now
        machine.cut_power()
        machine.disk.wipe()
        machine.start()
