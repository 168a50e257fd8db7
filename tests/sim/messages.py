"""What simulated brokers and clients say to each other: objects in place of bytes.

Nothing in a message is changed after it was sent; that nobody can would cost more to make one.
Batches travel as the bytes that they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.core.errors import MillraceError
from millrace.core.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicPartition
from millrace.core.log.leader_epochs import EpochEnd
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.requests import Request
from millrace.core.metadata.seen import Seen
from millrace.core.metadata.stored import StoredObject
from millrace.core.replication.leader import Acks

# --- Broker and controller, one stream -------------------------------------------------------


@dataclass(slots=True)
class ControlStream:
    """Opens the stream from a broker to the one that it takes for the controller.

    Attributes:
        seen: of the store, by the broker.
    """

    seen: Seen


@dataclass(slots=True)
class Ask:
    """Up: a request, numbered by the broker."""

    number: int
    request: Request


@dataclass(slots=True)
class AskAll:
    """Up: the metadata missed something; send all of it."""


@dataclass(slots=True)
class Answer:
    """Down: the result of a request."""

    number: int
    result: object


@dataclass(slots=True)
class FullState:
    """Down: every stored object."""

    objects: Mapping[str, StoredObject]


@dataclass(slots=True)
class Pushed:
    """Down: objects that were written."""

    objects: Mapping[str, StoredObject]


@dataclass(slots=True)
class AskEnds:
    """Down: say with the heartbeats where these logs end."""

    partitions: tuple[TopicPartition, ...]


# --- Follower and leader, one stream; up go `SessionRequest`s ---------------------------------


@dataclass(slots=True)
class FetchStream:
    """Opens the stream from a follower broker to a leader broker."""

    life: BrokerLife


@dataclass(slots=True)
class Sent:
    """Down: what is new for one handle."""

    handle: int
    fetch_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    leader_epoch: LeaderEpoch
    """In which it was said: for who judges; the follower does not hear it."""
    data: bytes = b""
    diverging: EpochEnd | None = None


@dataclass(slots=True)
class Unserved:
    """Down: a position is refused, and gone; with the log's start where it is out of range."""

    handle: int
    log_start_offset: Offset | None


# --- Clients: a stream to produce, and unary messages ----------------------------------------


@dataclass(slots=True)
class ProduceStream:
    """Opens the stream from a producer to the leader that it knows; batches keep their order."""


@dataclass(slots=True)
class AskLeaders:
    """To any broker: who leads what?"""


@dataclass(slots=True)
class Leaders:
    """Back: the leader's machine and epoch of each partition that has one."""

    of: Mapping[TopicPartition, tuple[str, LeaderEpoch]]


@dataclass(slots=True)
class Administer:
    """To any broker, which passes it on to the controller. There is no answer."""

    request: Request


@dataclass(slots=True)
class Produce:
    """One batch, as a producer seals it."""

    number: int
    topic_partition: TopicPartition
    leader_epoch: LeaderEpoch
    batch: bytes
    acks: Acks | None
    """None: nobody wants an answer."""
    is_successor: bool = False
    """Batches before it are not acknowledged."""


@dataclass(slots=True)
class Produced:
    """Back: where it is, or why not."""

    number: int
    base_offset: Offset
    error: MillraceError | None = None


@dataclass(slots=True)
class Read:
    """Batches from an offset on; -1 for an epoch is not checked."""

    number: int
    topic_partition: TopicPartition
    offset: Offset
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    may_be_follower: bool = False


@dataclass(slots=True)
class Batches:
    """Back: batches, perhaps none, or why not."""

    number: int
    data: bytes = b""
    high_watermark: Offset = Offset(0)  # noqa: RUF009
    diverging: EpochEnd | None = None
    error: MillraceError | None = None
    log_start_offset: Offset = Offset(0)  # noqa: RUF009
    """The leader's, with an error; 0 where another broker answers."""


@dataclass(slots=True)
class AskEnd:
    """Where does the log end for readers? Only its leader says so."""

    number: int
    topic_partition: TopicPartition
    leader_epoch: LeaderEpoch


@dataclass(slots=True)
class End:
    """Back: where it ends, or why that cannot be said."""

    number: int
    end_offset: Offset = Offset(0)  # noqa: RUF009
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    error: MillraceError | None = None
