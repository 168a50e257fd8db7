"""The product's lease election on simulated clocks, a simulated store, and three machines.

The lease is a hint: with true clocks and running processes there is one holder at most, and
whatever happened, soon after it is quiet there is one.
"""

from collections.abc import Mapping, Sequence

import pytest
from tests.sim.coordination import SimulatedStore
from tests.sim.faults import FAMILIES, Family
from tests.sim.machine import Machine, NodeEvent
from tests.sim.network import Network
from tests.sim.run import plan_of, run
from tests.sim.world import MINUTE, Violation, World

from millrace.core.ids import MonotonicMs
from millrace.core.metadata.lease import LeaseElection, LeaseRecord, LeaseTimes

TIMES = LeaseTimes(duration_ms=1500, renew_deadline_ms=1000, retry_ms=250, watch_ms=250)


class Candidate:
    """Reads the lease every `retry_ms` and writes when it is told to; implements `Node`."""

    def start(self, machine: Machine) -> None:
        self._machine = machine
        self.election = LeaseElection(machine.name, "", TIMES)
        self._tick()

    def on_message(self, event: NodeEvent) -> None:
        self._machine.exit("told to")

    def on_timer(self, token: object) -> None:
        self._tick()

    def crash(self) -> None:
        pass

    def holds(self) -> bool:
        return self.election.is_held(self._machine.clock.monotonic())

    def _tick(self) -> None:
        self._machine.clock.set_timer(TIMES.retry_ms, "tick")
        self._machine.store.read_lease(self._on_read)

    def _on_read(self, result: object) -> None:
        if result is not None and not isinstance(result, LeaseRecord):
            return
        now = self._machine.clock.monotonic()
        record = self.election.on_read(result, now)
        if record is not None:
            self._machine.store.compare_and_swap_lease(
                record, lambda result: self._on_written(record, now, result)
            )

    def _on_written(self, record: LeaseRecord, sent_at: MonotonicMs, result: object) -> None:
        if result is True:
            self.election.on_written(record, sent_at)


class Candidates:
    """Implements `Cluster`."""

    families: Sequence[Family] = ()
    may_overlap = False

    def __init__(self, world: World) -> None:
        self.network = Network(world)
        self.store = SimulatedStore(world, self.network)
        self.machines = {
            name: Machine(world, name, self.network, self.store, Candidate)
            for name in ("a", "b", "c")
        }
        self._changes = 0
        self._last: list[str] = []

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()

    def holders(self) -> list[str]:
        return [
            name
            for name, machine in self.machines.items()
            if isinstance(machine.node, Candidate) and machine.node.holds()
        ]

    @property
    def clients(self) -> list[str]:
        return []

    @property
    def administered(self) -> None:
        return None

    def role(self, role: str) -> list[str]:
        return self.holders() if role in ("controller", "leader") else list(self.machines)

    def check(self) -> None:
        holders = self.holders()
        if len(holders) > 1 and not self.may_overlap:
            raise Violation(f"{holders} all hold the lease")
        if holders and holders != self._last:
            self._changes += 1
            self._last = holders

    def begin_quiet(self) -> None:
        pass

    def end_quiet(self) -> None:
        if len(self.holders()) != 1:
            raise Violation(f"{self.holders()} hold the lease, though all is quiet")

    def finish(self) -> Mapping[str, float]:
        return {"changes": self._changes}


class TrueClocks(Candidates):
    families = tuple(
        FAMILIES[fault_id]
        for fault_id in ("F02", "F03", "F04", "F06", "F11", "F14", "F16", "F19", "F38", "F42",
                         "F43", "F47")
    )  # fmt: skip


class AnyClocks(Candidates):
    may_overlap = True
    families = tuple(
        FAMILIES[fault_id] for fault_id in ("F08", "F10", "F20", "F21", "F38", "F39", "F40", "F43")
    )


@pytest.mark.parametrize("cluster", [TrueClocks, AnyClocks])
def test_the_lease_has_one_holder_soon_after_any_chaos(cluster: type[Candidates]) -> None:
    changes = 0.0
    for seed in range(12):
        outcome = run(cluster, plan_of(cluster, seed, MINUTE))
        assert outcome.violation is None, f"seed {seed}: {outcome.violation}"
        changes += outcome.measures["changes"]
    assert changes > 30


class TrueClocksAssumed(AnyClocks):
    """Judged as if clocks were true and processes never stood still."""

    may_overlap = False
    families = (FAMILIES["F20"], FAMILIES["F21"], FAMILIES["F11"])


def test_clocks_that_differ_or_jump_make_two_holders_which_is_why_there_are_epochs() -> None:
    found = [
        run(TrueClocksAssumed, plan_of(TrueClocksAssumed, seed, MINUTE)).violation or ""
        for seed in range(12)
    ]
    assert any("all hold the lease" in violation for violation in found)
