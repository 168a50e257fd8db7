"""Effects of the controller, in order. The shell performs them and reports the outcome."""

from dataclasses import dataclass
from typing import Any

from millrace.core.ids import BrokerEpoch, BrokerId, EpochEnd, LeaderEpoch, TopicId, TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.objects.stored_object import StoredObject
from millrace.core.metadata.requests import LogEnd
from millrace.core.topics import TopicName


@dataclass(slots=True)
class ReadObject:
    """Effect: read the object and call `on_object_read`."""

    key: str


@dataclass(slots=True)
class WriteObject:
    """Effect: write the object if its stored version is one less than this one's (0: none).

    Then call `on_object_written`, or `on_write_refused` when it was refused or the outcome is
    unknown.
    """

    key: str
    stored: StoredObject


@dataclass(slots=True)
class PublishImage:
    """Effect: this is the confirmed metadata now. After the first one the controller takes
    requests.

    Attributes:
        objects: by key, those that are new since the image before: to be sent to every broker, in
            the order of images. The first time all objects.
    """

    image: MetadataImage
    objects: dict[str, StoredObject]


@dataclass(slots=True)
class Respond:
    """Effect: answer a request. Each request class documents its result."""

    request_id: int
    result: Any


@dataclass(slots=True)
class AskLogEnds:
    """Effect: have a broker report where these logs end, with its next heartbeats (P26, P31).

    The controller repeats it until the broker has reported; an unreachable broker can be skipped.
    """

    broker: BrokerLife
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True)
class LackingCommitted:
    """Effect: tell people that eligible replicas lack committed records, and do not lead (P26).

    An older copy of the disk was restored, or damage cut the logs off.

    Attributes:
        partitions: each with the end of its log, and the end that it must have.
    """

    broker: BrokerLife
    partitions: tuple[tuple[TopicName, LogEnd, EpochEnd], ...]


@dataclass(slots=True)
class ElectedUncleanly:
    """Effect: tell people that committed records may be lost (P30, P31).

    Attributes:
        leader: the broker whose log counts from now on.
        log_end: the end of that log, if the leader told it: all later records of others are lost.
    """

    topic: TopicName
    topic_partition: TopicPartition
    leader: BrokerLife
    leader_epoch: LeaderEpoch
    log_end: LogEnd | None


@dataclass(slots=True)
class OlderCopyAccepted:
    """Effect: report that a broker begins with an older copy of its disk, as a person has accepted.

    Attributes:
        epoch: the life that the copy remembers.
        missed: the life whose disk is given up.
    """

    broker: BrokerId
    epoch: BrokerEpoch
    missed: BrokerEpoch


@dataclass(slots=True)
class TopicGone:
    """Effect: tell people that a deleted topic cannot be brought back any more (P75)."""

    topic: TopicName
    topic_id: TopicId
    reason: str


@dataclass(slots=True)
class TopicRaised:
    """Effect: report that partitions of an internal topic get more replicas (P77)."""

    topic: TopicName
    topic_id: TopicId
    partitions: int


@dataclass(slots=True)
class Resigned:
    """Effect, the last one: this machine is over."""

    reason: str


Effect = (
    ReadObject
    | WriteObject
    | PublishImage
    | Respond
    | AskLogEnds
    | LackingCommitted
    | ElectedUncleanly
    | OlderCopyAccepted
    | TopicGone
    | TopicRaised
    | Resigned
)
