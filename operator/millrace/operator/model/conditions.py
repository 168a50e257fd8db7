"""Conditions of Kubernetes: the state of a resource, the reason, and what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

MESSAGE_LENGTH_MAX = 4096


class Reason(StrEnum):
    """Every reason that a condition can have. What each means, and what to do, is in a table of
    docs/kubernetes.md.
    """

    ADDRESSES_MISSING = "AddressesMissing"
    ADDRESSED = "Addressed"
    AS_WANTED = "AsWanted"
    BROKERS_MISSING = "BrokersMissing"
    BROKERS_READY = "BrokersReady"
    CANNOT_DELETE = "CannotDelete"
    CANNOT_GROW = "CannotGrow"
    CANNOT_MOVE = "CannotMove"
    CANNOT_SHRINK = "CannotShrink"
    CLUSTER_INVALID = "ClusterInvalid"
    CONFLICT = "Conflict"
    CURRENT = "Current"
    DELETION_PROTECTED = "DeletionProtected"
    GROWING = "Growing"
    IN_SYNC = "InSync"
    INVALID = "Invalid"
    ISSUED = "Issued"
    ISSUER_NOT_READY = "IssuerNotReady"
    ISSUING = "Issuing"
    INVALID_CONFIG = "InvalidConfig"
    INVALID_PARTITIONS = "InvalidPartitions"
    INVALID_REPLICATION_FACTOR = "InvalidReplicationFactor"
    MOVING = "Moving"
    NAME_CLASH = "NameClash"
    NAME_TAKEN = "NameTaken"
    NO_AUTHORITY = "NoAuthority"
    NO_BROKER_ANSWERS = "NoBrokerAnswers"
    NO_CERT_MANAGER = "NoCertManager"
    NO_CLUSTER = "NoCluster"
    NO_CONTROLLER = "NoController"
    NO_ISSUER = "NoIssuer"
    NO_MEDIA = "NoMedia"
    NODE_GONE = "NodeGone"
    NODE_SHARED = "NodeShared"
    NO_REVIEWERS = "NoReviewers"
    NOT_ALLOWED = "NotAllowed"
    NOT_NOW = "NotNow"
    PAUSED = "Paused"
    PREDECESSOR_GOES = "PredecessorGoes"
    PRESENT = "Present"
    QUOTAS_FULL = "QuotasFull"
    READY = "Ready"
    REFUSED = "Refused"
    RESTARTING = "Restarting"
    SECURITY_CHANGES = "SecurityChanges"
    SEGMENTS_MOVE = "SegmentsMove"
    STUCK = "Stuck"
    TOO_MANY_PARTITIONS = "TooManyPartitions"
    UNDER_MIN_IN_SYNC = "UnderMinInSync"
    UNDER_REPLICATED = "UnderReplicated"
    WAITING = "Waiting"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    Attributes:
        is_true: None: not known.
        reason: for programs.
        message: for people: the state, and what to do.
    """

    type: str
    is_true: bool | None
    reason: Reason
    message: str = ""


def not_ready(reason: Reason, message: str) -> Condition:
    """Return the condition that a resource is not ready."""
    return Condition("Ready", False, reason, message)


def not_known(types: Iterable[str], because: Condition) -> list[Condition]:
    """Return conditions of these types that are not known, for the reason of another one."""
    return [replace(because, type=type_, is_true=None) for type_ in types]


def merged(
    before: Iterable[Mapping[str, Any]],
    found: Iterable[Condition],
    *,
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """Return conditions for the status; each keeps the time of its last transition.

    Args:
        before: the conditions in the present status.
        now: RFC 3339.
    """
    known = {condition.get("type"): condition for condition in before}
    result = []
    for condition in found:
        status = {True: "True", False: "False", None: "Unknown"}[condition.is_true]
        old = known.get(condition.type, {})
        since = old.get("lastTransitionTime", now) if old.get("status") == status else now
        result.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": since,
                "reason": str(condition.reason),
                "message": _short(condition.message),
            }
        )
    return result


def _short(message: str) -> str:
    if len(message) <= MESSAGE_LENGTH_MAX:
        return message
    return message[: MESSAGE_LENGTH_MAX - 3] + "..."
