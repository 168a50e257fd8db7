"""A quota: for whom it is, and how much they may produce, fetch and keep brokers busy.

A quota is a named object. It is for clients, by principal, by client id, or by both; or for a
topic, or for a namespace. An empty name stands for each of a kind that has no quota of its own, and
every one of them has the whole limit for itself: Kafka's default. Two quotas cannot be for the
same.

A limit is for the whole cluster, and the controller divides it among the brokers (`shares`); or it
is for each broker, as in Kafka. That of request time always is: it protects a broker's processor. A
quota never refuses anything: brokers delay who exceeds it.

Sources: KIP-13 and KIP-55 for quotas by client id and user, KIP-124 for request time, KIP-546 for
the empty name.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from millrace.core.callers import client_id_problem
from millrace.core.errors import InvalidQuotaError, InvalidTopicError
from millrace.core.topics import NAMESPACE_LENGTH_MAX, is_namespace, parse_topic_name

EACH: Final = ""
"""In the place of a name: each that has no quota of its own."""
RATE_MIN: Final = 1024
RATE_MAX: Final = 1 << 40
"""Bounds of a limit, in bytes a second. Below, one batch would be delayed for minutes."""
PERCENT_MAX: Final = 10_000
"""Largest limit of request time, in percent of one processor."""
_MICROSECONDS_IN_PERCENT: Final = 10_000
PRINCIPAL_CHARACTERS_MAX: Final = 255
QUOTA_NAME_LENGTH_MAX: Final = 253

_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", re.ASCII)


class QuotaKind(StrEnum):
    """What a limit is about."""

    PRODUCE = "produce"
    FETCH = "fetch"
    REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """For whom a quota is. `EACH` stands for each name without a quota of its own; None: any.

    Attributes:
        principal: of clients.
        client_id: of clients.
        topic: as `str(TopicName)`; alone.
        namespace: of topics; alone.
    """

    principal: str | None = None
    client_id: str | None = None
    topic: str | None = None
    namespace: str | None = None

    def __str__(self) -> str:
        return " and ".join(
            f"each {word}" if name == EACH else f"{word} {name}"
            for word, name in (
                ("principal", self.principal),
                ("client id", self.client_id),
                ("topic", self.topic),
                ("namespace", self.namespace),
            )
            if name is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One quota. `checked` makes sure that it can be.

    Attributes:
        name: of the object.
        entity: for whom.
        produce_bytes_per_second: of record batches and their requests; None: no limit.
        fetch_bytes_per_second: of record batches; None: no limit.
        request_percent: of the time of one processor of each broker; None: no limit.
        is_per_broker: the limits are for each broker, and not for the cluster.
    """

    name: str
    entity: QuotaEntity
    produce_bytes_per_second: int | None = None
    fetch_bytes_per_second: int | None = None
    request_percent: int | None = None
    is_per_broker: bool = False

    def limit(self, kind: QuotaKind) -> int | None:
        """Return a limit a second, in bytes or, of request time, in microseconds; None: none."""
        match kind:
            case QuotaKind.PRODUCE:
                return self.produce_bytes_per_second
            case QuotaKind.FETCH:
                return self.fetch_bytes_per_second
            case QuotaKind.REQUEST:
                percent = self.request_percent
                return None if percent is None else percent * _MICROSECONDS_IN_PERCENT

    def is_shared(self, kind: QuotaKind) -> bool:
        """Whether all brokers share a limit."""
        return not self.is_per_broker and kind is not QuotaKind.REQUEST


class Bucket(NamedTuple):
    """What is counted together: one kind of use, by one of those for whom a quota is.

    Attributes:
        quota: its name.
        kind: of use.
        principal, client_id, topic, namespace: of the clients or topics that are counted; empty
            where the quota does not tell them apart.
    """

    quota: str
    kind: QuotaKind
    principal: str = ""
    client_id: str = ""
    topic: str = ""
    namespace: str = ""


def checked(quota: Quota) -> Quota:
    """Return a quota in its canonical form.

    Raises:
        InvalidQuotaError: says what is wrong with it.
    """
    checked_quota_name(quota.name)
    entity = _checked_entity(quota)
    for kind in (QuotaKind.PRODUCE, QuotaKind.FETCH):
        limit = quota.limit(kind)
        if limit is not None and not RATE_MIN <= limit <= RATE_MAX:
            raise InvalidQuotaError(
                f"quota {quota.name!r}: the limit to {kind} is {limit} bytes a second, and must "
                f"be {RATE_MIN} to {RATE_MAX}; leave it out for no limit"
            )
    percent = quota.request_percent
    if percent is not None and not 1 <= percent <= PERCENT_MAX:
        raise InvalidQuotaError(
            f"quota {quota.name!r}: the limit of request time is {percent} percent, and must be 1 "
            f"to {PERCENT_MAX}; leave it out for no limit"
        )
    if percent is not None and (entity.topic is not None or entity.namespace is not None):
        raise InvalidQuotaError(
            f"quota {quota.name!r}: a limit of request time is for clients, and not for topics"
        )
    if all(quota.limit(kind) is None for kind in QuotaKind):
        raise InvalidQuotaError(
            f"quota {quota.name!r} limits nothing: set a limit to produce, to fetch or of request "
            "time, or delete it"
        )
    return Quota(
        name=quota.name,
        entity=entity,
        produce_bytes_per_second=quota.produce_bytes_per_second,
        fetch_bytes_per_second=quota.fetch_bytes_per_second,
        request_percent=percent,
        is_per_broker=quota.is_per_broker,
    )


def checked_quota_name(name: str) -> str:
    """Return the name of a quota, `name` or `namespace/name`.

    Raises:
        InvalidQuotaError: no quota can have this name.
    """
    namespace, slash, last = name.rpartition("/")
    if (
        len(last) > QUOTA_NAME_LENGTH_MAX
        or not _NAME.fullmatch(last)
        or (slash and not is_namespace(namespace))
    ):
        raise InvalidQuotaError(
            f"{name[:40]!r} is no name of a quota: give 1 to {QUOTA_NAME_LENGTH_MAX} lower case "
            "letters, digits, dots or hyphens, beginning and ending with a letter or digit, and "
            "in front of them, if you like, a namespace and a slash"
        )
    return name


def _checked_entity(quota: Quota) -> QuotaEntity:
    entity = quota.entity
    whom = [
        entity.principal is not None or entity.client_id is not None,
        entity.topic is not None,
        entity.namespace is not None,
    ]
    if sum(whom) != 1:
        raise InvalidQuotaError(
            f"quota {quota.name!r} must be for a principal, a client id or both, or for a topic, "
            "or for a namespace"
        )
    problem = ""
    topic = entity.topic
    if entity.principal:
        problem = _principal_problem(entity.principal)
    if entity.client_id and not problem:
        problem = client_id_problem(entity.client_id)
    if entity.namespace and not is_namespace(entity.namespace):
        problem = (
            f"namespace={entity.namespace[:80]!r}: it must be 1 to {NAMESPACE_LENGTH_MAX} lower "
            "case letters, digits or hyphens, and begin and end with a letter or digit"
        )
    if topic:
        try:
            topic = str(parse_topic_name(topic))
        except InvalidTopicError as error:
            problem = error.message
    if problem:
        raise InvalidQuotaError(f"quota {quota.name!r}: {problem}")
    return QuotaEntity(
        principal=entity.principal,
        client_id=entity.client_id,
        topic=topic,
        namespace=entity.namespace,
    )


def _principal_problem(principal: str) -> str:
    if len(principal) <= PRINCIPAL_CHARACTERS_MAX and principal.isprintable():
        return ""
    return (
        f"principal={principal[:40]!r}: it must be 1 to {PRINCIPAL_CHARACTERS_MAX} printable "
        "characters"
    )
