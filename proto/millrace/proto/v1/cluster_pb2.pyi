from millrace.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConfigSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_SOURCE_UNSPECIFIED: _ClassVar[ConfigSource]
    CONFIG_SOURCE_DEFAULT: _ClassVar[ConfigSource]
    CONFIG_SOURCE_BROKER: _ClassVar[ConfigSource]
    CONFIG_SOURCE_TOPIC: _ClassVar[ConfigSource]
    CONFIG_SOURCE_FILE: _ClassVar[ConfigSource]
    CONFIG_SOURCE_ENVIRONMENT: _ClassVar[ConfigSource]
    CONFIG_SOURCE_COMMAND: _ClassVar[ConfigSource]
    CONFIG_SOURCE_CONTROLLER: _ClassVar[ConfigSource]

class ElectionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELECTION_KIND_UNSPECIFIED: _ClassVar[ElectionKind]
    ELECTION_KIND_PREFERRED: _ClassVar[ElectionKind]
    ELECTION_KIND_UNCLEAN: _ClassVar[ElectionKind]

class QuotaKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUOTA_KIND_UNSPECIFIED: _ClassVar[QuotaKind]
    QUOTA_KIND_PRODUCE: _ClassVar[QuotaKind]
    QUOTA_KIND_FETCH: _ClassVar[QuotaKind]
    QUOTA_KIND_REQUEST: _ClassVar[QuotaKind]
CONFIG_SOURCE_UNSPECIFIED: ConfigSource
CONFIG_SOURCE_DEFAULT: ConfigSource
CONFIG_SOURCE_BROKER: ConfigSource
CONFIG_SOURCE_TOPIC: ConfigSource
CONFIG_SOURCE_FILE: ConfigSource
CONFIG_SOURCE_ENVIRONMENT: ConfigSource
CONFIG_SOURCE_COMMAND: ConfigSource
CONFIG_SOURCE_CONTROLLER: ConfigSource
ELECTION_KIND_UNSPECIFIED: ElectionKind
ELECTION_KIND_PREFERRED: ElectionKind
ELECTION_KIND_UNCLEAN: ElectionKind
QUOTA_KIND_UNSPECIFIED: QuotaKind
QUOTA_KIND_PRODUCE: QuotaKind
QUOTA_KIND_FETCH: QuotaKind
QUOTA_KIND_REQUEST: QuotaKind

class GetMetadataRequest(_message.Message):
    __slots__ = ("topics", "topic_ids", "brokers_only", "with_documentation", "none_hidden")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_ONLY_FIELD_NUMBER: _ClassVar[int]
    WITH_DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    NONE_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    brokers_only: bool
    with_documentation: bool
    none_hidden: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., topic_ids: _Optional[_Iterable[bytes]] = ..., brokers_only: _Optional[bool] = ..., with_documentation: _Optional[bool] = ..., none_hidden: _Optional[bool] = ...) -> None: ...

class GetMetadataResponse(_message.Message):
    __slots__ = ("cluster_id", "controller_id", "brokers", "topics", "controller_epoch", "metadata_epoch", "controller_problem")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    controller_id: int
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerMetadata]
    topics: _containers.RepeatedCompositeFieldContainer[TopicMetadata]
    controller_epoch: int
    metadata_epoch: int
    controller_problem: str
    def __init__(self, cluster_id: _Optional[str] = ..., controller_id: _Optional[int] = ..., brokers: _Optional[_Iterable[_Union[BrokerMetadata, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicMetadata, _Mapping]]] = ..., controller_epoch: _Optional[int] = ..., metadata_epoch: _Optional[int] = ..., controller_problem: _Optional[str] = ...) -> None: ...

class BrokerMetadata(_message.Message):
    __slots__ = ("broker_id", "name", "address", "rack", "broker_epoch", "fenced", "draining", "drained", "reluctance", "media", "drpc_address")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    RELUCTANCE_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    DRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    name: str
    address: str
    rack: str
    broker_epoch: int
    fenced: bool
    draining: bool
    drained: bool
    reluctance: str
    media: _containers.RepeatedScalarFieldContainer[_common_pb2.Media]
    drpc_address: str
    def __init__(self, broker_id: _Optional[int] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., rack: _Optional[str] = ..., broker_epoch: _Optional[int] = ..., fenced: _Optional[bool] = ..., draining: _Optional[bool] = ..., drained: _Optional[bool] = ..., reluctance: _Optional[str] = ..., media: _Optional[_Iterable[_Union[_common_pb2.Media, str]]] = ..., drpc_address: _Optional[str] = ...) -> None: ...

class TopicMetadata(_message.Message):
    __slots__ = ("error", "name", "topic_id", "internal", "partitions", "config")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    name: str
    topic_id: bytes
    internal: bool
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionMetadata]
    config: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., internal: _Optional[bool] = ..., partitions: _Optional[_Iterable[_Union[PartitionMetadata, _Mapping]]] = ..., config: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ...) -> None: ...

class PartitionMetadata(_message.Message):
    __slots__ = ("partition", "leader", "partition_epoch", "replicas", "isr", "elr", "offline_replicas", "adding_replicas", "removing_replicas", "recovering")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    PARTITION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    ELR_FIELD_NUMBER: _ClassVar[int]
    OFFLINE_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ADDING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REMOVING_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    partition: int
    leader: _common_pb2.PartitionLeader
    partition_epoch: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    isr: _containers.RepeatedScalarFieldContainer[int]
    elr: _containers.RepeatedScalarFieldContainer[int]
    offline_replicas: _containers.RepeatedScalarFieldContainer[int]
    adding_replicas: _containers.RepeatedScalarFieldContainer[int]
    removing_replicas: _containers.RepeatedScalarFieldContainer[int]
    recovering: bool
    def __init__(self, partition: _Optional[int] = ..., leader: _Optional[_Union[_common_pb2.PartitionLeader, _Mapping]] = ..., partition_epoch: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., isr: _Optional[_Iterable[int]] = ..., elr: _Optional[_Iterable[int]] = ..., offline_replicas: _Optional[_Iterable[int]] = ..., adding_replicas: _Optional[_Iterable[int]] = ..., removing_replicas: _Optional[_Iterable[int]] = ..., recovering: _Optional[bool] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("name", "value", "source", "documentation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: ConfigSource
    documentation: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[_Union[ConfigSource, str]] = ..., documentation: _Optional[str] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("topics", "validate_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[NewTopic]
    validate_only: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[NewTopic, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class NewTopic(_message.Message):
    __slots__ = ("name", "partitions", "replication_factor", "config", "topic_id", "assignment")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    replication_factor: int
    config: _containers.ScalarMap[str, str]
    topic_id: bytes
    assignment: _containers.RepeatedCompositeFieldContainer[NewReplicas]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., config: _Optional[_Mapping[str, str]] = ..., topic_id: _Optional[bytes] = ..., assignment: _Optional[_Iterable[_Union[NewReplicas, _Mapping]]] = ...) -> None: ...

class NewReplicas(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, replicas: _Optional[_Iterable[int]] = ...) -> None: ...

class CreateTopicsResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TopicResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class TopicResult(_message.Message):
    __slots__ = ("error", "topic")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    topic: TopicMetadata
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., topic: _Optional[_Union[TopicMetadata, _Mapping]] = ...) -> None: ...

class AlterTopicsRequest(_message.Message):
    __slots__ = ("topics", "validate_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicChange]
    validate_only: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicChange, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class TopicChange(_message.Message):
    __slots__ = ("name", "topic_id", "set_config", "unset_config", "partitions", "assignment")
    class SetConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SET_CONFIG_FIELD_NUMBER: _ClassVar[int]
    UNSET_CONFIG_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    set_config: _containers.ScalarMap[str, str]
    unset_config: _containers.RepeatedScalarFieldContainer[str]
    partitions: int
    assignment: _containers.RepeatedCompositeFieldContainer[NewReplicas]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., set_config: _Optional[_Mapping[str, str]] = ..., unset_config: _Optional[_Iterable[str]] = ..., partitions: _Optional[int] = ..., assignment: _Optional[_Iterable[_Union[NewReplicas, _Mapping]]] = ...) -> None: ...

class AlterTopicsResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TopicResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("topics", "validate_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRef]
    validate_only: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicRef, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class TopicRef(_message.Message):
    __slots__ = ("name", "topic_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ...) -> None: ...

class DeleteTopicsResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TopicResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class UndeleteTopicsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRef]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicRef, _Mapping]]] = ...) -> None: ...

class UndeleteTopicsResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TopicResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class PurgeTopicsRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRef]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicRef, _Mapping]]] = ...) -> None: ...

class PurgeTopicsResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[TopicResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class ListDeletedTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDeletedTopicsResponse(_message.Message):
    __slots__ = ("topics", "metadata_epoch")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[DeletedTopic]
    metadata_epoch: int
    def __init__(self, topics: _Optional[_Iterable[_Union[DeletedTopic, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class DeletedTopic(_message.Message):
    __slots__ = ("name", "topic_id", "partitions", "replication_factor", "deleted_at_ms", "gone_at_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    DELETED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    GONE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int
    deleted_at_ms: int
    gone_at_ms: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[int] = ..., replication_factor: _Optional[int] = ..., deleted_at_ms: _Optional[int] = ..., gone_at_ms: _Optional[int] = ...) -> None: ...

class DescribeLogsRequest(_message.Message):
    __slots__ = ("partitions", "only_damaged")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ONLY_DAMAGED_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    only_damaged: bool
    def __init__(self, partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., only_damaged: _Optional[bool] = ...) -> None: ...

class DescribeLogsResponse(_message.Message):
    __slots__ = ("logs",)
    LOGS_FIELD_NUMBER: _ClassVar[int]
    logs: _containers.RepeatedCompositeFieldContainer[LogDescription]
    def __init__(self, logs: _Optional[_Iterable[_Union[LogDescription, _Mapping]]] = ...) -> None: ...

class LogDescription(_message.Message):
    __slots__ = ("error", "topic_partition", "log_start_offset", "log_end_offset", "high_watermark", "flushed_offset", "size_bytes", "segments", "log_dir", "followers", "leads", "damaged_logs", "media", "compaction", "tier", "appended_bytes", "fetched_bytes")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LOG_DIR_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_LOGS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    APPENDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    topic_partition: _common_pb2.TopicPartition
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    flushed_offset: int
    size_bytes: int
    segments: int
    log_dir: str
    followers: _containers.RepeatedCompositeFieldContainer[FollowerDescription]
    leads: bool
    damaged_logs: _containers.RepeatedScalarFieldContainer[str]
    media: _common_pb2.Media
    compaction: CompactionDescription
    tier: TierDescription
    appended_bytes: int
    fetched_bytes: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., log_dir: _Optional[str] = ..., followers: _Optional[_Iterable[_Union[FollowerDescription, _Mapping]]] = ..., leads: _Optional[bool] = ..., damaged_logs: _Optional[_Iterable[str]] = ..., media: _Optional[_Union[_common_pb2.Media, str]] = ..., compaction: _Optional[_Union[CompactionDescription, _Mapping]] = ..., tier: _Optional[_Union[TierDescription, _Mapping]] = ..., appended_bytes: _Optional[int] = ..., fetched_bytes: _Optional[int] = ...) -> None: ...

class TierDescription(_message.Message):
    __slots__ = ("log_dir", "end_offset", "size_bytes", "error")
    LOG_DIR_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    log_dir: str
    end_offset: int
    size_bytes: int
    error: _common_pb2.Error
    def __init__(self, log_dir: _Optional[str] = ..., end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class CompactionDescription(_message.Message):
    __slots__ = ("cleaner_point", "dirty_ratio", "compacted_at", "error")
    CLEANER_POINT_FIELD_NUMBER: _ClassVar[int]
    DIRTY_RATIO_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_AT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    cleaner_point: int
    dirty_ratio: float
    compacted_at: int
    error: _common_pb2.Error
    def __init__(self, cleaner_point: _Optional[int] = ..., dirty_ratio: _Optional[float] = ..., compacted_at: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class FollowerDescription(_message.Message):
    __slots__ = ("broker_id", "log_end_offset", "flushed_offset", "behind_ms", "in_sync")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    log_end_offset: int
    flushed_offset: int
    behind_ms: int
    in_sync: bool
    def __init__(self, broker_id: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., behind_ms: _Optional[int] = ..., in_sync: _Optional[bool] = ...) -> None: ...

class DescribeBrokerConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeBrokerConfigResponse(_message.Message):
    __slots__ = ("config",)
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    config: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, config: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("partitions", "request_timeout_ms")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[RecordsToDelete]
    request_timeout_ms: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[RecordsToDelete, _Mapping]]] = ..., request_timeout_ms: _Optional[int] = ...) -> None: ...

class RecordsToDelete(_message.Message):
    __slots__ = ("topic_partition", "current_leader_epoch", "before_offset")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    current_leader_epoch: int
    before_offset: int
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., current_leader_epoch: _Optional[int] = ..., before_offset: _Optional[int] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[DeletedRecords]
    def __init__(self, partitions: _Optional[_Iterable[_Union[DeletedRecords, _Mapping]]] = ...) -> None: ...

class DeletedRecords(_message.Message):
    __slots__ = ("error", "topic_partition", "low_watermark")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    topic_partition: _common_pb2.TopicPartition
    low_watermark: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., low_watermark: _Optional[int] = ...) -> None: ...

class DrainBrokerRequest(_message.Message):
    __slots__ = ("broker_id", "undrain")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    UNDRAIN_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    undrain: bool
    def __init__(self, broker_id: _Optional[int] = ..., undrain: _Optional[bool] = ...) -> None: ...

class DrainBrokerResponse(_message.Message):
    __slots__ = ("error", "metadata_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    metadata_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class UnregisterBrokerRequest(_message.Message):
    __slots__ = ("broker_id",)
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    def __init__(self, broker_id: _Optional[int] = ...) -> None: ...

class UnregisterBrokerResponse(_message.Message):
    __slots__ = ("error", "metadata_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    metadata_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class ReassignPartitionsRequest(_message.Message):
    __slots__ = ("reassignments",)
    REASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    reassignments: _containers.RepeatedCompositeFieldContainer[Reassignment]
    def __init__(self, reassignments: _Optional[_Iterable[_Union[Reassignment, _Mapping]]] = ...) -> None: ...

class Reassignment(_message.Message):
    __slots__ = ("topic_partition", "replicas", "cancel")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    replicas: _containers.RepeatedScalarFieldContainer[int]
    cancel: bool
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., replicas: _Optional[_Iterable[int]] = ..., cancel: _Optional[bool] = ...) -> None: ...

class ReassignPartitionsResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PartitionResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[PartitionResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class ElectLeadersRequest(_message.Message):
    __slots__ = ("kind", "partitions")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    kind: ElectionKind
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    def __init__(self, kind: _Optional[_Union[ElectionKind, str]] = ..., partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ...) -> None: ...

class ElectLeadersResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PartitionResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[PartitionResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class PartitionResult(_message.Message):
    __slots__ = ("error", "topic_partition")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    topic_partition: _common_pb2.TopicPartition
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("name", "entity", "produce_bytes_per_second", "fetch_bytes_per_second", "per_broker", "request_percent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FETCH_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PER_BROKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_PERCENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    entity: QuotaEntity
    produce_bytes_per_second: int
    fetch_bytes_per_second: int
    per_broker: bool
    request_percent: int
    def __init__(self, name: _Optional[str] = ..., entity: _Optional[_Union[QuotaEntity, _Mapping]] = ..., produce_bytes_per_second: _Optional[int] = ..., fetch_bytes_per_second: _Optional[int] = ..., per_broker: _Optional[bool] = ..., request_percent: _Optional[int] = ...) -> None: ...

class QuotaEntity(_message.Message):
    __slots__ = ("principal", "client_id", "topic", "namespace")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    client_id: str
    topic: str
    namespace: str
    def __init__(self, principal: _Optional[str] = ..., client_id: _Optional[str] = ..., topic: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class SetQuotasRequest(_message.Message):
    __slots__ = ("quotas", "validate_only")
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    validate_only: bool
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class SetQuotasResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[QuotaResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[QuotaResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class QuotaResult(_message.Message):
    __slots__ = ("error", "quota")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    quota: Quota
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class DeleteQuotasRequest(_message.Message):
    __slots__ = ("names", "validate_only")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    validate_only: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class DeleteQuotasResponse(_message.Message):
    __slots__ = ("results", "metadata_epoch")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[QuotaResult]
    metadata_epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[QuotaResult, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class DescribeQuotasRequest(_message.Message):
    __slots__ = ("names", "without_use")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_USE_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    without_use: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., without_use: _Optional[bool] = ...) -> None: ...

class DescribeQuotasResponse(_message.Message):
    __slots__ = ("quotas", "uses", "metadata_epoch")
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    METADATA_EPOCH_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    uses: _containers.RepeatedCompositeFieldContainer[QuotaUse]
    metadata_epoch: int
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ..., uses: _Optional[_Iterable[_Union[QuotaUse, _Mapping]]] = ..., metadata_epoch: _Optional[int] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("bucket", "used_per_second", "limit_per_second", "delay_ms", "throttled_ms")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    USED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LIMIT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_MS_FIELD_NUMBER: _ClassVar[int]
    bucket: QuotaBucket
    used_per_second: int
    limit_per_second: int
    delay_ms: int
    throttled_ms: int
    def __init__(self, bucket: _Optional[_Union[QuotaBucket, _Mapping]] = ..., used_per_second: _Optional[int] = ..., limit_per_second: _Optional[int] = ..., delay_ms: _Optional[int] = ..., throttled_ms: _Optional[int] = ...) -> None: ...

class QuotaBucket(_message.Message):
    __slots__ = ("quota", "kind", "principal", "client_id", "topic", "namespace")
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    quota: str
    kind: QuotaKind
    principal: str
    client_id: str
    topic: str
    namespace: str
    def __init__(self, quota: _Optional[str] = ..., kind: _Optional[_Union[QuotaKind, str]] = ..., principal: _Optional[str] = ..., client_id: _Optional[str] = ..., topic: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...
