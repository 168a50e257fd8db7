"""Where the replicas of new partitions go if the client names the brokers.

Source: Kafka's `ReplicationControlManager`, for what is refused.
"""

from collections.abc import Mapping, Sequence

from millrace.core.errors import InvalidReplicaAssignmentError
from millrace.core.ids import BrokerId
from millrace.core.metadata.model import BrokerRegistration
from millrace.core.topics import TopicName

Assignment = Sequence[Sequence[BrokerId]]
"""The replicas of each new partition, in order, the preferred leader first; empty: none."""


def check_assignment(
    name: TopicName,
    assignment: Assignment,
    brokers: Mapping[BrokerId, BrokerRegistration],
    *,
    partitions: int,
    replication_factor: int,
) -> None:
    """Check the replicas of new partitions.

    Args:
        name: of the topic.
        assignment: of all new partitions.
        brokers: that may hold them.
        partitions: how many are new.
        replication_factor: how many replicas each has.

    Raises:
        InvalidReplicaAssignmentError: says what is wrong with the first wrong partition.
    """
    topic = f"topic {str(name)!r}"
    if len(assignment) != partitions:
        raise InvalidReplicaAssignmentError(
            f"{topic}: the replicas of {len(assignment)} new partitions are named, and there are "
            f"{partitions}: name those of each, or of none"
        )
    for number, replicas in enumerate(assignment):
        place = f"{topic}: the replicas of new partition {number}"
        if not replicas or len({*replicas}) < len(replicas):
            raise InvalidReplicaAssignmentError(f"{place}: name at least one broker, and each once")
        if len(replicas) != replication_factor:
            raise InvalidReplicaAssignmentError(
                f"{place}: {len(replicas)} are named, and each partition has {replication_factor}"
            )
        for broker_id in replicas:
            if broker_id not in brokers:
                raise InvalidReplicaAssignmentError(
                    f"{place}: broker {broker_id} is not registered, is drained, or has no log "
                    "directory of the topic's media"
                )
        if not any(brokers[broker_id].is_there for broker_id in replicas):
            raise InvalidReplicaAssignmentError(
                f"{place}: none of the brokers is there now, and one has to be: name another one"
            )
