"""Millrace's errors as clients of Kafka know them: by Kafka's numbers.

What counts is what a client does then: whether it tries again, looks up the leader first, or gives
up. So an error gets the number that has clients do what its branch of the tree says, and where
there are several, the one with the same meaning.

Source: Kafka's Errors; KIP-360, KIP-588 and KIP-890 for what producers do then.
"""

from enum import IntEnum
from typing import Final

from millrace.core import errors
from millrace.core.errors import MillraceError, ReassignmentReason, ReassignmentRefusedError
from millrace.proto.errors import error_from_wire
from millrace.proto.v1.common_pb2 import Error

NO_ERROR: Final = 0


class Code(IntEnum):
    """Kafka's numbers of errors, those that are used here."""

    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120


CODES: Final[dict[type[MillraceError], Code]] = {
    errors.UnknownServerError: Code.UNKNOWN_SERVER_ERROR,
    errors.CorruptBatchError: Code.CORRUPT_MESSAGE,
    errors.UnsupportedFormatError: Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    errors.InvalidRecordError: Code.INVALID_RECORD,
    errors.MessageTooLargeError: Code.MESSAGE_TOO_LARGE,
    errors.InvalidTimestampError: Code.INVALID_TIMESTAMP,
    errors.UnknownTopicOrPartitionError: Code.UNKNOWN_TOPIC_OR_PARTITION,
    errors.NotLeaderError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.FencedLeaderEpochError: Code.FENCED_LEADER_EPOCH,
    errors.UnknownLeaderEpochError: Code.UNKNOWN_LEADER_EPOCH,
    errors.OffsetOutOfRangeError: Code.OFFSET_OUT_OF_RANGE,
    errors.OffsetNotAvailableError: Code.OFFSET_NOT_AVAILABLE,
    errors.RequestTimedOutError: Code.REQUEST_TIMED_OUT,
    errors.OutOfOrderSequenceError: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.DuplicateSequenceError: Code.DUPLICATE_SEQUENCE_NUMBER,
    errors.InvalidProducerEpochError: Code.INVALID_PRODUCER_EPOCH,
    errors.NotEnoughReplicasError: Code.NOT_ENOUGH_REPLICAS,
    errors.NotEnoughReplicasAfterAppendError: Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    errors.StorageFullError: Code.KAFKA_STORAGE_ERROR,
    errors.LogDirFailedError: Code.KAFKA_STORAGE_ERROR,
    errors.TopicAlreadyExistsError: Code.TOPIC_ALREADY_EXISTS,
    errors.InvalidTopicError: Code.INVALID_TOPIC_EXCEPTION,
    errors.InvalidPartitionsError: Code.INVALID_PARTITIONS,
    errors.InvalidReplicationFactorError: Code.INVALID_REPLICATION_FACTOR,
    errors.InvalidConfigError: Code.INVALID_CONFIG,
    errors.MalformedRequestError: Code.INVALID_REQUEST,
    errors.NotControllerError: Code.NOT_CONTROLLER,
    errors.BrokerBusyError: Code.REQUEST_TIMED_OUT,
    errors.BrokerShuttingDownError: Code.NOT_LEADER_OR_FOLLOWER,
    errors.CreditTooSmallError: Code.MESSAGE_TOO_LARGE,
    errors.UnsupportedFeatureError: Code.UNSUPPORTED_VERSION,
    errors.CorruptLogError: Code.KAFKA_STORAGE_ERROR,
    errors.StaleBrokerEpochError: Code.STALE_BROKER_EPOCH,
    errors.StaleControllerEpochError: Code.NOT_CONTROLLER,
    errors.InvalidUpdateVersionError: Code.REQUEST_TIMED_OUT,
    errors.IneligibleReplicaError: Code.INELIGIBLE_REPLICA,
    errors.DuplicateBrokerRegistrationError: Code.DUPLICATE_BROKER_REGISTRATION,
    errors.BrokerIdNotRegisteredError: Code.BROKER_ID_NOT_REGISTERED,
    errors.PreferredLeaderNotAvailableError: Code.PREFERRED_LEADER_NOT_AVAILABLE,
    errors.EligibleLeadersNotAvailableError: Code.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    errors.InvalidReplicaAssignmentError: Code.INVALID_REPLICA_ASSIGNMENT,
    errors.ReassignmentRefusedError: Code.REASSIGNMENT_IN_PROGRESS,
    errors.SafetyViolationError: Code.KAFKA_STORAGE_ERROR,
    errors.StorageBusyError: Code.KAFKA_STORAGE_ERROR,
    errors.BrokerInUseError: Code.INVALID_REQUEST,
    errors.CoordinatorLoadInProgressError: Code.COORDINATOR_LOAD_IN_PROGRESS,
    errors.InvalidPositionError: Code.INVALID_COMMIT_OFFSET_SIZE,
    errors.PositionsFullError: Code.INVALID_COMMIT_OFFSET_SIZE,
    errors.InconsistentClusterIdError: Code.INCONSISTENT_CLUSTER_ID,
    # It has not heard of an id yet that another broker gave out. Kafka's UNKNOWN_PRODUCER_ID says
    # that a producer's records are gone: the producer then begins with sequence 0. With this code
    # it sends the same batch again.
    errors.UnknownProducerIdError: Code.NOT_ENOUGH_REPLICAS,
    errors.ControllerNotAvailableError: Code.NOT_CONTROLLER,
    errors.InvalidGroupError: Code.INVALID_GROUP_ID,
    errors.GroupFullError: Code.GROUP_MAX_SIZE_REACHED,
    errors.UnknownMemberIdError: Code.UNKNOWN_MEMBER_ID,
    errors.FencedMemberEpochError: Code.FENCED_MEMBER_EPOCH,
    errors.StaleMemberEpochError: Code.STALE_MEMBER_EPOCH,
    errors.UnreleasedInstanceIdError: Code.UNRELEASED_INSTANCE_ID,
    errors.GroupNotEmptyError: Code.NON_EMPTY_GROUP,
    errors.GroupSubscribedToTopicError: Code.GROUP_SUBSCRIBED_TO_TOPIC,
    errors.InstanceIdInUseError: Code.FENCED_INSTANCE_ID,
    errors.DeletionProtectedError: Code.POLICY_VIOLATION,
    errors.InvalidQuotaError: Code.INVALID_REQUEST,
    errors.QuotaNotFoundError: Code.RESOURCE_NOT_FOUND,
    errors.QuotasFullError: Code.POLICY_VIOLATION,
    errors.ProducerFencedError: Code.PRODUCER_FENCED,
    errors.TransactionAbortedError: Code.INVALID_PRODUCER_EPOCH,
    errors.ConcurrentTransactionsError: Code.CONCURRENT_TRANSACTIONS,
    errors.InvalidTransactionStateError: Code.INVALID_TXN_STATE,
    errors.InvalidTransactionTimeoutError: Code.INVALID_TRANSACTION_TIMEOUT,
    errors.InvalidTransactionalIdError: Code.INVALID_REQUEST,
    errors.TransactionCoordinatorFencedError: Code.TRANSACTION_COORDINATOR_FENCED,
    errors.TransactionsFullError: Code.POLICY_VIOLATION,
    errors.TransactionalIdNotFoundError: Code.TRANSACTIONAL_ID_NOT_FOUND,
    errors.UnstablePositionsError: Code.UNSTABLE_OFFSET_COMMIT,
    errors.VersionConflictError: Code.INVALID_REQUEST,
    errors.TopicAuthorizationFailedError: Code.TOPIC_AUTHORIZATION_FAILED,
    errors.GroupAuthorizationFailedError: Code.GROUP_AUTHORIZATION_FAILED,
    errors.TransactionalIdAuthorizationFailedError: Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.ClusterAuthorizationFailedError: Code.CLUSTER_AUTHORIZATION_FAILED,
    errors.AuthenticationFailedError: Code.SASL_AUTHENTICATION_FAILED,
    errors.AccessUndecidedError: Code.REQUEST_TIMED_OUT,
}
"""The number of each error that a broker raises."""


def code_of(error: MillraceError) -> int:
    """Return Kafka's number of an error."""
    if isinstance(error, ReassignmentRefusedError):
        if error.reason is ReassignmentReason.NOT_IN_PROGRESS:
            return Code.NO_REASSIGNMENT_IN_PROGRESS
        if error.reason is ReassignmentReason.LIMIT_REACHED:
            return Code.REQUEST_TIMED_OUT
    return CODES.get(type(error), Code.UNKNOWN_SERVER_ERROR)


def code_of_wire(error: Error) -> int:
    """Return Kafka's number of an error in one of Millrace's messages; 0: it names none."""
    return code_of(error_from_wire(error)) if error.code else NO_ERROR
