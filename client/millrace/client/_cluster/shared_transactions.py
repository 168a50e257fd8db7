"""Transactions with participants, as applications and their producers name them.

All of it can be pickled: an application opens a transaction in one process, and others write it.
Those that have joined renew its lease until it is over (T23).
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final, TypedDict

from millrace.client._cluster.coordinators import Coordinators
from millrace.core.client.producer.transaction import ProducerIdentity
from millrace.core.errors import AbortedError, FencedError, InvalidRequestError, MillraceError
from millrace.core.ids import ProducerEpoch, ProducerId
from millrace.proto.v1 import shared_transactions_pb2 as pb

_FINAL_ERRORS: Final = (AbortedError, FencedError, InvalidRequestError)


@dataclass(slots=True, frozen=True)
class ApplicationVersion:
    """What one transaction of an application writes."""

    number: int
    """Such as the number of a micro-batch; it grows from commit to commit."""
    query_id: str = ""
    """Which query writes."""
    checkpoint: str = ""
    """Where that query keeps how far it is."""


@dataclass(slots=True, frozen=True)
class SharedTransaction:
    """A transaction with participants."""

    transactional_id: str
    generation: int
    """Of the run that opened it."""
    number: int
    is_done: bool
    """Its version was committed before: there is nothing to write."""
    renew_ms: int = field(compare=False)
    """It is renewed at least this often; brokers may tell other times while that is changed."""


@dataclass(slots=True, frozen=True)
class Participant:
    """A producer that has written its part of a transaction."""

    producer_id: int
    producer_epoch: int


class Named(TypedDict):
    """The fields by which requests name a transaction."""

    transactional_id: str
    generation: int
    number: int


def named(shared: SharedTransaction) -> Named:
    """Return the fields of a transaction."""
    return Named(
        transactional_id=shared.transactional_id,
        generation=shared.generation,
        number=shared.number,
    )


async def join(coordinators: Coordinators, shared: SharedTransaction) -> ProducerIdentity:
    """Return what a participant writes with.

    Raises:
        MillraceError: it cannot take part.
    """
    request = pb.JoinSharedTransactionRequest(**named(shared))
    answer: pb.JoinSharedTransactionResponse = await coordinators.ask(
        shared.transactional_id,
        lambda connection: connection.shared_transactions.JoinSharedTransaction(request),
    )
    return ProducerIdentity(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))


async def renew(coordinators: Coordinators, shared: SharedTransaction) -> None:
    """Renew the lease of a transaction once.

    Raises:
        MillraceError: it is over, or nobody could be asked.
    """
    request = pb.RenewSharedTransactionRequest(**named(shared))
    await coordinators.ask(
        shared.transactional_id,
        lambda connection: connection.shared_transactions.RenewSharedTransaction(request),
    )


async def renew_until_over(coordinators: Coordinators, shared: SharedTransaction) -> None:
    """Renew the lease of a transaction, until it is over."""
    while True:
        await asyncio.sleep(shared.renew_ms / 1000)
        try:
            await renew(coordinators, shared)
        except _FINAL_ERRORS:
            return
        except MillraceError:
            continue  # The coordinator is away. The next one starts the lease again.
