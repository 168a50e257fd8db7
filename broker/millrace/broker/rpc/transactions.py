"""The Transactions service, at the leader of the id's partition, and what belongs to it elsewhere.

`Produce.InitProducerId` with a transactional id comes here (`begin`), and so does
`Replica.JoinTransaction`, by which leaders take partitions into a transaction. The open
transactions of a partition are those that its leader knows, whatever their coordinators say: one of
which no coordinator knows any more holds readers of committed records up for ever, and a person
ends it (P54); what a coordinator knows, it ends (T8).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from millrace.broker.coordinator.transaction_finder import TransactionFinder
from millrace.broker.coordinator.transactions import Described, Transactions
from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.guard.demands import Demands, cluster, each, whole
from millrace.broker.replica.partitions import Partitions
from millrace.broker.rpc.audit import AuditLine
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.broker.rpc.markers import write_markers
from millrace.broker.rpc.name_partitions import NamePartitions
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_partition
from millrace.broker.rpc.resources import TopicResources, topic_resource, transaction
from millrace.core.callers import Caller
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions.records import IdRecord
from millrace.core.coordinator.transactions.transaction import (
    Ending,
    Producer,
    Shared,
    State,
    Transaction,
    full_id,
)
from millrace.core.errors import (
    MalformedRequestError,
    MillraceError,
    TransactionalIdNotFoundError,
    UnsupportedFeatureError,
)
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.markers import BUMPING, NOT_BUMPING
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import produce_pb2
from millrace.proto.v1 import transactions_pb2 as pb
from millrace.proto.v1.common_pb2 import TopicPartition as WirePartition

TRANSACT: Final = whole(Operation.TRANSACT, ResourceKind.TRANSACTIONS, transaction)
ALTER: Final = whole(Operation.ALTER, ResourceKind.TRANSACTIONS, transaction)
AT_ONCE: Final = 1000
"""Transactional ids, or open transactions, in one answer."""

_STATES: Final = {
    State.EMPTY: pb.TRANSACTION_STATE_EMPTY,
    State.ONGOING: pb.TRANSACTION_STATE_ONGOING,
    State.PREPARE_COMMIT: pb.TRANSACTION_STATE_PREPARE_COMMIT,
    State.PREPARE_ABORT: pb.TRANSACTION_STATE_PREPARE_ABORT,
    State.COMPLETE_COMMIT: pb.TRANSACTION_STATE_COMPLETE_COMMIT,
    State.COMPLETE_ABORT: pb.TRANSACTION_STATE_COMPLETE_ABORT,
}
_ENDINGS: Final = {
    Ending.PRODUCER: pb.TRANSACTION_ENDING_PRODUCER,
    Ending.TIMEOUT: pb.TRANSACTION_ENDING_TIMEOUT,
    Ending.FENCED: pb.TRANSACTION_ENDING_FENCED,
    Ending.OPERATOR: pb.TRANSACTION_ENDING_OPERATOR,
    Ending.RESTART: pb.TRANSACTION_ENDING_PRODUCER,
}


def demands(topics: TopicResources) -> dict[str, Demands]:
    """Return what each call demands; `topics` finds those that requests name."""
    return {
        "EndTransaction": TRANSACT,
        "ListTransactions": each(Operation.DESCRIBE, ResourceKind.TRANSACTIONS),
        "DescribeTransaction": whole(Operation.DESCRIBE, ResourceKind.TRANSACTIONS, transaction),
        "AbortTransaction": ALTER,
        "ListOpenTransactions": whole(
            Operation.DESCRIBE,
            ResourceKind.TOPICS,
            lambda request: topics.of_partitions([request]),
        ),
        "AbortOpenTransaction": cluster(Operation.ADMINISTER),
    }


class TransactionsService:
    """Serves `millrace.proto.v1.Transactions`.

    Args:
        transactions: that this broker coordinates.
        names: find the partition of an id.
        partitions: of this broker.
        finder: asks other coordinators.
        calls: of the listener.
    """

    NAME = pb.DESCRIPTOR.services_by_name["Transactions"].full_name

    def __init__(
        self,
        *,
        transactions: Transactions,
        names: NamePartitions,
        partitions: Partitions,
        finder: TransactionFinder,
        calls: Calls,
    ) -> None:
        self._transactions = transactions
        self._finder = finder
        self._names = names
        self._partitions = partitions
        self._calls = calls
        self._listener = calls.listener
        self._topics = TopicResources(lambda: partitions.image)

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        demanded = demands(self._topics)
        return self._calls.methods(
            self.NAME,
            unary={
                "EndTransaction": (self._end, pb.EndTransactionRequest, demanded["EndTransaction"]),
                "ListTransactions": (
                    self._list,
                    pb.ListTransactionsRequest,
                    demanded["ListTransactions"],
                ),
                "DescribeTransaction": (
                    self._describe,
                    pb.DescribeTransactionRequest,
                    demanded["DescribeTransaction"],
                ),
                "AbortTransaction": (
                    self._abort,
                    pb.AbortTransactionRequest,
                    demanded["AbortTransaction"],
                ),
                "ListOpenTransactions": (
                    self._list_open,
                    pb.ListOpenTransactionsRequest,
                    demanded["ListOpenTransactions"],
                ),
                "AbortOpenTransaction": (
                    self._abort_open,
                    pb.AbortOpenTransactionRequest,
                    demanded["AbortOpenTransaction"],
                ),
            },
        )

    async def begin(
        self, request: produce_pb2.InitProducerIdRequest, caller: Caller
    ) -> produce_pb2.InitProducerIdResponse:
        """Answer `InitProducerId` with a transactional id."""
        name = request.transactional_id
        expected = None
        if request.HasField("producer_id"):
            expected = _producer(request.producer_id, request.producer_epoch)
        try:
            name = full_id(name)
            place = await self._names.find_or_make(name, caller)
            begun = await self._transactions.begin(
                place, name, request.transaction_timeout_ms, expected, caller
            )
        except MillraceError as error:
            return produce_pb2.InitProducerIdResponse(error=self._names.error(name, error))
        return produce_pb2.InitProducerIdResponse(
            producer_id=begun.producer_id, producer_epoch=begun.epoch
        )

    async def _end(
        self, request: pb.EndTransactionRequest, caller: Caller
    ) -> pb.EndTransactionResponse:
        name = request.transactional_id
        try:
            name = full_id(name)
            place = self._names.place_of_known(name)
            following = await self._transactions.end(
                place,
                name,
                _producer(request.producer_id, request.producer_epoch),
                caller,
                is_commit=request.committed,
            )
        except MillraceError as error:
            return pb.EndTransactionResponse(error=self._names.error(name, error))
        return pb.EndTransactionResponse(
            producer_id=following.producer_id, producer_epoch=following.epoch
        )

    # --- What there is -----------------------------------------------------------------------

    async def _list(
        self, request: pb.ListTransactionsRequest, caller: GuardedCaller
    ) -> pb.ListTransactionsResponse:
        topic = self._names.topic()
        if topic is None:
            return pb.ListTransactionsResponse()
        partitions = len(topic.partitions)
        place = TopicPartition(topic.topic_id, request.partition)
        producer_id = ProducerId(request.producer_id) if request.HasField("producer_id") else None
        try:
            states = _states(request.states)
            if request.partition >= partitions:
                raise MalformedRequestError(
                    f"the ids are in the parts 0 to {partitions - 1}, not in {request.partition}"
                )
            after = request.after
            while True:
                found = await self._transactions.ids_after(
                    place, after, AT_ONCE + 1, states=states, producer_id=producer_id
                )
                page, has_more = found[:AT_ONCE], len(found) > AT_ONCE
                seen = await caller.seen(
                    Operation.DESCRIBE,
                    page,
                    lambda record: named(ResourceKind.TRANSACTIONS, record.transactional_id),
                    none_hidden=request.none_hidden,
                )
                if seen or not has_more:  # Clients go on behind the last one of a page.
                    break
                after = page[-1].transactional_id
            owed = (
                []
                if producer_id is None
                else await self._transactions.owed_epochs(place, producer_id)
            )
        except MillraceError as error:
            wire = wire_error(self._partitions, error, place, self._listener)
            return pb.ListTransactionsResponse(error=wire, partitions=partitions)
        now = self._transactions.now()
        return pb.ListTransactionsResponse(
            transactions=[_listed(record, now) for record in seen],
            has_more=has_more,
            partitions=partitions,
            owed_epochs=owed,
        )

    async def _describe(
        self, request: pb.DescribeTransactionRequest, caller: GuardedCaller
    ) -> pb.DescribeTransactionResponse:
        name = request.transactional_id
        try:
            name = full_id(name)
            place = self._place_of_asked(name)
            described = await self._transactions.describe(place, name)
        except MillraceError as error:
            return pb.DescribeTransactionResponse(error=self._names.error(name, error))
        return await self._described(described, caller)

    def _place_of_asked(self, name: str) -> TopicPartition:
        """Return the partition of an id, which a person may have misspelt.

        Raises:
            TransactionalIdNotFoundError: there are no transactional ids in the cluster.
            CoordinatorLoadInProgressError: this broker does not know its metadata yet.
        """
        if self._partitions.image is not None and self._names.topic() is None:
            raise TransactionalIdNotFoundError(
                f"nothing is known of the transactional id {name!r}: no transaction was ever begun "
                "here"
            )
        return self._names.place_of_known(name)

    async def _described(
        self, described: Described, caller: GuardedCaller
    ) -> pb.DescribeTransactionResponse:
        record = described.record
        transaction = record.transaction
        assert transaction is not None
        ended = transaction.ended
        partitions = await self._described_partitions(described.partitions, caller)
        groups = await _described_groups(described.groups, caller)
        response = pb.DescribeTransactionResponse(
            state=_STATES[transaction.state],
            producer_id=transaction.producer.producer_id,
            producer_epoch=transaction.producer.epoch,
            timeout_ms=transaction.timeout_ms,
            open_ms=_open_ms(record, transaction, described.now),
            partitions=partitions,
            groups=groups,
            ended_producer_id=NO_PRODUCER_ID,
            ended_producer_epoch=NO_PRODUCER_EPOCH,
        )
        if ended is not None:
            response.ending = _ENDINGS[ended.ending]
            response.ended_producer_id, response.ended_producer_epoch = ended.writer
            response.ended_committed = ended.is_commit
        if transaction.shared is not None:
            response.shared.CopyFrom(_shared(transaction.shared, described.participants))
        return response

    async def _described_partitions(
        self, partitions: Mapping[TopicPartition, str | None], caller: GuardedCaller
    ) -> list[pb.TransactionPartition]:
        image = self._partitions.image
        known = {} if image is None else image.topics_by_id
        names = {
            topic_id: known[topic_id].name
            for topic_id in dict.fromkeys(place.topic_id for place in partitions)
            if topic_id in known
        }
        seen = set(await caller.seen(Operation.DESCRIBE, names.values(), topic_resource))
        described = []
        for place, problem in partitions.items():
            name = names.get(place.topic_id)
            is_hidden = name is not None and name not in seen
            described.append(
                pb.TransactionPartition(
                    topic_partition=WirePartition(
                        topic_id=place.topic_id, partition=place.partition
                    ),
                    topic="" if name is None or is_hidden else str(name),
                    is_owed=problem is not None,
                    problem="" if problem is None or is_hidden else problem,
                    is_hidden=is_hidden,
                )
            )
        return described

    # --- For a person ------------------------------------------------------------------------

    async def _abort(
        self, request: pb.AbortTransactionRequest, caller: Caller
    ) -> pb.AbortTransactionResponse:
        name = request.transactional_id
        line = AuditLine(self._calls.audit, caller, "abort_transaction")
        line.name([name])
        try:
            name = full_id(name)
            place = self._place_of_asked(name)
            await self._transactions.abort(place, name)
        except MillraceError as error:
            line.on_answered([error])
            return pb.AbortTransactionResponse(error=self._names.error(name, error))
        line.on_answered([None])
        return pb.AbortTransactionResponse()

    async def _list_open(
        self, request: pb.ListOpenTransactionsRequest, _: Caller
    ) -> pb.ListOpenTransactionsResponse:
        named = request.topic_partition
        place = checked_topic_partition(named.topic_id, named.partition)
        try:
            leader = self._partitions.get(place).leader
            last_stable_offset = leader.last_stable_offset
        except MillraceError as error:
            wire = wire_error(self._partitions, error, place, self._listener)
            return pb.ListOpenTransactionsResponse(error=wire)
        return pb.ListOpenTransactionsResponse(
            transactions=[
                pb.OpenTransaction(
                    producer_id=producer_id,
                    producer_epoch=entry.epoch,
                    first_offset=entry.first_offset,
                    began_at=entry.began_at,
                )
                for producer_id, entry in leader.producers.open_entries()[:AT_ONCE]
            ],
            last_stable_offset=last_stable_offset,
        )

    async def _abort_open(
        self, request: pb.AbortOpenTransactionRequest, caller: Caller
    ) -> pb.AbortOpenTransactionResponse:
        named, producer_id = request.topic_partition, ProducerId(request.producer_id)
        place = checked_topic_partition(named.topic_id, named.partition)
        line = AuditLine(self._calls.audit, caller, "abort_open_transaction")
        line.name([f"{self._partitions.named(place)}: producer {producer_id}"])
        try:
            partition, first_offset = self._partitions.get(place), Offset(request.first_offset)
            epoch = partition.leader.open_epoch(producer_id, first_offset)
            await self._finder.check_hanging(place, Producer(producer_id, epoch))
            marker = partition.leader.abort_marker(producer_id, first_offset)
            (refusal,) = await write_markers(partition, [marker])
            if refusal is not None:
                raise refusal
        except MillraceError as error:
            line.on_answered([error])
            wire = wire_error(self._partitions, error, place, self._listener, is_write=True)
            return pb.AbortOpenTransactionResponse(error=wire)
        line.on_answered([None])
        return pb.AbortOpenTransactionResponse()


class JoinAnswers:
    """Answers `Replica.JoinTransaction` and `FindTransaction`.

    Leaders of partitions ask, and coordinators of groups.

    Args:
        transactions: that this broker coordinates.
        names: find the partition of an id.
    """

    def __init__(self, transactions: Transactions, names: NamePartitions) -> None:
        self._transactions = transactions
        self._names = names

    async def join(
        self, request: pb.JoinTransactionRequest, _: object = None
    ) -> pb.JoinTransactionResponse:
        """Take partitions and groups into a transaction; answer once that is committed."""
        name = request.transactional_id
        try:
            name = full_id(name)
            place = self._names.place_of_known(name)
            protocol = request.version or BUMPING
            if protocol not in (BUMPING, NOT_BUMPING):
                raise UnsupportedFeatureError(
                    f"version {protocol} of transactions is from a later release"
                )
            epoch = await self._transactions.join(
                place,
                name,
                _producer(request.producer_id, request.producer_epoch),
                [
                    checked_topic_partition(named.topic_id, named.partition)
                    for named in request.partitions
                ],
                list(request.groups),
                protocol=protocol,
                only_verified=protocol == NOT_BUMPING,
            )
        except MillraceError as error:
            return pb.JoinTransactionResponse(error=self._names.error(name, error))
        return pb.JoinTransactionResponse(coordinator_epoch=epoch)

    async def find(
        self, request: pb.FindTransactionRequest, _: object = None
    ) -> pb.FindTransactionResponse:
        """Return whether a transaction that is open in a partition will be ended from here."""
        named = request.topic_partition
        try:
            part = self._names.part(request.part)
            place = checked_topic_partition(named.topic_id, named.partition)
            writer = _producer(request.producer_id, request.producer_epoch)
            found = await self._transactions.ask(
                part, lambda machine: Result([], machine.find_writer(place, writer))
            )
        except MillraceError as error:
            return pb.FindTransactionResponse(error=error_to_wire(error))
        return pb.FindTransactionResponse(transactional_id=found or "")


def _producer(producer_id: int, epoch: int) -> Producer:
    return Producer(ProducerId(producer_id), ProducerEpoch(epoch))


def _states(asked: Collection[int]) -> list[State]:
    try:
        return [State(state) for state in asked]
    except ValueError as error:
        raise MalformedRequestError(f"there is no such state of a transaction: {error}") from error


async def _described_groups(
    groups: Mapping[str, str | None], caller: GuardedCaller
) -> list[pb.TransactionGroup]:
    seen = set(
        await caller.seen(
            Operation.DESCRIBE, groups, lambda group: named(ResourceKind.GROUPS, group)
        )
    )
    return [
        pb.TransactionGroup(
            group=group if group in seen else "",
            is_owed=problem is not None,
            problem=problem if problem and group in seen else "",
            is_hidden=group not in seen,
        )
        for group, problem in groups.items()
    ]


def _listed(record: IdRecord, now: WallMs) -> pb.ListedTransaction:
    transaction = record.transaction
    assert transaction is not None
    return pb.ListedTransaction(
        transactional_id=record.transactional_id,
        producer_id=transaction.producer.producer_id,
        producer_epoch=transaction.producer.epoch,
        state=_STATES[transaction.state],
        open_ms=_open_ms(record, transaction, now),
        is_shared=transaction.shared is not None,
    )


def _shared(shared: Shared, participants: Sequence[Producer]) -> pb.SharedTransaction:
    done = shared.done
    return pb.SharedTransaction(
        generation=shared.generation,
        run_id=shared.run_id,
        number=shared.number,
        done=None
        if done is None
        else pb.ApplicationVersion(
            number=done.number, query_id=done.origin.query_id, checkpoint=done.origin.checkpoint
        ),
        participants=[
            pb.SharedParticipant(producer_id=producer.producer_id, producer_epoch=producer.epoch)
            for producer in participants
        ],
    )


def _open_ms(record: IdRecord, transaction: Transaction, now: WallMs) -> int:
    """Return how long a transaction has been open, or decided and not over; 0: none is."""
    if transaction.state is State.ONGOING:
        return max(1, now - transaction.began_at)
    return max(1, now - record.timestamp) if transaction.state.is_prepared else 0
