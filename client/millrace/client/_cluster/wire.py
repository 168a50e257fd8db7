"""Between the wire's messages and the library's types: one function per message and direction."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from millrace.core.errors import (
    AccessDeniedError,
    ConnectionFailedError,
    MillraceError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    Leader,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from millrace.core.media import Media
from millrace.core.numbers import parse_whole_number
from millrace.core.settings import INT64_MAX
from millrace.core.topics import parse_topic_name
from millrace.proto.errors import error_from_wire
from millrace.proto.media import media_set_from_wire
from millrace.proto.v1 import cluster_pb2, common_pb2
from millrace.runtime.transport.calls import CallError, Status
from millrace.runtime.transport.credentials import ClientCredentials
from millrace.runtime.transport.drpc.connector import Connector
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.tokens import Token

MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
"""The largest message of a client; what a broker takes is its own bound."""
_KEEPALIVE_MS: Final = 15_000
"""Not more often than brokers allow over gRPC (10 s)."""
_DEAD_AFTER_MS: Final = 5_000
"""What the other machine has not acknowledged for so long is lost."""
AskedT = TypeVar("AskedT")
AnsweredT = TypeVar("AnsweredT")
KeyT = TypeVar("KeyT", str, TopicPartition)

_PARTS_MAX: Final = 100_000
"""The setting cluster.topic_partitions_max cannot be larger."""

_UNKNOWN_EPOCH: Final = BrokerEpoch(-1)
_REFUSED: Final = "Connection refused"
"""Part of gRPC's long text which means that no process listens there."""
_NO_SUCH_NAME: Final = ("not found", "not known")
"""Likewise, that a host's name does not exist."""


@dataclass(slots=True, frozen=True)
class BrokerInfo:
    """A broker that the cluster knows."""

    broker_id: BrokerId
    name: str
    address: str
    """`host:port` of its client listener."""
    rack: str
    """Its zone; empty: unknown."""
    is_fenced: bool
    """Registered, but not alive or not caught up: it leads nothing."""
    broker_epoch: BrokerEpoch = _UNKNOWN_EPOCH
    """Rises with every start of any broker; -1: unknown."""
    is_draining: bool = False
    """It shuts down or was drained: it hands over what it leads and gets nothing new."""
    is_drained: bool = False
    """An operator drained it; it stays so until it is undrained."""
    reluctance: str = ""
    """Why it leads only what no other can: `slow disk`, `full disk`, or `new address`, while
    clients may still use its former address; empty: no reason."""
    drpc_address: str = ""
    """`host:port` of its DRPC listener for the same clients; empty: it has none."""
    media: tuple[Media, ...] = ()
    """The media of its working log directories; empty: it did not report them."""

    @property
    def state(self) -> str:
        """Return `alive`, `fenced`, `draining` (about to stop), `drained` or its reluctance."""
        if self.is_fenced:
            return "fenced"
        if self.is_drained:
            return "drained"
        return "draining" if self.is_draining else self.reluctance or "alive"


@dataclass(slots=True, frozen=True)
class PartitionInfo:
    """One partition as a client sees it."""

    partition: int
    leader: Leader
    leader_address: str
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]


@dataclass(slots=True, frozen=True)
class TopicInfo:
    """One topic as a client sees it."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    batch_bytes_max: int
    """Bytes of records that surely fit into a batch which the topic takes."""

    def place(self, number: int) -> TopicPartition:
        """Return a partition.

        Raises:
            UnknownTopicOrPartitionError: the topic has none of this number.
        """
        if not 0 <= number < len(self.partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {self.name!r} has partitions 0 to {len(self.partitions) - 1}, not {number}"
            )
        return TopicPartition(self.topic_id, number)


class Answer(Protocol):
    """An answer, or a part of one, that may be a refusal."""

    @property
    def error(self) -> common_pb2.Error:
        """Why it was refused; without a code: it was not."""
        ...


def error_of(answer: Answer) -> MillraceError | None:
    """Return the error of an answer; None: it was not refused."""
    return error_from_wire(answer.error) if answer.error.code else None


def raise_if_refused(answer: Answer) -> None:
    """Raise the error of an answer, if it was refused."""
    if (error := error_of(answer)) is not None:
        raise error


def error_from_call(error: CallError, address: str, problem: str = "") -> MillraceError:
    """Return the exception for a call that found no working broker, or none that lets it in.

    Args:
        error: of the call.
        address: that it went to.
        problem: why it failed, as far as that is known better.
    """
    if isinstance(error.refusal, AccessDeniedError):
        return error.refusal
    if problem:
        return ConnectionFailedError(f"the broker at {address} cannot be used: {problem}")
    if _REFUSED in error.details:
        return ConnectionFailedError(f"no broker listens at {address}")
    return ConnectionFailedError(
        f"the call to the broker at {address} failed: {error.status.name}: {error.details}"
    )


def may_pass(error: CallError) -> bool:
    """Return whether what kept a call from finding a broker may soon be over."""
    is_named = any(words in error.details for words in _NO_SUCH_NAME)
    return error.refusal is None and error.status is Status.UNAVAILABLE and not is_named


def paired(
    asked: Collection[AskedT], answers: Sequence[AnsweredT]
) -> Iterable[tuple[AskedT, AnsweredT]]:
    """Return what a broker was asked with its answers, in their order.

    Raises:
        UnknownServerError: it has not given one answer to each.
    """
    if len(asked) != len(answers):
        raise UnknownServerError(
            f"the broker gave {len(answers)} answers to {len(asked)} questions"
        )
    return zip(asked, answers, strict=True)


def only(answers: Sequence[AnsweredT]) -> AnsweredT:
    """Return the answer to one question.

    Raises:
        UnknownServerError: there is none, or more than one.
    """
    if len(answers) != 1:
        raise UnknownServerError(f"the broker gave {len(answers)} answers to one question")
    return answers[0]


def last_of(page: Sequence[KeyT], before: KeyT | None) -> KeyT:
    """Return the last key of a page that another one follows.

    Args:
        page: its keys, ascending.
        before: the last key of the page before; None: there was none.

    Raises:
        UnknownServerError: the page has none, or none that is new.
    """
    if not page:
        raise UnknownServerError("the broker says that there is more, and gives nothing")
    if before is not None and page[-1] <= before:
        raise UnknownServerError("the broker says that there is more, and gives the same again")
    return page[-1]


def parts_of(listed: int) -> int:
    """Return in how many parts a broker keeps what is listed, as it says.

    Raises:
        UnknownServerError: they are more than a topic may have partitions.
    """
    if listed > _PARTS_MAX:
        raise UnknownServerError(f"the broker speaks of {listed} parts, which no cluster has")
    return listed


def broker_from_wire(broker: cluster_pb2.BrokerMetadata) -> BrokerInfo:
    """Return a broker as the cluster describes it."""
    return BrokerInfo(
        BrokerId(broker.broker_id),
        broker.name,
        broker.address,
        broker.rack,
        broker.fenced,
        BrokerEpoch(broker.broker_epoch),
        broker.draining,
        broker.drained,
        broker.reluctance,
        broker.drpc_address,
        media_set_from_wire(broker.media),
    )


def topic_from_wire(topic: cluster_pb2.TopicMetadata) -> TopicInfo:
    """Return a topic with its partitions."""
    return TopicInfo(
        str(parse_topic_name(topic.name)),
        TopicId(topic.topic_id),
        topic.internal,
        tuple(_partition_from_wire(partition) for partition in topic.partitions),
        _batch_bytes_max(topic),
    )


def batch_bytes_within(limit: int) -> int:
    """Return how many bytes of records surely fit into a batch that may take so many bytes.

    Beside the records a batch holds its header, the column table and validity bitmaps.
    """
    return int((limit - 512) * 0.96)


def _batch_bytes_max(topic: cluster_pb2.TopicMetadata) -> int:
    for entry in topic.config:
        if entry.name == "max.message.bytes":
            limit = parse_whole_number(entry.value, INT64_MAX)
            return MESSAGE_BYTES_MAX if limit is None else batch_bytes_within(limit)
    return MESSAGE_BYTES_MAX


def _partition_from_wire(partition: cluster_pb2.PartitionMetadata) -> PartitionInfo:
    leader = partition.leader
    known = partition.HasField("leader") and leader.broker_id >= 0
    return PartitionInfo(
        partition.partition,
        Leader(
            BrokerId(leader.broker_id) if known else NO_BROKER, LeaderEpoch(leader.leader_epoch)
        ),
        leader.address,
        tuple(map(BrokerId, partition.replicas)),
        tuple(map(BrokerId, partition.isr)),
        tuple(map(BrokerId, partition.offline_replicas)),
    )


def partition_to_wire(topic_partition: TopicPartition) -> common_pb2.TopicPartition:
    """Return the message for a partition."""
    return common_pb2.TopicPartition(
        topic_id=topic_partition.topic_id, partition=topic_partition.partition
    )


def channel_options() -> list[tuple[str, int | str]]:
    """Return the options of every channel.

    Messages are few and large: frames of the default 16 KiB would cost a write each.
    """
    return [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.enable_http_proxy", 0),  # A web proxy cannot reach brokers' addresses.
        ("grpc.optimization_target", "throughput"),
        ("grpc.http2.max_frame_size", 1024 * 1024),
        ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _DEAD_AFTER_MS),
        (
            "grpc.http2.ping_timeout_ms",
            _DEAD_AFTER_MS,
        ),  # Default: a minute, regardless of the one above.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def new_connector(
    client_id: str,
    credentials: ClientCredentials | None = None,
    token: Token | None = None,
) -> Connector:
    """Return what opens the connections of DRPC of a client."""
    return Connector(
        ConnectionLimits(
            message_bytes_max=MESSAGE_BYTES_MAX,
            keepalive_ms=_KEEPALIVE_MS,
            dead_after_ms=_DEAD_AFTER_MS,
        ),
        received_bytes_max=MESSAGE_BYTES_MAX,
        client_id=client_id,
        credentials=credentials,
        token=token,
    )
