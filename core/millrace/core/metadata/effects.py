"""What the controller wants done, in order. The shell does it, and tells the outcome."""

from dataclasses import dataclass
from typing import Any

from millrace.core.ids import LeaderEpoch, TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.requests import LogEnd
from millrace.core.metadata.stored import StoredObject
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
    """Effect: this is the confirmed metadata now. The first one says that requests are welcome.

    Attributes:
        objects: by key, those that are new since the image before: what to send to every broker,
            in this order of images. The first time these are all.
    """

    image: MetadataImage
    objects: dict[str, StoredObject]


@dataclass(slots=True)
class Respond:
    """Effect: answer a request. What the result is stands with each request."""

    request_id: int
    result: Any


@dataclass(slots=True)
class AskLogEnds:
    """Effect: have a broker report where these logs end, with its next heartbeats (P31).

    It is asked again until it has; one that cannot be reached need not be.
    """

    broker: BrokerLife
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True)
class ElectedUncleanly:
    """Effect: tell people that committed records may be lost (P30, P31).

    Attributes:
        leader: whose log counts from now on.
        log_end: where that ends, if the leader was asked: what others had behind it is lost.
    """

    topic: TopicName
    topic_partition: TopicPartition
    leader: BrokerLife
    leader_epoch: LeaderEpoch
    log_end: LogEnd | None


@dataclass(slots=True)
class Resigned:
    """Effect, the last one: this machine is over."""

    reason: str


Effect = (
    ReadObject | WriteObject | PublishImage | Respond | AskLogEnds | ElectedUncleanly | Resigned
)
