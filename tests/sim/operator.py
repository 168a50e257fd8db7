"""The people around a simulated cluster: they give a broker a new disk where it cannot help itself.

A broker whose log is damaged fetches it anew from whoever leads (P65), and nobody has to come. What
it cannot do by itself: open a log directory whose own files are damaged, notice damage that only
those see who read from it, or find another leader where there is none. People look at such a broker
for a while, and then do the same each time: an empty disk, as of a machine that is replaced.
"""

from collections.abc import Mapping
from typing import Final

from tests.sim.machine import BrokerMachine
from tests.sim.settings import DIRECTORY
from tests.sim.world import MINUTE, SECOND, Violation, World

LOOKS_EVERY_US: Final = SECOND
PATIENCE_US: Final = 6 * SECOND
"""For which damage may go on before a disk is replaced."""
_STARTS_MAX: Final = 3
_LATE_US: Final = MINUTE
"""How long bytes may be on their way."""


class Operator:
    """See the module.

    Attributes:
        replaced: machines that got an empty disk, in the order of time.
        replaced_at: when each of them did last.
    """

    def __init__(self, world: World, machines: Mapping[str, BrokerMachine]) -> None:
        self.replaced: list[str] = []
        self.replaced_at: dict[str, int] = {}
        self._world = world
        self._machines = machines
        self._exits: dict[str, int] = {}
        # Since when, and until when, damage was seen; forgotten when it is not for a while.
        self._damaged: dict[str, tuple[int, int]] = {}
        world.after(LOOKS_EVERY_US, "operator looks", self._look)

    def hear_of_damage(self, name: str) -> None:
        """Somebody got bytes from a machine that are not what was written there.

        Raises:
            Violation: nobody has damaged its disk.
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
                DIRECTORY in reason for reason in machine.exits[-_STARTS_MAX:]
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
