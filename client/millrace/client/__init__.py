"""The client library: write, read and administer a Millrace cluster.

    from millrace.client import SyncConsumer, SyncProducer

    with SyncProducer("localhost:7092") as producer:
        producer.send("orders", b"a record", key=b"alice")

    with SyncConsumer("localhost:7092") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            print(record.key, record.value)

`Producer`, `Consumer` and `Admin` are the same for event loops. All errors are `MillraceError`s;
their `appended` tells whether a failed write may be in the log. A client belongs to the process
that made it: fork first and make clients afterwards, or start processes by "spawn". A program that
imports `grpc` before this package, and starts others by a fork, as PySpark starts Java, needs
`GRPC_ENABLE_FORK_SUPPORT=false` in its environment; else this package sees to that.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

import millrace.client._threads.fork  # noqa: F401  # First: gRPC reads what it sets.

# isort: split
from millrace.client._admin.admin import Admin
from millrace.client._admin.descriptions import (
    ClusterDescription,
    CompactionDescription,
    ConfigValue,
    DamagedReplica,
    DeletedTopic,
    FollowerDescription,
    LogDescription,
    PartitionDescription,
    TierDescription,
    TopicDescription,
)
from millrace.client._admin.groups import GroupDescription, GroupListing, Lag, MemberDescription
from millrace.client._admin.health import ClusterHealth, PartitionHealth
from millrace.client._admin.plans import plan_reassignment
from millrace.client._admin.quotas import QuotaDescription, QuotaUse
from millrace.client._admin.transactions import (
    HangingTransaction,
    TransactionDescription,
    TransactionListing,
    TransactionPart,
)
from millrace.client._cluster.offsets import AfterBytes, OffsetAndTimestamp
from millrace.client._cluster.open_transactions import OpenTransaction
from millrace.client._cluster.shared_transactions import (
    ApplicationVersion,
    Participant,
    SharedTransaction,
)
from millrace.client._cluster.wire import BrokerInfo
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import (
    AbortedError,
    AccessDeniedError,
    AccessUndecidedError,
    Appended,
    AuthenticationFailedError,
    BrokerBusyError,
    BrokerIdNotRegisteredError,
    BufferExhaustedError,
    ClosedError,
    ClusterAuthorizationFailedError,
    ConcurrentTransactionsError,
    ConcurrentUseError,
    ConnectionFailedError,
    CorruptBatchError,
    DeletionProtectedError,
    DeliveryTimedOutError,
    EligibleLeadersNotAvailableError,
    FencedError,
    FencedMemberEpochError,
    GroupAuthorizationFailedError,
    GroupFullError,
    GroupNotEmptyError,
    GroupSubscribedToTopicError,
    InconsistentClusterIdError,
    InstanceIdInUseError,
    InvalidConfigError,
    InvalidGroupError,
    InvalidPartitionsError,
    InvalidPositionError,
    InvalidQuotaError,
    InvalidRecordError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTimestampError,
    InvalidTopicError,
    InvalidTransactionalIdError,
    InvalidTransactionStateError,
    InvalidTransactionTimeoutError,
    LogTruncatedError,
    MessageTooLargeError,
    MillraceError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    PositionsFullError,
    PreferredLeaderNotAvailableError,
    ProducerFencedError,
    QuotaNotFoundError,
    QuotasFullError,
    ReassignmentReason,
    ReassignmentRefusedError,
    RequestTimedOutError,
    RetriableError,
    SerializationError,
    StaleMemberEpochError,
    StorageFullError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TransactionAbortedError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
    TransactionInDoubtError,
    TransactionsFullError,
    UnknownMemberIdError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    UnreleasedInstanceIdError,
    UnstablePositionsError,
    UnsupportedFeatureError,
    VersionConflictError,
)
from millrace.core.media import Media, TopicMedia
from millrace.runtime.software import SOFTWARE_VERSION as _SOFTWARE_VERSION

_LOADED_LATER: Final = {
    "Consumer": "_consumer.consumer",
    "OutputRecords": "_consumer.exactly_once",
    "DeadLetters": "_consumer.dead_letters",
    "AppendedRange": "_producer.handles",
    "BatchHandle": "_producer.handles",
    "BatchMetadata": "_producer.handles",
    "RecordHandle": "_producer.handles",
    "RecordMetadata": "_producer.handles",
    "Producer": "_producer.producer",
    "Transaction": "_producer.transaction_block",
    "FetchedRecords": "_consumer.records",
    "Record": "_consumer.records",
    "Records": "_consumer.records",
    "SyncAdmin": "_sync.admin",
    "SyncConsumer": "_sync.consumer",
    "SyncProducer": "_sync.producer",
    "SyncTransaction": "_sync.transaction",
}
"""Names with their modules, loaded at the first use (PEP 562): most need Arrow's libraries, which
administration, and processes that do nothing else, do not load."""
if TYPE_CHECKING:
    from millrace.client._consumer.consumer import Consumer
    from millrace.client._consumer.dead_letters import DeadLetters
    from millrace.client._consumer.exactly_once import OutputRecords
    from millrace.client._consumer.records import FetchedRecords, Record, Records
    from millrace.client._producer.handles import (
        AppendedRange,
        BatchHandle,
        BatchMetadata,
        RecordHandle,
        RecordMetadata,
    )
    from millrace.client._producer.producer import Producer
    from millrace.client._producer.transaction_block import Transaction
    from millrace.client._sync.admin import SyncAdmin
    from millrace.client._sync.consumer import SyncConsumer
    from millrace.client._sync.producer import SyncProducer
    from millrace.client._sync.transaction import SyncTransaction
else:

    def __getattr__(name: str) -> object:
        if name not in _LOADED_LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_LOADED_LATER[name]}"), name)
        return found


__version__ = _SOFTWARE_VERSION
"""The release; `millrace` itself is a namespace of several folders, and has none."""

__all__ = [
    "AbortedError",
    "AccessDeniedError",
    "AccessUndecidedError",
    "Admin",
    "AfterBytes",
    "Appended",
    "AppendedRange",
    "ApplicationVersion",
    "AuthenticationFailedError",
    "BatchHandle",
    "BatchMetadata",
    "BrokerBusyError",
    "BrokerIdNotRegisteredError",
    "BrokerInfo",
    "BufferExhaustedError",
    "ClosedError",
    "ClusterAuthorizationFailedError",
    "ClusterDescription",
    "ClusterHealth",
    "CompactionDescription",
    "ConcurrentTransactionsError",
    "ConcurrentUseError",
    "ConfigValue",
    "ConnectionFailedError",
    "Consumer",
    "CorruptBatchError",
    "DamagedReplica",
    "DeadLetters",
    "DeletedTopic",
    "DeletionProtectedError",
    "DeliveryTimedOutError",
    "EligibleLeadersNotAvailableError",
    "FencedError",
    "FencedMemberEpochError",
    "FetchedRecords",
    "FollowerDescription",
    "GroupAuthorizationFailedError",
    "GroupDescription",
    "GroupFullError",
    "GroupListing",
    "GroupNotEmptyError",
    "GroupSubscribedToTopicError",
    "HangingTransaction",
    "InconsistentClusterIdError",
    "InstanceIdInUseError",
    "InvalidConfigError",
    "InvalidGroupError",
    "InvalidPartitionsError",
    "InvalidPositionError",
    "InvalidQuotaError",
    "InvalidRecordError",
    "InvalidReplicaAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionStateError",
    "InvalidTransactionTimeoutError",
    "InvalidTransactionalIdError",
    "Lag",
    "LogDescription",
    "LogTruncatedError",
    "Media",
    "MemberDescription",
    "MessageTooLargeError",
    "MillraceError",
    "NotEnoughReplicasError",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "OpenTransaction",
    "OutputRecords",
    "Participant",
    "PartitionDescription",
    "PartitionHealth",
    "Position",
    "PositionsFullError",
    "PreferredLeaderNotAvailableError",
    "Producer",
    "ProducerFencedError",
    "QuotaDescription",
    "QuotaNotFoundError",
    "QuotaUse",
    "QuotasFullError",
    "ReassignmentReason",
    "ReassignmentRefusedError",
    "Record",
    "RecordHandle",
    "RecordMetadata",
    "Records",
    "RequestTimedOutError",
    "RetriableError",
    "SerializationError",
    "SharedTransaction",
    "StaleMemberEpochError",
    "StorageFullError",
    "SyncAdmin",
    "SyncConsumer",
    "SyncProducer",
    "SyncTransaction",
    "TierDescription",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TopicDescription",
    "TopicMedia",
    "Transaction",
    "TransactionAbortedError",
    "TransactionDescription",
    "TransactionInDoubtError",
    "TransactionListing",
    "TransactionPart",
    "TransactionalIdAuthorizationFailedError",
    "TransactionalIdNotFoundError",
    "TransactionsFullError",
    "UnknownMemberIdError",
    "UnknownProducerIdError",
    "UnknownTopicOrPartitionError",
    "UnreleasedInstanceIdError",
    "UnstablePositionsError",
    "UnsupportedFeatureError",
    "VersionConflictError",
    "plan_reassignment",
]
