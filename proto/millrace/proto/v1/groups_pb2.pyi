from millrace.proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupHeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "confirmed", "member", "wait_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    confirmed: int
    member: GroupMember
    wait_ms: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., confirmed: _Optional[int] = ..., member: _Optional[_Union[GroupMember, _Mapping]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("instance_id", "zone", "topics", "assignor", "rebalance_timeout_ms", "pattern")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    zone: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    assignor: str
    rebalance_timeout_ms: int
    pattern: str
    def __init__(self, instance_id: _Optional[str] = ..., zone: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., assignor: _Optional[str] = ..., rebalance_timeout_ms: _Optional[int] = ..., pattern: _Optional[str] = ...) -> None: ...

class TopicPartitions(_message.Message):
    __slots__ = ("topic_id", "partitions", "topic", "later_from")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LATER_FROM_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    topic: str
    later_from: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ..., topic: _Optional[str] = ..., later_from: _Optional[int] = ...) -> None: ...

class GroupHeartbeatResponse(_message.Message):
    __slots__ = ("error", "epoch", "assigned", "revoking", "session_timeout_ms", "heartbeat_interval_ms", "waited_ms")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVOKING_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    epoch: int
    assigned: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    revoking: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    waited_ms: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., epoch: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., revoking: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., session_timeout_ms: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., waited_ms: _Optional[int] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("group", "member_ids", "for_now")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    FOR_NOW_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_ids: _containers.RepeatedScalarFieldContainer[str]
    for_now: bool
    def __init__(self, group: _Optional[str] = ..., member_ids: _Optional[_Iterable[str]] = ..., for_now: _Optional[bool] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ("error", "member_ids")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MEMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    member_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., member_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group", "after")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    group: str
    after: str
    def __init__(self, group: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class DescribedMember(_message.Message):
    __slots__ = ("member_id", "member", "client_id", "address", "epoch", "assigned", "revoking", "target", "is_behind", "is_away")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    REVOKING_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    IS_BEHIND_FIELD_NUMBER: _ClassVar[int]
    IS_AWAY_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    member: GroupMember
    client_id: str
    address: str
    epoch: int
    assigned: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    revoking: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    target: _containers.RepeatedCompositeFieldContainer[TopicPartitions]
    is_behind: bool
    is_away: bool
    def __init__(self, member_id: _Optional[str] = ..., member: _Optional[_Union[GroupMember, _Mapping]] = ..., client_id: _Optional[str] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., revoking: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., target: _Optional[_Iterable[_Union[TopicPartitions, _Mapping]]] = ..., is_behind: _Optional[bool] = ..., is_away: _Optional[bool] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("error", "epoch", "assignor", "members", "has_more")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNOR_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    epoch: int
    assignor: str
    members: _containers.RepeatedCompositeFieldContainer[DescribedMember]
    has_more: bool
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., epoch: _Optional[int] = ..., assignor: _Optional[str] = ..., members: _Optional[_Iterable[_Union[DescribedMember, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...
