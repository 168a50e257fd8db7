from millrace.proto.v1 import cluster_pb2 as _cluster_pb2
from millrace.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reluctance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELUCTANCE_UNSPECIFIED: _ClassVar[Reluctance]
    RELUCTANCE_SLOW_DISK: _ClassVar[Reluctance]
    RELUCTANCE_FULL_DISK: _ClassVar[Reluctance]
    RELUCTANCE_NEW_ADDRESS: _ClassVar[Reluctance]
RELUCTANCE_UNSPECIFIED: Reluctance
RELUCTANCE_SLOW_DISK: Reluctance
RELUCTANCE_FULL_DISK: Reluctance
RELUCTANCE_NEW_ADDRESS: Reluctance

class SessionRequest(_message.Message):
    __slots__ = ("opening", "request")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    opening: SessionOpening
    request: ControllerRequest
    def __init__(self, opening: _Optional[_Union[SessionOpening, _Mapping]] = ..., request: _Optional[_Union[ControllerRequest, _Mapping]] = ...) -> None: ...

class SessionOpening(_message.Message):
    __slots__ = ("cluster_id", "controller_epoch", "features", "versions")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_epoch: int
    features: _containers.RepeatedCompositeFieldContainer[_common_pb2.Feature]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cluster_id: _Optional[str] = ..., controller_epoch: _Optional[int] = ..., features: _Optional[_Iterable[_Union[_common_pb2.Feature, _Mapping]]] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("metadata", "response", "ask_log_ends", "opened")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ASK_LOG_ENDS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    metadata: MetadataUpdate
    response: ControllerResponse
    ask_log_ends: AskLogEnds
    opened: SessionOpened
    def __init__(self, metadata: _Optional[_Union[MetadataUpdate, _Mapping]] = ..., response: _Optional[_Union[ControllerResponse, _Mapping]] = ..., ask_log_ends: _Optional[_Union[AskLogEnds, _Mapping]] = ..., opened: _Optional[_Union[SessionOpened, _Mapping]] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("cluster_settings",)
    class ClusterSettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLUSTER_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    cluster_settings: _containers.ScalarMap[str, str]
    def __init__(self, cluster_settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class MetadataUpdate(_message.Message):
    __slots__ = ("controller_epoch", "objects", "is_full")
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    controller_epoch: int
    objects: _containers.RepeatedCompositeFieldContainer[MetadataObject]
    is_full: bool
    def __init__(self, controller_epoch: _Optional[int] = ..., objects: _Optional[_Iterable[_Union[MetadataObject, _Mapping]]] = ..., is_full: _Optional[bool] = ...) -> None: ...

class MetadataObject(_message.Message):
    __slots__ = ("key", "version", "controller_epoch", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    version: int
    controller_epoch: int
    value: bytes
    def __init__(self, key: _Optional[str] = ..., version: _Optional[int] = ..., controller_epoch: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class AskLogEnds(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ...) -> None: ...

class ControllerRequest(_message.Message):
    __slots__ = ("correlation_id", "register_broker", "heartbeat", "alter_partitions", "allocate_producer_ids", "confirm_deletions", "create_topics", "alter_topics", "delete_topics", "drain_broker", "reassign_partitions", "elect_leaders", "renew_replicas", "unregister_broker", "create_positions_topic", "set_quotas", "delete_quotas", "undelete_topics", "purge_topics", "create_transactions_topic", "caller")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTER_BROKER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ALTER_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_DELETIONS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    ALTER_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_BROKER_FIELD_NUMBER: _ClassVar[int]
    REASSIGN_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ELECT_LEADERS_FIELD_NUMBER: _ClassVar[int]
    RENEW_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_BROKER_FIELD_NUMBER: _ClassVar[int]
    CREATE_POSITIONS_TOPIC_FIELD_NUMBER: _ClassVar[int]
    SET_QUOTAS_FIELD_NUMBER: _ClassVar[int]
    DELETE_QUOTAS_FIELD_NUMBER: _ClassVar[int]
    UNDELETE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    PURGE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TRANSACTIONS_TOPIC_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    register_broker: RegisterBrokerRequest
    heartbeat: HeartbeatRequest
    alter_partitions: AlterPartitionsRequest
    allocate_producer_ids: AllocateProducerIdsRequest
    confirm_deletions: ConfirmDeletionsRequest
    create_topics: _cluster_pb2.CreateTopicsRequest
    alter_topics: _cluster_pb2.AlterTopicsRequest
    delete_topics: _cluster_pb2.DeleteTopicsRequest
    drain_broker: _cluster_pb2.DrainBrokerRequest
    reassign_partitions: _cluster_pb2.ReassignPartitionsRequest
    elect_leaders: _cluster_pb2.ElectLeadersRequest
    renew_replicas: RenewReplicasRequest
    unregister_broker: _cluster_pb2.UnregisterBrokerRequest
    create_positions_topic: CreatePositionsTopicRequest
    set_quotas: _cluster_pb2.SetQuotasRequest
    delete_quotas: _cluster_pb2.DeleteQuotasRequest
    undelete_topics: _cluster_pb2.UndeleteTopicsRequest
    purge_topics: _cluster_pb2.PurgeTopicsRequest
    create_transactions_topic: CreateTransactionsTopicRequest
    caller: Caller
    def __init__(self, correlation_id: _Optional[int] = ..., register_broker: _Optional[_Union[RegisterBrokerRequest, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatRequest, _Mapping]] = ..., alter_partitions: _Optional[_Union[AlterPartitionsRequest, _Mapping]] = ..., allocate_producer_ids: _Optional[_Union[AllocateProducerIdsRequest, _Mapping]] = ..., confirm_deletions: _Optional[_Union[ConfirmDeletionsRequest, _Mapping]] = ..., create_topics: _Optional[_Union[_cluster_pb2.CreateTopicsRequest, _Mapping]] = ..., alter_topics: _Optional[_Union[_cluster_pb2.AlterTopicsRequest, _Mapping]] = ..., delete_topics: _Optional[_Union[_cluster_pb2.DeleteTopicsRequest, _Mapping]] = ..., drain_broker: _Optional[_Union[_cluster_pb2.DrainBrokerRequest, _Mapping]] = ..., reassign_partitions: _Optional[_Union[_cluster_pb2.ReassignPartitionsRequest, _Mapping]] = ..., elect_leaders: _Optional[_Union[_cluster_pb2.ElectLeadersRequest, _Mapping]] = ..., renew_replicas: _Optional[_Union[RenewReplicasRequest, _Mapping]] = ..., unregister_broker: _Optional[_Union[_cluster_pb2.UnregisterBrokerRequest, _Mapping]] = ..., create_positions_topic: _Optional[_Union[CreatePositionsTopicRequest, _Mapping]] = ..., set_quotas: _Optional[_Union[_cluster_pb2.SetQuotasRequest, _Mapping]] = ..., delete_quotas: _Optional[_Union[_cluster_pb2.DeleteQuotasRequest, _Mapping]] = ..., undelete_topics: _Optional[_Union[_cluster_pb2.UndeleteTopicsRequest, _Mapping]] = ..., purge_topics: _Optional[_Union[_cluster_pb2.PurgeTopicsRequest, _Mapping]] = ..., create_transactions_topic: _Optional[_Union[CreateTransactionsTopicRequest, _Mapping]] = ..., caller: _Optional[_Union[Caller, _Mapping]] = ...) -> None: ...

class Caller(_message.Message):
    __slots__ = ("principal", "client_id", "address", "listener", "software")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LISTENER_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    client_id: str
    address: str
    listener: str
    software: str
    def __init__(self, principal: _Optional[str] = ..., client_id: _Optional[str] = ..., address: _Optional[str] = ..., listener: _Optional[str] = ..., software: _Optional[str] = ...) -> None: ...

class ControllerResponse(_message.Message):
    __slots__ = ("correlation_id", "error", "register_broker", "heartbeat", "alter_partitions", "allocate_producer_ids", "confirm_deletions", "create_topics", "alter_topics", "delete_topics", "drain_broker", "reassign_partitions", "elect_leaders", "renew_replicas", "unregister_broker", "create_positions_topic", "set_quotas", "delete_quotas", "undelete_topics", "purge_topics", "create_transactions_topic")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REGISTER_BROKER_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ALTER_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_PRODUCER_IDS_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_DELETIONS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    ALTER_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_BROKER_FIELD_NUMBER: _ClassVar[int]
    REASSIGN_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ELECT_LEADERS_FIELD_NUMBER: _ClassVar[int]
    RENEW_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_BROKER_FIELD_NUMBER: _ClassVar[int]
    CREATE_POSITIONS_TOPIC_FIELD_NUMBER: _ClassVar[int]
    SET_QUOTAS_FIELD_NUMBER: _ClassVar[int]
    DELETE_QUOTAS_FIELD_NUMBER: _ClassVar[int]
    UNDELETE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    PURGE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TRANSACTIONS_TOPIC_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: _common_pb2.Error
    register_broker: RegisterBrokerResponse
    heartbeat: HeartbeatResponse
    alter_partitions: AlterPartitionsResponse
    allocate_producer_ids: AllocateProducerIdsResponse
    confirm_deletions: ConfirmDeletionsResponse
    create_topics: _cluster_pb2.CreateTopicsResponse
    alter_topics: _cluster_pb2.AlterTopicsResponse
    delete_topics: _cluster_pb2.DeleteTopicsResponse
    drain_broker: _cluster_pb2.DrainBrokerResponse
    reassign_partitions: _cluster_pb2.ReassignPartitionsResponse
    elect_leaders: _cluster_pb2.ElectLeadersResponse
    renew_replicas: RenewReplicasResponse
    unregister_broker: _cluster_pb2.UnregisterBrokerResponse
    create_positions_topic: CreatePositionsTopicResponse
    set_quotas: _cluster_pb2.SetQuotasResponse
    delete_quotas: _cluster_pb2.DeleteQuotasResponse
    undelete_topics: _cluster_pb2.UndeleteTopicsResponse
    purge_topics: _cluster_pb2.PurgeTopicsResponse
    create_transactions_topic: CreateTransactionsTopicResponse
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., register_broker: _Optional[_Union[RegisterBrokerResponse, _Mapping]] = ..., heartbeat: _Optional[_Union[HeartbeatResponse, _Mapping]] = ..., alter_partitions: _Optional[_Union[AlterPartitionsResponse, _Mapping]] = ..., allocate_producer_ids: _Optional[_Union[AllocateProducerIdsResponse, _Mapping]] = ..., confirm_deletions: _Optional[_Union[ConfirmDeletionsResponse, _Mapping]] = ..., create_topics: _Optional[_Union[_cluster_pb2.CreateTopicsResponse, _Mapping]] = ..., alter_topics: _Optional[_Union[_cluster_pb2.AlterTopicsResponse, _Mapping]] = ..., delete_topics: _Optional[_Union[_cluster_pb2.DeleteTopicsResponse, _Mapping]] = ..., drain_broker: _Optional[_Union[_cluster_pb2.DrainBrokerResponse, _Mapping]] = ..., reassign_partitions: _Optional[_Union[_cluster_pb2.ReassignPartitionsResponse, _Mapping]] = ..., elect_leaders: _Optional[_Union[_cluster_pb2.ElectLeadersResponse, _Mapping]] = ..., renew_replicas: _Optional[_Union[RenewReplicasResponse, _Mapping]] = ..., unregister_broker: _Optional[_Union[_cluster_pb2.UnregisterBrokerResponse, _Mapping]] = ..., create_positions_topic: _Optional[_Union[CreatePositionsTopicResponse, _Mapping]] = ..., set_quotas: _Optional[_Union[_cluster_pb2.SetQuotasResponse, _Mapping]] = ..., delete_quotas: _Optional[_Union[_cluster_pb2.DeleteQuotasResponse, _Mapping]] = ..., undelete_topics: _Optional[_Union[_cluster_pb2.UndeleteTopicsResponse, _Mapping]] = ..., purge_topics: _Optional[_Union[_cluster_pb2.PurgeTopicsResponse, _Mapping]] = ..., create_transactions_topic: _Optional[_Union[CreateTransactionsTopicResponse, _Mapping]] = ...) -> None: ...

class RegisterBrokerRequest(_message.Message):
    __slots__ = ("name", "rack", "host", "port", "replica_host", "replica_port", "incarnation_id", "directory_ids", "broker_id", "previous_broker_epoch", "directory_epoch", "accepted_copy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_HOST_FIELD_NUMBER: _ClassVar[int]
    REPLICA_PORT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_IDS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_COPY_FIELD_NUMBER: _ClassVar[int]
    name: str
    rack: str
    host: str
    port: int
    replica_host: str
    replica_port: int
    incarnation_id: str
    directory_ids: _containers.RepeatedScalarFieldContainer[str]
    broker_id: int
    previous_broker_epoch: int
    directory_epoch: int
    accepted_copy: AcceptedCopy
    def __init__(self, name: _Optional[str] = ..., rack: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., replica_host: _Optional[str] = ..., replica_port: _Optional[int] = ..., incarnation_id: _Optional[str] = ..., directory_ids: _Optional[_Iterable[str]] = ..., broker_id: _Optional[int] = ..., previous_broker_epoch: _Optional[int] = ..., directory_epoch: _Optional[int] = ..., accepted_copy: _Optional[_Union[AcceptedCopy, _Mapping]] = ...) -> None: ...

class AcceptedCopy(_message.Message):
    __slots__ = ("epoch", "lost_epoch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lost_epoch: int
    def __init__(self, epoch: _Optional[int] = ..., lost_epoch: _Optional[int] = ...) -> None: ...

class RegisterBrokerResponse(_message.Message):
    __slots__ = ("broker_id", "broker_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("broker_id", "broker_epoch", "metadata_epoch", "wants_shutdown", "log_ends", "offline", "reluctance", "media", "outside_address", "quota_uses", "drpc_addresses", "tls_addresses", "kafka_addresses")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WANTS_SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    LOG_ENDS_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_FIELD_NUMBER: _ClassVar[int]
    RELUCTANCE_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    QUOTA_USES_FIELD_NUMBER: _ClassVar[int]
    DRPC_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    TLS_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    KAFKA_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    metadata_epoch: int
    wants_shutdown: bool
    log_ends: _containers.RepeatedCompositeFieldContainer[LogEnd]
    offline: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    reluctance: Reluctance
    media: _containers.RepeatedScalarFieldContainer[_common_pb2.Media]
    outside_address: str
    quota_uses: _containers.RepeatedCompositeFieldContainer[SharedQuotaUse]
    drpc_addresses: DrpcAddresses
    tls_addresses: TlsAddresses
    kafka_addresses: KafkaAddresses
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ..., metadata_epoch: _Optional[int] = ..., wants_shutdown: _Optional[bool] = ..., log_ends: _Optional[_Iterable[_Union[LogEnd, _Mapping]]] = ..., offline: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., reluctance: _Optional[_Union[Reluctance, str]] = ..., media: _Optional[_Iterable[_Union[_common_pb2.Media, str]]] = ..., outside_address: _Optional[str] = ..., quota_uses: _Optional[_Iterable[_Union[SharedQuotaUse, _Mapping]]] = ..., drpc_addresses: _Optional[_Union[DrpcAddresses, _Mapping]] = ..., tls_addresses: _Optional[_Union[TlsAddresses, _Mapping]] = ..., kafka_addresses: _Optional[_Union[KafkaAddresses, _Mapping]] = ...) -> None: ...

class DrpcAddresses(_message.Message):
    __slots__ = ("clients", "outside", "brokers")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    clients: str
    outside: str
    brokers: str
    def __init__(self, clients: _Optional[str] = ..., outside: _Optional[str] = ..., brokers: _Optional[str] = ...) -> None: ...

class TlsAddresses(_message.Message):
    __slots__ = ("clients", "outside", "brokers")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    clients: str
    outside: str
    brokers: str
    def __init__(self, clients: _Optional[str] = ..., outside: _Optional[str] = ..., brokers: _Optional[str] = ...) -> None: ...

class KafkaAddresses(_message.Message):
    __slots__ = ("clients", "outside", "clients_tls", "outside_tls")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_TLS_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_TLS_FIELD_NUMBER: _ClassVar[int]
    clients: str
    outside: str
    clients_tls: str
    outside_tls: str
    def __init__(self, clients: _Optional[str] = ..., outside: _Optional[str] = ..., clients_tls: _Optional[str] = ..., outside_tls: _Optional[str] = ...) -> None: ...

class SharedQuotaUse(_message.Message):
    __slots__ = ("bucket", "bytes_per_second", "saturated")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SATURATED_FIELD_NUMBER: _ClassVar[int]
    bucket: _cluster_pb2.QuotaBucket
    bytes_per_second: int
    saturated: bool
    def __init__(self, bucket: _Optional[_Union[_cluster_pb2.QuotaBucket, _Mapping]] = ..., bytes_per_second: _Optional[int] = ..., saturated: _Optional[bool] = ...) -> None: ...

class QuotaShare(_message.Message):
    __slots__ = ("bucket", "bytes_per_second")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    bucket: _cluster_pb2.QuotaBucket
    bytes_per_second: int
    def __init__(self, bucket: _Optional[_Union[_cluster_pb2.QuotaBucket, _Mapping]] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

class LogEnd(_message.Message):
    __slots__ = ("topic_partition", "leader_epoch", "end_offset", "committed_offset")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    leader_epoch: int
    end_offset: int
    committed_offset: int
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., committed_offset: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("is_fenced", "may_stop", "quota_shares")
    IS_FENCED_FIELD_NUMBER: _ClassVar[int]
    MAY_STOP_FIELD_NUMBER: _ClassVar[int]
    QUOTA_SHARES_FIELD_NUMBER: _ClassVar[int]
    is_fenced: bool
    may_stop: bool
    quota_shares: _containers.RepeatedCompositeFieldContainer[QuotaShare]
    def __init__(self, is_fenced: _Optional[bool] = ..., may_stop: _Optional[bool] = ..., quota_shares: _Optional[_Iterable[_Union[QuotaShare, _Mapping]]] = ...) -> None: ...

class AlterPartitionsRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[AlterPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[AlterPartition, _Mapping]]] = ...) -> None: ...

class AlterPartition(_message.Message):
    __slots__ = ("topic_partition", "leader", "leader_epoch", "partition_epoch", "isr", "is_recovering", "is_unflushed", "committed_end")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    IS_RECOVERING_FIELD_NUMBER: _ClassVar[int]
    IS_UNFLUSHED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_END_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    leader: ReplicaLife
    leader_epoch: int
    partition_epoch: int
    isr: _containers.RepeatedCompositeFieldContainer[ReplicaLife]
    is_recovering: bool
    is_unflushed: bool
    committed_end: CommittedEnd
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., leader: _Optional[_Union[ReplicaLife, _Mapping]] = ..., leader_epoch: _Optional[int] = ..., partition_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[_Union[ReplicaLife, _Mapping]]] = ..., is_recovering: _Optional[bool] = ..., is_unflushed: _Optional[bool] = ..., committed_end: _Optional[_Union[CommittedEnd, _Mapping]] = ...) -> None: ...

class CommittedEnd(_message.Message):
    __slots__ = ("leader_epoch", "end_offset")
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    leader_epoch: int
    end_offset: int
    def __init__(self, leader_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class ReplicaLife(_message.Message):
    __slots__ = ("broker_id", "broker_epoch")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    broker_epoch: int
    def __init__(self, broker_id: _Optional[int] = ..., broker_epoch: _Optional[int] = ...) -> None: ...

class AlterPartitionsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[AlteredPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[AlteredPartition, _Mapping]]] = ...) -> None: ...

class AlteredPartition(_message.Message):
    __slots__ = ("error", "partition_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    partition_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., partition_epoch: _Optional[int] = ...) -> None: ...

class RenewReplicasRequest(_message.Message):
    __slots__ = ("replica", "renewals")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    RENEWALS_FIELD_NUMBER: _ClassVar[int]
    replica: ReplicaLife
    renewals: _containers.RepeatedCompositeFieldContainer[ReplicaRenewal]
    def __init__(self, replica: _Optional[_Union[ReplicaLife, _Mapping]] = ..., renewals: _Optional[_Iterable[_Union[ReplicaRenewal, _Mapping]]] = ...) -> None: ...

class ReplicaRenewal(_message.Message):
    __slots__ = ("topic_partition", "partition_epoch")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    partition_epoch: int
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., partition_epoch: _Optional[int] = ...) -> None: ...

class RenewReplicasResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[AlteredPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[AlteredPartition, _Mapping]]] = ...) -> None: ...

class AllocateProducerIdsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AllocateProducerIdsResponse(_message.Message):
    __slots__ = ("first_producer_id", "count")
    FIRST_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first_producer_id: int
    count: int
    def __init__(self, first_producer_id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ConfirmDeletionsRequest(_message.Message):
    __slots__ = ("broker_id", "topic_ids")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, broker_id: _Optional[int] = ..., topic_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ConfirmDeletionsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreatePositionsTopicRequest(_message.Message):
    __slots__ = ("topic_id",)
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    def __init__(self, topic_id: _Optional[bytes] = ...) -> None: ...

class CreatePositionsTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateTransactionsTopicRequest(_message.Message):
    __slots__ = ("topic_id",)
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    def __init__(self, topic_id: _Optional[bytes] = ...) -> None: ...

class CreateTransactionsTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
