"""Mutants of transactions with participants: numbers, runs, versions and leases (T19 to T24)."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_CORE: Final = "millrace.core.coordinator.transactions"
_SHARED: Final = f"{_CORE}.shared:SharedTransactions"
_KEPT: Final = f"{_CORE}.kept_transactions:KeptTransactions"
_OVERDUE: Final = "millrace.broker.coordinator.overdue_transactions:OverdueTransactions"

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("a late commit decides the transaction that is open", "T19", f"{_SHARED}._numbered",
           "if number != shared.number:", "if False:"),
    mutant("an abort after the commit is told that all is well", "T19",
           f"{_CORE}.shared:_check_decision",
           "ended is not None and ended.is_commit == is_commit", "True"),
    mutant("attempts count that nobody has named", "T19", f"{_KEPT}.decisions",
           "ended.is_commit and (shared is None or writer.producer_id in listed)",
           "ended.is_commit"),
    mutant("a run that was replaced opens again", "T20", f"{_SHARED}.handle_open",
           "if run_id in shared.replaced:", "if False:"),
    mutant("any version of any origin is opened", "T21", f"{_SHARED}.handle_open",
           "_check_version(transactional_id, transaction, shared, wanted)", "pass"),
    mutant("a version is done for all origins", "T21", f"{_SHARED}.handle_open",
           "wanted is not None and wanted == shared.done",
           "None not in (wanted, shared.done) and wanted.number == shared.done.number"),
    mutant("each process that asks opens a transaction", "T22", f"{_SHARED}.handle_open",
           "if may_attach and (run_id, wanted) == (shared.run_id, shared.wanted):", "if False:"),
    mutant("a version is forgotten while a transaction is open", "T22",
           f"{_SHARED}.handle_forget_version",
           "if transaction.state is State.ONGOING:", "if False:"),
    mutant("no lease is renewed", "T23", f"{_OVERDUE}.renew",
           "if transactional_id in seen:", "if False:"),
    mutant("a lease does not end", "T23", f"{_OVERDUE}.look",
           "seen_ms > transaction.timeout_ms or open_ms", "open_ms"),
    mutant("versions expire", "T24", f"{_KEPT}._is_unused",
           "and (shared is None or shared.done is None)  # T24", ""),
)
# fmt: on
