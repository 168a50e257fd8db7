"""Why a request for a transaction is refused (P48), in words that say what to do."""

from collections.abc import Collection

from millrace.core.coordinator.transactions.config import (
    REQUEST_GROUPS_MAX,
    REQUEST_PARTITIONS_MAX,
)
from millrace.core.coordinator.transactions.transaction import (
    Ending,
    Producer,
    Transaction,
    Version,
    short_id,
)
from millrace.core.errors import (
    ConcurrentTransactionsError,
    InvalidTransactionStateError,
    MalformedRequestError,
    MillraceError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    VersionConflictError,
)
from millrace.core.ids import TopicPartition


def check_request(partitions: Collection[TopicPartition], groups: Collection[str]) -> None:
    """Refuse a request with too much in it.

    Raises:
        MalformedRequestError: says what is too much.
    """
    for what, there, most in (
        ("partitions", len(partitions), REQUEST_PARTITIONS_MAX),
        ("groups", len(groups), REQUEST_GROUPS_MAX),
    ):
        if there > most:
            raise MalformedRequestError(f"{there} {what} in one request: at most {most} may be")


def late(transactional_id: str, transaction: Transaction, producer: Producer) -> MillraceError:
    """Return why a producer that is not the present one may not write or end."""
    ended = transaction.ended
    if ended is None or producer != ended.writer or producer != transaction.previous:
        return fenced(transactional_id, producer)
    if ended.ending is Ending.PRODUCER:
        return InvalidTransactionStateError(
            f"the transaction of producer {producer} has ended: this belongs to no transaction"
        )
    why = {
        Ending.TIMEOUT: f"it was open for more than {transaction.timeout_ms} ms, its time-out",
        Ending.OPERATOR: "a person asked for it",
    }.get(ended.ending, "its producer began again with the id")
    return TransactionAbortedError(
        f"the transaction of {short_id(transactional_id)!r} was aborted, because {why}: "
        "begin another one"
    )


def fenced(transactional_id: str, producer: Producer) -> ProducerFencedError:
    """Return the error for a producer that another one has replaced."""
    return ProducerFencedError(
        f"producer {producer} does not have the transactional id {short_id(transactional_id)!r}: "
        "another producer has begun with it. Close this one, and give each producer an id of its "
        "own"
    )


def takes_no_part(transactional_id: str, producer: Producer) -> ProducerFencedError:
    """Return the error for a participant whose transaction is over, and its id given away."""
    return ProducerFencedError(
        f"producer {producer} takes no part in a transaction of {short_id(transactional_id)!r} any "
        "more: the one that it had joined is over, and what is not committed never counts. Close "
        "this producer, and let another one join the transaction that is open now"
    )


def owed(transactional_id: str, place: TopicPartition) -> ConcurrentTransactionsError:
    """Return why a partition may not join yet: its marker would end an earlier transaction."""
    return ConcurrentTransactionsError(
        f"an earlier transaction of {transactional_id!r} has ended, and a partition does not know "
        "it yet, as its topic was deleted and brought back: try again shortly",
        topic_partition=place,
    )


def expired(transactional_id: str) -> ProducerFencedError:
    """Return the error for the producer of an id that is not there (T13)."""
    return ProducerFencedError(
        f"nothing is known of the transactional id {short_id(transactional_id)!r}: it was not used "
        "for long, and is forgotten. Close this producer, and make a new one"
    )


def unbegun(producer: Producer) -> InvalidTransactionStateError:
    """Return the error for an epoch that only fences."""
    return InvalidTransactionStateError(
        f"producer {producer} was not begun: ask for a producer id with the transactional id"
    )


def has_participants(name: str) -> InvalidTransactionStateError:
    """Return the error for a producer that wants an id whose transactions have participants."""
    return InvalidTransactionStateError(
        f"the transactions of {name!r} have participants: join an open one, or choose "
        "another transactional id"
    )


def unopened(name: str) -> TransactionalIdNotFoundError:
    """Return the error for an id of which no transaction with participants was opened."""
    return TransactionalIdNotFoundError(
        f"no transaction with participants was opened under {name!r}, or it is long "
        "ago and has no version: open one"
    )


def replaced(name: str, run: str) -> ProducerFencedError:
    """Return the error for a run that another one has replaced (T20)."""
    return ProducerFencedError(
        f"another run of the application {name!r} has begun, and replaces the run "
        f"{run}: stop this one, and let one run at a time write under an application id"
    )


def not_open(name: str, number: int, present: int) -> InvalidTransactionStateError:
    """Return the error for a transaction that is not the last one that was opened (T19)."""
    return InvalidTransactionStateError(
        f"transaction {number} of {name!r} is over, or was never opened: the last one "
        f"is {present}. What belongs to {number} and is not committed never counts"
    )


def version_conflict(name: str, done: Version, wanted: Version) -> VersionConflictError:
    """Return the error for a version that does not follow the last one (T21)."""
    there, here = done.origin, wanted.origin
    if there == here:
        what = f"version {done.number} is committed, so version {wanted.number} is an old one"
    else:
        what = (
            f"version {done.number} is of query {there.query_id!r} with the checkpoint "
            f"{there.checkpoint!r}, and version {wanted.number} of query {here.query_id!r} with "
            f"{here.checkpoint!r}"
        )
    return VersionConflictError(
        f"the application {name!r}: {what}. Give each query and checkpoint an "
        "application id of its own; or, if this one goes on for the other, forget its version by "
        f"`millrace transaction forget-version {name}`"
    )
