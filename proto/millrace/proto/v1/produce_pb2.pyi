from millrace.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProduceRequest(_message.Message):
    __slots__ = ("header", "batches")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    header: ProduceHeader
    batches: bytes
    def __init__(self, header: _Optional[_Union[ProduceHeader, _Mapping]] = ..., batches: _Optional[bytes] = ...) -> None: ...

class ProduceHeader(_message.Message):
    __slots__ = ("correlation_id", "acks", "request_timeout_ms", "partitions", "transactional_id")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    acks: int
    request_timeout_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[ProducePartition]
    transactional_id: str
    def __init__(self, correlation_id: _Optional[int] = ..., acks: _Optional[int] = ..., request_timeout_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[ProducePartition, _Mapping]]] = ..., transactional_id: _Optional[str] = ...) -> None: ...

class ProducePartition(_message.Message):
    __slots__ = ("topic_id", "partition", "leader_epoch", "length", "is_successor")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    IS_SUCCESSOR_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    leader_epoch: int
    length: int
    is_successor: bool
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., length: _Optional[int] = ..., is_successor: _Optional[bool] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("answers", "throttle_time_ms")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[ProduceAnswer]
    throttle_time_ms: int
    def __init__(self, answers: _Optional[_Iterable[_Union[ProduceAnswer, _Mapping]]] = ..., throttle_time_ms: _Optional[int] = ...) -> None: ...

class ProduceAnswer(_message.Message):
    __slots__ = ("correlation_id", "results", "error")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    results: _containers.RepeatedCompositeFieldContainer[ProduceResult]
    error: _common_pb2.Error
    def __init__(self, correlation_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[ProduceResult, _Mapping]]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class ProduceResult(_message.Message):
    __slots__ = ("error", "base_offset", "append_timestamp", "log_start_offset")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    base_offset: int
    append_timestamp: int
    log_start_offset: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., base_offset: _Optional[int] = ..., append_timestamp: _Optional[int] = ..., log_start_offset: _Optional[int] = ...) -> None: ...

class InitProducerIdRequest(_message.Message):
    __slots__ = ("transactional_id", "transaction_timeout_ms", "producer_id", "producer_epoch")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    transaction_timeout_ms: int
    producer_id: int
    producer_epoch: int
    def __init__(self, transactional_id: _Optional[str] = ..., transaction_timeout_ms: _Optional[int] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class InitProducerIdResponse(_message.Message):
    __slots__ = ("error", "producer_id", "producer_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    producer_id: int
    producer_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...
