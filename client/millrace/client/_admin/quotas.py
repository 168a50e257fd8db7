"""Quotas as administrators see them: values, and how they come from the wire."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from millrace.core.ids import BrokerId
from millrace.core.quotas.quota import Quota, QuotaEntity
from millrace.proto.quotas import quota_from_wire
from millrace.proto.v1 import cluster_pb2

QuotaKindName: TypeAlias = Literal["produce", "fetch", "request"]

_KINDS: Final[Mapping[int, QuotaKindName]] = {
    cluster_pb2.QUOTA_KIND_PRODUCE: "produce",
    cluster_pb2.QUOTA_KIND_FETCH: "fetch",
    cluster_pb2.QUOTA_KIND_REQUEST: "request",
}


@dataclass(slots=True, frozen=True)
class QuotaUse:
    """What is used of a quota at one broker, by one of those for whom it is."""

    kind: QuotaKindName
    """The limit."""
    principal: str
    """Of the clients that are counted together; empty: the quota does not tell them apart by it."""
    client_id: str
    """Likewise."""
    topic: str
    """The topic, if the quota is for topics; else empty."""
    namespace: str
    """The namespace, if the quota is for namespaces; else empty."""
    broker_id: BrokerId
    used_per_second: int
    """Averaged over about a second: bytes, or microseconds of request time."""
    limit_per_second: int
    """What may be used at this broker, likewise: the limit, or the broker's share of it."""
    delay_ms: int
    """How long the next request would be delayed; 0: not."""
    throttled_ms: int
    """How long requests were delayed, as long as the broker has counted it."""


@dataclass(slots=True, frozen=True)
class QuotaDescription:
    """One quota. An empty name stands for each that has no quota of its own; None: any."""

    name: str
    principal: str | None
    client_id: str | None
    topic: str | None
    namespace: str | None
    produce_bytes_per_second: int | None
    """None: no limit."""
    fetch_bytes_per_second: int | None
    """None: no limit."""
    request_percent: int | None
    """Of the time of one processor of each broker; None: no limit."""
    per_broker: bool
    """The limits are for each broker, and not for the cluster."""
    uses: tuple[QuotaUse, ...] = ()
    """By broker; only `describe_quotas` asks for them."""

    @property
    def subject(self) -> str:
        """For whom it is, in words."""
        return str(
            QuotaEntity(
                principal=self.principal,
                client_id=self.client_id,
                topic=self.topic,
                namespace=self.namespace,
            )
        )


def described(quota: Quota, uses: Iterable[QuotaUse] = ()) -> QuotaDescription:
    """Return the description of a quota."""
    entity = quota.entity
    return QuotaDescription(
        quota.name,
        entity.principal,
        entity.client_id,
        entity.topic,
        entity.namespace,
        quota.produce_bytes_per_second,
        quota.fetch_bytes_per_second,
        quota.request_percent,
        quota.is_per_broker,
        tuple(uses),
    )


def descriptions(
    answers: Mapping[BrokerId, cluster_pb2.DescribeQuotasResponse],
) -> dict[str, QuotaDescription]:
    """Put the brokers' answers together; the newest one says which quotas there are."""
    newest = max(answers.values(), key=lambda answer: answer.metadata_epoch)
    uses: dict[str, list[QuotaUse]] = {}
    for broker_id, answer in sorted(answers.items()):
        for use in answer.uses:
            if use.bucket.kind in _KINDS:
                uses.setdefault(use.bucket.quota, []).append(_use(broker_id, use))
    return {
        each.name: described(quota_from_wire(each), uses.get(each.name, ()))
        for each in newest.quotas
    }


def _use(broker_id: BrokerId, use: cluster_pb2.QuotaUse) -> QuotaUse:
    bucket = use.bucket
    return QuotaUse(
        _KINDS[bucket.kind],
        bucket.principal,
        bucket.client_id,
        bucket.topic,
        bucket.namespace,
        broker_id,
        use.used_per_second,
        use.limit_per_second,
        use.delay_ms,
        use.throttled_ms,
    )
