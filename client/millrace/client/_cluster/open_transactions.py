"""What the leaders of partitions know of open transactions, whatever their coordinators say."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.client._cluster import wire
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.offsets import ask_leaders
from millrace.core.errors import MillraceError
from millrace.core.ids import BrokerId, Offset, ProducerEpoch, ProducerId, TopicPartition, WallMs
from millrace.proto.v1 import transactions_pb2 as pb


@dataclass(slots=True, frozen=True)
class OpenTransaction:
    """An open transaction of a partition."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: Offset
    """Its first record. Readers of committed records wait there."""
    began_at: WallMs
    """When its first batch came there, as far as the leader knows; ms UTC."""


async def list_open_transactions(
    cluster: Cluster,
    places: Mapping[TopicPartition, None],
    refused: dict[TopicPartition, MillraceError],
) -> dict[TopicPartition, list[OpenTransaction]]:
    """Return the open transactions of partitions, the oldest first; at most 1,000 of each.

    Args:
        cluster: whose leaders to ask.
        places: the partitions.
        refused: gets the errors of partitions.
    """
    return await ask_leaders(cluster, places, _list, refused)


async def abort_open_transaction(
    cluster: Cluster, place: TopicPartition, producer_id: int, first_offset: int
) -> None:
    """End an open transaction of one partition.

    Raises:
        TransactionalIdNotFoundError: no such transaction is open there.
        MillraceError: it is not ended, or may not be.
    """
    question = {place: (producer_id, first_offset)}
    await ask_leaders(cluster, question, _abort)


async def _list(
    cluster: Cluster, broker_id: BrokerId, places: Mapping[TopicPartition, None]
) -> list[list[OpenTransaction] | MillraceError]:
    connection = await cluster.broker(broker_id)

    async def ask(place: TopicPartition) -> list[OpenTransaction] | MillraceError:
        request = pb.ListOpenTransactionsRequest(topic_partition=wire.partition_to_wire(place))
        answer: pb.ListOpenTransactionsResponse = await cluster.on(
            connection, lambda c: c.transactions.ListOpenTransactions(request)
        )
        return wire.error_of(answer) or [
            OpenTransaction(
                ProducerId(found.producer_id),
                ProducerEpoch(found.producer_epoch),
                Offset(found.first_offset),
                WallMs(found.began_at),
            )
            for found in answer.transactions
        ]

    return await asyncio.gather(*map(ask, places))


async def _abort(
    cluster: Cluster, broker_id: BrokerId, which: Mapping[TopicPartition, tuple[int, int]]
) -> list[MillraceError | None]:
    answers: list[MillraceError | None] = []
    for place, (producer_id, first_offset) in which.items():
        request = pb.AbortOpenTransactionRequest(
            topic_partition=wire.partition_to_wire(place),
            producer_id=producer_id,
            first_offset=first_offset,
        )

        async def ask(connection: Connection) -> pb.AbortOpenTransactionResponse:
            answer: pb.AbortOpenTransactionResponse
            answer = await connection.transactions.AbortOpenTransaction(request)  # noqa: B023
            return answer

        answers.append(wire.error_of(await cluster.on(await cluster.broker(broker_id), ask)))
    return answers
