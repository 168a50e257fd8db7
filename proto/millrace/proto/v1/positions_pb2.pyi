from millrace.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PositionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POSITION_KIND_UNSPECIFIED: _ClassVar[PositionKind]
    POSITION_KIND_INITIAL: _ClassVar[PositionKind]
    POSITION_KIND_COMMITTED: _ClassVar[PositionKind]
    POSITION_KIND_PENDING: _ClassVar[PositionKind]

class NameKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NAME_KIND_UNSPECIFIED: _ClassVar[NameKind]
    NAME_KIND_CONSUMER: _ClassVar[NameKind]
    NAME_KIND_SPARK: _ClassVar[NameKind]
    NAME_KIND_STANDALONE: _ClassVar[NameKind]
POSITION_KIND_UNSPECIFIED: PositionKind
POSITION_KIND_INITIAL: PositionKind
POSITION_KIND_COMMITTED: PositionKind
POSITION_KIND_PENDING: PositionKind
NAME_KIND_UNSPECIFIED: NameKind
NAME_KIND_CONSUMER: NameKind
NAME_KIND_SPARK: NameKind
NAME_KIND_STANDALONE: NameKind

class Position(_message.Message):
    __slots__ = ("topic_partition", "offset", "leader_epoch", "metadata")
    TOPIC_PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    topic_partition: _common_pb2.TopicPartition
    offset: int
    leader_epoch: int
    metadata: str
    def __init__(self, topic_partition: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., metadata: _Optional[str] = ...) -> None: ...

class ResolveInitialRequest(_message.Message):
    __slots__ = ("name", "proposals")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    name: str
    proposals: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, name: _Optional[str] = ..., proposals: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class ResolveInitialResponse(_message.Message):
    __slots__ = ("error", "positions")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class CommitPositionsRequest(_message.Message):
    __slots__ = ("name", "positions", "member_id", "epoch", "number", "transactional_id", "producer_id", "producer_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    member_id: str
    epoch: int
    number: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    def __init__(self, name: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., member_id: _Optional[str] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ..., transactional_id: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class CommitPositionsResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class FetchPositionsRequest(_message.Message):
    __slots__ = ("name", "kind", "after", "require_stable", "stable_partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_STABLE_FIELD_NUMBER: _ClassVar[int]
    STABLE_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: PositionKind
    after: _common_pb2.TopicPartition
    require_stable: bool
    stable_partitions: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicPartition]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[PositionKind, str]] = ..., after: _Optional[_Union[_common_pb2.TopicPartition, _Mapping]] = ..., require_stable: _Optional[bool] = ..., stable_partitions: _Optional[_Iterable[_Union[_common_pb2.TopicPartition, _Mapping]]] = ...) -> None: ...

class FetchPositionsResponse(_message.Message):
    __slots__ = ("error", "positions", "has_more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    has_more: bool
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class ListNamesRequest(_message.Message):
    __slots__ = ("partition", "after")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    partition: int
    after: str
    def __init__(self, partition: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class ListNamesResponse(_message.Message):
    __slots__ = ("error", "names", "has_more", "partitions", "kinds", "members")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    names: _containers.RepeatedScalarFieldContainer[str]
    has_more: bool
    partitions: int
    kinds: _containers.RepeatedScalarFieldContainer[NameKind]
    members: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ..., has_more: _Optional[bool] = ..., partitions: _Optional[int] = ..., kinds: _Optional[_Iterable[_Union[NameKind, str]]] = ..., members: _Optional[_Iterable[int]] = ...) -> None: ...

class ForgetTopicsRequest(_message.Message):
    __slots__ = ("name", "topic_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., topic_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ForgetTopicsResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class DeletePositionsRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeletePositionsResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
