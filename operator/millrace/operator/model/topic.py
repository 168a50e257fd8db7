"""The resource `Topic`: a topic of a cluster, named `<namespace>/<name>` there."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from millrace.core.media import TopicMedia
from millrace.operator.model.fields import ClusterReference, Rule

PARTITIONS_MAX = 100_000
MEDIA_SETTING = "media"
"""The setting of a topic that is a field of its own: `spec.media`."""


class Deletion(StrEnum):
    """Whether the topic is kept when its resource is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class TopicSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the topic should be."""

    RULES: ClassVar = (
        Rule(
            "self.clusterRef == oldSelf.clusterRef",
            "clusterRef cannot change: make another Topic, and copy the records",
        ),
        Rule(
            "has(self.topicName) == has(oldSelf.topicName) && "
            "(!has(self.topicName) || self.topicName == oldSelf.topicName)",
            "topicName cannot change: make another Topic, and copy the records",
        ),
        Rule(
            "!has(oldSelf.partitions) || (has(self.partitions) && "
            "self.partitions >= oldSelf.partitions)",
            "partitions never become fewer, nor unset: make another Topic, and copy the records",
        ),
        Rule(
            "!has(self.topicName) || (!self.topicName.startsWith('__') && "
            "self.topicName != '.' && self.topicName != '..')",
            "topicName: names that begin with __ are the cluster's own, and . and .. are none: "
            "choose another",
        ),
        Rule(
            "!has(self.replicas) || !has(self.config) || !has(self.config.{min}) || "
            "self.config.{min} <= self.replicas".format(min="min__dot__insync__dot__replicas"),
            "config: min.insync.replicas is more than replicas: no more can be in sync",
        ),
    )

    cluster_ref: ClusterReference
    """Which cluster has the topic. It cannot change."""
    topic_name: (
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+$", min_length=1, max_length=249)] | None
    ) = None
    """Name of the topic, without namespace, where it cannot be the resource's: one with capital
    letters or `_`. Unset: the resource's name. It cannot change."""
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] | None = None
    """How many partitions. More may be added later, which changes the partition of keys; they never
    become fewer. Unset: the cluster's `default_partitions`."""
    replicas: Annotated[int, Meta(ge=1, le=32_767)] | None = None
    """How many brokers hold each partition. A change moves replicas in the background; status says
    how far that is. Unset: at least the cluster's `default_replication_factor`, also when that
    grows with the number of brokers."""
    media: TopicMedia | None = None
    """Where its replicas lie. A change moves them in the background. `tiered`: on an SSD, and
    closed segments move to an HDD of the same broker, by `local.retention.ms` and when the SSD
    fills. `any`, or unset: on any volume."""
    config: dict[str, Any] = {}
    """Settings of the topic, by Kafka's names. What is not set follows the cluster's default, and
    what is taken away does so again."""
    deletion_policy: Deletion = Deletion.DELETE
    """What becomes of the topic when this resource is deleted. `Delete`: it goes with all records,
    and `millrace topic undelete` brings it back for a day. `Retain`: it stays, and a Topic of the
    same name takes it up again."""


class Topic(Struct, frozen=True, kw_only=True):
    """A topic's resource: its place and its specification."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: TopicSpec
