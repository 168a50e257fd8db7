"""Bounds of requests: each is decided without a break, and holds up all others."""

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
    PurgeTopics,
    ReassignPartitions,
    RenewReplicas,
    Request,
    SetQuotas,
    UndeleteTopics,
)
from millrace.core.quotas.meters import REPORTED_MAX

QUOTAS_AT_ONCE_MAX: Final = 100
"""Quotas in one request."""


def size_problem(request: Request, config: ClusterConfig) -> str | None:
    """Return why a request is too large; None: it is not."""
    match request:
        case CreateTopics(topics=topics):
            return _topics_problem(len(topics), sum(each.partitions for each in topics), config)
        case AlterTopics(changes=changes):
            return _topics_problem(len(changes), sum(each.partitions for each in changes), config)
        case DeleteTopics(topics=refs) | UndeleteTopics(topics=refs) | PurgeTopics(topics=refs):
            return _topics_problem(len(refs), 0, config)
        case AlterPartitions(changes=alterations):
            return _partitions_problem(len(alterations), config)
        case RenewReplicas(renewals=renewals):
            return _partitions_problem(len(renewals), config)
        case ReassignPartitions(reassignments=reassignments):
            return _partitions_problem(len(reassignments), config)
        case ElectLeaders(partitions=partitions):
            return _partitions_problem(len(partitions), config)
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
        case SetQuotas(quotas=quotas):
            return _quotas_problem(len(quotas))
        case DeleteQuotas(names=names):
            return _quotas_problem(len(names))
        case Heartbeat(offline=offline):
            return _partitions_problem(len(offline), config)
        case _:
            return None


def _topics_problem(count: int, partitions: int, config: ClusterConfig) -> str | None:
    # One topic may have any size: its own answer says what is wrong with it.
    if count > config.request_topics_max or (
        count > 1 and partitions > config.topic_partitions_max
    ):
        return (
            f"{count} topics with {partitions} partitions are too many for one request, which may "
            f"have {config.request_topics_max} topics and {config.topic_partitions_max} partitions "
            "(the settings cluster.request_topics_max and cluster.topic_partitions_max): send "
            "several requests"
        )
    return None


def _quotas_problem(count: int) -> str | None:
    if count > QUOTAS_AT_ONCE_MAX:
        return (
            f"{count} quotas are too many for one request, which may have {QUOTAS_AT_ONCE_MAX}: "
            "send several requests"
        )
    return None


def _partitions_problem(count: int, config: ClusterConfig) -> str | None:
    if count > config.request_partitions_max:
        return (
            f"{count} partitions are too many for one request, which may have "
            f"{config.request_partitions_max} (the setting cluster.request_partitions_max): send "
            "several requests"
        )
    return None
