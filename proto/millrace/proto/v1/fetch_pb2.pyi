from millrace.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IsolationLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_LEVEL_READ_UNCOMMITTED: _ClassVar[IsolationLevel]
    ISOLATION_LEVEL_READ_COMMITTED: _ClassVar[IsolationLevel]
ISOLATION_LEVEL_READ_UNCOMMITTED: IsolationLevel
ISOLATION_LEVEL_READ_COMMITTED: IsolationLevel

class FetchRequest(_message.Message):
    __slots__ = ("partitions", "remove", "credit_bytes", "settings", "progress")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[FetchPartition]
    remove: _containers.RepeatedScalarFieldContainer[int]
    credit_bytes: int
    settings: FetchSettings
    progress: _containers.RepeatedCompositeFieldContainer[FollowerProgress]
    def __init__(self, partitions: _Optional[_Iterable[_Union[FetchPartition, _Mapping]]] = ..., remove: _Optional[_Iterable[int]] = ..., credit_bytes: _Optional[int] = ..., settings: _Optional[_Union[FetchSettings, _Mapping]] = ..., progress: _Optional[_Iterable[_Union[FollowerProgress, _Mapping]]] = ...) -> None: ...

class FollowerProgress(_message.Message):
    __slots__ = ("handle", "log_end_offset", "flushed_offset", "log_start_offset", "last_fetched_epoch", "compacted_offset")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_FETCHED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    handle: int
    log_end_offset: int
    flushed_offset: int
    log_start_offset: int
    last_fetched_epoch: int
    compacted_offset: int
    def __init__(self, handle: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., last_fetched_epoch: _Optional[int] = ..., compacted_offset: _Optional[int] = ...) -> None: ...

class FetchSettings(_message.Message):
    __slots__ = ("min_bytes", "max_wait_ms", "isolation_level", "rack", "replica_id", "replica_broker_epoch", "response_bytes_max", "window_bytes", "features", "batch_format_max")
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BROKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FORMAT_MAX_FIELD_NUMBER: _ClassVar[int]
    min_bytes: int
    max_wait_ms: int
    isolation_level: IsolationLevel
    rack: str
    replica_id: int
    replica_broker_epoch: int
    response_bytes_max: int
    window_bytes: int
    features: _containers.RepeatedCompositeFieldContainer[_common_pb2.Feature]
    batch_format_max: int
    def __init__(self, min_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., isolation_level: _Optional[_Union[IsolationLevel, str]] = ..., rack: _Optional[str] = ..., replica_id: _Optional[int] = ..., replica_broker_epoch: _Optional[int] = ..., response_bytes_max: _Optional[int] = ..., window_bytes: _Optional[int] = ..., features: _Optional[_Iterable[_Union[_common_pb2.Feature, _Mapping]]] = ..., batch_format_max: _Optional[int] = ...) -> None: ...

class FetchPartition(_message.Message):
    __slots__ = ("handle", "topic_id", "partition", "fetch_offset", "current_leader_epoch", "last_fetched_epoch", "max_bytes", "log_start_offset", "from_leader", "end_offset", "verify_until")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FETCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_FETCHED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_LEADER_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    VERIFY_UNTIL_FIELD_NUMBER: _ClassVar[int]
    handle: int
    topic_id: bytes
    partition: int
    fetch_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int
    log_start_offset: int
    from_leader: bool
    end_offset: int
    verify_until: int
    def __init__(self, handle: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., fetch_offset: _Optional[int] = ..., current_leader_epoch: _Optional[int] = ..., last_fetched_epoch: _Optional[int] = ..., max_bytes: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., from_leader: _Optional[bool] = ..., end_offset: _Optional[int] = ..., verify_until: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("header", "batches")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    header: FetchHeader
    batches: bytes
    def __init__(self, header: _Optional[_Union[FetchHeader, _Mapping]] = ..., batches: _Optional[bytes] = ...) -> None: ...

class FetchHeader(_message.Message):
    __slots__ = ("partitions", "throttle_time_ms")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[FetchedPartition]
    throttle_time_ms: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[FetchedPartition, _Mapping]]] = ..., throttle_time_ms: _Optional[int] = ...) -> None: ...

class FetchedPartition(_message.Message):
    __slots__ = ("handle", "error", "high_watermark", "last_stable_offset", "log_start_offset", "length", "fetch_offset", "diverging", "aborted_transactions", "preferred_read_replica", "compacted_offset")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FETCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DIVERGING_FIELD_NUMBER: _ClassVar[int]
    ABORTED_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_READ_REPLICA_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    handle: int
    error: _common_pb2.Error
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    length: int
    fetch_offset: int
    diverging: EpochEndOffset
    aborted_transactions: _containers.RepeatedCompositeFieldContainer[AbortedTransaction]
    preferred_read_replica: int
    compacted_offset: int
    def __init__(self, handle: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., high_watermark: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., length: _Optional[int] = ..., fetch_offset: _Optional[int] = ..., diverging: _Optional[_Union[EpochEndOffset, _Mapping]] = ..., aborted_transactions: _Optional[_Iterable[_Union[AbortedTransaction, _Mapping]]] = ..., preferred_read_replica: _Optional[int] = ..., compacted_offset: _Optional[int] = ...) -> None: ...

class EpochEndOffset(_message.Message):
    __slots__ = ("leader_epoch", "end_offset")
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    leader_epoch: int
    end_offset: int
    def __init__(self, leader_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class AbortedTransaction(_message.Message):
    __slots__ = ("producer_id", "first_offset", "last_offset")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    first_offset: int
    last_offset: int
    def __init__(self, producer_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("partitions", "isolation_level", "max_wait_ms")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ListOffsetsPartition]
    isolation_level: IsolationLevel
    max_wait_ms: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[ListOffsetsPartition, _Mapping]]] = ..., isolation_level: _Optional[_Union[IsolationLevel, str]] = ..., max_wait_ms: _Optional[int] = ...) -> None: ...

class ListOffsetsPartition(_message.Message):
    __slots__ = ("topic_partition", "current_leader_epoch", "earliest", "latest", "max_timestamp", "timestamp", "latest_after", "bytes_after")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LATEST_AFTER_FIELD_NUMBER: _ClassVar[int]
    BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    current_leader_epoch: int
    earliest: bool
    latest: bool
    max_timestamp: bool
    timestamp: int
    latest_after: int
    bytes_after: BytesAfter
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., current_leader_epoch: _Optional[int] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., max_timestamp: _Optional[bool] = ..., timestamp: _Optional[int] = ..., latest_after: _Optional[int] = ..., bytes_after: _Optional[_Union[BytesAfter, _Mapping]] = ...) -> None: ...

class BytesAfter(_message.Message):
    __slots__ = ("offset", "size")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    size: int
    def __init__(self, offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[ListedOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[ListedOffset, _Mapping]]] = ...) -> None: ...

class ListedOffset(_message.Message):
    __slots__ = ("error", "offset", "timestamp", "leader_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    offset: int
    timestamp: int
    leader_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., offset: _Optional[int] = ..., timestamp: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class OffsetsForLeaderEpochRequest(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[LeaderEpochQuery]
    def __init__(self, partitions: _Optional[_Iterable[_Union[LeaderEpochQuery, _Mapping]]] = ...) -> None: ...

class LeaderEpochQuery(_message.Message):
    __slots__ = ("topic_partition", "current_leader_epoch", "leader_epoch")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    current_leader_epoch: int
    leader_epoch: int
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., current_leader_epoch: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class OffsetsForLeaderEpochResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LeaderEpochResult]
    def __init__(self, results: _Optional[_Iterable[_Union[LeaderEpochResult, _Mapping]]] = ...) -> None: ...

class LeaderEpochResult(_message.Message):
    __slots__ = ("error", "end")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    end: EpochEndOffset
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., end: _Optional[_Union[EpochEndOffset, _Mapping]] = ...) -> None: ...

class DescribeLagsRequest(_message.Message):
    __slots__ = ("topic_ids", "isolation_level", "topics", "partitions", "current_leader_epochs", "offsets")
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LEADER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    isolation_level: IsolationLevel
    topics: _containers.RepeatedScalarFieldContainer[int]
    partitions: _containers.RepeatedScalarFieldContainer[int]
    current_leader_epochs: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic_ids: _Optional[_Iterable[bytes]] = ..., isolation_level: _Optional[_Union[IsolationLevel, str]] = ..., topics: _Optional[_Iterable[int]] = ..., partitions: _Optional[_Iterable[int]] = ..., current_leader_epochs: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeLagsResponse(_message.Message):
    __slots__ = ("log_start_offsets", "end_offsets", "unread_bytes", "unread_ms", "refused")
    LOG_START_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    END_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNREAD_MS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    log_start_offsets: _containers.RepeatedScalarFieldContainer[int]
    end_offsets: _containers.RepeatedScalarFieldContainer[int]
    unread_bytes: _containers.RepeatedScalarFieldContainer[int]
    unread_ms: _containers.RepeatedScalarFieldContainer[int]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedLag]
    def __init__(self, log_start_offsets: _Optional[_Iterable[int]] = ..., end_offsets: _Optional[_Iterable[int]] = ..., unread_bytes: _Optional[_Iterable[int]] = ..., unread_ms: _Optional[_Iterable[int]] = ..., refused: _Optional[_Iterable[_Union[RefusedLag, _Mapping]]] = ...) -> None: ...

class RefusedLag(_message.Message):
    __slots__ = ("index", "error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    error: _common_pb2.Error
    def __init__(self, index: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
