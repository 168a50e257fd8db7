from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_SERVER: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_BATCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_FORMAT: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_RECORD: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TIMESTAMP: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_LEADER: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_REQUEST_TIMED_OUT: _ClassVar[ErrorCode]
    ERROR_CODE_OUT_OF_ORDER_SEQUENCE: _ClassVar[ErrorCode]
    ERROR_CODE_DUPLICATE_SEQUENCE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PRODUCER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND: _ClassVar[ErrorCode]
    ERROR_CODE_STORAGE_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_LOG_DIR_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_ALREADY_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TOPIC: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PARTITIONS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REPLICATION_FACTOR: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_CONFIG: _ClassVar[ErrorCode]
    ERROR_CODE_MALFORMED_REQUEST: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_CONTROLLER: _ClassVar[ErrorCode]
    ERROR_CODE_BROKER_BUSY: _ClassVar[ErrorCode]
    ERROR_CODE_BROKER_SHUTTING_DOWN: _ClassVar[ErrorCode]
    ERROR_CODE_CREDIT_TOO_SMALL: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_FEATURE: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_LOG: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_BROKER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_CONTROLLER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_UPDATE_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_INELIGIBLE_REPLICA: _ClassVar[ErrorCode]
    ERROR_CODE_DUPLICATE_BROKER_REGISTRATION: _ClassVar[ErrorCode]
    ERROR_CODE_BROKER_ID_NOT_REGISTERED: _ClassVar[ErrorCode]
    ERROR_CODE_PREFERRED_LEADER_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_ELIGIBLE_LEADERS_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REPLICA_ASSIGNMENT: _ClassVar[ErrorCode]
    ERROR_CODE_REASSIGNMENT_REFUSED: _ClassVar[ErrorCode]
    ERROR_CODE_SAFETY_VIOLATION: _ClassVar[ErrorCode]
    ERROR_CODE_STORAGE_BUSY: _ClassVar[ErrorCode]
    ERROR_CODE_BROKER_IN_USE: _ClassVar[ErrorCode]
    ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_POSITION: _ClassVar[ErrorCode]
    ERROR_CODE_POSITIONS_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_INCONSISTENT_CLUSTER_ID: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_PRODUCER_ID: _ClassVar[ErrorCode]
    ERROR_CODE_CONTROLLER_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_GROUP: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_MEMBER_ID: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_MEMBER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_STALE_MEMBER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNRELEASED_INSTANCE_ID: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_NOT_EMPTY: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_SUBSCRIBED_TO_TOPIC: _ClassVar[ErrorCode]
    ERROR_CODE_INSTANCE_ID_IN_USE: _ClassVar[ErrorCode]
    ERROR_CODE_DELETION_PROTECTED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_QUOTA: _ClassVar[ErrorCode]
    ERROR_CODE_QUOTA_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_QUOTAS_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_PRODUCER_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTION_ABORTED: _ClassVar[ErrorCode]
    ERROR_CODE_CONCURRENT_TRANSACTIONS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TRANSACTION_STATE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TRANSACTION_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TRANSACTIONAL_ID: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTION_COORDINATOR_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTIONS_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_UNSTABLE_POSITIONS: _ClassVar[ErrorCode]
    ERROR_CODE_VERSION_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_GROUP_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_AUTHENTICATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_ACCESS_UNDECIDED: _ClassVar[ErrorCode]

class Appended(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPENDED_UNSPECIFIED: _ClassVar[Appended]
    APPENDED_NO: _ClassVar[Appended]
    APPENDED_MAYBE: _ClassVar[Appended]

class ReassignmentReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASSIGNMENT_REASON_UNSPECIFIED: _ClassVar[ReassignmentReason]
    REASSIGNMENT_REASON_IN_PROGRESS: _ClassVar[ReassignmentReason]
    REASSIGNMENT_REASON_NOT_IN_PROGRESS: _ClassVar[ReassignmentReason]
    REASSIGNMENT_REASON_LIMIT_REACHED: _ClassVar[ReassignmentReason]

class Media(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEDIA_UNSPECIFIED: _ClassVar[Media]
    MEDIA_SSD: _ClassVar[Media]
    MEDIA_HDD: _ClassVar[Media]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_UNKNOWN_SERVER: ErrorCode
ERROR_CODE_CORRUPT_BATCH: ErrorCode
ERROR_CODE_UNSUPPORTED_FORMAT: ErrorCode
ERROR_CODE_INVALID_RECORD: ErrorCode
ERROR_CODE_MESSAGE_TOO_LARGE: ErrorCode
ERROR_CODE_INVALID_TIMESTAMP: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: ErrorCode
ERROR_CODE_NOT_LEADER: ErrorCode
ERROR_CODE_FENCED_LEADER_EPOCH: ErrorCode
ERROR_CODE_UNKNOWN_LEADER_EPOCH: ErrorCode
ERROR_CODE_OFFSET_OUT_OF_RANGE: ErrorCode
ERROR_CODE_OFFSET_NOT_AVAILABLE: ErrorCode
ERROR_CODE_REQUEST_TIMED_OUT: ErrorCode
ERROR_CODE_OUT_OF_ORDER_SEQUENCE: ErrorCode
ERROR_CODE_DUPLICATE_SEQUENCE: ErrorCode
ERROR_CODE_INVALID_PRODUCER_EPOCH: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS: ErrorCode
ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode
ERROR_CODE_STORAGE_FULL: ErrorCode
ERROR_CODE_LOG_DIR_FAILED: ErrorCode
ERROR_CODE_TOPIC_ALREADY_EXISTS: ErrorCode
ERROR_CODE_INVALID_TOPIC: ErrorCode
ERROR_CODE_INVALID_PARTITIONS: ErrorCode
ERROR_CODE_INVALID_REPLICATION_FACTOR: ErrorCode
ERROR_CODE_INVALID_CONFIG: ErrorCode
ERROR_CODE_MALFORMED_REQUEST: ErrorCode
ERROR_CODE_NOT_CONTROLLER: ErrorCode
ERROR_CODE_BROKER_BUSY: ErrorCode
ERROR_CODE_BROKER_SHUTTING_DOWN: ErrorCode
ERROR_CODE_CREDIT_TOO_SMALL: ErrorCode
ERROR_CODE_UNSUPPORTED_FEATURE: ErrorCode
ERROR_CODE_CORRUPT_LOG: ErrorCode
ERROR_CODE_STALE_BROKER_EPOCH: ErrorCode
ERROR_CODE_STALE_CONTROLLER_EPOCH: ErrorCode
ERROR_CODE_INVALID_UPDATE_VERSION: ErrorCode
ERROR_CODE_INELIGIBLE_REPLICA: ErrorCode
ERROR_CODE_DUPLICATE_BROKER_REGISTRATION: ErrorCode
ERROR_CODE_BROKER_ID_NOT_REGISTERED: ErrorCode
ERROR_CODE_PREFERRED_LEADER_NOT_AVAILABLE: ErrorCode
ERROR_CODE_ELIGIBLE_LEADERS_NOT_AVAILABLE: ErrorCode
ERROR_CODE_INVALID_REPLICA_ASSIGNMENT: ErrorCode
ERROR_CODE_REASSIGNMENT_REFUSED: ErrorCode
ERROR_CODE_SAFETY_VIOLATION: ErrorCode
ERROR_CODE_STORAGE_BUSY: ErrorCode
ERROR_CODE_BROKER_IN_USE: ErrorCode
ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: ErrorCode
ERROR_CODE_INVALID_POSITION: ErrorCode
ERROR_CODE_POSITIONS_FULL: ErrorCode
ERROR_CODE_INCONSISTENT_CLUSTER_ID: ErrorCode
ERROR_CODE_UNKNOWN_PRODUCER_ID: ErrorCode
ERROR_CODE_CONTROLLER_NOT_AVAILABLE: ErrorCode
ERROR_CODE_INVALID_GROUP: ErrorCode
ERROR_CODE_GROUP_FULL: ErrorCode
ERROR_CODE_UNKNOWN_MEMBER_ID: ErrorCode
ERROR_CODE_FENCED_MEMBER_EPOCH: ErrorCode
ERROR_CODE_STALE_MEMBER_EPOCH: ErrorCode
ERROR_CODE_UNRELEASED_INSTANCE_ID: ErrorCode
ERROR_CODE_GROUP_NOT_EMPTY: ErrorCode
ERROR_CODE_GROUP_SUBSCRIBED_TO_TOPIC: ErrorCode
ERROR_CODE_INSTANCE_ID_IN_USE: ErrorCode
ERROR_CODE_DELETION_PROTECTED: ErrorCode
ERROR_CODE_INVALID_QUOTA: ErrorCode
ERROR_CODE_QUOTA_NOT_FOUND: ErrorCode
ERROR_CODE_QUOTAS_FULL: ErrorCode
ERROR_CODE_PRODUCER_FENCED: ErrorCode
ERROR_CODE_TRANSACTION_ABORTED: ErrorCode
ERROR_CODE_CONCURRENT_TRANSACTIONS: ErrorCode
ERROR_CODE_INVALID_TRANSACTION_STATE: ErrorCode
ERROR_CODE_INVALID_TRANSACTION_TIMEOUT: ErrorCode
ERROR_CODE_INVALID_TRANSACTIONAL_ID: ErrorCode
ERROR_CODE_TRANSACTION_COORDINATOR_FENCED: ErrorCode
ERROR_CODE_TRANSACTIONS_FULL: ErrorCode
ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND: ErrorCode
ERROR_CODE_UNSTABLE_POSITIONS: ErrorCode
ERROR_CODE_VERSION_CONFLICT: ErrorCode
ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_GROUP_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_CLUSTER_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_AUTHENTICATION_FAILED: ErrorCode
ERROR_CODE_ACCESS_UNDECIDED: ErrorCode
APPENDED_UNSPECIFIED: Appended
APPENDED_NO: Appended
APPENDED_MAYBE: Appended
REASSIGNMENT_REASON_UNSPECIFIED: ReassignmentReason
REASSIGNMENT_REASON_IN_PROGRESS: ReassignmentReason
REASSIGNMENT_REASON_NOT_IN_PROGRESS: ReassignmentReason
REASSIGNMENT_REASON_LIMIT_REACHED: ReassignmentReason
MEDIA_UNSPECIFIED: Media
MEDIA_SSD: Media
MEDIA_HDD: Media

class Error(_message.Message):
    __slots__ = ("code", "message", "appended", "retriable", "leader", "reassignment")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    appended: Appended
    retriable: bool
    leader: PartitionLeader
    reassignment: ReassignmentReason
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ..., appended: _Optional[_Union[Appended, str]] = ..., retriable: _Optional[bool] = ..., leader: _Optional[_Union[PartitionLeader, _Mapping]] = ..., reassignment: _Optional[_Union[ReassignmentReason, str]] = ...) -> None: ...

class TopicPartition(_message.Message):
    __slots__ = ("topic_id", "partition")
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic_id: bytes
    partition: int
    def __init__(self, topic_id: _Optional[bytes] = ..., partition: _Optional[int] = ...) -> None: ...

class PartitionLeader(_message.Message):
    __slots__ = ("broker_id", "leader_epoch", "address")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    leader_epoch: int
    address: str
    def __init__(self, broker_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class Feature(_message.Message):
    __slots__ = ("name", "min_level", "max_level")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MIN_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_LEVEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    min_level: int
    max_level: int
    def __init__(self, name: _Optional[str] = ..., min_level: _Optional[int] = ..., max_level: _Optional[int] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("cluster_id", "rack", "features")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    rack: str
    features: _containers.RepeatedCompositeFieldContainer[Feature]
    def __init__(self, cluster_id: _Optional[str] = ..., rack: _Optional[str] = ..., features: _Optional[_Iterable[_Union[Feature, _Mapping]]] = ...) -> None: ...

class HelloResponse(_message.Message):
    __slots__ = ("error", "cluster_id", "broker_id", "broker_name", "software_version", "rack", "features", "message_bytes_max", "drpc_address")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    DRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    error: Error
    cluster_id: str
    broker_id: int
    broker_name: str
    software_version: str
    rack: str
    features: _containers.RepeatedCompositeFieldContainer[Feature]
    message_bytes_max: int
    drpc_address: str
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ..., cluster_id: _Optional[str] = ..., broker_id: _Optional[int] = ..., broker_name: _Optional[str] = ..., software_version: _Optional[str] = ..., rack: _Optional[str] = ..., features: _Optional[_Iterable[_Union[Feature, _Mapping]]] = ..., message_bytes_max: _Optional[int] = ..., drpc_address: _Optional[str] = ...) -> None: ...
