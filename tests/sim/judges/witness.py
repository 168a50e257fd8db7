"""The witnesses of a simulated cluster, which check each step: see `log_witness`,
`cleaner_witness`, `replica_witness`, `state_witness`. `probes` show them what brokers do; witnesses
change nothing and cost no virtual time.
"""

from dataclasses import dataclass

from tests.sim.judges.cleaner_witness import CleanerWitness
from tests.sim.judges.log_witness import LogWitness
from tests.sim.judges.replica_witness import ReplicaWitness
from tests.sim.judges.state_witness import StateWitness


@dataclass(frozen=True, slots=True)
class Witness:
    """All of them."""

    logs: LogWitness
    cleaners: CleanerWitness
    replicas: ReplicaWitness
    states: StateWitness
