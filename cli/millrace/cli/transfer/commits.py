"""The transactions of `millrace produce --transactional`."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from millrace.core.errors import MillraceError, TransactionInDoubtError

if TYPE_CHECKING:
    from millrace.cli.records.outcomes import Outcomes
    from millrace.client import SyncProducer

TIMEOUT_MS: Final = 15 * 60 * 1000
"""How long a transaction may be open: what brokers allow by default."""


class Commits:
    """One transaction after another, or one for the whole run.

    Args:
        producer: that is transactional, if `is_on`.
        outcomes: of its records: those of a transaction that is not committed are not written.
        every: records after which a transaction is committed; 0: at the end.
        is_on: there are transactions; else nothing is done here.
    """

    def __init__(
        self, producer: "SyncProducer", outcomes: "Outcomes", *, every: int, is_on: bool
    ) -> None:
        self._producer = producer
        self._outcomes = outcomes
        self._every = every
        self._is_on = is_on
        self._sent = 0

    def begin(self) -> None:
        """Begin a transaction.

        Raises:
            MillraceError: the coordinator refuses it.
        """
        if self._is_on:
            self._producer.begin_transaction()
            self._sent = 0

    def commit_if_due(self, sent: int, settle_all: Callable[[], None]) -> None:
        """Note that records were sent; commit after so many, and begin another transaction.

        Args:
            sent: how many records.
            settle_all: waits for the outcomes of all.
        """
        self._sent += sent
        if self._is_on and 0 < self._every <= self._sent:
            settle_all()
            self.commit()
            if self._outcomes.problem is None:
                try:
                    self.begin()
                except MillraceError as error:
                    self._outcomes.problem = error

    def commit(self) -> None:
        """Commit the transaction, if no record was refused; the outcomes have why it is not."""
        if not self._is_on or self._outcomes.problem is not None:
            return
        try:
            try:
                self._producer.commit_transaction()
            except TransactionInDoubtError:
                self._producer.commit_transaction()
        except TransactionInDoubtError as error:
            self._outcomes.doubt()
            self._outcomes.problem = error
        except MillraceError as error:
            self._outcomes.problem = error
        else:
            self._outcomes.commit()

    def abort(self) -> None:
        """Abort the transaction: its records are not written, whatever became of them."""
        if self._is_on:
            self._outcomes.abort()
            with suppress(MillraceError):  # The coordinator does it by the time-out.
                self._producer.abort_transaction()
