from millrace.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TransactionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_STATE_UNSPECIFIED: _ClassVar[TransactionState]
    TRANSACTION_STATE_EMPTY: _ClassVar[TransactionState]
    TRANSACTION_STATE_ONGOING: _ClassVar[TransactionState]
    TRANSACTION_STATE_PREPARE_COMMIT: _ClassVar[TransactionState]
    TRANSACTION_STATE_PREPARE_ABORT: _ClassVar[TransactionState]
    TRANSACTION_STATE_COMPLETE_COMMIT: _ClassVar[TransactionState]
    TRANSACTION_STATE_COMPLETE_ABORT: _ClassVar[TransactionState]

class TransactionEnding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_ENDING_UNSPECIFIED: _ClassVar[TransactionEnding]
    TRANSACTION_ENDING_PRODUCER: _ClassVar[TransactionEnding]
    TRANSACTION_ENDING_TIMEOUT: _ClassVar[TransactionEnding]
    TRANSACTION_ENDING_FENCED: _ClassVar[TransactionEnding]
    TRANSACTION_ENDING_OPERATOR: _ClassVar[TransactionEnding]
TRANSACTION_STATE_UNSPECIFIED: TransactionState
TRANSACTION_STATE_EMPTY: TransactionState
TRANSACTION_STATE_ONGOING: TransactionState
TRANSACTION_STATE_PREPARE_COMMIT: TransactionState
TRANSACTION_STATE_PREPARE_ABORT: TransactionState
TRANSACTION_STATE_COMPLETE_COMMIT: TransactionState
TRANSACTION_STATE_COMPLETE_ABORT: TransactionState
TRANSACTION_ENDING_UNSPECIFIED: TransactionEnding
TRANSACTION_ENDING_PRODUCER: TransactionEnding
TRANSACTION_ENDING_TIMEOUT: TransactionEnding
TRANSACTION_ENDING_FENCED: TransactionEnding
TRANSACTION_ENDING_OPERATOR: TransactionEnding

class EndTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "committed")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., committed: _Optional[bool] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("error", "producer_id", "producer_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    producer_id: int
    producer_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("partition", "after", "states", "producer_id", "none_hidden")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    NONE_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    partition: int
    after: str
    states: _containers.RepeatedScalarFieldContainer[TransactionState]
    producer_id: int
    none_hidden: bool
    def __init__(self, partition: _Optional[int] = ..., after: _Optional[str] = ..., states: _Optional[_Iterable[_Union[TransactionState, str]]] = ..., producer_id: _Optional[int] = ..., none_hidden: _Optional[bool] = ...) -> None: ...

class ListedTransaction(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "state", "open_ms", "is_shared")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OPEN_MS_FIELD_NUMBER: _ClassVar[int]
    IS_SHARED_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    open_ms: int
    is_shared: bool
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., state: _Optional[_Union[TransactionState, str]] = ..., open_ms: _Optional[int] = ..., is_shared: _Optional[bool] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("error", "transactions", "has_more", "partitions", "owed_epochs")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OWED_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    transactions: _containers.RepeatedCompositeFieldContainer[ListedTransaction]
    has_more: bool
    partitions: int
    owed_epochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., transactions: _Optional[_Iterable[_Union[ListedTransaction, _Mapping]]] = ..., has_more: _Optional[bool] = ..., partitions: _Optional[int] = ..., owed_epochs: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeTransactionRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class DescribeTransactionResponse(_message.Message):
    __slots__ = ("error", "state", "producer_id", "producer_epoch", "timeout_ms", "open_ms", "partitions", "groups", "ending", "ended_producer_id", "ended_producer_epoch", "ended_committed", "shared")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    OPEN_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    ENDED_PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDED_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    open_ms: int
    partitions: _containers.RepeatedCompositeFieldContainer[TransactionPartition]
    groups: _containers.RepeatedCompositeFieldContainer[TransactionGroup]
    ending: TransactionEnding
    ended_producer_id: int
    ended_producer_epoch: int
    ended_committed: bool
    shared: SharedTransaction
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., state: _Optional[_Union[TransactionState, str]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., open_ms: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[TransactionPartition, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[TransactionGroup, _Mapping]]] = ..., ending: _Optional[_Union[TransactionEnding, str]] = ..., ended_producer_id: _Optional[int] = ..., ended_producer_epoch: _Optional[int] = ..., ended_committed: _Optional[bool] = ..., shared: _Optional[_Union[SharedTransaction, _Mapping]] = ...) -> None: ...

class SharedTransaction(_message.Message):
    __slots__ = ("generation", "run_id", "number", "done", "participants")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    run_id: str
    number: int
    done: ApplicationVersion
    participants: _containers.RepeatedCompositeFieldContainer[SharedParticipant]
    def __init__(self, generation: _Optional[int] = ..., run_id: _Optional[str] = ..., number: _Optional[int] = ..., done: _Optional[_Union[ApplicationVersion, _Mapping]] = ..., participants: _Optional[_Iterable[_Union[SharedParticipant, _Mapping]]] = ...) -> None: ...

class ApplicationVersion(_message.Message):
    __slots__ = ("number", "query_id", "checkpoint")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    number: int
    query_id: str
    checkpoint: str
    def __init__(self, number: _Optional[int] = ..., query_id: _Optional[str] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class SharedParticipant(_message.Message):
    __slots__ = ("producer_id", "producer_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class TransactionPartition(_message.Message):
    __slots__ = ("topic_partition", "topic", "is_owed", "problem", "is_hidden")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    IS_OWED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    IS_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    topic: str
    is_owed: bool
    problem: str
    is_hidden: bool
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., topic: _Optional[str] = ..., is_owed: _Optional[bool] = ..., problem: _Optional[str] = ..., is_hidden: _Optional[bool] = ...) -> None: ...

class TransactionGroup(_message.Message):
    __slots__ = ("group", "is_owed", "problem", "is_hidden")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    IS_OWED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    IS_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    group: str
    is_owed: bool
    problem: str
    is_hidden: bool
    def __init__(self, group: _Optional[str] = ..., is_owed: _Optional[bool] = ..., problem: _Optional[str] = ..., is_hidden: _Optional[bool] = ...) -> None: ...

class AbortTransactionRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class AbortTransactionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class ListOpenTransactionsRequest(_message.Message):
    __slots__ = ("topic_partition",)
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ...) -> None: ...

class OpenTransaction(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "first_offset", "began_at")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    first_offset: int
    began_at: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., first_offset: _Optional[int] = ..., began_at: _Optional[int] = ...) -> None: ...

class ListOpenTransactionsResponse(_message.Message):
    __slots__ = ("error", "transactions", "last_stable_offset")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    transactions: _containers.RepeatedCompositeFieldContainer[OpenTransaction]
    last_stable_offset: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., transactions: _Optional[_Iterable[_Union[OpenTransaction, _Mapping]]] = ..., last_stable_offset: _Optional[int] = ...) -> None: ...

class AbortOpenTransactionRequest(_message.Message):
    __slots__ = ("topic_partition", "producer_id", "first_offset")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    producer_id: int
    first_offset: int
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., producer_id: _Optional[int] = ..., first_offset: _Optional[int] = ...) -> None: ...

class AbortOpenTransactionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class JoinTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "partitions", "groups", "version")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    groups: _containers.RepeatedScalarFieldContainer[str]
    version: int
    def __init__(self, transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ...) -> None: ...

class JoinTransactionResponse(_message.Message):
    __slots__ = ("error", "coordinator_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    coordinator_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., coordinator_epoch: _Optional[int] = ...) -> None: ...

class FindTransactionRequest(_message.Message):
    __slots__ = ("part", "topic_partition", "producer_id", "producer_epoch")
    PART_FIELD_NUMBER: _ClassVar[int]
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    part: int
    topic_partition: _common_pb2.TopicPartition
    producer_id: int
    producer_epoch: int
    def __init__(self, part: _Optional[int] = ..., topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class FindTransactionResponse(_message.Message):
    __slots__ = ("error", "transactional_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    transactional_id: str
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., transactional_id: _Optional[str] = ...) -> None: ...

class WriteMarkersRequest(_message.Message):
    __slots__ = ("markers",)
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    markers: _containers.RepeatedCompositeFieldContainer[Marker]
    def __init__(self, markers: _Optional[_Iterable[_Union[Marker, _Mapping]]] = ...) -> None: ...

class Marker(_message.Message):
    __slots__ = ("producer_id", "producer_epoch", "committed", "coordinator_epoch", "version", "partitions", "groups")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    version: int
    partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., committed: _Optional[bool] = ..., coordinator_epoch: _Optional[int] = ..., version: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class WriteMarkersResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[MarkerResult]
    def __init__(self, results: _Optional[_Iterable[_Union[MarkerResult, _Mapping]]] = ...) -> None: ...

class MarkerResult(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
