"""Translates the core's requests to and from the messages of brokers and the controller.

One function for each direction. A client's administration travels as the client's own messages: the
client's broker passes them on, and only the controller's broker reads them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from millrace.core.errors import MillraceError
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EpochEnd,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicPartition,
)
from millrace.core.metadata.model import (
    BrokerLife,
    KafkaAddresses,
    PartitionState,
    Reluctance,
    SideAddresses,
)
from millrace.core.metadata.objects.stored_object import StoredObject
from millrace.core.metadata.requests import (
    AcceptedCopy,
    AllocateProducerIds,
    AlterPartition,
    AlterPartitions,
    ConfirmDeletions,
    CreatePositionsTopic,
    CreateTransactionsTopic,
    Heartbeat,
    HeartbeatAnswer,
    LogEnd,
    RegisterBroker,
    RenewReplicas,
    ReplicaRenewal,
)
from millrace.core.quotas.shares import BucketShare, BucketUse
from millrace.proto.errors import error_from_wire, error_to_wire
from millrace.proto.media import media_set_from_wire, media_to_wire
from millrace.proto.quotas import bucket_from_wire, bucket_to_wire
from millrace.proto.v1 import common_pb2
from millrace.proto.v1 import controller_pb2 as pb

BrokerRequest = (
    RegisterBroker
    | Heartbeat
    | AlterPartitions
    | RenewReplicas
    | AllocateProducerIds
    | ConfirmDeletions
    | CreatePositionsTopic
    | CreateTransactionsTopic
)
"""A broker's own request."""

_RELUCTANCE_TO_PROTO: Final = {
    Reluctance.NONE: pb.RELUCTANCE_UNSPECIFIED,
    Reluctance.SLOW_DISK: pb.RELUCTANCE_SLOW_DISK,
    Reluctance.FULL_DISK: pb.RELUCTANCE_FULL_DISK,
    Reluctance.NEW_ADDRESS: pb.RELUCTANCE_NEW_ADDRESS,
}
_RELUCTANCE_FROM_PROTO: Final = {
    number: reluctance for reluctance, number in _RELUCTANCE_TO_PROTO.items()
}


def topic_partition_to_proto(topic_partition: TopicPartition) -> common_pb2.TopicPartition:
    """Return the message of a partition."""
    return common_pb2.TopicPartition(
        topic_id=topic_partition.topic_id, partition=topic_partition.partition
    )


def topic_partition_from_proto(message: common_pb2.TopicPartition) -> TopicPartition:
    """Return the partition of a message."""
    return TopicPartition(TopicId(message.topic_id), message.partition)


def request_to_proto(request: BrokerRequest) -> pb.ControllerRequest:
    """Return the message of a broker's own request, without its correlation id."""
    match request:
        case RegisterBroker():
            return pb.ControllerRequest(
                register_broker=pb.RegisterBrokerRequest(
                    name=request.name,
                    rack=request.rack,
                    host=request.host,
                    port=request.port,
                    replica_host=request.replica_host,
                    replica_port=request.replica_port,
                    incarnation_id=request.incarnation_id,
                    directory_ids=request.directory_ids,
                    broker_id=request.broker_id,
                    previous_broker_epoch=request.previous_broker_epoch,
                    directory_epoch=request.directory_epoch,
                    accepted_copy=None
                    if request.accepted_copy is None
                    else pb.AcceptedCopy(
                        epoch=request.accepted_copy.epoch,
                        lost_epoch=request.accepted_copy.lost_epoch,
                    ),
                )
            )
        case Heartbeat():
            return pb.ControllerRequest(
                heartbeat=pb.HeartbeatRequest(
                    broker_id=request.life.broker_id,
                    broker_epoch=request.life.broker_epoch,
                    metadata_epoch=request.metadata_epoch,
                    wants_shutdown=request.wants_shutdown,
                    log_ends=[
                        pb.LogEnd(
                            topic_partition=topic_partition_to_proto(log_end.topic_partition),
                            leader_epoch=log_end.leader_epoch,
                            end_offset=log_end.end_offset,
                            committed_offset=log_end.committed_offset,
                        )
                        for log_end in request.log_ends
                    ],
                    offline=[topic_partition_to_proto(replica) for replica in request.offline],
                    reluctance=_RELUCTANCE_TO_PROTO[request.reluctance],
                    media=map(media_to_wire, request.media),
                    outside_address=request.outside_address,
                    drpc_addresses=pb.DrpcAddresses(**request.drpc_addresses._asdict()),
                    tls_addresses=pb.TlsAddresses(**request.tls_addresses._asdict()),
                    kafka_addresses=pb.KafkaAddresses(**request.kafka_addresses._asdict()),
                    quota_uses=[
                        pb.SharedQuotaUse(
                            bucket=bucket_to_wire(use.bucket),
                            bytes_per_second=use.bytes_per_second,
                            saturated=use.is_saturated,
                        )
                        for use in request.quota_uses
                    ],
                )
            )
        case AlterPartitions():
            return pb.ControllerRequest(
                alter_partitions=pb.AlterPartitionsRequest(
                    partitions=[_alter_partition_to_proto(change) for change in request.changes]
                )
            )
        case RenewReplicas():
            return pb.ControllerRequest(
                renew_replicas=pb.RenewReplicasRequest(
                    replica=_life_to_proto(request.replica),
                    renewals=[
                        pb.ReplicaRenewal(
                            topic_partition=topic_partition_to_proto(renewal.topic_partition),
                            partition_epoch=renewal.partition_epoch,
                        )
                        for renewal in request.renewals
                    ],
                )
            )
        case AllocateProducerIds():
            return pb.ControllerRequest(allocate_producer_ids=pb.AllocateProducerIdsRequest())
        case ConfirmDeletions():
            return pb.ControllerRequest(
                confirm_deletions=pb.ConfirmDeletionsRequest(
                    broker_id=request.broker_id, topic_ids=request.topic_ids
                )
            )
        case CreatePositionsTopic():
            return pb.ControllerRequest(
                create_positions_topic=pb.CreatePositionsTopicRequest(topic_id=request.topic_id)
            )
        case CreateTransactionsTopic():
            return pb.ControllerRequest(
                create_transactions_topic=pb.CreateTransactionsTopicRequest(
                    topic_id=request.topic_id
                )
            )


def request_from_proto(message: pb.ControllerRequest) -> BrokerRequest | None:
    """Return a broker's own request; None when the message is a client's administration."""
    match message.WhichOneof("request"):
        case "register_broker":
            register = message.register_broker
            return RegisterBroker(
                name=register.name,
                rack=register.rack,
                host=register.host,
                port=register.port,
                replica_host=register.replica_host,
                replica_port=register.replica_port,
                incarnation_id=register.incarnation_id,
                directory_ids=tuple(register.directory_ids),
                broker_id=BrokerId(register.broker_id) if register.HasField("broker_id") else None,
                previous_broker_epoch=BrokerEpoch(register.previous_broker_epoch)
                if register.HasField("previous_broker_epoch")
                else None,
                directory_epoch=BrokerEpoch(register.directory_epoch)
                if register.HasField("directory_epoch")
                else None,
                accepted_copy=AcceptedCopy(
                    BrokerEpoch(register.accepted_copy.epoch),
                    BrokerEpoch(register.accepted_copy.lost_epoch),
                )
                if register.HasField("accepted_copy")
                else None,
            )
        case "heartbeat":
            heartbeat = message.heartbeat
            return Heartbeat(
                life=BrokerLife(BrokerId(heartbeat.broker_id), BrokerEpoch(heartbeat.broker_epoch)),
                metadata_epoch=heartbeat.metadata_epoch,
                wants_shutdown=heartbeat.wants_shutdown,
                log_ends=[
                    LogEnd(
                        topic_partition_from_proto(log_end.topic_partition),
                        LeaderEpoch(log_end.leader_epoch),
                        Offset(log_end.end_offset),
                        Offset(log_end.committed_offset),
                    )
                    for log_end in heartbeat.log_ends
                ],
                offline=[topic_partition_from_proto(replica) for replica in heartbeat.offline],
                # A later release may know more reasons.
                reluctance=_RELUCTANCE_FROM_PROTO.get(heartbeat.reluctance, Reluctance.NONE),
                media=media_set_from_wire(heartbeat.media),
                outside_address=heartbeat.outside_address,
                drpc_addresses=_side_addresses(heartbeat.drpc_addresses),
                tls_addresses=_side_addresses(heartbeat.tls_addresses),
                kafka_addresses=KafkaAddresses(
                    **{
                        name: getattr(heartbeat.kafka_addresses, name)
                        for name in KafkaAddresses._fields
                    }
                ),
                quota_uses=[
                    BucketUse(bucket, quota_use.bytes_per_second, quota_use.saturated)
                    for quota_use in heartbeat.quota_uses
                    if (bucket := bucket_from_wire(quota_use.bucket)) is not None
                ],
            )
        case "alter_partitions":
            return AlterPartitions(
                changes=[
                    _alter_partition_from_proto(partition)
                    for partition in message.alter_partitions.partitions
                ]
            )
        case "renew_replicas":
            return RenewReplicas(
                replica=_life_from_proto(message.renew_replicas.replica),
                renewals=[
                    ReplicaRenewal(
                        topic_partition_from_proto(renewal.topic_partition),
                        PartitionEpoch(renewal.partition_epoch),
                    )
                    for renewal in message.renew_replicas.renewals
                ],
            )
        case "allocate_producer_ids":
            return AllocateProducerIds()
        case "confirm_deletions":
            return ConfirmDeletions(
                broker_id=BrokerId(message.confirm_deletions.broker_id),
                topic_ids=[TopicId(topic_id) for topic_id in message.confirm_deletions.topic_ids],
            )
        case "create_positions_topic":
            return CreatePositionsTopic(topic_id=TopicId(message.create_positions_topic.topic_id))
        case "create_transactions_topic":
            topic_id = TopicId(message.create_transactions_topic.topic_id)
            return CreateTransactionsTopic(topic_id=topic_id)
    return None


def _side_addresses(message: pb.DrpcAddresses | pb.TlsAddresses) -> SideAddresses:
    return SideAddresses(message.clients, message.outside, message.brokers)


def _alter_partition_to_proto(change: AlterPartition) -> pb.AlterPartition:
    return pb.AlterPartition(
        topic_partition=common_pb2.TopicPartition(
            topic_id=change.topic_id, partition=change.partition
        ),
        leader=_life_to_proto(change.leader),
        leader_epoch=change.leader_epoch,
        partition_epoch=change.partition_epoch,
        isr=[_life_to_proto(broker) for broker in change.isr],
        is_recovering=change.is_recovering,
        is_unflushed=change.is_unflushed,
        committed_end=pb.CommittedEnd(
            leader_epoch=change.committed_end.epoch, end_offset=change.committed_end.end_offset
        ),
    )


def _alter_partition_from_proto(message: pb.AlterPartition) -> AlterPartition:
    return AlterPartition(
        topic_id=TopicId(message.topic_partition.topic_id),
        partition=message.topic_partition.partition,
        leader=_life_from_proto(message.leader),
        leader_epoch=LeaderEpoch(message.leader_epoch),
        partition_epoch=PartitionEpoch(message.partition_epoch),
        isr=tuple(_life_from_proto(broker) for broker in message.isr),
        is_recovering=message.is_recovering,
        is_unflushed=message.is_unflushed,
        committed_end=EpochEnd(
            LeaderEpoch(message.committed_end.leader_epoch),
            Offset(message.committed_end.end_offset),
        ),
    )


def _life_to_proto(life: BrokerLife) -> pb.ReplicaLife:
    return pb.ReplicaLife(broker_id=life.broker_id, broker_epoch=life.broker_epoch)


def _life_from_proto(message: pb.ReplicaLife) -> BrokerLife:
    return BrokerLife(BrokerId(message.broker_id), BrokerEpoch(message.broker_epoch))


def response_to_proto(request: BrokerRequest, result: Any) -> pb.ControllerResponse:
    """Return the message of the machine's answer to a broker's own request."""
    if isinstance(result, MillraceError):
        return pb.ControllerResponse(error=error_to_wire(result, is_write=True))
    match request:
        case RegisterBroker():
            return pb.ControllerResponse(
                register_broker=pb.RegisterBrokerResponse(
                    broker_id=result.broker_id, broker_epoch=result.broker_epoch
                )
            )
        case Heartbeat():
            return pb.ControllerResponse(
                heartbeat=pb.HeartbeatResponse(
                    is_fenced=result.is_fenced,
                    may_stop=result.may_stop,
                    quota_shares=[
                        pb.QuotaShare(bucket=bucket_to_wire(bucket), bytes_per_second=share)
                        for bucket, share in result.quota_shares
                    ],
                )
            )
        case AlterPartitions():
            return pb.ControllerResponse(
                alter_partitions=pb.AlterPartitionsResponse(partitions=map(_altered, result))
            )
        case RenewReplicas():
            return pb.ControllerResponse(
                renew_replicas=pb.RenewReplicasResponse(partitions=map(_altered, result))
            )
        case AllocateProducerIds():
            return pb.ControllerResponse(
                allocate_producer_ids=pb.AllocateProducerIdsResponse(
                    first_producer_id=result.start, count=len(result)
                )
            )
        case ConfirmDeletions():
            return pb.ControllerResponse(confirm_deletions=pb.ConfirmDeletionsResponse())
        case CreatePositionsTopic():
            return pb.ControllerResponse(create_positions_topic=pb.CreatePositionsTopicResponse())
        case CreateTransactionsTopic():
            response = pb.CreateTransactionsTopicResponse()
            return pb.ControllerResponse(create_transactions_topic=response)


def _altered(result: PartitionState | MillraceError) -> pb.AlteredPartition:
    if isinstance(result, MillraceError):
        return pb.AlteredPartition(error=error_to_wire(result, is_write=True))
    return pb.AlteredPartition(partition_epoch=result.partition_epoch)


def _errors(partitions: Iterable[pb.AlteredPartition]) -> list[MillraceError | None]:
    return [
        error_from_wire(partition.error) if partition.HasField("error") else None
        for partition in partitions
    ]


def response_from_proto(message: pb.ControllerResponse) -> Any:
    """Return the answer to a broker's own request.

    A `BrokerLife`, a `HeartbeatAnswer`, for ISR changes and renewals a list of None or the error, a
    range of producer ids, or None.

    Raises:
        MillraceError: the answer is an error.
    """
    if message.HasField("error"):
        raise error_from_wire(message.error)
    match message.WhichOneof("response"):
        case "register_broker":
            registered = message.register_broker
            return BrokerLife(BrokerId(registered.broker_id), BrokerEpoch(registered.broker_epoch))
        case "heartbeat":
            heartbeat = message.heartbeat
            return HeartbeatAnswer(
                heartbeat.is_fenced,
                heartbeat.may_stop,
                [
                    BucketShare(bucket, quota_share.bytes_per_second)
                    for quota_share in heartbeat.quota_shares
                    if (bucket := bucket_from_wire(quota_share.bucket)) is not None
                ],
            )
        case "alter_partitions":
            return _errors(message.alter_partitions.partitions)
        case "renew_replicas":
            return _errors(message.renew_replicas.partitions)
        case "allocate_producer_ids":
            allocated = message.allocate_producer_ids
            first = allocated.first_producer_id
            return range(first, first + allocated.count)
    return None


def metadata_to_proto(
    controller_epoch: ControllerEpoch, objects: Iterable[tuple[str, StoredObject]], *, is_full: bool
) -> pb.SessionResponse:
    """Return the message that brings objects to a broker."""
    return pb.SessionResponse(
        metadata=pb.MetadataUpdate(
            controller_epoch=controller_epoch,
            objects=[
                pb.MetadataObject(
                    key=key,
                    version=stored.version,
                    controller_epoch=stored.controller_epoch,
                    value=stored.value,
                )
                for key, stored in objects
            ],
            is_full=is_full,
        )
    )


def objects_from_proto(update: pb.MetadataUpdate) -> Sequence[tuple[str, StoredObject]]:
    """Return the objects of an update, in order."""
    return [
        (
            stored.key,
            StoredObject(stored.value, stored.version, ControllerEpoch(stored.controller_epoch)),
        )
        for stored in update.objects
    ]
