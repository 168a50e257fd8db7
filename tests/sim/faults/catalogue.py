"""All families of faults that the swarm may draw, by their ids."""

from collections.abc import Mapping
from typing import Final

from tests.sim.faults import clocks, disks, network, operators, processes, store
from tests.sim.faults.family import Family

FAMILIES: Final[Mapping[str, Family]] = {
    **processes.FAMILIES,
    **network.FAMILIES,
    **clocks.FAMILIES,
    **disks.FAMILIES,
    **operators.FAMILIES,
    **store.FAMILIES,
}
