"""Every error that a user, a peer or a shell can meet, as one tree.

The branch says what the caller should do; the leaf says what happened. Codes are stable for ever
and travel on the wire (`millrace.proto.v1.ErrorCode`); names may change.

    MillraceError
    ├── RetriableError              try the same broker again after a pause
    │   └── RefreshMetadataError    look up the leader first, then try again
    ├── FencedError                 this session is over: a newer one took its place
    ├── AbortedError                the transaction is over, and nothing of it counts: begin another
    ├── InvalidRequestError         the request can never succeed as it stands
    ├── AccessDeniedError           the caller may not do it: another token or rule is needed
    ├── StorageError                the broker's disk refused
    └── ClientError                 raised by the client library itself, never sent on the wire

`appended` answers the question that matters after a failed write: `NO` means that nothing of it is
or ever will be in the log; `MAYBE` means that it may be (KAFKA-13574).
"""

from collections.abc import Sequence
from copy import copy
from enum import Enum
from typing import ClassVar, Self

from millrace.core.ids import KnownLeader, TopicPartition


class Appended(Enum):
    """Whether a failed write may nevertheless be in the log."""

    NO = 1
    MAYBE = 2


class MillraceError(Exception):
    """Base of all errors of Millrace.

    Args:
        message: what was wrong and what to do about it, as a sentence for a person.
        appended: overrides the class's default, where the place of failure decides it.
        topic_partition: the partition that it is about, if it is about one.

    Attributes:
        message: as given, after the name of the partition, if it is about one.
        topic_partition: as given.
    """

    code: ClassVar[int] = 0  # 0 is "no error" on the wire; only leaves have another.
    retriable: ClassVar[bool] = False
    appended: Appended = Appended.NO
    told: int = 0
    """Failed records whose handles have reported the error: bit n for number n."""

    def __init__(
        self,
        message: str,
        *,
        appended: Appended | None = None,
        topic_partition: TopicPartition | None = None,
    ) -> None:
        self.message = message if topic_partition is None else f"{topic_partition}: {message}"
        super().__init__(self.message)
        self.topic_partition = topic_partition
        self._statement = message
        if appended is not None:
            self.appended = appended

    def again(self, appended: Appended) -> Self:
        """Return the error for another request: without a trace, and with its own `appended`."""
        other = copy(self)
        other.appended, other.told = appended, 0
        return other

    def naming(self, partition: str) -> Self:
        """Return the error with this name of its partition."""
        other = copy(self)
        other.message = f"{partition}: {self._statement}"
        other.args = (other.message,)
        return other

    def nameless(self) -> Self:
        """Return the error without the name of its partition, to tell it of many partitions."""
        other = copy(self)
        other.message, other.topic_partition = self._statement, None
        other.args = (other.message,)
        return other

    @property
    def statement(self) -> str:
        """The message without the name of the partition."""
        return self._statement

    @classmethod
    def name(cls) -> str:
        """Return the name of the code on the wire: `NotLeaderError` is `NOT_LEADER`."""
        stem = cls.__name__.removesuffix("Error")
        return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(stem)).upper()


class RetriableError(MillraceError):
    """The same request may succeed later, at the same broker."""

    retriable = True


class RefreshMetadataError(RetriableError):
    """The request may succeed once the caller knows the current leader.

    Attributes:
        leader: the leader that the refusing broker knows, which saves a look-up.
    """

    leader: KnownLeader | None = None


class FencedError(MillraceError):
    """A newer incarnation of the caller exists; the caller must stop."""


class AbortedError(MillraceError):
    """The transaction was aborted, and none of its records counts; another one may begin."""


class InvalidRequestError(MillraceError):
    """The request is wrong in itself; sending it again changes nothing."""


class AccessDeniedError(MillraceError):
    """The caller may not do it: it needs another identity, or a rule that allows it."""


class StorageError(MillraceError):
    """The broker could not store or read bytes."""


class ClientError(MillraceError):
    """Raised inside the client library."""


class UnknownServerError(MillraceError):
    """The broker failed with an unexpected error; its log has the trace."""

    code = 1
    appended = Appended.MAYBE


class CorruptBatchError(InvalidRequestError):
    """A record batch is not what its checksums or its header say."""

    code = 2


class UnsupportedFormatError(InvalidRequestError):
    """A record batch has a format version or a compression codec that is not known here."""

    code = 3


class InvalidRecordError(InvalidRequestError):
    """A record batch is well sealed, but its contents break a rule of the format.

    Attributes:
        records: the numbers in the batch of those that break the rule, where it is not all of it.
    """

    code = 4
    records: Sequence[int] = ()


class MessageTooLargeError(InvalidRequestError):
    """A record, batch or message is larger than the configured limit."""

    code = 5


class InvalidTimestampError(InvalidRequestError):
    """A record's timestamp is further from the broker's clock than the topic allows."""

    code = 6


class UnknownTopicOrPartitionError(RefreshMetadataError):
    """The broker has no such topic or partition (any more, or yet)."""

    code = 7


class NotLeaderError(RefreshMetadataError):
    """Another broker leads the partition."""

    code = 8
    appended = Appended.MAYBE


class FencedLeaderEpochError(RefreshMetadataError):
    """The caller named an older leader epoch than the current one."""

    code = 9


class UnknownLeaderEpochError(RefreshMetadataError):
    """The caller named a leader epoch that this broker has not heard of yet."""

    code = 10


class OffsetOutOfRangeError(InvalidRequestError):
    """The offset lies before the log start offset or beyond the end."""

    code = 11


class OffsetNotAvailableError(RetriableError):
    """The leader is new and does not know its high watermark yet."""

    code = 12


class RequestTimedOutError(RetriableError):
    """The broker appended, but not all replicas answered in time."""

    code = 13
    appended = Appended.MAYBE


class OutOfOrderSequenceError(InvalidRequestError):
    """A producer's batch came with a gap in its sequence numbers."""

    code = 14


class DuplicateSequenceError(InvalidRequestError):
    """A producer's batch is older than the five that the broker remembers."""

    code = 15
    appended = Appended.MAYBE


class InvalidProducerEpochError(FencedError):
    """A newer incarnation of the producer has written to the partition."""

    code = 16


class NotEnoughReplicasError(RetriableError):
    """Fewer replicas are in sync than `min.insync.replicas` asks for."""

    code = 17


class NotEnoughReplicasAfterAppendError(RetriableError):
    """The in-sync replicas fell below `min.insync.replicas` after the append."""

    code = 18
    appended = Appended.MAYBE


class StorageFullError(RetriableError, StorageError):
    """The disk is full; nothing of the batch was kept."""

    code = 19


class LogDirFailedError(RefreshMetadataError, StorageError):
    """The partition's log directory failed and is offline.

    Attributes:
        log_dir: its path; empty if it is the one that the call was about. A log may have segments
            on two disks, and either of them may have failed it.
    """

    code = 20
    appended = Appended.MAYBE
    log_dir: str = ""

    def is_about(self, log_dir: str) -> bool:
        """Return whether this log directory failed, in a call about it."""
        return self.log_dir in ("", log_dir)


class TopicAlreadyExistsError(InvalidRequestError):
    """A topic of that name exists."""

    code = 21


class InvalidTopicError(InvalidRequestError):
    """The topic's name breaks the naming rules."""

    code = 22


class InvalidPartitionsError(InvalidRequestError):
    """The number of partitions is not acceptable."""

    code = 23


class InvalidReplicationFactorError(InvalidRequestError):
    """The number of replicas is not acceptable for this cluster."""

    code = 24


class InvalidConfigError(InvalidRequestError):
    """A setting is unknown, malformed or out of bounds."""

    code = 25


class MalformedRequestError(InvalidRequestError):
    """A request cannot be understood: a field is missing, contradictory or out of bounds."""

    code = 26


class NotControllerError(RefreshMetadataError):
    """The broker is not the controller."""

    code = 27


class BrokerBusyError(RetriableError):
    """The cluster cannot do it yet; try again shortly.

    A bound on memory, streams or queues is reached, the cluster is just starting, the brokers that
    are needed are away, or a change before it is not stored yet.
    """

    code = 28


class BrokerShuttingDownError(RefreshMetadataError):
    """The broker is stopping and accepts no new work."""

    code = 29


class CreditTooSmallError(InvalidRequestError):
    """The next batch is larger than all the credit that the reader can grant."""

    code = 30


class UnsupportedFeatureError(InvalidRequestError):
    """The request needs a feature level that this broker, or another one, does not have."""

    code = 31


class CorruptLogError(RefreshMetadataError, StorageError):
    """The partition's log is damaged below what was flushed; it is kept as it is, and offline."""

    code = 32


class StaleBrokerEpochError(FencedError):
    """Another life of this broker has registered, or the controller does not know this one."""

    code = 33


class StaleControllerEpochError(FencedError):
    """This comes from a controller that has been replaced."""

    code = 34


class InvalidUpdateVersionError(RefreshMetadataError):
    """The partition has changed since the state that the change rests on."""

    code = 35


class IneligibleReplicaError(RetriableError):
    """A replica cannot join the in-sync replicas now; nothing was changed."""

    code = 36


class DuplicateBrokerRegistrationError(RetriableError):
    """Another process with the broker's name is alive, or registered meanwhile."""

    code = 37


class BrokerIdNotRegisteredError(InvalidRequestError):
    """No broker of that id is registered."""

    code = 38


class PreferredLeaderNotAvailableError(RetriableError):
    """The preferred leader is not alive and in sync."""

    code = 39


class EligibleLeadersNotAvailableError(RetriableError):
    """No replica that could lead is alive."""

    code = 40


class InvalidReplicaAssignmentError(InvalidRequestError):
    """The requested replicas are not possible."""

    code = 41


class ReassignmentReason(Enum):
    """Why a reassignment was not begun or cancelled; the numbers are the wire's."""

    IN_PROGRESS = 1
    """The partition's replicas are being changed already, to others."""
    NOT_IN_PROGRESS = 2
    """The partition's replicas are not being changed, so there is nothing to cancel."""
    LIMIT_REACHED = 3
    """No further reassignment fits at present. It may when others have ended."""


class ReassignmentRefusedError(RetriableError):
    """A reassignment cannot begin, or be cancelled, in the present state of the cluster.

    Attributes:
        reason: the reason; None: the broker named none that this release knows.
    """

    code = 42

    def __init__(
        self,
        message: str,
        *,
        appended: Appended | None = None,
        topic_partition: TopicPartition | None = None,
        reason: ReassignmentReason | None = None,
    ) -> None:
        super().__init__(message, appended=appended, topic_partition=topic_partition)
        self.reason = reason


class SafetyViolationError(RefreshMetadataError, StorageError):
    """A committed record would be deleted: the replica stays as it is, and is offline (P5)."""

    code = 44


class StorageBusyError(RetriableError, StorageError):
    """The broker lacks descriptors or memory for its files at the moment; nothing was changed."""

    code = 45


class BrokerInUseError(InvalidRequestError):
    """The broker is alive, or holds replicas, so the cluster cannot forget it."""

    code = 47


class CoordinatorLoadInProgressError(RetriableError):
    """The broker has just begun to lead the name's partition, and still reads its log."""

    code = 48


class InvalidPositionError(InvalidRequestError):
    """A position, or its name, breaks a bound."""

    code = 49


class PositionsFullError(InvalidRequestError):
    """The name's partition of positions is full."""

    code = 50


class InconsistentClusterIdError(InvalidRequestError):
    """The broker that answers is of another cluster than the caller's."""

    code = 51


class UnknownProducerIdError(RetriableError):
    """The cluster has not given out the producer id, or this broker has not heard of it yet."""

    code = 52


class ControllerNotAvailableError(NotControllerError):
    """No broker acts as the controller, for a known reason."""

    code = 53


class InvalidGroupError(InvalidRequestError):
    """The name of a group, or what a member says of itself, breaks a bound."""

    code = 54


class GroupFullError(InvalidRequestError):
    """The group, or its partition, has no room for another member."""

    code = 55


class UnknownMemberIdError(FencedError):
    """The caller is no member of the group, perhaps as its session has ended."""

    code = 56


class FencedMemberEpochError(FencedError):
    """The member confirms an assignment that the group does not know: its state was lost."""

    code = 57


class StaleMemberEpochError(InvalidRequestError):
    """The member has another assignment by now, which it must take before it commits."""

    code = 58


class UnreleasedInstanceIdError(RetriableError):
    """A member has the same instance id, and may be dead: its session has not ended."""

    code = 59


class GroupNotEmptyError(InvalidRequestError):
    """The group has members, and the request is for one without."""

    code = 60


class GroupSubscribedToTopicError(InvalidRequestError):
    """Members of the group read the topic whose positions should be forgotten."""

    code = 61


class InstanceIdInUseError(InvalidRequestError):
    """A living member has the same instance id."""

    code = 62


class DeletionProtectedError(InvalidRequestError):
    """The topic's setting `deletion.protection` forbids to delete it."""

    code = 64


class InvalidQuotaError(InvalidRequestError):
    """A quota, or its name, breaks a rule, or another quota is for the same."""

    code = 70


class QuotaNotFoundError(InvalidRequestError):
    """There is no quota of that name."""

    code = 71


class QuotasFullError(InvalidRequestError):
    """The cluster has no room for another quota."""

    code = 72


class ProducerFencedError(FencedError):
    """Another producer began with the transactional id, or the id has expired: close this one."""

    code = 73


class TransactionAbortedError(AbortedError):
    """The coordinator aborted the transaction, by its time-out or because a person asked."""

    code = 74


class ConcurrentTransactionsError(RetriableError):
    """The last transaction of the id is decided, and not written in all its partitions yet."""

    code = 75


class InvalidTransactionStateError(InvalidRequestError):
    """The request does not fit the state of its transaction, or of the producer."""

    code = 76


class InvalidTransactionTimeoutError(InvalidRequestError):
    """A transaction may not be open for as long as the producer wants."""

    code = 77


class InvalidTransactionalIdError(InvalidRequestError):
    """The text is no transactional id."""

    code = 78


class TransactionCoordinatorFencedError(FencedError):
    """A marker comes from a coordinator that another one has replaced."""

    code = 79


class TransactionsFullError(InvalidRequestError):
    """There is no room for another transactional id, transaction, or partition in one."""

    code = 80


class TransactionalIdNotFoundError(InvalidRequestError):
    """Nothing is known of the transactional id, or of the transaction."""

    code = 81


class UnstablePositionsError(RetriableError):
    """Positions wait for the end of the transaction that commits them."""

    code = 82


class VersionConflictError(InvalidRequestError):
    """An application's version is an old one, or of another query than the last one (T21)."""

    code = 83


class TopicAuthorizationFailedError(AccessDeniedError):
    """The caller may not do this with the topic, whether there is one or not."""

    code = 90


class GroupAuthorizationFailedError(AccessDeniedError):
    """The caller may not do this with the group, whether there is one or not."""

    code = 91


class TransactionalIdAuthorizationFailedError(AccessDeniedError):
    """The caller may not do this with the transactional id, or id of an application."""

    code = 92


class ClusterAuthorizationFailedError(AccessDeniedError):
    """The caller may not do this with the cluster."""

    code = 93


class AuthenticationFailedError(AccessDeniedError):
    """The broker does not know who calls: the token is missing, has ended, or is not its own."""

    code = 94


class AccessUndecidedError(RetriableError):
    """Nobody has yet told the broker who calls, or what the caller may do."""

    code = 95


class BufferExhaustedError(ClientError):
    """`buffer_memory` stayed full for `max_block_ms`."""

    code = 1001


class DeliveryTimedOutError(ClientError):
    """A record was not acknowledged within `delivery_timeout_ms`."""

    code = 1002
    appended = Appended.MAYBE


class SerializationError(ClientError):
    """A serializer or deserializer raised; only its record is affected."""

    code = 1003


class ConcurrentUseError(ClientError):
    """A consumer was used by two threads or tasks at a time."""

    code = 1004


class ClosedError(ClientError):
    """The client is closed."""

    code = 1005


class ConnectionFailedError(ClientError):
    """No broker can be reached, or none that was asked has answered."""

    code = 1006
    retriable = True


class LogTruncatedError(ClientError):
    """Records that the consumer has read are not in the log any more, after an unclean election.

    Attributes:
        topic, partition: the partition of the log.
        position: the offset of the next record to read.
        end_offset: the records `[end_offset, position)` are gone, or others took their place: seek
            there to go on; -1 when it is unknown.
    """

    code = 1007

    def __init__(
        self,
        message: str,
        *,
        appended: Appended | None = None,
        topic: str = "",
        partition: int = -1,
        position: int = -1,
        end_offset: int = -1,
    ) -> None:
        super().__init__(message, appended=appended)
        self.topic = topic
        self.partition = partition
        self.position = position
        self.end_offset = end_offset


class TransactionInDoubtError(ClientError):
    """The answer to an end of a transaction is lost: it may be decided, or not.

    Repeat the same end, or ask with `outcome()`. Doing the work again may double it.
    """

    code = 1008
    appended = Appended.MAYBE


def _leaves(cls: type[MillraceError]) -> list[type[MillraceError]]:
    found = [cls] if cls.code else []
    for child in cls.__subclasses__():
        found += _leaves(child)
    return found


ERRORS_BY_CODE: dict[int, type[MillraceError]] = {
    leaf.code: leaf for leaf in _leaves(MillraceError)
}


def error_for_code(code: int) -> type[MillraceError]:
    """Return the class of a code; a code from a later release is an `UnknownServerError`."""
    return ERRORS_BY_CODE.get(code, UnknownServerError)
