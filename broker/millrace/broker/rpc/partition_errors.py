"""Errors about one partition, with the topic's name and the leader's address."""

from millrace.broker.replica.partitions import Partitions
from millrace.core.errors import (
    FencedLeaderEpochError,
    MillraceError,
    NotLeaderError,
    UnknownLeaderEpochError,
)
from millrace.core.ids import TopicPartition
from millrace.core.metadata.model import Listener
from millrace.proto.errors import error_to_wire
from millrace.proto.v1.common_pb2 import Error, PartitionLeader

_ABOUT_LEADERS = (NotLeaderError, FencedLeaderEpochError, UnknownLeaderEpochError)


def wire_error(
    partitions: Partitions,
    error: MillraceError,
    topic_partition: TopicPartition,
    listener: Listener,
    *,
    is_write: bool = False,
) -> Error:
    """Return the message for an error, as `error_to_wire`, to a client of a listener."""
    image = partitions.image
    if image is None:
        return error_to_wire(error, is_write=is_write)
    message = error_to_wire(image.in_words(error), is_write=is_write)
    state = image.partition(topic_partition)
    if isinstance(error, _ABOUT_LEADERS) and state is not None:
        message.leader.CopyFrom(
            PartitionLeader(
                broker_id=state.leader,
                leader_epoch=state.leader_epoch,
                address=image.leader_address(state, listener),
            )
        )
    return message
