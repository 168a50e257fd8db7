"""The SharedTransactions service, at the leader of the id's partition.

What may be done is decided by `core/coordinator/transactions/shared.py`.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from millrace.broker.coordinator.transactions import Transactions
from millrace.broker.rpc.audit import AuditLine
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.broker.rpc.name_partitions import NamePartitions
from millrace.broker.rpc.transactions import ALTER, TRANSACT
from millrace.core.callers import Caller
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.records import TransactionRecord
from millrace.core.coordinator.transactions.shared import Opened
from millrace.core.coordinator.transactions.transaction import (
    Origin,
    Producer,
    Version,
    full_id,
)
from millrace.core.errors import ConcurrentTransactionsError, MillraceError
from millrace.core.ids import ProducerEpoch, ProducerId
from millrace.proto.v1 import shared_transactions_pb2 as pb

ResponseT = TypeVar("ResponseT")
DEMANDS: Final = {
    "OpenSharedTransaction": TRANSACT,
    "JoinSharedTransaction": TRANSACT,
    "RenewSharedTransaction": TRANSACT,
    "EndSharedTransaction": TRANSACT,
    "ForgetVersion": ALTER,
}
"""What each call demands."""
_RENEWALS = 3
"""In the time of a lease."""


class SharedTransactionsService:
    """Serves `millrace.proto.v1.SharedTransactions`.

    Args:
        transactions: that this broker coordinates.
        names: find the partition of an id.
        lease_ms: how long a transaction is open without a renewal.
        calls: of the listener.
    """

    NAME = pb.DESCRIPTOR.services_by_name["SharedTransactions"].full_name

    def __init__(
        self, *, transactions: Transactions, names: NamePartitions, lease_ms: int, calls: Calls
    ) -> None:
        self._transactions = transactions
        self._names = names
        self._renew_ms = lease_ms // _RENEWALS
        self._calls = calls

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        return self._calls.methods(
            self.NAME,
            unary={
                "OpenSharedTransaction": (
                    self._open,
                    pb.OpenSharedTransactionRequest,
                    DEMANDS["OpenSharedTransaction"],
                ),
                "JoinSharedTransaction": (
                    self._join,
                    pb.JoinSharedTransactionRequest,
                    DEMANDS["JoinSharedTransaction"],
                ),
                "RenewSharedTransaction": (
                    self._renew,
                    pb.RenewSharedTransactionRequest,
                    DEMANDS["RenewSharedTransaction"],
                ),
                "EndSharedTransaction": (
                    self._end,
                    pb.EndSharedTransactionRequest,
                    DEMANDS["EndSharedTransaction"],
                ),
                "ForgetVersion": (
                    self._forget_version,
                    pb.ForgetVersionRequest,
                    DEMANDS["ForgetVersion"],
                ),
            },
        )

    async def _open(
        self, request: pb.OpenSharedTransactionRequest, caller: Caller
    ) -> pb.OpenSharedTransactionResponse:
        name = request.transactional_id
        said = request.version
        wanted = None
        if request.HasField("version"):
            wanted = Version(said.number, Origin(said.query_id, said.checkpoint))
        transactions = self._transactions
        try:
            name = full_id(name)
            place = await self._names.find_or_make(name, caller)

            async def ask() -> Opened:
                opened = await transactions.ask(
                    place,
                    lambda machine: machine.handle_open(
                        name,
                        request.run_id,
                        wanted,
                        transactions.now(),
                        may_attach=request.may_attach,
                    ),
                )
                if opened is None:
                    raise ConcurrentTransactionsError(
                        f"the open transaction of {name!r} is being aborted: try again shortly"
                    )
                return opened

            opened = await transactions.when_over(place, name, ask)
        except MillraceError as error:
            return pb.OpenSharedTransactionResponse(error=self._names.error(name, error))
        return pb.OpenSharedTransactionResponse(
            generation=opened.generation,
            number=opened.number,
            is_done=opened.is_done,
            renew_ms=self._renew_ms,
        )

    async def _join(
        self, request: pb.JoinSharedTransactionRequest, caller: Caller
    ) -> pb.JoinSharedTransactionResponse:
        name = request.transactional_id
        try:
            name = full_id(name)
            place = self._names.place_of_known(name)
            producer = await self._transactions.ask_with_ids(
                place,
                caller,
                lambda machine, next_id: machine.handle_participate(
                    name, request.generation, request.number, self._transactions.now(), next_id
                ),
            )
            self._transactions.overdue.renew(place, name)
        except MillraceError as error:
            return pb.JoinSharedTransactionResponse(error=self._names.error(name, error))
        return pb.JoinSharedTransactionResponse(
            producer_id=producer.producer_id, producer_epoch=producer.epoch
        )

    async def _renew(
        self, request: pb.RenewSharedTransactionRequest, _: Caller
    ) -> pb.RenewSharedTransactionResponse:
        name = request.transactional_id
        try:
            name = full_id(name)
            await self._ask(
                name,
                lambda machine: machine.handle_renew(name, request.generation, request.number),
            )
            self._transactions.overdue.renew(self._names.place_of_known(name), name)
        except MillraceError as error:
            return pb.RenewSharedTransactionResponse(error=self._names.error(name, error))
        return pb.RenewSharedTransactionResponse()

    async def _end(
        self, request: pb.EndSharedTransactionRequest, _: Caller
    ) -> pb.EndSharedTransactionResponse:
        name = request.transactional_id
        participants = [
            Producer(ProducerId(said.producer_id), ProducerEpoch(said.producer_epoch))
            for said in request.participants
        ]
        try:
            name = full_id(name)
            await self._ask(
                name,
                lambda machine: machine.handle_decide(
                    name,
                    request.generation,
                    request.number,
                    participants,
                    self._transactions.now(),
                    is_commit=request.committed,
                ),
            )
        except MillraceError as error:
            return pb.EndSharedTransactionResponse(error=self._names.error(name, error))
        return pb.EndSharedTransactionResponse()

    async def _forget_version(
        self, request: pb.ForgetVersionRequest, caller: Caller
    ) -> pb.ForgetVersionResponse:
        name = request.transactional_id
        line = AuditLine(self._calls.audit, caller, "forget_version")
        line.name([name])
        try:
            name = full_id(name)
            await self._ask(
                name,
                lambda machine: machine.handle_forget_version(name, self._transactions.now()),
            )
        except MillraceError as error:
            line.on_answered([error])
            return pb.ForgetVersionResponse(error=self._names.error(name, error))
        line.on_answered([None])
        return pb.ForgetVersionResponse()

    async def _ask(
        self,
        name: str,
        handle: Callable[[TransactionCoordinator], Result[TransactionRecord, ResponseT]],
    ) -> ResponseT:
        return await self._transactions.ask(self._names.place_of_known(name), handle)
