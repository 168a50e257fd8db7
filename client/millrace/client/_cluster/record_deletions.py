"""Deletes the oldest records of partitions, at their leaders, and follows leaders that move.

The same request may be made again: it names an offset, and records before it that are gone already
are no error.
"""

from collections.abc import Mapping
from typing import Final

from millrace.client._cluster import wire
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.offsets import ask_leaders, known_epoch
from millrace.core.errors import MillraceError
from millrace.core.ids import BrokerId, Offset, TopicPartition
from millrace.proto.v1 import cluster_pb2

_WAIT_MS: Final = 5_000
"""How long a leader waits for its followers before it says so; then it is asked again."""


async def delete_records(
    cluster: Cluster,
    before: Mapping[TopicPartition, Offset],
    refused: dict[TopicPartition, MillraceError],
) -> dict[TopicPartition, Offset]:
    """Delete the records before an offset; return before which offset they are gone for good.

    Args:
        cluster: whose leaders to ask.
        before: the offset, by partition.
        refused: gets the errors of partitions.
    """
    return await ask_leaders(cluster, before, _ask, refused)


async def _ask(
    cluster: Cluster, broker_id: BrokerId, before: Mapping[TopicPartition, Offset]
) -> list[Offset | MillraceError]:
    request = cluster_pb2.DeleteRecordsRequest(
        partitions=[
            cluster_pb2.RecordsToDelete(
                topic_partition=wire.partition_to_wire(place),
                current_leader_epoch=known_epoch(cluster, place),
                before_offset=offset,
            )
            for place, offset in before.items()
        ],
        request_timeout_ms=min(_WAIT_MS, int(cluster.timeout_s * 1000)),
    )
    response: cluster_pb2.DeleteRecordsResponse = await cluster.on(
        await cluster.broker(broker_id), lambda c: c.cluster.DeleteRecords(request)
    )
    return [
        wire.error_of(deleted) or Offset(deleted.low_watermark) for deleted in response.partitions
    ]
