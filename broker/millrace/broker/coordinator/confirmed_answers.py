"""Answers about transactional ids, told once it is known that nobody has replaced who gives them.

A broker that stood still does not know yet that another one coordinates (P55): by what it knows the
open transaction of a producer is none, or its epoch nobody's, and all that it knows is committed.
So an answer that stores nothing, such as a refusal, a description or a list, comes with a record
that changes nothing, and is told when that is committed: the in-sync replicas still followed then.
"""

from collections.abc import Callable
from typing import Final, cast

from millrace.broker.coordinator.owed_topics import TransactionsRuntime
from millrace.core.coordinator.contract import ResponseT, Result
from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.records import TransactionRecord
from millrace.core.errors import (
    AbortedError,
    Appended,
    FencedError,
    InvalidTransactionStateError,
    MillraceError,
    TransactionalIdNotFoundError,
)
from millrace.core.ids import TopicPartition, WallMs

_FINAL_ERRORS: Final = (
    FencedError,
    AbortedError,
    InvalidTransactionStateError,
    TransactionalIdNotFoundError,
)
"""Refusals after which nobody asks again."""


async def ask_confirmed(
    runtime: TransactionsRuntime,
    place: TopicPartition,
    handle: Callable[[TransactionCoordinator], Result[TransactionRecord, ResponseT]],
    now: Callable[[], WallMs],
) -> ResponseT:
    """Ask the machine of a partition; return its answer once a record of it is committed.

    Args:
        runtime: runs the machines.
        place: the partition.
        handle: calls a `handle_*` method of the machine, or a query.
        now: returns the time.

    Raises:
        MillraceError: the machine refused the request, or the append failed.
    """
    refusal: MillraceError | None = None
    stores = False

    def handled(
        machine: TransactionCoordinator, _: WallMs
    ) -> Result[TransactionRecord, ResponseT | None]:
        nonlocal refusal, stores
        result: Result[TransactionRecord, ResponseT | None]
        try:
            found = handle(machine)
        except _FINAL_ERRORS as error:
            refusal = error
            result = Result([], None)
        else:
            result = Result(found.records, found.response)
        stores = bool(result.records)
        if not stores:
            result.records = machine.handle_nothing(now()).records
        return result

    try:
        response = await runtime.ask(place, handled)
        if refusal is not None:
            raise refusal
    except MillraceError as error:
        raise (error if stores else error.again(Appended.NO)) from error.__cause__
    finally:
        refusal = None  # Its trace refers to this frame: a cycle.
    return cast("ResponseT", response)
