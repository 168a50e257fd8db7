"""Named scenarios of what is put back from a backup, and of brokers that would rather not lead."""

from typing import Final

from tests.fakes.disk import Disk
from tests.sim.broker import SimulatedBroker
from tests.sim.faults import Family, Scene, Undo
from tests.sim.machine import Machine
from tests.sim.scenarios import AWAY, Busy, Scenario, ScenarioCluster, again
from tests.sim.world import SECOND

from millrace.core.metadata.model import Reluctance


class UnwillingBroker(SimulatedBroker):
    """All but one would rather not lead."""

    @property
    def reluctance(self) -> Reluctance:
        return Reluctance.NONE if self._machine.name == "broker-0" else Reluctance.SLOW_DISK


class Unwilling(ScenarioCluster):
    """Who would rather not lead is in sync all the same, which the quiet window looks at."""

    def _new_broker(self) -> SimulatedBroker:
        return UnwillingBroker(
            self.config,
            self.replication,
            self.invariants,
            self.witness,
            hear_of_damage=self.operator.hear_of_damage,
            new_host=self.new_host,
        )


def _directory_epoch(scene: Scene, machine: Machine) -> int:
    """The last life that the cluster knows to be remembered by a machine's disk."""
    assert scene.administered is not None
    assert scene.administered.stored_cluster is not None
    brokers = scene.administered.stored_cluster.brokers.values()
    return max(each.directory_epoch for each in brokers if each.name == machine.name)


def _put_an_older_copy_back(scene: Scene) -> Undo | None:
    """A machine is started again; later its disk is as it was before that, until it is mended."""
    names = [
        name
        for name in scene.role("follower")
        if name not in (*scene.role("leader"), *scene.role("controller"))
    ]
    if not names:
        return None
    machine = scene.machines[scene.dice.choice(names)]
    disk, since = machine.disk, _directory_epoch(scene, machine)
    newest: list[Disk] = []
    machine.kill()
    older = disk.copy()
    machine.start()

    def put_back() -> None:
        if _directory_epoch(scene, machine) > since:  # Else there is nothing that it would lack.
            machine.kill()
            newest.append(disk.copy())
            disk.put_back(older, is_older=True)
            machine.start()

    scene.world.after(scene.duration_us // 2, "an older copy of a disk is put back", put_back)

    def undo() -> None:
        if newest:
            machine.kill()
            disk.put_back(newest[0], is_older=False)
        machine.start()

    return undo


OLDER_COPY: Final = Family(
    "F36", "an older copy of a disk is put back", _put_an_older_copy_back, (SECOND, SECOND)
)

PUT_BACK_SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario(
        about="P28",
        name="an older copy of a log directory is put back, and then the newest",
        cluster=Busy,
        steps=[AWAY, *again(OLDER_COPY, 10, 14, 2, 12)],
        mutants=["an older copy of a log directory is taken for the newest"],
    ),
    Scenario(
        about="P39",
        name="the store is put back to an older state while its controller dies",
        cluster=Busy,
        steps=[
            step
            for at, fault_id in ((8.0, "F45"), (20.0, "F41"))
            for step in ((at, fault_id, 8.0), (at + 1, "F38", 2.0))
        ],
        mutants=["a controller goes on from a store that was set back"],
    ),
    Scenario(
        about="P25",
        name="brokers that would rather not lead die, and come in sync again",
        cluster=Unwilling,
        steps=[*again("F01", 6, 4, 3, 1), *again("F02", 8, 4, 3, 1)],
        mutants=["who would rather not lead does not come in sync"],
    ),
)
