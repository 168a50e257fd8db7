"""Transactions with participants, for the applications that open and end them."""

from collections.abc import Iterable
from typing import Final

from millrace.client._admin.administration import Administration
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.shared_transactions import (
    ApplicationVersion,
    Participant,
    SharedTransaction,
    named,
    renew,
)
from millrace.proto.v1 import shared_transactions_pb2 as pb
from millrace.proto.v1 import transactions_pb2

_RENEW_MS_MIN: Final = 100
_RENEW_MS_MAX: Final = 3_600_000
"""Bounds of what a coordinator says. No setting of a broker is beyond them."""


class SharedTransactionAdministration(Administration):
    """The part of `Admin` for applications of many processes."""

    _transaction_coordinators: Coordinators

    async def open_shared_transaction(
        self,
        transactional_id: str,
        run_id: str,
        version: ApplicationVersion | None = None,
        *,
        may_attach: bool = False,
    ) -> SharedTransaction:
        """Open a transaction that several producers write, and that counts as a whole.

            shared = await admin.open_shared_transaction("etl@orders", "run 7")
            parts = await write_in_many_processes(shared)  # Each `Producer.join_transaction`s it.
            await admin.commit_shared_transaction(shared, parts)

        A transaction of the id that is open is aborted. Another run replaces the last one, which
        cannot come back: give each start of the application a run id of its own.

        Args:
            transactional_id: of the application and its target, at most 255 bytes; or
                `namespace/id`.
            run_id: the same for all transactions of one run, at most 255 bytes.
            version: what will be written. If it was committed before, by whatever run, the answer
                has `is_done`, and there is nothing to write.
            may_attach: return the transaction that is open for the same version of the same run, if
                there is one, instead of aborting it: several processes of the run ask, and none
                knows which one is the first.

        Raises:
            ProducerFencedError: another run has replaced this one.
            VersionConflictError: the last version is a later one, or another query's.
            MillraceError: the coordinator could not be asked in `request_timeout_ms`.
        """
        request = pb.OpenSharedTransactionRequest(
            transactional_id=transactional_id, run_id=run_id, may_attach=may_attach
        )
        if version is not None:
            request.version.CopyFrom(
                transactions_pb2.ApplicationVersion(
                    number=version.number,
                    query_id=version.query_id,
                    checkpoint=version.checkpoint,
                )
            )
        answer: pb.OpenSharedTransactionResponse = await self._transaction_coordinators.ask(
            transactional_id,
            lambda connection: connection.shared_transactions.OpenSharedTransaction(request),
        )
        renew_ms = min(max(answer.renew_ms, _RENEW_MS_MIN), _RENEW_MS_MAX)
        return SharedTransaction(
            transactional_id, answer.generation, answer.number, answer.is_done, renew_ms
        )

    async def commit_shared_transaction(
        self, shared: SharedTransaction, participants: Iterable[Participant]
    ) -> None:
        """Commit what these participants have written, and drop what all others have.

        Return when it is decided; readers see it shortly after. It may be repeated.

        Args:
            shared: as it was opened.
            participants: as `Producer.leave_transaction` has returned them.

        Raises:
            TransactionAbortedError: the lease ran out, or a person aborted it.
            ProducerFencedError: another run has replaced this one.
            InvalidTransactionStateError: it is not the last transaction that was opened, or has not
                all of these participants.
            MillraceError: the coordinator could not be asked; if `appended` is not NO, it may be
                committed: repeat the call.
        """
        await self._end(shared, participants, committed=True)

    async def abort_shared_transaction(self, shared: SharedTransaction) -> None:
        """Drop what has been written in a transaction; it may be repeated.

        Raises:
            InvalidTransactionStateError: it is committed, or is not the last one that was opened.
            ProducerFencedError: another run has replaced this one, and ended it.
            MillraceError: the coordinator could not be asked.
        """
        await self._end(shared, (), committed=False)

    async def _end(
        self, shared: SharedTransaction, participants: Iterable[Participant], *, committed: bool
    ) -> None:
        request = pb.EndSharedTransactionRequest(
            **named(shared),
            committed=committed,
            participants=[
                transactions_pb2.SharedParticipant(
                    producer_id=participant.producer_id, producer_epoch=participant.producer_epoch
                )
                for participant in participants
            ],
        )
        await self._transaction_coordinators.ask(
            shared.transactional_id,
            lambda connection: connection.shared_transactions.EndSharedTransaction(request),
        )

    async def renew_shared_transaction(self, shared: SharedTransaction) -> None:
        """Keep a transaction open. Participants do so by themselves, until it is over.

        Raises:
            TransactionAbortedError, ProducerFencedError, InvalidTransactionStateError: it is over.
            MillraceError: the coordinator could not be asked.
        """
        await renew(self._transaction_coordinators, shared)

    async def forget_version(self, transactional_id: str) -> None:
        """Forget the last version of an application, so that another query may go on for it.

        Raises:
            TransactionalIdNotFoundError: nothing is known of the id, or it has no version.
            InvalidTransactionStateError: a transaction of it is open.
        """
        request = pb.ForgetVersionRequest(transactional_id=transactional_id)
        await self._transaction_coordinators.ask(
            transactional_id,
            lambda connection: connection.shared_transactions.ForgetVersion(request),
        )
