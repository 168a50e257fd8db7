"""Quotas as administrators see them: values, how they come from the wire, and requests."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from millrace.client._admin.administration import Administration, only_result
from millrace.client._cluster.connection import Connection
from millrace.core.errors import ConnectionFailedError, QuotaNotFoundError
from millrace.core.ids import BrokerId
from millrace.core.quotas.quota import Quota, QuotaEntity, checked, checked_quota_name
from millrace.proto.quotas import quota_from_wire, quota_to_wire
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
    """That of the clients counted together; empty: the quota does not tell clients apart by it."""
    client_id: str
    """The client id of these clients; empty: likewise."""
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
    """The share of one processor's time on each broker; None: no limit."""
    per_broker: bool
    """The limits are for each broker, and not for the cluster."""
    uses: tuple[QuotaUse, ...] = ()
    """What is used at each broker; only `describe_quotas` asks for that."""

    @property
    def subject(self) -> str:
        """The clients or topics that it is for, in words."""
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
        quota.name: described(quota_from_wire(quota), uses.get(quota.name, ()))
        for quota in newest.quotas
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


class QuotaAdministration(Administration):
    """The part of `Admin` that is about quotas."""

    async def set_quota(
        self,
        name: str,
        *,
        principal: str | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        namespace: str | None = None,
        produce_bytes_per_second: int | None = None,
        fetch_bytes_per_second: int | None = None,
        request_percent: int | None = None,
        per_broker: bool = False,
        validate_only: bool = False,
    ) -> QuotaDescription:
        """Make a quota, or replace the one of this name; it counts at once.

        A quota is for clients, by `principal`, `client_id` or both; or for a `topic`, or for a
        `namespace`. An empty name stands for each that has no quota of its own. Clients that exceed
        it are delayed.

            await admin.set_quota("reports", client_id="report", fetch_bytes_per_second=10_000_000)
            await admin.set_quota("others", principal="", produce_bytes_per_second=1_000_000)

        Args:
            name: of the quota, `name` or `namespace/name`.
            principal, client_id, topic, namespace: for whom it is.
            produce_bytes_per_second, fetch_bytes_per_second: the limits; None: no limit.
            request_percent: the limit of the time of one processor that a broker spends on the
                clients' requests; always for each broker, and not for topics.
            per_broker: the limits are for each broker, and not for the cluster.
            validate_only: check everything and change nothing.

        Raises:
            InvalidQuotaError: it breaks a rule, or another quota is for the same.
            QuotasFullError: there is no room for another one.
        """
        quota = checked(
            Quota(
                name=name,
                entity=QuotaEntity(
                    principal=principal, client_id=client_id, topic=topic, namespace=namespace
                ),
                produce_bytes_per_second=produce_bytes_per_second,
                fetch_bytes_per_second=fetch_bytes_per_second,
                request_percent=request_percent,
                is_per_broker=per_broker,
            )
        )
        request = cluster_pb2.SetQuotasRequest(
            quotas=[quota_to_wire(quota)], validate_only=validate_only
        )
        return await self._change_quota(lambda c: c.cluster.SetQuotas(request))

    async def delete_quota(self, name: str, *, validate_only: bool = False) -> None:
        """Delete a quota; whom it delayed goes on at once.

        Raises:
            QuotaNotFoundError: there is no such quota.
        """
        names = [checked_quota_name(name)]
        check = cluster_pb2.DeleteQuotasRequest(names=names, validate_only=True)
        await self._change_quota(lambda c: c.cluster.DeleteQuotas(check))
        if not validate_only:
            request = cluster_pb2.DeleteQuotasRequest(names=names)
            with suppress(QuotaNotFoundError):  # The answer to the first attempt was lost.
                await self._change_quota(lambda c: c.cluster.DeleteQuotas(request))

    async def list_quotas(self) -> list[QuotaDescription]:
        """Return all quotas by name, without their use."""
        request = cluster_pb2.DescribeQuotasRequest(without_use=True)
        response: cluster_pb2.DescribeQuotasResponse = await self._newest(
            lambda c: c.cluster.DescribeQuotas(request)
        )
        return [described(quota_from_wire(quota)) for quota in response.quotas]

    async def describe_quotas(
        self, names: Iterable[str] | None = None
    ) -> dict[str, QuotaDescription]:
        """Return quotas by name, with what is used of them at each broker; None: all.

        Brokers that are fenced or do not answer are left out.

            for use in (await admin.describe_quotas(["reports"]))["reports"].uses:
                print(use.client_id, use.broker_id, use.used_per_second, use.delay_ms)

        Raises:
            QuotaNotFoundError: one of them does not exist.
        """
        wanted = None if names is None else [checked_quota_name(name) for name in names]
        if wanted == []:
            return {}
        request = cluster_pb2.DescribeQuotasRequest(names=wanted or ())
        await self._cluster.look_up(cluster_pb2.GetMetadataRequest(brokers_only=True))
        told: dict[BrokerId, cluster_pb2.DescribeQuotasResponse | None] = await self._ask_brokers(
            lambda c: c.cluster.DescribeQuotas(request)
        )
        answers = {broker_id: answer for broker_id, answer in told.items() if answer is not None}
        if not answers:
            raise ConnectionFailedError("no broker has answered: are they running?")
        found = descriptions(answers)
        for name in wanted or ():
            if name not in found:
                raise QuotaNotFoundError(f"there is no quota {name!r}")
        return found

    async def _change_quota(
        self, method: Callable[[Connection], Awaitable[cluster_pb2.SetQuotasResponse]]
    ) -> QuotaDescription:
        result: cluster_pb2.QuotaResult = await self._change(method, only_result)
        return described(quota_from_wire(result.quota))
