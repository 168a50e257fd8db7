"""Finds out whether any coordinator will end a transaction that is open in a partition.

A leader asks before a person ends one there that hangs: what a coordinator knows is decided by it
alone, else the records of one transaction could count in one partition and not in another (T8).
All parts of `__transactions` are asked, since a partition knows the producer id alone. A
coordinator that cannot be asked may know it.
"""

import asyncio
from typing import Final

from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.peers import PeerMethod, Peers
from millrace.core.coordinator.transactions.transaction import Producer, short_id
from millrace.core.errors import (
    CoordinatorLoadInProgressError,
    InvalidTransactionStateError,
    UnsupportedFeatureError,
)
from millrace.core.ids import BrokerId, TopicPartition
from millrace.core.topics import TRANSACTIONS_TOPIC
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import transactions_pb2 as pb
from millrace.proto.v1.common_pb2 import TopicPartition as WirePartition
from millrace.runtime.transport.calls import CallError, Status

METHOD: Final = PeerMethod("FindTransaction", pb.FindTransactionRequest, pb.FindTransactionResponse)
_ANSWER_SECONDS: Final = 10.0
_AT_ONCE: Final = 50
"""Parts that are asked at the same time."""


class TransactionFinder:
    """Asks all coordinators. It belongs to the event loop.

    Args:
        partitions: of this broker, with the metadata.
        peers: the coordinators.
    """

    def __init__(self, partitions: Partitions, peers: Peers) -> None:
        self._partitions = partitions
        self._peers = peers

    async def check_hanging(self, place: TopicPartition, writer: Producer) -> None:
        """Check that no coordinator will end a producer's transaction in a partition.

        Args:
            place: where it is open.
            writer: its producer, with the epoch of its records.

        Raises:
            InvalidTransactionStateError: one will.
            CoordinatorLoadInProgressError: not all can be asked now.
            UnsupportedFeatureError: a coordinator is of an earlier release.
        """
        image = self._partitions.image
        topic = None if image is None else image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            raise CoordinatorLoadInProgressError(
                "this broker has not heard yet where transactions are coordinated: try again "
                "shortly"
            )
        parts = list(enumerate(partition.leader for partition in topic.partitions))
        for at in range(0, len(parts), _AT_ONCE):
            asked = (self._ask(*part, place, writer) for part in parts[at : at + _AT_ONCE])
            for name in filter(None, await asyncio.gather(*asked)):
                shown = short_id(name)
                raise InvalidTransactionStateError(
                    f"the transaction does not hang: the coordinator of {shown!r} will end it. "
                    f"`millrace transaction describe {shown}` shows what it waits for, and "
                    f"`millrace transaction abort {shown}` aborts it everywhere, if it is open",
                    topic_partition=place,
                )

    async def _ask(
        self, part: int, coordinator: BrokerId, place: TopicPartition, writer: Producer
    ) -> str:
        """Return the transactional id, with its namespace; empty: this part knows none."""
        request = pb.FindTransactionRequest(
            part=part,
            topic_partition=WirePartition(topic_id=place.topic_id, partition=place.partition),
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                response = await self._peers.ask(coordinator, METHOD, request)
        except (CallError, TimeoutError) as error:
            if isinstance(error, CallError) and error.status is Status.UNIMPLEMENTED:
                raise UnsupportedFeatureError(
                    f"broker {coordinator} cannot say whether it coordinates the transaction, as "
                    "it is of an earlier release: upgrade all brokers first"
                ) from error
            raise _unanswered(part, str(error) or "it is silent") from error
        if response.HasField("error"):
            raise _unanswered(part, error_from_wire(response.error).message)
        return response.transactional_id


def _unanswered(part: int, why: str) -> CoordinatorLoadInProgressError:
    return CoordinatorLoadInProgressError(
        f"part {part} of {TRANSACTIONS_TOPIC} may coordinate the transaction, and did not answer "
        f"({why}): try again shortly"
    )
