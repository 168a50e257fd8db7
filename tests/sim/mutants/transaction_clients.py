"""Mutants of transactional producers, and of consumers for which they commit (T17, T18)."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_PRODUCER: Final = "millrace.core.client.producer.transaction:ProducerTransactions"
_TRANSACTIONS: Final = "millrace.client._producer.transactions:Transactions"
_ASSIGNMENT: Final = "millrace.client._consumer.assignment:Assignment"
_MEMBERSHIP: Final = "millrace.client._consumer.membership:Membership"

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("a commit whose answer is lost counts as aborted", "T17", f"{_PRODUCER}.on_not_ended",
           "self._on(TransactionEvent.LOST)\n        return self._in_doubt(error)",
           "self._on_aborted(TransactionAbortedError(error.message))\n"
           "        return self.problem"),
    mutant("the outcome of another transaction is taken for that of the one in doubt", "T17",
           f"{_PRODUCER}.on_described",
           "if described.ended == written:", "if described.ended is not None:"),
    mutant("records of an aborted transaction go out in the next one", "T17",
           f"{_TRANSACTIONS}._drop", "await self._records.settle(", "str("),
    mutant("a copy commits without the position of a topic that is gone", "T8",
           "millrace.client._consumer.member_commits:MemberCommits.commit_read",
           "return gone.union(filter(self.assignment.is_gone, places))", "return set()"),
    mutant("a member waits for ever for a group that has not heard of a topic's end", "T8",
           f"{_ASSIGNMENT}.leave_gone", "self.gone_at = host.monotonic_s()", "pass"),
    mutant("a consumer goes on after an abort where it was", "T18", f"{_MEMBERSHIP}.put_back",
           "self._assignment.put_back({place: committed.get(place) for place in places})", "pass"),
    mutant("a member gives partitions up while a transaction commits for it", "T18",
           f"{_MEMBERSHIP}._take",
           "revoked and self.is_held and self._assignment.is_undecided(revoked)", "False",
           also=mutant("a member commits what others have been given", "T18",
                       "millrace.client._consumer.transactional_reading:TransactionalReading.stage",
                       "membership.gave_up_at >= began_at or membership.heartbeats.is_lost",
                       "False")),
    mutant("a member does not ask for positions that are certain", "T18",
           f"{_MEMBERSHIP}._stable_positions", "require_stable=True", "require_stable=False"),
)
# fmt: on
