"""Reconciles all Quotas of one Cluster together, and measures how much is used of them.

A Quota decides about the quota `<namespace>/<name>` of the cluster, and about no other: those that
somebody makes at the command line are left alone. One that cannot be as it asks has none there.
As a Topic, it gets a finalizer before its quota is made, and holds no deletion up when the Cluster
is gone.

First all is applied, then the use is measured, then the status is written. Measurements are so far
apart that they cause `_WRITES_PER_SECOND` writes at the most.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from millrace.client import Admin, QuotaDescription
from millrace.core.errors import (
    InvalidQuotaError,
    MillraceError,
    QuotaNotFoundError,
    QuotasFullError,
    RetriableError,
)
from millrace.core.events import AUDIT_LOGGER
from millrace.core.quotas.quota import Quota, QuotaEntity
from millrace.operator import events
from millrace.operator.kube.api import Api
from millrace.operator.kube.kinds import CLUSTER, QUOTA
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition, Reason, not_ready
from millrace.operator.model.objects import Document
from millrace.operator.plan.quotas import conflicts, may_be_for, wanted
from millrace.operator.plan.selectors import allows
from millrace.operator.reconcile.again import GONE, Again
from millrace.operator.reconcile.brokers import Brokers
from millrace.operator.reconcile.quota_status import FIELDS, use_status
from millrace.operator.reconcile.references import (
    NO_BROKER_ANSWERS,
    age,
    cluster_key,
    for_each,
    has_finalizer,
    hold,
    namespace_labels,
    namespaces_that_go,
    not_allowed,
    release,
    say_why_not,
    usable_cluster,
    without_cluster,
)
from millrace.operator.reconcile.resources import is_true, quota_of, write_status

_audit = logging.getLogger(AUDIT_LOGGER)

FINALIZER: Final = "millrace.dev/quota"
BUSY_S: Final = 2.0
MEASURE_S_MIN: Final = 10.0
"""Pause between two measurements of few Quotas."""
_WRITES_PER_SECOND: Final = 10
_ANSWER_S: Final = 3.0
"""How long brokers may take to say which quotas there are."""
_MEASUREMENT_S: Final = 1.0
"""How long they may take to say what is used: a change of a Quota waits for it."""

_REASONS: Final[Mapping[type[MillraceError], Reason]] = {
    InvalidQuotaError: Reason.INVALID,
    QuotasFullError: Reason.QUOTAS_FULL,
}


class QuotasReconciler:
    """Looks at the Quotas of one Cluster at a time.

    Args:
        clock: seconds, monotonic.
        wall_clock: in step with the API server's clocks.
    """

    def __init__(
        self,
        api: Api,
        brokers: Brokers,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._brokers = brokers
        self._clock = clock
        self._wall_clock = wall_clock
        self._measure_at: dict[tuple[str, str], float] = {}

    async def reconcile(self, namespace: str, name: str) -> Again:
        """Bring all Quotas of a cluster to their wanted state.

        Returns:
            When to look again.

        Raises:
            ApiError: the API server did not answer.
        """
        key = (namespace, name)
        documents = [quota for quota in await self._api.list(QUOTA) if cluster_key(quota) == key]
        if not documents:
            self._measure_at.pop(key, None)
            return GONE
        document = await self._api.get(CLUSTER, namespace, name)
        if document is None or "deletionTimestamp" in document["metadata"]:
            self._measure_at.pop(key, None)
            let_go = partial(without_cluster, self._api, finalizer=FINALIZER)
            await for_each(documents, let_go)
            return None
        pause = max(MEASURE_S_MIN, len(documents) / _WRITES_PER_SECOND)
        going = await namespaces_that_go(self._api, documents, self._wall_clock())
        cluster = usable_cluster(document)
        if isinstance(cluster, Condition):
            blocked = partial(self._blocked, because=cluster, going=going)
            return None if all(await for_each(documents, blocked)) else pause
        labels = await namespace_labels(self._api, cluster, documents)
        admin = self._brokers.admin(cluster)
        work = _Work(self._api, cluster, admin, await _found(admin), labels, going)
        is_settled = await work.apply(documents)
        uses = None
        if self._clock() >= self._measure_at.get(key, 0):
            uses = await _measured(admin, work.ready)
            self._measure_at[key] = self._clock() + pause
        is_told = await work.tell(uses)
        return pause if is_settled and is_told else BUSY_S

    async def _blocked(
        self, document: Document, *, because: Condition, going: Collection[str]
    ) -> bool:
        """Say why nothing is done for a Quota; return whether it waits for a change."""
        if "deletionTimestamp" not in document["metadata"]:
            await say_why_not(self._api, document, because)
            return True
        if not has_finalizer(document, FINALIZER):
            return True
        if document["metadata"]["namespace"] in going:
            await _keep(self._api, document, because.message)
            return True
        await say_why_not(self._api, document, _cannot_delete(because.message))
        return False


async def _found(admin: Admin) -> dict[str, Quota] | None:
    """Return the quotas of the cluster; None: no broker answers in time."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return {quota.name: _found_quota(quota) for quota in await admin.list_quotas()}
    except (MillraceError, TimeoutError):
        return None


async def _measured(admin: Admin, names: Collection[str]) -> Mapping[str, QuotaDescription] | None:
    """Return quotas with their use; None: brokers do not say it now."""
    try:
        async with asyncio.timeout(_MEASUREMENT_S):
            return await admin.describe_quotas(names)
    except (MillraceError, TimeoutError):
        return None


def _found_quota(quota: QuotaDescription) -> Quota:
    return Quota(
        name=quota.name,
        entity=QuotaEntity(
            principal=quota.principal,
            client_id=quota.client_id,
            topic=quota.topic,
            namespace=quota.namespace,
        ),
        produce_bytes_per_second=quota.produce_bytes_per_second,
        fetch_bytes_per_second=quota.fetch_bytes_per_second,
        request_percent=quota.request_percent,
        is_per_broker=quota.per_broker,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """The state of one look, and the work on each Quota. Quotas go by their name in the cluster.

    Attributes:
        found: the quotas of the cluster; None: no broker answers.
        asked: what Quotas ask for.
        refused: why others cannot be.
        conflicts: which quota is in the way of one that is asked for.
        changed: quotas that were set or deleted.
        outcomes: resources and their conditions, to be told.
    """

    api: Api
    cluster: Cluster
    admin: Admin
    found: Mapping[str, Quota] | None
    namespaces: Mapping[str, Mapping[str, str]]
    going: Collection[str]
    asked: dict[str, Quota] = field(default_factory=dict)
    refused: dict[str, Condition] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    outcomes: dict[str, tuple[Document, Condition]] = field(default_factory=dict)

    @property
    def ready(self) -> list[str]:
        """Names of quotas that are as they should be."""
        return [name for name, (_, condition) in self.outcomes.items() if condition.is_true]

    async def apply(self, documents: Collection[Document]) -> bool:
        """Have the cluster's quotas be as the resources say; return whether all is settled."""
        for document in sorted(documents, key=age):
            if "deletionTimestamp" not in document["metadata"] and self._is_allowed(document):
                self._read(document)
        self.conflicts.update(conflicts(self.asked.values(), self.found or {}))
        settled = await for_each(documents, self._quota)
        # What was changed may have freed what another one waits for.
        return all(settled) and not (self.conflicts and self.changed)

    async def tell(self, uses: Mapping[str, QuotaDescription] | None) -> bool:
        """Write the status of each Quota; return whether all are written.

        Args:
            uses: None: what was measured before still counts.
        """

        async def write(document: Document) -> bool:
            name = _name(document)
            _, condition = self.outcomes[name]
            content: dict[str, Any] = {"quotaName": name}
            if name in self.asked:
                content["subject"] = str(self.asked[name].entity)
            if condition.is_true and uses is not None and name in uses:
                content |= use_status(uses[name])
            elif condition.is_true:
                before = document.get("status") or {}
                content |= {key: before.get(key) for key in FIELDS}
            await write_status(self.api, document, [condition], content)
            return True

        return all(await for_each([document for document, _ in self.outcomes.values()], write))

    def _read(self, document: Document) -> None:
        """Take down what a Quota asks for, or why that cannot be."""
        name, namespace = _name(document), document["metadata"]["namespace"]
        try:
            quota = wanted(quota_of(document))
        except (msgspec.ValidationError, MillraceError) as error:
            self.refused[name] = not_ready(Reason.INVALID, str(error))
            return
        if may_be_for(quota.entity, namespace, self.cluster.namespace):
            self.asked[name] = quota
            return
        self.refused[name] = not_ready(
            Reason.NOT_ALLOWED,
            f"a Quota of namespace {namespace} may be for topics of that namespace, or for the "
            f"namespace, and this one is for {quota.entity}: correct spec.for, or make it in the "
            f"Cluster's namespace, {self.cluster.namespace}",
        )

    async def _quota(self, document: Document) -> bool:
        """Work on one Quota; return whether it is settled."""
        name = _name(document)
        if "deletionTimestamp" in document["metadata"]:
            return await self._delete(document, name)
        if not self._is_allowed(document):
            self.outcomes[name] = document, not_allowed(self.cluster, document)
            return True
        if self.found is None:
            if not is_true(document, "Ready"):
                self.outcomes[name] = document, NO_BROKER_ANSWERS
            return False
        if name in self.asked and name not in self.conflicts:
            document = await hold(self.api, document, FINALIZER)
        condition, is_settled = await self._work(name)
        self.outcomes[name] = document, condition
        return is_settled

    async def _work(self, name: str) -> tuple[Condition, bool]:
        """Bring one quota to its wanted state; return its condition, and whether it is settled."""
        assert self.found is not None
        refused = self.refused.get(name)
        if refused is not None and refused.reason is Reason.INVALID:
            return refused, True  # What it asked for before still counts.
        try:
            if refused is not None:
                await self._remove(name)
                return refused, True
            if name in self.conflicts:
                await self._remove(name)
                return self._conflict(name), True
            if self.found.get(name) != self.asked[name]:
                await self._set(self.asked[name])
        except MillraceError as error:
            is_passing = isinstance(error, RetriableError)
            reason = Reason.NOT_NOW if is_passing else _REASONS.get(type(error), Reason.REFUSED)
            return not_ready(reason, str(error)), not is_passing
        return Condition("Ready", True, Reason.READY, "the quota is in force"), True

    async def _set(self, quota: Quota) -> None:
        entity = quota.entity
        await self.admin.set_quota(
            quota.name,
            principal=entity.principal,
            client_id=entity.client_id,
            topic=entity.topic,
            namespace=entity.namespace,
            produce_bytes_per_second=quota.produce_bytes_per_second,
            fetch_bytes_per_second=quota.fetch_bytes_per_second,
            request_percent=quota.request_percent,
            per_broker=quota.is_per_broker,
        )
        self.changed.add(quota.name)
        events.QUOTA_SET.log(_audit, quota=repr(quota))

    async def _remove(self, name: str) -> None:
        if name not in (self.found or ()):
            return
        with suppress(QuotaNotFoundError):
            await self.admin.delete_quota(name)
        self.changed.add(name)
        events.QUOTA_DELETED.log(_audit, quota=name)

    async def _delete(self, document: Document, name: str) -> bool:
        if not has_finalizer(document, FINALIZER):
            return True
        if self._is_allowed(document):
            why = "" if self.found is not None else "none of the brokers answers"
            if not why:
                try:
                    await self._remove(name)
                except MillraceError as error:
                    why = str(error)
            if why and document["metadata"]["namespace"] not in self.going:
                self.outcomes[name] = document, _cannot_delete(why)
                return False
            if why:
                await _keep(self.api, document, why)
                return True
        await release(self.api, document, FINALIZER)
        return True

    def _is_allowed(self, document: Document) -> bool:
        namespace = document["metadata"]["namespace"]
        return allows(self.cluster, namespace, self.namespaces.get(namespace, {}))

    def _conflict(self, name: str) -> Condition:
        holder = self.conflicts[name]
        change = (
            f"change or delete the Quota {holder.rpartition('/')[2]} of namespace "
            f"{holder.rpartition('/')[0]}"
            if holder in self.asked or holder in self.refused
            else f"delete that one, which no Quota asks for (millrace quota delete {holder})"
        )
        return not_ready(
            Reason.CONFLICT,
            f"the quota {holder} is for {self.asked[name].entity} already: {change}, or have this "
            "one be for somebody else",
        )


async def _keep(api: Api, document: Document, why: str) -> None:
    """Let a Quota go whose quota cannot be deleted."""
    events.QUOTA_KEPT.log(_audit, quota=_name(document), reason=why)
    await release(api, document, FINALIZER)


def _cannot_delete(why: str) -> Condition:
    return not_ready(
        Reason.CANNOT_DELETE,
        f"the quota cannot be deleted now: {why}. It is tried again. Not to wait for it, take the "
        f"finalizer {FINALIZER} out of this resource: then the quota stays",
    )


def _name(document: Document) -> str:
    """Return the name of a resource's quota in the cluster."""
    return f"{document['metadata']['namespace']}/{document['metadata']['name']}"
