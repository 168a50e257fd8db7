"""Transactions, as administrators see them: those of the ids, and those that partitions wait for.

The coordinator of a transactional id knows its transaction. The leader of a partition knows which
transactions are open there, by producer id alone. Both are compared to find a hanging one: open in
a partition, and known to no coordinator, so that readers of committed records wait there for ever.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from millrace.client._admin.administration import Administration
from millrace.client._cluster import wire
from millrace.client._cluster.arguments import checked_place
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.open_transactions import (
    OpenTransaction,
    abort_open_transaction,
    list_open_transactions,
)
from millrace.client._cluster.shared_transactions import ApplicationVersion, Participant
from millrace.core.coordinator.transactions.transaction import short_id
from millrace.core.errors import (
    InvalidRequestError,
    MillraceError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TopicPartition
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.proto.v1 import cluster_pb2
from millrace.proto.v1 import transactions_pb2 as pb

TransactionStateName = Literal[
    "empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort"
]
"""There was no transaction yet; one is open; decided, and not written everywhere; over."""
TransactionEndingName = Literal["producer", "timeout", "fenced", "operator"]
"""Who decided a transaction: its producer, its time-out, another producer of the id, a person."""

_STATES: Final[Mapping[pb.TransactionState, TransactionStateName]] = {
    pb.TRANSACTION_STATE_EMPTY: "empty",
    pb.TRANSACTION_STATE_ONGOING: "ongoing",
    pb.TRANSACTION_STATE_PREPARE_COMMIT: "prepare_commit",
    pb.TRANSACTION_STATE_PREPARE_ABORT: "prepare_abort",
    pb.TRANSACTION_STATE_COMPLETE_COMMIT: "complete_commit",
    pb.TRANSACTION_STATE_COMPLETE_ABORT: "complete_abort",
}
_STATE_NUMBERS: Final = {name: number for number, name in _STATES.items()}
_ENDINGS: Final[Mapping[int, TransactionEndingName | None]] = {
    pb.TRANSACTION_ENDING_UNSPECIFIED: None,
    pb.TRANSACTION_ENDING_PRODUCER: "producer",
    pb.TRANSACTION_ENDING_TIMEOUT: "timeout",
    pb.TRANSACTION_ENDING_FENCED: "fenced",
    pb.TRANSACTION_ENDING_OPERATOR: "operator",
}
_ENDINGS_OF_PRODUCERS: Final[Mapping[TransactionEndingName, str]] = {
    "producer": "its producer",
    "timeout": "its time-out",
    "fenced": "another producer that began with the id",
    "operator": "a person",
}
_ENDINGS_OF_RUNS: Final[Mapping[TransactionEndingName, str]] = {
    "producer": "its application",
    "timeout": "the end of its lease",
    "fenced": "another run that began with the id",
    "operator": "a person",
}
_UNDECIDED: Final[tuple[TransactionStateName, ...]] = (
    "ongoing",
    "prepare_commit",
    "prepare_abort",
)


@dataclass(slots=True, frozen=True)
class TransactionListing:
    """A transactional id in the list."""

    transactional_id: str
    state: TransactionStateName
    producer_id: int
    producer_epoch: int
    open_ms: int
    """How long its transaction has been open, or decided and not over; 0: none is."""
    is_shared: bool = False
    """Its transactions have participants, and `producer_id` is -1."""


@dataclass(slots=True, frozen=True)
class TransactionPart:
    """A partition or a group that takes part in a transaction."""

    name: str
    """Of the topic or group; empty: the topic is gone, unless it is hidden."""
    partition: int | None
    """None: it is a group."""
    is_owed: bool
    """The transaction is decided, and not written there yet."""
    problem: str
    """Why not."""
    is_hidden: bool = False
    """The caller may not describe the topic or group: neither its name nor its problem is told."""


@dataclass(slots=True, frozen=True)
class TransactionDescription:
    """A transactional id."""

    transactional_id: str
    state: TransactionStateName
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    open_ms: int
    """How long its transaction has been open, or decided and not over; 0: none is."""
    parts: tuple[TransactionPart, ...]
    """What takes part in the transaction."""
    ending: TransactionEndingName | None
    """Who decided the last transaction; None: no transaction is decided yet."""
    ended_committed: bool | None
    """Whether the last decided one was committed; None: none was decided."""
    ended_producer_id: int
    """With which the last decided one was written; -1: none was decided."""
    ended_producer_epoch: int
    is_shared: bool = False
    """Its transactions have participants. What follows is about those."""
    participants: tuple[Participant, ...] = ()
    """The producers that have joined the last transaction."""
    run_id: str = ""
    """Of the run of the application that may open transactions."""
    number: int = 0
    """Of the last transaction."""
    version: ApplicationVersion | None = None
    """The last one that was committed."""

    @property
    def last_end(self) -> str | None:
        """What became of the last decided transaction, and by whom, in words; None: none was."""
        if self.ended_committed is None:
            return None
        outcome = "committed" if self.ended_committed else "aborted"
        endings = _ENDINGS_OF_RUNS if self.is_shared else _ENDINGS_OF_PRODUCERS
        return f"{outcome} by {endings[self.ending] if self.ending else 'somebody'}"


@dataclass(slots=True, frozen=True)
class HangingTransaction:
    """A transaction that is open in a partition, and known to no coordinator."""

    topic: str
    partition: int
    transaction: OpenTransaction


class TransactionAdministration(Administration):
    """The part of `Admin` that is about transactions."""

    _transaction_coordinators: Coordinators
    """Apart from those of groups: an id and a group may have the same name."""

    async def list_transactions(
        self,
        states: Collection[TransactionStateName] = (),
        *,
        producer_id: int | None = None,
    ) -> list[TransactionListing]:
        """Return transactional ids and their states, by id.

            await admin.list_transactions(["ongoing"])

        Args:
            states: only those; empty: all.
            producer_id: only the id of this producer.

        Raises:
            InvalidRequestError: there is no such state.
        """
        return (await self._list_all_transactions(states, producer_id))[0]

    async def _list_all_transactions(
        self,
        states: Collection[TransactionStateName],
        producer_id: int | None = None,
        *,
        none_hidden: bool = False,
    ) -> tuple[list[TransactionListing], int]:
        """Return ids, and how many parts there are; 0: a broker has heard of no transactions.

        Raises:
            TransactionalIdAuthorizationFailedError: with `none_hidden`, the caller may not see all.
        """
        request = pb.ListTransactionsRequest(producer_id=producer_id, none_hidden=none_hidden)
        for state in states:
            if state not in _STATE_NUMBERS:
                raise InvalidRequestError(
                    f"there is no state {state!r}: choose of {', '.join(_STATE_NUMBERS)}"
                )
            request.states.append(_STATE_NUMBERS[state])
        listings, parts = await self._list_transactions_of(0, request)
        for part in range(1, parts):
            listings += (await self._list_transactions_of(part, request))[0]
        return sorted(listings, key=lambda listing: listing.transactional_id), parts

    async def _list_transactions_of(
        self, part: int, wanted: pb.ListTransactionsRequest
    ) -> tuple[list[TransactionListing], int]:
        """Return the ids of one part, and how many parts there are."""
        request = pb.ListTransactionsRequest(partition=part)
        request.MergeFrom(wanted)
        listings: list[TransactionListing] = []
        while True:
            answer: pb.ListTransactionsResponse = await self._transaction_coordinators.ask(
                part, lambda connection: connection.transactions.ListTransactions(request)
            )
            listings += [
                TransactionListing(
                    short_id(found.transactional_id),
                    _STATES.get(found.state, "empty"),
                    found.producer_id,
                    found.producer_epoch,
                    found.open_ms,
                    found.is_shared,
                )
                for found in answer.transactions
            ]
            if not answer.has_more:
                return listings, wire.parts_of(answer.partitions)
            ids = [found.transactional_id for found in answer.transactions]
            request.after = wire.last_of(ids, request.after)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """Return what the coordinator knows of a transactional id; None: nothing.

        Raises:
            InvalidTransactionalIdError: that is no such id.
        """
        request = pb.DescribeTransactionRequest(transactional_id=transactional_id)
        try:
            answer: pb.DescribeTransactionResponse = await self._transaction_coordinators.ask(
                transactional_id,
                lambda connection: connection.transactions.DescribeTransaction(request),
            )
        except TransactionalIdNotFoundError:
            return None
        partitions = [
            TransactionPart(
                part.topic and str(parse_topic_name(part.topic)),
                part.topic_partition.partition,
                part.is_owed,
                part.problem,
                part.is_hidden,
            )
            for part in answer.partitions
        ]
        groups = [
            TransactionPart(part.group, None, part.is_owed, part.problem, part.is_hidden)
            for part in answer.groups
        ]
        return TransactionDescription(
            transactional_id=short_id(transactional_id),
            state=_STATES.get(answer.state, "empty"),
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
            timeout_ms=answer.timeout_ms,
            open_ms=answer.open_ms,
            parts=(*partitions, *groups),
            ending=_ENDINGS.get(answer.ending),
            ended_committed=answer.ended_committed if answer.ending else None,
            ended_producer_id=answer.ended_producer_id,
            ended_producer_epoch=answer.ended_producer_epoch,
            is_shared=answer.HasField("shared"),
            participants=tuple(
                Participant(said.producer_id, said.producer_epoch)
                for said in answer.shared.participants
            ),
            run_id=answer.shared.run_id,
            number=answer.shared.number,
            version=_version(answer.shared),
        )

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of an id; its producer is told at its next request.

        Raises:
            TransactionalIdNotFoundError: nothing is known of the id.
            InvalidTransactionStateError: no transaction of it is open.
        """
        request = pb.AbortTransactionRequest(transactional_id=transactional_id)
        await self._transaction_coordinators.ask(
            transactional_id, lambda connection: connection.transactions.AbortTransaction(request)
        )

    async def list_open_transactions(
        self, partitions: Iterable[PartitionName]
    ) -> dict[PartitionName, list[OpenTransaction] | MillraceError]:
        """Return the open transactions of partitions, the oldest first, as their leaders know them.

        At most 1,000 of each.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        places = await self._places(partitions)
        found, refused = await self._open_in(places.values())
        return {
            name: found[place] if place in found else refused[place]
            for name, place in places.items()
        }

    async def _open_in(
        self, places: Iterable[TopicPartition]
    ) -> tuple[dict[TopicPartition, list[OpenTransaction]], dict[TopicPartition, MillraceError]]:
        refused: dict[TopicPartition, MillraceError] = {}
        wanted = dict.fromkeys(places)
        return await list_open_transactions(self._cluster, wanted, refused), refused

    async def find_hanging_transactions(
        self, topics: Collection[str] | None = None
    ) -> list[HangingTransaction]:
        """Return the transactions that are open in partitions, and known to no coordinator.

        Readers of committed records wait for them for ever: end them with
        `abort_open_transaction`. Partitions whose leader cannot be asked are left out.

        Args:
            topics: where to look; None: in all topics.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic, or a broker has not heard yet that
                there are transactions.
            TransactionalIdAuthorizationFailedError: the caller may not see all transactional ids:
                one that it does not see would look like one that hangs.
        """
        names = await self._partitions_of(topics)
        found, _ = await self._open_in(names)
        suspects = {place: transactions for place, transactions in found.items() if transactions}
        if not suspects:
            return []
        known = await self._undecided()
        found_open = [it for transactions in suspects.values() for it in transactions]
        for producer_id in {
            it.producer_id for it in found_open if (it.producer_id, it.producer_epoch) not in known
        }:
            owed = await self._owed_epochs(producer_id)
            known.update((producer_id, epoch) for epoch in owed)
        # One that has ended since is open no more.
        still_open, _ = await self._open_in(suspects)
        return [
            HangingTransaction(*names[place], transaction)
            for place, transactions in suspects.items()
            for transaction in transactions
            if (transaction.producer_id, transaction.producer_epoch) not in known
            and _is_among(transaction, still_open.get(place, ()))
        ]

    async def _undecided(self) -> set[tuple[int, int]]:
        """Return the transactions that coordinators will end: the ids and epochs of their batches.

        One that is decided may have another id by now.

        Raises:
            UnknownTopicOrPartitionError: a broker has not heard yet that there are transactions.
        """
        known: set[tuple[int, int]] = set()
        listings, parts = await self._list_all_transactions(_UNDECIDED, none_hidden=True)
        if not parts:
            raise UnknownTopicOrPartitionError(
                "transactions are open, and the broker that was asked has not heard of their "
                "coordinators yet: try again"
            )
        for listing in listings:
            known.add((listing.producer_id, listing.producer_epoch))
            if listing.state != "ongoing" or listing.is_shared:
                described = await self.describe_transaction(listing.transactional_id)
                if described is not None:
                    known.add((described.ended_producer_id, described.ended_producer_epoch))
                    known.update(
                        (participant.producer_id, participant.producer_epoch)
                        for participant in described.participants
                    )
        return known

    async def _owed_epochs(self, producer_id: int) -> set[int]:
        """Return a producer's transactions whose end is owed to topics that were deleted (T8).

        Of a topic that was just brought back they look like hanging ones.
        """
        epochs: set[int] = set()
        request = pb.ListTransactionsRequest(producer_id=producer_id)
        while True:
            answer: pb.ListTransactionsResponse = await self._transaction_coordinators.ask(
                request.partition,
                lambda connection: connection.transactions.ListTransactions(request),
            )
            epochs.update(answer.owed_epochs)
            request.partition += 1
            if request.partition >= answer.partitions:
                return epochs

    async def _partitions_of(
        self, topics: Collection[str] | None
    ) -> dict[TopicPartition, PartitionName]:
        """Return the partitions of topics, with their names; None: of all topics."""
        if topics is None:
            response = await self._cluster.look_up(cluster_pb2.GetMetadataRequest(none_hidden=True))
            topics = [
                topic.name
                for topic in response.topics
                if not topic.internal and not topic.error.code
            ]
        names = sorted({str(parse_topic_name(topic)) for topic in topics})
        await self._cluster.refresh(names)
        places: dict[TopicPartition, PartitionName] = {}
        for name in names:
            info = await self._cluster.topic(name)
            for partition in info.partitions:
                places[info.place(partition.partition)] = name, partition.partition
        return places

    async def abort_open_transaction(
        self, partition: PartitionName, producer_id: int, first_offset: int
    ) -> None:
        """End an open transaction in one partition that no coordinator knows.

        Its records there do not count. `find_hanging_transactions` tells which are hanging. One
        that a coordinator knows could be committed elsewhere: the leader asks all of them first.

        Args:
            partition: topic and number.
            producer_id: of the transaction.
            first_offset: of the transaction in this partition.

        Raises:
            TransactionalIdNotFoundError: no such transaction is open there.
            InvalidTransactionStateError: it does not hang: its coordinator will end it.
            CoordinatorLoadInProgressError: a coordinator cannot be asked.
            UnsupportedFeatureError: a coordinator is of an earlier release.
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        place = await self._place(*checked_place(partition))
        await abort_open_transaction(self._cluster, place, producer_id, first_offset)


def _is_among(transaction: OpenTransaction, others: Iterable[OpenTransaction]) -> bool:
    which = (transaction.producer_id, transaction.first_offset)
    return any((other.producer_id, other.first_offset) == which for other in others)


def _version(shared: pb.SharedTransaction) -> ApplicationVersion | None:
    if not shared.HasField("done"):
        return None
    done = shared.done
    return ApplicationVersion(done.number, done.query_id, done.checkpoint)
