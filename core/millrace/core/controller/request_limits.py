"""Bounds of requests: each is decided without a break, and holds up all others."""

from collections.abc import Sequence
from typing import Final

from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.requests import (
    AlterPartitions,
    AlterTopics,
    CreateTopics,
    DeleteQuotas,
    DeleteTopics,
    ElectLeaders,
    Heartbeat,
    NewTopic,
    PurgeTopics,
    ReassignPartitions,
    RenewReplicas,
    Request,
    SetQuotas,
    TopicChange,
    UndeleteTopics,
)
from millrace.core.quotas.meters import REPORTED_MAX

QUOTAS_AT_ONCE_MAX: Final = 100
"""Quotas in one request."""


_OF_TOPICS: Final = (CreateTopics, AlterTopics, DeleteTopics, UndeleteTopics, PurgeTopics)
_OF_PARTITIONS: Final = (AlterPartitions, RenewReplicas, ReassignPartitions, ElectLeaders)
_OF_QUOTAS: Final = (SetQuotas, DeleteQuotas)


def count_problem(kind: type[Request], count: int, config: ClusterConfig) -> str | None:
    """Return why a request has too many topics, partitions or quotas; None: it has not.

    A broker asks this, too, before it passes a client's request on to the controller.

    Args:
        kind: of the request.
        count: how many it has.
        config: the controller's.
    """
    if issubclass(kind, _OF_TOPICS):
        return _too_many(count, "topics", config.request_topics_max, "request_topics_max")
    if issubclass(kind, _OF_PARTITIONS):
        return _too_many(
            count, "partitions", config.request_partitions_max, "request_partitions_max"
        )
    if issubclass(kind, _OF_QUOTAS):
        return _too_many(count, "quotas", QUOTAS_AT_ONCE_MAX)
    return None


def size_problem(request: Request, config: ClusterConfig) -> str | None:
    """Return why a request is too large; None: it is not."""
    match request:
        case CreateTopics(topics=topics):
            return _topics_problem(request, topics, config)
        case AlterTopics(changes=changes):
            return _topics_problem(request, changes, config)
        case (
            DeleteTopics(topics=entries)
            | UndeleteTopics(topics=entries)
            | PurgeTopics(topics=entries)
            | AlterPartitions(changes=entries)
            | RenewReplicas(renewals=entries)
            | ReassignPartitions(reassignments=entries)
            | ElectLeaders(partitions=entries)
            | SetQuotas(quotas=entries)
            | DeleteQuotas(names=entries)
        ):
            return count_problem(type(request), len(entries), config)
        case Heartbeat(log_ends=log_ends) if len(log_ends) > config.log_end_partitions_max:
            return (
                f"a heartbeat reports {len(log_ends)} log ends, and may report "
                f"{config.log_end_partitions_max} at the most"
            )
        case Heartbeat(quota_uses=uses) if len(uses) > REPORTED_MAX:
            return (
                f"a heartbeat reports the use of {len(uses)} quotas, and may report "
                f"{REPORTED_MAX} at the most"
            )
        case Heartbeat(offline=offline):
            return count_problem(AlterPartitions, len(offline), config)
        case _:
            return None


def _topics_problem(
    request: CreateTopics | AlterTopics,
    topics: Sequence[NewTopic | TopicChange],
    config: ClusterConfig,
) -> str | None:
    if (problem := count_problem(type(request), len(topics), config)) is not None:
        return problem
    if len(topics) == 1:
        return None  # It may have any size: its own answer says what is wrong with it.
    partitions = sum(each.partitions for each in topics)
    return _too_many(partitions, "partitions", config.topic_partitions_max, "topic_partitions_max")


def _too_many(count: int, what: str, count_max: int, setting: str = "") -> str | None:
    if count <= count_max:
        return None
    named = f" (the setting cluster.{setting})" if setting else ""
    return (
        f"{count} {what} are too many for one request, which may have {count_max}{named}: send "
        "several requests"
    )
