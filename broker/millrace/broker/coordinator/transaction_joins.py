"""Asks the coordinators of transactions whether partitions that this broker leads may take part.

A leader asks before it appends a transaction's first batch (P49). What is asked for one producer in
the same turn of the loop goes into one request. The coordinator answers when its record of it is
committed, and, if the producer's transaction before is not over everywhere, when that is.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from millrace.broker.coordinator.places import place_of
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.peers import PeerMethod, Peers
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import (
    CoordinatorLoadInProgressError,
    InvalidTransactionalIdError,
    MillraceError,
    RefreshMetadataError,
)
from millrace.core.ids import LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from millrace.core.records.markers import BUMPING
from millrace.core.topics import TRANSACTIONS_TOPIC
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import transactions_pb2 as pb
from millrace.proto.v1.common_pb2 import TopicPartition as WirePartition
from millrace.runtime.tasks import Tasks
from millrace.runtime.transport.calls import CallError

METHOD: Final = PeerMethod("JoinTransaction", pb.JoinTransactionRequest, pb.JoinTransactionResponse)
_PARTITIONS_MAX: Final = 1000
"""In one request."""
_ANSWER_SECONDS: Final = 10.0

Done = Callable[[MillraceError | None], None]
"""Takes why a partition may not take part; None: it may."""


class Writer(NamedTuple):
    """A producer with a transactional id, as it names itself.

    Attributes:
        protocol: of its transactions; with `NOT_BUMPING` what is asked was taken in before (T14).
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    protocol: int = BUMPING


class TransactionJoins:
    """Asks for the partitions of one broker. It belongs to the event loop.

    Args:
        partitions: of this broker, with the metadata.
        peers: the coordinators.
        on_failure: called with an unexpected error.
    """

    def __init__(
        self,
        partitions: Partitions,
        peers: Peers,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._partitions = partitions
        self._peers = peers
        self._tasks = Tasks(on_failure)
        self._gathered: dict[Writer, list[tuple[TopicPartition, Done]]] = {}

    def ask(self, writer: Writer, place: TopicPartition, done: Done) -> None:
        """Ask whether a partition may take part; `done` is called in a later turn of the loop."""
        gathered = self._gathered.get(writer)
        if gathered is None:
            gathered = self._gathered[writer] = []
            asyncio.get_running_loop().call_soon(self._send, writer)
        gathered.append((place, done))

    async def ask_for_group(self, writer: Writer, group: str) -> LeaderEpoch:
        """Ask whether the positions of a group may take part; return the coordinator's epoch.

        Raises:
            MillraceError: they may not, or nobody could say.
        """
        answer = await self._answer(writer, [], [group])
        if isinstance(answer, MillraceError):
            raise answer
        return answer

    async def close(self) -> None:
        """Give up what is under way."""
        await self._tasks.cancel()

    def _send(self, writer: Writer) -> None:
        gathered = self._gathered.pop(writer)
        for at in range(0, len(gathered), _PARTITIONS_MAX):
            self._tasks.begin(self._ask(writer, gathered[at : at + _PARTITIONS_MAX]))

    async def _ask(self, writer: Writer, asked: list[tuple[TopicPartition, Done]]) -> None:
        answer = await self._answer(writer, [place for place, _ in asked], [])
        error = answer if isinstance(answer, MillraceError) else None
        for _, done in asked:
            done(error)

    async def _answer(
        self, writer: Writer, places: Iterable[TopicPartition], groups: Iterable[str]
    ) -> MillraceError | LeaderEpoch:
        try:
            name = full_id(writer.transactional_id)
        except InvalidTransactionalIdError as error:
            return error
        image = self._partitions.image
        coordinating = place_of(image, TRANSACTIONS_TOPIC, name)
        if image is None or coordinating is None:
            # Who began with the id knows that the topic is there: this broker's metadata lag.
            return CoordinatorLoadInProgressError(
                f"this broker does not know yet where the transactional id "
                f"{writer.transactional_id!r} is kept: try again shortly, or begin with "
                "InitProducerId"
            )
        state = image.partition(coordinating)
        assert state is not None
        request = pb.JoinTransactionRequest(
            transactional_id=name,
            producer_id=writer.producer_id,
            producer_epoch=writer.producer_epoch,
            partitions=[WirePartition(topic_id=place[0], partition=place[1]) for place in places],
            groups=groups,
            version=writer.protocol,
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                response = await self._peers.ask(state.leader, METHOD, request)
        except (CallError, TimeoutError) as error:
            return _unanswered(writer, str(error) or "it is silent")
        if not response.HasField("error"):
            return LeaderEpoch(response.coordinator_epoch)
        refusal = error_from_wire(response.error)
        if isinstance(refusal, RefreshMetadataError):  # This broker knows another leader.
            return _unanswered(writer, refusal.message)
        return refusal


def _unanswered(writer: Writer, why: str) -> CoordinatorLoadInProgressError:
    return CoordinatorLoadInProgressError(
        f"the coordinator of the transactional id {writer.transactional_id!r} did not answer "
        f"({why}): try again shortly"
    )
