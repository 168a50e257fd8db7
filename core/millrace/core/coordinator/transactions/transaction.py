"""Transactional ids in their namespaces (T15), and what is known of the transactions of one."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from millrace.core.errors import InvalidTransactionalIdError
from millrace.core.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    UNKNOWN_OFFSET,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.topics import DEFAULT_NAMESPACE, NAMESPACE_LENGTH_MAX, is_namespace

ID_BYTES_MAX: Final = 255
"""Of a transactional id without its namespace."""


class State(IntEnum):
    """What becomes of the transaction of an id; the numbers are on disk and on the wire."""

    EMPTY = 1
    """The id has a producer, and no transaction yet."""
    ONGOING = 2
    PREPARE_COMMIT = 3
    """Decided; not all partitions have the marker yet."""
    PREPARE_ABORT = 4
    COMPLETE_COMMIT = 5
    """The last one is over everywhere."""
    COMPLETE_ABORT = 6

    @property
    def is_prepared(self) -> bool:
        """Whether markers are owed."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)


class Ending(IntEnum):
    """Who decided a transaction; the numbers are on disk, and the first four on the wire."""

    PRODUCER = 1
    TIMEOUT = 2
    FENCED = 3
    """Another producer that began with the id."""
    OPERATOR = 4
    RESTART = 5
    """Its producer: it called `init` while the transaction was open."""


class Producer(NamedTuple):
    """A producer id and an epoch of it."""

    producer_id: ProducerId
    epoch: ProducerEpoch

    def __str__(self) -> str:
        return f"{self.producer_id} of epoch {self.epoch}"


NOBODY: Final = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Ended(NamedTuple):
    """The last transaction of an id that was decided.

    Attributes:
        writer: wrote its records.
        marker_epoch: with which the partitions' leaders end it.
        is_commit: what was decided.
        ending: by whom.
    """

    writer: Producer
    marker_epoch: ProducerEpoch
    is_commit: bool
    ending: Ending


class Origin(NamedTuple):
    """Where the versions of an application come from, so that another one's do not count (T21).

    Attributes:
        query_id: of the query, or whatever writes.
        checkpoint: where it keeps how far it is.
    """

    query_id: str
    checkpoint: str


class Version(NamedTuple):
    """What one transaction of an application writes, such as a micro-batch."""

    number: int
    origin: Origin


class Shared(NamedTuple):
    """What a transaction with participants has beside the others (D30): see `shared`.

    Attributes:
        run_id: of the run that may open transactions.
        generation: of that run; each run has a larger one than those before (T20).
        replaced: the last runs that it replaced, the newest last; none of them comes back.
        number: of the last transaction that was opened; each has a larger one (T19).
        wanted: what that one writes; None: it has no version.
        done: the last version that was committed; None: there is none.
        listed: the participants that were committed, ascending, by their producer ids.
    """

    run_id: str
    generation: int
    number: int = 0
    wanted: Version | None = None
    done: Version | None = None
    replaced: tuple[str, ...] = ()
    listed: tuple[ProducerId, ...] = ()


class Transaction(NamedTuple):
    """A transactional id.

    Attributes:
        producer: who may write, or would be next.
        timeout_ms: how long its transactions may be open.
        state: of the last transaction.
        protocol: of that one, `markers.BUMPING` or `markers.NOT_BUMPING`.
        began_at: when it began, or else the id.
        ended: the last one that was decided.
        previous: the identity that the same producer had before; `NOBODY`: another one began with
            the id since. Requests of that identity are late or repeated, and its bearer may go on.
        is_fenced: the epoch of `producer` was taken to fence the one before it, and nobody has it.
        shared: its transactions have participants, and `producer` is `NOBODY`; None: a producer
            has the id.
    """

    producer: Producer
    timeout_ms: int
    state: State
    protocol: int
    began_at: WallMs
    ended: Ended | None = None
    previous: Producer = NOBODY
    is_fenced: bool = False
    shared: Shared | None = None


class Decision(NamedTuple):
    """What the leaders of partitions and the coordinators of groups must be told.

    Attributes:
        transactional_id: whose transaction it was.
        producer: with the epoch of the marker.
        is_commit: what was decided.
        protocol: of the transaction.
        partitions: ascending.
        groups: likewise.
        decided_at: the offset of its record; -1: it is noted that the transaction is over.
    """

    transactional_id: str
    producer: Producer
    is_commit: bool
    protocol: int
    partitions: list[TopicPartition]
    groups: list[str]
    decided_at: Offset = UNKNOWN_OFFSET


class Over(NamedTuple):
    """A decided transaction of which all participants have the marker.

    Attributes:
        decided_at: as in `Decision`: without bumps of the epoch (T14) the markers of the next
            transaction of the id look alike.
        deleted: participants that are gone, and may come back (T8).
    """

    decided_at: Offset
    deleted: Sequence[TopicPartition] = ()


def full_id(text: str) -> str:
    """Return a transactional id with its namespace, `default` when there is none before a slash.

    Raises:
        InvalidTransactionalIdError: the text is none; says which rule it breaks.
    """
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = DEFAULT_NAMESPACE, text
    if not is_namespace(namespace):
        raise InvalidTransactionalIdError(
            f"transactional id {_short(text)}: what is before the slash is its namespace, 1 to "
            f"{NAMESPACE_LENGTH_MAX} lower case letters, digits or hyphens"
        )
    if len(name) > ID_BYTES_MAX or not 0 < len(_utf8(name)) <= ID_BYTES_MAX:
        raise InvalidTransactionalIdError(
            f"transactional id {_short(text)}: choose one of 1 to {ID_BYTES_MAX} bytes"
        )
    if not name.isprintable() or not name.strip():
        raise InvalidTransactionalIdError(
            f"transactional id {_short(text)}: choose one of printable characters"
        )
    return f"{namespace}/{name}"


def short_id(transactional_id: str) -> str:
    """Return a full id as its user writes it: without the namespace, if that is `default`."""
    return transactional_id.removeprefix(f"{DEFAULT_NAMESPACE}/")


def _utf8(text: str) -> bytes:
    """Return the bytes of a text; none: it has half of a character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


def _short(text: str) -> str:
    return repr(text if len(text) <= ID_BYTES_MAX else f"{text[:40]}...")
