"""Bounds of requests: each is decided without a break, and holds up all others."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

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


class _Bound(NamedTuple):
    """How much a kind of request may have.

    Attributes:
        entries: the field of the request.
        what: its entries.
        setting: of the cluster, with the bound; empty: it is `QUOTAS_AT_ONCE_MAX`.
    """

    entries: str
    what: str
    setting: str = ""

    def problem(self, count: int, config: ClusterConfig) -> str | None:
        """Return why so many entries are too many; None: they are not."""
        count_max = getattr(config, self.setting) if self.setting else QUOTAS_AT_ONCE_MAX
        return _too_many(count, self.what, count_max, self.setting)


def _topics(entries: str) -> _Bound:
    return _Bound(entries, "topics", "request_topics_max")


def _partitions(entries: str) -> _Bound:
    return _Bound(entries, "partitions", "request_partitions_max")


_BOUNDS: Final[Mapping[type[Request], _Bound]] = {
    CreateTopics: _topics("topics"),
    AlterTopics: _topics("changes"),
    DeleteTopics: _topics("topics"),
    UndeleteTopics: _topics("topics"),
    PurgeTopics: _topics("topics"),
    AlterPartitions: _partitions("changes"),
    RenewReplicas: _partitions("renewals"),
    ReassignPartitions: _partitions("reassignments"),
    ElectLeaders: _partitions("partitions"),
    Heartbeat: _partitions("offline"),
    SetQuotas: _Bound("quotas", "quotas"),
    DeleteQuotas: _Bound("names", "quotas"),
}


def count_problem(kind: type[Request], count: int, config: ClusterConfig) -> str | None:
    """Return why a request has too many topics, partitions or quotas; None: it has not.

    A broker asks this, too, before it passes a client's request on to the controller.

    Args:
        kind: of the request.
        count: how many it has.
        config: the controller's.
    """
    bound = _BOUNDS.get(kind)
    return None if bound is None else bound.problem(count, config)


def size_problem(request: Request, config: ClusterConfig) -> str | None:
    """Return why a request is too large; None: it is not."""
    bound = _BOUNDS.get(type(request))
    if bound is None:
        return None
    problem = bound.problem(len(getattr(request, bound.entries)), config)
    if problem is not None:
        return problem
    match request:
        case CreateTopics(topics=topics):
            return _growth_problem(topics, config)
        case AlterTopics(changes=changes):
            return _growth_problem(changes, config)
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
        case _:
            return None


def _growth_problem(topics: Sequence[NewTopic | TopicChange], config: ClusterConfig) -> str | None:
    if len(topics) == 1:
        return None  # It may have any size: its own answer says what is wrong with it.
    partitions = sum(max(topic.partitions, len(topic.assignment)) for topic in topics)
    return _too_many(partitions, "partitions", config.topic_partitions_max, "topic_partitions_max")


def _too_many(count: int, what: str, count_max: int, setting: str = "") -> str | None:
    if count <= count_max:
        return None
    named = f" (the setting cluster.{setting})" if setting else ""
    return (
        f"{count} {what} are too many for one request, which may have {count_max}{named}: send "
        "several requests"
    )
