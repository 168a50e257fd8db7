"""Mutants of the coordinators of transactions: epochs, decisions, their delivery, positions."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_CORE: Final = "millrace.core.coordinator.transactions"
_MACHINE: Final = f"{_CORE}.machine:TransactionCoordinator"
_SHELL: Final = "millrace.broker.coordinator.transactions:Transactions"
_DELIVERY: Final = "millrace.broker.coordinator.marker_delivery:MarkerDelivery"
_POSITIONS: Final = "millrace.core.coordinator.positions.machine:PositionsMachine"

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("a coordinator that was replaced refuses a producer by what it knew", "P55",
           "millrace.broker.coordinator.confirmed_answers:ask_confirmed", "if not stores:",
           "if False:"),
    mutant("an open transaction goes on under the next producer of its id", "P47",
           f"{_MACHINE}.handle_init", "if transaction.state is State.ONGOING:", "if False:"),
    mutant("the next transaction has the epoch of the last one", "P48", f"{_MACHINE}._ended",
           "marked = _bumped(writer) if transaction.protocol == BUMPING else writer",
           "marked = writer"),
    mutant("a late end decides the next transaction", "P48", f"{_MACHINE}.handle_end",
           "if producer != transaction.producer:", "if False:"),
    mutant("a transaction is over before all partitions know it", "P50", f"{_DELIVERY}._done",
           "if not telling.owed and not telling.is_dropped:", "if not telling.is_dropped:"),
    mutant("a transaction that is open for too long stays open", "P53",
           "millrace.broker.coordinator.overdue_transactions:OverdueTransactions.look",
           "max(open_ms, seen_ms) > transaction.timeout_ms", "False"),
    mutant("positions of a transaction count at once", "P56", f"{_POSITIONS}.handle_stage",
           "producer_id, epoch = producer\n",
           "return self.handle_commit(name, positions, now, commit)\n"
           "    producer_id, epoch = producer\n"),
    mutant("a marker that was not written is not told again", "T7", f"{_DELIVERY}._retry",
           "if not failed:", "if True:"),
    mutant("markers of a topic that is gone for now are lost", "T8",
           "millrace.core.coordinator.transactions.participants:owed_to_deleted",
           "bitmaps(deleted).items()", "bitmaps(()).items()"),
    mutant("members begin while positions wait for a transaction", "T10",
           "millrace.core.coordinator.groups.coordinator:GroupCoordinator.check_stable",
           "if unstable:", "if False:"),
    mutant("the next transaction does not wait for the last marker", "T12", f"{_MACHINE}._joined",
           "if transaction.state.is_prepared and", "if False and"),
    mutant("an end is answered when all partitions know it", "T12", f"{_SHELL}.end",
           "return await self.when_over(place, transactional_id, ask)",
           "decided = await self.when_over(place, transactional_id, ask)\n"
           "    while transactional_id in self._telling.get(place, {}):\n"
           "        await asyncio.sleep(0.01)\n"
           "    return decided"),
    mutant("epochs that have run out begin again with the same producer id", "T13",
           f"{_MACHINE}._ended", "following = Producer(next_id(), ProducerEpoch(0))",
           "following = Producer(marked.producer_id, ProducerEpoch(0))"),
)
# fmt: on
