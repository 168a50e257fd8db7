"""The partition of an internal topic in which all is kept that belongs to one name.

In `__positions` names are those of groups and other readers, in `__transactions` transactional ids.
Any broker may be asked: one that does not lead the partition names the leader. The topic is created
for the first name.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from millrace.broker.controller.channel import ControllerChannel
from millrace.broker.coordinator.places import place_of
from millrace.broker.replica.partitions import Partitions
from millrace.broker.rpc.partition_errors import wire_error
from millrace.core.callers import Caller
from millrace.core.coordinator.positions.position import check_name
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import (
    CoordinatorLoadInProgressError,
    MalformedRequestError,
    MillraceError,
)
from millrace.core.ids import TOPIC_ID_BYTES, TopicId, TopicPartition
from millrace.core.metadata.broker_levels import check_transactions
from millrace.core.metadata.model import ClusterState, Listener, Topic
from millrace.core.metadata.requests import CreatePositionsTopic, CreateTransactionsTopic
from millrace.core.topics import POSITIONS_TOPIC, TRANSACTIONS_TOPIC, TopicName
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import common_pb2
from millrace.runtime import host


class KeptNames(NamedTuple):
    """What an internal topic keeps.

    Attributes:
        topic: its name.
        creation: makes the request that creates it, from an id for it.
        check: refuses what is no name of its kind.
        check_cluster: refuses a cluster in which a broker does not know the topic (T16). The
            controller does that, too; one of an earlier release does not know the request.
    """

    topic: TopicName
    creation: Callable[[TopicId], CreatePositionsTopic | CreateTransactionsTopic]
    check: Callable[[str], object]
    check_cluster: Callable[[ClusterState], None] = lambda cluster: None


POSITIONS: Final = KeptNames(
    POSITIONS_TOPIC, lambda topic_id: CreatePositionsTopic(topic_id=topic_id), check_name
)
TRANSACTIONS: Final = KeptNames(
    TRANSACTIONS_TOPIC,
    lambda topic_id: CreateTransactionsTopic(topic_id=topic_id),
    full_id,
    check_transactions,
)


class NamePartitions:
    """Finds the partition of a name, and makes the topic for the first one.

    Args:
        partitions: of this broker.
        channel: to the controller, which creates the topic.
        listener: at which clients ask, for the addresses of leaders.
        kept: in which topic, and how it is made.
    """

    def __init__(
        self,
        partitions: Partitions,
        channel: ControllerChannel,
        listener: Listener,
        kept: KeptNames = POSITIONS,
    ) -> None:
        self._kept = kept
        self._partitions = partitions
        self._channel = channel
        self._listener = listener

    def topic(self) -> Topic | None:
        """Return the topic; None: nothing was ever kept."""
        image = self._partitions.image
        return None if image is None else image.topics.get(self._kept.topic)

    def find(self, name: str) -> TopicPartition | None:
        """Return the partition of a name; None: nothing was ever kept."""
        return place_of(self._partitions.image, self._kept.topic, name)

    def place_of_known(self, name: str) -> TopicPartition:
        """Return the partition of a name that somebody has: so the topic is there.

        Raises:
            CoordinatorLoadInProgressError: this broker has not heard of it; that fences nobody.
        """
        place = self.find(name)
        if place is None:
            raise self._unknown()
        return place

    def part(self, number: int) -> TopicPartition:
        """Return one of the partitions.

        Raises:
            CoordinatorLoadInProgressError: this broker has not heard of the topic.
            MalformedRequestError: there is no such partition.
        """
        topic = self.topic()
        if topic is None:
            raise self._unknown()
        if number >= len(topic.partitions):
            raise MalformedRequestError(
                f"the names are in the parts 0 to {len(topic.partitions) - 1}, not in {number}"
            )
        return TopicPartition(topic.topic_id, number)

    def _unknown(self) -> CoordinatorLoadInProgressError:
        return CoordinatorLoadInProgressError(
            f"this broker does not know {str(self._kept.topic)!r} yet: try again shortly"
        )

    async def find_or_make(self, name: str, caller: Caller) -> TopicPartition:
        """Return the partition of a name; create the topic if necessary.

        Raises:
            MillraceError: the name is invalid, or the topic cannot be created.
        """
        self._kept.check(name)
        place = self.find(name)
        if place is None:
            if self._partitions.image is not None:
                self._kept.check_cluster(self._partitions.image.cluster)
            topic_id = TopicId(host.current.random_bytes(TOPIC_ID_BYTES))
            await self._channel.request_for_client(self._kept.creation(topic_id), caller)
            await self._partitions.settled()
            place = self.find(name)
            assert place is not None  # An answer comes after the metadata that it rests on.
        return place

    def error(self, name: str, error: MillraceError) -> common_pb2.Error:
        """Return an error about a name for the wire, with the leader of its partition."""
        place = self.find(name)
        if place is None:
            return error_to_wire(error, is_write=True)
        return wire_error(self._partitions, error, place, self._listener, is_write=True)
