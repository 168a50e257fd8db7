from millrace.proto.v1 import common_pb2 as _common_pb2
from millrace.proto.v1 import transactions_pb2 as _transactions_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenSharedTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "run_id", "version", "may_attach")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAY_ATTACH_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    run_id: str
    version: _transactions_pb2.ApplicationVersion
    may_attach: bool
    def __init__(self, transactional_id: _Optional[str] = ..., run_id: _Optional[str] = ..., version: _Optional[_Union[_transactions_pb2.ApplicationVersion, _Mapping]] = ..., may_attach: _Optional[bool] = ...) -> None: ...

class OpenSharedTransactionResponse(_message.Message):
    __slots__ = ("error", "generation", "number", "is_done", "renew_ms")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    RENEW_MS_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    generation: int
    number: int
    is_done: bool
    renew_ms: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., generation: _Optional[int] = ..., number: _Optional[int] = ..., is_done: _Optional[bool] = ..., renew_ms: _Optional[int] = ...) -> None: ...

class JoinSharedTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "generation", "number")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    generation: int
    number: int
    def __init__(self, transactional_id: _Optional[str] = ..., generation: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class JoinSharedTransactionResponse(_message.Message):
    __slots__ = ("error", "producer_id", "producer_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    producer_id: int
    producer_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class RenewSharedTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "generation", "number")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    generation: int
    number: int
    def __init__(self, transactional_id: _Optional[str] = ..., generation: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class RenewSharedTransactionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class EndSharedTransactionRequest(_message.Message):
    __slots__ = ("transactional_id", "generation", "number", "committed", "participants")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    generation: int
    number: int
    committed: bool
    participants: _containers.RepeatedCompositeFieldContainer[_transactions_pb2.SharedParticipant]
    def __init__(self, transactional_id: _Optional[str] = ..., generation: _Optional[int] = ..., number: _Optional[int] = ..., committed: _Optional[bool] = ..., participants: _Optional[_Iterable[_Union[_transactions_pb2.SharedParticipant, _Mapping]]] = ...) -> None: ...

class EndSharedTransactionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class ForgetVersionRequest(_message.Message):
    __slots__ = ("transactional_id",)
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    def __init__(self, transactional_id: _Optional[str] = ...) -> None: ...

class ForgetVersionResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
