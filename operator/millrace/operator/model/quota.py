"""The resource `Quota`: limits for clients or topics of a cluster.

The quota is called `<namespace>/<name>` there. A namespace other than the Cluster's limits only its
own topics: client ids and users are of the whole cluster.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from millrace.core.callers import CLIENT_ID_CHARACTERS_MAX
from millrace.core.quotas.quota import (
    PERCENT_MAX,
    PRINCIPAL_CHARACTERS_MAX,
    RATE_MAX,
    RATE_MIN,
)
from millrace.core.topics import NAME_LENGTH_MAX, NAMESPACE_LENGTH_MAX
from millrace.operator.model.fields import ClusterReference, NamespaceName, Rule

ClientId = Annotated[
    str, Meta(pattern=r"^[!-~]+$", min_length=1, max_length=CLIENT_ID_CHARACTERS_MAX)
]
TopicName = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9._-]+$",
        min_length=1,
        max_length=NAMESPACE_LENGTH_MAX + 1 + NAME_LENGTH_MAX,
    ),
]
ByteRate = Annotated[int | str, Meta(extra_json_schema={"maxLength": 32})]
"""Bytes a second, in the units of Kubernetes or of the command line: `10M`, `10MB`, `10Mi`."""


class QuotaScope(StrEnum):
    """What a limit is for."""

    CLUSTER = "Cluster"
    BROKER = "Broker"


class Each(StrEnum):
    """Stands in the place of a name: each one without a quota of its own has a limit for itself."""

    CLIENT_ID = "ClientId"
    USER = "User"
    TOPIC = "Topic"
    NAMESPACE = "Namespace"


# Words that CEL has reserved.
_FOR = "__for__"
_NAMESPACE = "__namespace__"


class QuotaSubject(Struct, frozen=True, kw_only=True, rename="camel"):
    """Whom a quota is for."""

    RULES: ClassVar = (
        Rule(
            "!has(self.each) || !self.each.exists(e, e == 'ClientId' && has(self.clientId) || "
            "e == 'User' && has(self.user) || e == 'Topic' && has(self.topic) || "
            f"e == 'Namespace' && has(self.{_NAMESPACE}))",
            "a name and each exclude each other, as clientId and each: [ClientId]: take one away",
        ),
        Rule(
            "[has(self.clientId) || has(self.user) || "
            "has(self.each) && self.each.exists(e, e == 'ClientId' || e == 'User'), "
            "has(self.topic) || has(self.each) && self.each.exists(e, e == 'Topic'), "
            f"has(self.{_NAMESPACE}) || has(self.each) && self.each.exists(e, e == 'Namespace')]"
            ".exists_one(x, x)",
            "give exactly one: clientId, user or both of them; or topic; or namespace",
        ),
    )

    client_id: ClientId | None = None
    """Clients that give themselves this name, all of them together."""
    user: Annotated[str, Meta(min_length=1, max_length=PRINCIPAL_CHARACTERS_MAX)] | None = None
    """Clients with this identity, the principal, all of them together; with clientId, those with
    both. Where clients prove nothing it is `anonymous`."""
    topic: TopicName | None = None
    """This topic, for all clients together. A name without a namespace is of the resource's own."""
    namespace: NamespaceName | None = None
    """All topics of this namespace together, and all their clients."""
    each: Annotated[list[Each], Meta(max_length=2)] = []
    """In the place of a name. Each one without a quota of its own has the whole limit for itself.
    `[ClientId]`, `[User]`, `[Topic]`, `[Namespace]`; `[User, ClientId]`: each client id of each
    user."""


def _is_rate(name: str) -> Rule:
    return Rule(
        f"!has(self.{name}) || type(self.{name}) == int || "
        f"self.{name}.matches('^[0-9]+([.][0-9]+)?([kMGT]|[KMGT]i)?B?$')",
        f"{name} must be bytes a second, as 10MB, 10Mi or 10000000",
    )


def _bounds(name: str) -> Rule:
    rate = f"quantity(string(self.{name}).replace('B', ''))"
    return Rule(
        f"!has(self.{name}) || !isQuantity(string(self.{name}).replace('B', '')) || "
        f"({rate}.compareTo(quantity('{RATE_MIN}')) >= 0 && "
        f"{rate}.compareTo(quantity('{RATE_MAX}')) <= 0)",
        f"{name} must be {RATE_MIN} bytes to 1 TiB: write it with its unit, as 10MB or 10Mi",
    )


class QuotaSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the quota should be."""

    RULES: ClassVar = (
        Rule(
            "self.clusterRef == oldSelf.clusterRef",
            "clusterRef cannot change: make another Quota, and delete this one",
        ),
        Rule(
            "has(self.produceBytesPerSecond) || has(self.fetchBytesPerSecond) || "
            "has(self.requestPercent)",
            "it limits nothing: set produceBytesPerSecond, fetchBytesPerSecond or requestPercent",
        ),
        _is_rate("produceBytesPerSecond"),
        _is_rate("fetchBytesPerSecond"),
        _bounds("produceBytesPerSecond"),
        _bounds("fetchBytesPerSecond"),
        Rule(
            f"!has(self.requestPercent) || !(has(self.{_FOR}.topic) || "
            f"has(self.{_FOR}.{_NAMESPACE}) || has(self.{_FOR}.each) && "
            f"self.{_FOR}.each.exists(e, e == 'Topic' || e == 'Namespace'))",
            "requestPercent is for clients, and not for topics: take it away, or have `for` name "
            "a clientId or user",
        ),
    )

    cluster_ref: ClusterReference
    """The cluster that has the quota. It cannot change."""
    subject: QuotaSubject = field(name="for")
    """Whom it is for: clientId, user or both; or topic; or namespace. Only a Quota in the Cluster's
    namespace may be for clients, and for topics of others."""
    produce_bytes_per_second: ByteRate | None = None
    """Most bytes a second to produce, as 10MB or 10Mi. Unset: no limit."""
    fetch_bytes_per_second: ByteRate | None = None
    """Most bytes a second to fetch, as 10MB or 10Mi. Unset: no limit."""
    request_percent: Annotated[int, Meta(ge=1, le=PERCENT_MAX)] | None = None
    """Most time of one processor, in percent, that a broker spends on the clients' requests; always
    for each broker. Unset: no limit."""
    scope: QuotaScope = QuotaScope.CLUSTER
    """`Cluster`: all brokers share the limits in bytes, by demand. `Broker`: each broker has the
    whole limits."""


class Quota(Struct, frozen=True, kw_only=True):
    """A quota's resource: its place and its specification."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: QuotaSpec
