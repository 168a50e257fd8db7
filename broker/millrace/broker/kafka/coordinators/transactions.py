"""Transactions of Kafka's clients, by the protocol before KIP-890's second part (T14).

The client takes partitions and groups into its transaction by requests to the coordinator
(AddPartitionsToTxn, AddOffsetsToTxn), and the leader of each partition asks the coordinator whether
it has, before it appends the first batch (KIP-890's first part). An end leaves the producer its
epoch. So a batch that is late by a whole transaction, and whose partition is in the next one too,
is not told from a batch of that one: Millrace's own clients, whose epoch rises at each end, promise
more. No feature `transaction.version` is listed, by which newer clients would use the protocol with
such epochs.

What begins, is described and listed goes through Millrace's own services. The rest has no service
there, as Millrace's clients take in nothing by themselves.

Source: KIP-98, KIP-360, KIP-447, KIP-588 (errors of fenced producers), KIP-664, KIP-890.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import DescribeTransactionsResponse, ListTransactionsResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
)

from millrace.broker.kafka.coordinators.coordination import GroupNames, coordinator_code
from millrace.broker.kafka.known_topics import has_partition
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.operations import check
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code
from millrace.broker.rpc.name_partitions import TRANSACTIONS, NamePartitions
from millrace.core.coordinator.transactions.config import REQUEST_PARTITIONS_MAX
from millrace.core.coordinator.transactions.transaction import Producer, full_id
from millrace.core.errors import (
    CoordinatorLoadInProgressError,
    InvalidTransactionTimeoutError,
    MillraceError,
)
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from millrace.core.records.markers import NOT_BUMPING
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import produce_pb2
from millrace.proto.v1 import transactions_pb2 as pb
from millrace.runtime.clock import wall_now

_FIRST_WITH_FENCED: Final = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""The version from which on clients know PRODUCER_FENCED; before, an epoch is invalid."""
_FIRST_WITH_DURATION: Final = 1
_ELSEWHERE: Final = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
"""With these, clients look up the coordinator of their id."""

_STATES: Final = {
    pb.TRANSACTION_STATE_EMPTY: "Empty",
    pb.TRANSACTION_STATE_ONGOING: "Ongoing",
    pb.TRANSACTION_STATE_PREPARE_COMMIT: "PrepareCommit",
    pb.TRANSACTION_STATE_PREPARE_ABORT: "PrepareAbort",
    pb.TRANSACTION_STATE_COMPLETE_COMMIT: "CompleteCommit",
    pb.TRANSACTION_STATE_COMPLETE_ABORT: "CompleteAbort",
}
"""As Kafka calls them."""


class TransactionRequests:
    """Answers the requests about transactions, and InitProducerId.

    Args:
        parts: of the listener.
    """

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._groups = GroupNames(parts)
        broker = parts.broker
        self._transactions = broker.transactions
        self._ids = NamePartitions(
            broker.partitions, broker.channel, parts.calls.listener, TRANSACTIONS
        )

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.INIT_PRODUCER_ID: Served(range(6), self._begin),
            ApiKey.ADD_PARTITIONS_TO_TXN: Served(range(4), self._add_partitions),
            ApiKey.ADD_OFFSETS_TO_TXN: Served(range(5), self._add_group),
            ApiKey.END_TXN: Served(range(5), self._end),
            ApiKey.DESCRIBE_TRANSACTIONS: Served(range(1), self._describe),
            ApiKey.LIST_TRANSACTIONS: Served(range(2), self._list),
        }

    # --- A producer ----------------------------------------------------------------------------

    async def _begin(self, request: Request) -> Any:
        message = request.message
        asked = produce_pb2.InitProducerIdRequest()
        code, producer_id, epoch = NO_ERROR, -1, -1
        try:
            if message.transactional_id is not None:
                asked.transactional_id = _full(self._parts.names, message.transactional_id)
                if message.transaction_timeout_ms <= 0:
                    raise InvalidTransactionTimeoutError(
                        f"a time-out of {message.transaction_timeout_ms} ms: choose a longer one"
                    )
                asked.transaction_timeout_ms = message.transaction_timeout_ms
                if message.producer_id != NO_PRODUCER_ID:
                    asked.producer_id = message.producer_id
                    asked.producer_epoch = message.producer_epoch
            found = await self._parts.local.call("InitProducerId", asked, request.caller)
            if found.error.code:
                raise error_from_wire(found.error)
            producer_id, epoch = found.producer_id, found.producer_epoch
        except MillraceError as error:
            code = _code(request, error)
            if message.transactional_id is None and code in _ELSEWHERE:
                # Nothing coordinates a producer without an id: it is to ask this broker again.
                code = Code.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(
            version=request.version, error_code=code, producer_id=producer_id, producer_epoch=epoch
        )

    # --- Its transaction -----------------------------------------------------------------------

    async def _add_partitions(self, request: Request) -> Any:
        message = request.message
        asked = [
            (topic.name, number)
            for topic in message.v3_and_below_topics
            for number in topic.partitions
        ]
        try:
            name = await self._may_write(message.v3_and_below_transactional_id, request)
            codes, places = await self._places(asked, request)
            if not codes:
                producer = _producer(
                    message.v3_and_below_producer_id, message.v3_and_below_producer_epoch
                )
                for at in range(0, len(places), REQUEST_PARTITIONS_MAX):
                    await self._join(name, producer, places[at : at + REQUEST_PARTITIONS_MAX], [])
            code: int = Code.OPERATION_NOT_ATTEMPTED if codes else NO_ERROR
        except MillraceError as error:
            code, codes = _code(request, error), {}
        kind = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        return AddPartitionsToTxnResponse(
            version=request.version,
            results_by_topic_v3_and_below=[
                kind(
                    name=topic.name,
                    results_by_partition=[
                        kind.AddPartitionsToTxnPartitionResult(
                            partition_index=number,
                            partition_error_code=codes.get((topic.name, number), code),
                        )
                        for number in topic.partitions
                    ],
                )
                for topic in message.v3_and_below_topics
            ],
        )

    async def _places(
        self, asked: Sequence[tuple[str, int]], request: Request
    ) -> tuple[dict[tuple[str, int], int], list[TopicPartition]]:
        """Return what is wrong with partitions, and those where nothing is.

        One that is wrong refuses all: so none is in the transaction that its producer does not know
        to be there.
        """
        names = (name for name, _ in asked)
        topics = await self._parts.topics.found(
            names,
            Operation.PRODUCE,
            request.caller,
            undecided=Code.COORDINATOR_LOAD_IN_PROGRESS,
        )
        codes: dict[tuple[str, int], int] = {}
        found: dict[TopicPartition, None] = {}
        for name, number in asked:
            topic = topics[name]
            if isinstance(topic, int):
                codes[name, number] = topic
            elif not has_partition(topic, number):
                codes[name, number] = Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                found[TopicPartition(topic.topic_id, number)] = None
        return codes, [*found]

    async def _add_group(self, request: Request) -> Any:
        message = request.message
        code: int = NO_ERROR
        try:
            name = await self._may_write(message.transactional_id, request)
            group = await self._groups.full(message.group_id, Operation.CONSUME, request)
            producer = _producer(message.producer_id, message.producer_epoch)
            await self._join(name, producer, [], [group])
        except MillraceError as error:
            code = _code(request, error)
        return AddOffsetsToTxnResponse(version=request.version, error_code=code)

    async def _join(
        self,
        name: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        groups: Sequence[str],
    ) -> None:
        await self._transactions.join(
            self._ids.place_of_known(name),
            name,
            producer,
            partitions,
            groups,
            protocol=NOT_BUMPING,
        )

    async def _end(self, request: Request) -> Any:
        message = request.message
        code: int = NO_ERROR
        try:
            name = await self._may_write(message.transactional_id, request)
            await self._transactions.end(
                self._ids.place_of_known(name),
                name,
                _producer(message.producer_id, message.producer_epoch),
                request.caller,
                is_commit=message.committed,
                protocol=NOT_BUMPING,
            )
        except MillraceError as error:
            code = _code(request, error)
        return EndTxnResponse(version=request.version, error_code=code)

    async def _may_write(self, transactional_id: str, request: Request) -> str:
        return await writable_id(self._parts, transactional_id, request)

    # --- What there is -------------------------------------------------------------------------

    async def _describe(self, request: Request) -> Any:
        # Each once, however often it is named: an answer is much longer than a name.
        states = []
        work = self._parts.broker.turns.work()
        for each in dict.fromkeys(request.message.transactional_ids):
            await work.give_way()
            states.append(await self._described(each, request))
        return DescribeTransactionsResponse(version=request.version, transaction_states=states)

    async def _described(self, transactional_id: str, request: Request) -> Any:
        kind = DescribeTransactionsResponse.TransactionState
        try:
            asked = pb.DescribeTransactionRequest(
                transactional_id=_full(self._parts.names, transactional_id)
            )
            found = await self._parts.local.call("DescribeTransaction", asked, request.caller)
            if found.error.code:
                raise error_from_wire(found.error)
        except MillraceError as error:
            return kind(
                error_code=_code(request, error),
                transactional_id=transactional_id,
                transaction_state="",
                topics=[],
            )
        partitions: dict[str, list[int]] = {}
        for there in found.partitions:
            topic = self._parts.names.known(there.topic)
            if topic:
                partitions.setdefault(topic, []).append(there.topic_partition.partition)
        is_open = found.state == pb.TRANSACTION_STATE_ONGOING
        return kind(
            error_code=NO_ERROR,
            transactional_id=transactional_id,
            transaction_state=_STATES[found.state],
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=wall_now() - found.open_ms if is_open else -1,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=[
                kind.TopicData(topic=topic, partitions=sorted(numbers))
                for topic, numbers in sorted(partitions.items())
            ],
        )

    async def _list(self, request: Request) -> Any:
        """Answer with the ids that this broker coordinates: clients ask each broker."""
        message = request.message
        known = {name: state for state, name in _STATES.items()}
        asked = message.state_filters or []
        states = [known[name] for name in asked if name in known]
        producer_ids = set(message.producer_id_filters or ())
        open_ms_min = -1
        if request.version >= _FIRST_WITH_DURATION:
            open_ms_min = message.duration_filter
        listed: list[Any] = []
        code: int = NO_ERROR
        try:
            if self._transactions.runtime.unready():
                raise CoordinatorLoadInProgressError(
                    "transactions are loaded here: try again shortly"
                )
            for place, _ in list(self._transactions.runtime.machines()):
                if asked and not states:
                    break
                for found in await self._listed(place, states, request):
                    transactional_id = _known(self._parts.names, found.transactional_id)
                    if (
                        transactional_id is not None
                        and (not producer_ids or found.producer_id in producer_ids)
                        and found.open_ms > open_ms_min
                    ):
                        listed.append(
                            ListTransactionsResponse.TransactionState(
                                transactional_id=transactional_id,
                                producer_id=found.producer_id,
                                transaction_state=_STATES[found.state],
                            )
                        )
        except MillraceError as error:
            code, listed = _code(request, error), []
        return ListTransactionsResponse(
            version=request.version,
            error_code=code,
            unknown_state_filters=[name for name in asked if name not in known],
            transaction_states=listed,
        )

    async def _listed(
        self, place: TopicPartition, states: Sequence[pb.TransactionState], request: Request
    ) -> list[pb.ListedTransaction]:
        """Return the ids of one partition that the caller may see.

        Raises:
            MillraceError: this broker does not lead it any more, or the caller may see none.
        """
        listed: list[pb.ListedTransaction] = []
        after = ""
        while True:
            asked = pb.ListTransactionsRequest(
                partition=place.partition, after=after, states=states
            )
            found = await self._parts.local.call("ListTransactions", asked, request.caller)
            if found.error.code:
                raise error_from_wire(found.error)
            listed += found.transactions
            if not found.has_more:
                return listed
            after = listed[-1].transactional_id


async def writable_id(parts: KafkaParts, transactional_id: str, request: Request) -> str:
    """Return the full name of a transactional id with which a caller may write.

    Raises:
        MillraceError: it may not, or that is no id.
    """
    name = _full(parts.names, transactional_id)
    await check(parts, request, Operation.TRANSACT, [named(ResourceKind.TRANSACTIONS, name)])
    return name


def _full(names: Names, transactional_id: str) -> str:
    """Return the full name of an id, which may have slashes of its own.

    Raises:
        InvalidTransactionalIdError: that is none.
    """
    return full_id(f"{names.namespace}/{transactional_id}")


def _known(names: Names, full: str) -> str | None:
    """Return an id as clients know it; None: it lies in another namespace."""
    namespace, _, transactional_id = full.partition("/")
    return transactional_id if namespace == names.namespace else None


def _producer(producer_id: int, epoch: int) -> Producer:
    return Producer(ProducerId(producer_id), ProducerEpoch(epoch))


def _code(request: Request, error: MillraceError) -> int:
    """Return Kafka's number of an error, as clients of the request's version know it."""
    code = coordinator_code(error)
    if code == Code.PRODUCER_FENCED:
        first = _FIRST_WITH_FENCED.get(ApiKey(request.key), 0)
        if request.version < first:
            return Code.INVALID_PRODUCER_EPOCH
    return code
