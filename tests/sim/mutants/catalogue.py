"""All mutants, by the rules that they break."""

from typing import Final

from tests.sim.mutants import metadata, replication, storage
from tests.sim.mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = tuple(
    sorted(
        (*replication.MUTANTS, *metadata.MUTANTS, *storage.MUTANTS),
        key=lambda each: int(each.rule.removeprefix("P")),
    )
)
