"""Reconciles one Cluster: its objects, the releases of its brokers, and its status.

Every look starts from the beginning, without the state of the one before, so a killed operator
continues at any point. `plan` makes the decisions.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import msgspec

from millrace.core.errors import InvalidConfigError, MillraceError
from millrace.core.events import AUDIT_LOGGER
from millrace.operator import events
from millrace.operator.kube.api import REFUSALS, Api, ApiError
from millrace.operator.kube.applied import Applied, NameTakenError
from millrace.operator.kube.kinds import (
    CLAIM,
    CLUSTER,
    CONFIG_MAP,
    EVENT,
    NODE,
    POD,
    STATEFUL_SET,
    STORAGE_CLASS,
    VOLUME,
)
from millrace.operator.model.broker_settings import check_config
from millrace.operator.model.cluster import Cluster, LostVolumes
from millrace.operator.model.conditions import Condition, Reason, not_known, not_ready
from millrace.operator.model.objects import (
    CLUSTER_LABEL,
    Decided,
    Document,
    desired_objects,
    disruption_budget,
    selector,
)
from millrace.operator.model.security import Security
from millrace.operator.plan import zones
from millrace.operator.plan.certificates import USUAL, Times
from millrace.operator.plan.growth import (
    RESTARTED_ANNOTATION,
    Growth,
    growth,
    needs_classes,
    restarted_at,
)
from millrace.operator.plan.issued import CERTIFIED_CONDITION
from millrace.operator.plan.lost import LostBroker, lost_brokers
from millrace.operator.plan.outside import Outside
from millrace.operator.plan.paused import as_it_is, present_replicas
from millrace.operator.plan.pods import (
    BROKEN_FOR_S,
    broker_pods,
    is_unscheduled,
    own_pods,
    why_not_made,
)
from millrace.operator.plan.rolling import (
    Restart,
    may_be_disrupted,
    next_step,
)
from millrace.operator.plan.scaling import SHARING, pool_sizes, scaling
from millrace.operator.plan.security import (
    Secured,
    check_release,
    present_security,
    with_security,
)
from millrace.operator.reconcile.access import AccessReconciler, OwnAccount
from millrace.operator.reconcile.again import GONE, Again
from millrace.operator.reconcile.brokers import Brokers, Found, way_to
from millrace.operator.reconcile.certificates import CertificatesReconciler, SeenCertificates
from millrace.operator.reconcile.cluster_status import (
    CONDITIONS,
    FOR_PEOPLE,
    Look,
    status_conditions,
    status_summary,
)
from millrace.operator.reconcile.metadata import own_metadata
from millrace.operator.reconcile.network import NetworkReconciler
from millrace.operator.reconcile.outside import (
    OUTSIDE_CONDITION,
    WAITING_S,
    OutsideReconciler,
    outside_condition,
)
from millrace.operator.reconcile.resources import (
    cluster_of,
    has_reason,
    is_observed,
    is_owned,
    known_before,
    now,
    unless_changed,
    write_status,
    written,
)
from millrace.operator.reconcile.scaling import ScalingReconciler
from millrace.operator.reconcile.spread import find_crowds

_log = logging.getLogger(__name__)
_audit = logging.getLogger(AUDIT_LOGGER)

STEADY_S = 60.0
"""Pause before the next look at a cluster with nothing to do."""
BUSY_S = 2.0
"""Likewise, of a cluster with work under way."""
PLACING_S = 0.3
"""Likewise, of a cluster whose pods wait for a node or its zone."""
GROWTH_PENDING_MAX = timedelta(minutes=3)
"""How long a file system may wait to grow before its pod is restarted. A node's kubelet looks every
minute or two."""
FAILURE_TOLD_AGAIN = timedelta(seconds=10)
"""Shortest time between two reports of failures of one generation of a Cluster."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The parts of a cluster that change by themselves.

    Attributes:
        stateful_sets: that the Cluster owns.
    """

    stateful_sets: Sequence[Document]
    pods: Sequence[Document]


class ClusterReconciler:
    """Looks at one Cluster at a time.

    Args:
        image: of brokers, if a Cluster names none.
        clock: in step with the API server's clocks.
        times: of certificates.
        account: the operator's own; None: it runs in no pod.
        on_formed: told of a Cluster, by namespace and name, whether it has had a controller; None:
            it is gone.
    """

    def __init__(
        self,
        api: Api,
        brokers: Brokers,
        image: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        times: Times = USUAL,
        account: OwnAccount | None = None,
        on_formed: Callable[[str, str, bool | None], None] = lambda *formed: None,
    ) -> None:
        self._api = api
        self._brokers = brokers
        self._image = image
        self._on_formed = on_formed
        self._clock = clock
        self._applied = Applied(api)
        self._outside = OutsideReconciler(api, self._applied)
        self._network = NetworkReconciler(api)
        self._scaling = ScalingReconciler(api, brokers)
        self._namespace = "" if account is None else account.namespace
        self._certificates = CertificatesReconciler(api, self._applied, clock, times)
        self._access = AccessReconciler(api, brokers, account, lambda: clock().timestamp())
        self._failures_told: dict[tuple[str, str], datetime] = {}

    async def reconcile(self, namespace: str, name: str) -> Again:
        """Bring a cluster a step nearer to its wanted state.

        Returns:
            When to look again.

        Raises:
            ApiError: the API server did not answer, or refuses what the Cluster asks for.
        """
        document = await self._api.get(CLUSTER, namespace, name)
        if document is None or "deletionTimestamp" in document["metadata"]:
            await self._brokers.forget(namespace, name)  # Its objects are deleted with it.
            self._applied.forget(namespace, name)
            self._failures_told.pop((namespace, name), None)
            self._on_formed(namespace, name, None)
            await self._access.forget(namespace, name)
            return GONE
        try:
            cluster = cluster_of(document)
        except msgspec.ValidationError as error:
            await self._refuse(document, Reason.INVALID, f"{error}: apply the definitions in crds/")
            return None
        try:
            if cluster.spec.paused:
                return await self._keep(cluster, document)
            look = await self._work(cluster, document)
        except InvalidConfigError as error:
            # Running brokers go on with their settings.
            await self._refuse(document, Reason.INVALID_CONFIG, str(error))
            return None
        except NameTakenError as error:
            reason = Reason.PREDECESSOR_GOES if error.is_passing else Reason.NAME_TAKEN
            if error.is_passing:  # The controller was that of the earlier Cluster.
                self._on_formed(namespace, name, False)
            await self._refuse(document, reason, str(error))
            return BUSY_S if error.is_passing else STEADY_S
        except ApiError as error:
            if error.status in REFUSALS:
                with suppress(ApiError):  # The first failure is the one to report.
                    await self._refuse(document, Reason.REFUSED, _why_refused(error))
            else:
                await self._say_failed(document, error)
            raise
        conditions = status_conditions(look)
        beside = [] if look.outside is None else [outside_condition(look.outside)]
        beside += [] if look.certified is None else [look.certified]
        await write_status(
            self._api, document, [*conditions, *beside], status_summary(cluster, look)
        )
        if look.is_placing:
            return PLACING_S
        if not all(found.is_true for found in conditions if found.type not in FOR_PEOPLE):
            return BUSY_S
        return STEADY_S if all(condition.is_true for condition in beside) else WAITING_S

    async def _keep(self, cluster: Cluster, document: Document) -> float:
        """Leave a paused Cluster as it is, but for certificates: they end."""
        seen = await self._observe(cluster)
        present = present_security(seen.pods, seen.stateful_sets, {})
        cluster, authorities = as_it_is(cluster, present), ""
        if cluster.spec.tls is not None:
            replicas = present_replicas(seen.stateful_sets, seen.pods)
            held = await self._certificates.keep(cluster, replicas)
            authorities = held.trusted_by_clients.decode()
        reason = "spec.paused is true: the operator renews certificates, and changes nothing else"
        await self._say(document, Condition("Ready", None, Reason.PAUSED, reason), authorities)
        return STEADY_S

    async def _work(self, cluster: Cluster, document: Document) -> Look:
        is_formed = await own_metadata(self._api, cluster)
        self._on_formed(cluster.namespace, cluster.name, is_formed)
        seen = await self._observe(cluster)
        present = present_security(seen.pods, seen.stateful_sets, document.get("status") or {})
        problem, is_known = await self._access.problem(), self._access.is_known
        secured = Secured.of(cluster, present, is_known=is_known, can_ask=not problem)
        secured, lacking = await self._certificates.hold(cluster, secured)
        cluster = with_security(cluster, secured.next)
        await self._brokers.reach(cluster, way_to(cluster, secured))
        held = await self._trust(cluster, seen)
        recent = written(self._clock() - timedelta(seconds=BROKEN_FOR_S))
        pods = broker_pods(seen.pods, seen.stateful_sets, {}, recent=recent)
        found = await self._brokers.find(cluster) if any(pod.is_ready for pod in pods) else None
        members = None if found is None else found.members()
        partitions = None if found is None else found.partitions()
        scale = scaling(
            pool_sizes(cluster, seen.stateful_sets, seen.pods, members),
            members,
            () if found is None else found.placed(),
            were_leaving=(document.get("status") or {}).get("leaving") or (),
        )
        wanted = sum(scale.replicas.values())
        # Whatever else is wrong, and for how long: without certificates no broker is believed.
        outside, certified = await self._reach(cluster, scale.replicas, seen.pods, held)
        _check(cluster, present)
        volumes = await self._grow(cluster, document, seen)
        pods = broker_pods(seen.pods, seen.stateful_sets, volumes.restart, recent=recent)
        decided = Decided(
            image=self._image,
            replicas=scale.replicas,
            may_be_disrupted=may_be_disrupted(pods, partitions, pods_wanted=wanted),
            api_ports=await self._network.reconcile(cluster),
            operator_namespace=self._namespace,
        )
        made = {}
        for desired in desired_objects(cluster, decided):
            if not _is_going(desired, seen, volumes):
                made[desired["kind"], desired["metadata"]["name"]] = await self._applied.ensure(
                    desired
                )
        await self._bring_restarts_back(cluster, made)
        if found is not None:
            try:
                await self._scaling.reconcile(
                    cluster,
                    document,
                    scale,
                    found,
                    stateful_sets=seen.stateful_sets,
                    pods=seen.pods,
                )
            except MillraceError as error:
                planned = scale.message or SHARING
                message = (
                    f"{planned}: the brokers refuse it for now, and it is tried again: {error}"
                )
                scale = replace(scale, message=message)
        lost = await self._replace_lost(cluster, document, seen, found)
        seen = await self._observe(cluster)
        pods = broker_pods(seen.pods, seen.stateful_sets, volumes.restart, recent=recent)
        if decided.may_be_disrupted and not all(pod.is_current for pod in pods):
            # No broker is evicted from now on, and one that was is among those that are seen.
            closed = replace(decided, may_be_disrupted=False)
            await self._applied.ensure(disruption_budget(cluster, closed))
            seen = await self._observe(cluster)
            pods = broker_pods(seen.pods, seen.stateful_sets, volumes.restart, recent=recent)
        if found is not None and not all(pod.is_current for pod in pods):
            # A restart goes by what brokers say now, and not before all these requests.
            found = await self._brokers.find(cluster)
            partitions = None if found is None else found.partitions()
        step = next_step(
            pods,
            partitions,
            pods_wanted=wanted,
            controller=None if found is None else found.controller,
            settling=frozenset() if found is None else found.settling,
        )
        if isinstance(step, Restart):
            await self._restart(document, step)
        is_placing = zones.is_any_to_come(seen.pods)
        not_made = ""
        if len(pods) < wanted:
            failures = {"reason": "FailedCreate", "involvedObject.kind": STATEFUL_SET.name}
            events = await self._api.list(EVENT, cluster.namespace, fields=failures)
            not_made = why_not_made(events, seen.stateful_sets)
        authorities = "" if held is None else held.trusted_by_clients.decode()
        crowds = await find_crowds(self._api, cluster, seen.pods)
        told = (outside, certified or lacking, secured, authorities, problem, crowds)
        return Look(pods, not_made, found, scale, lost, step, volumes, is_placing, *told)

    async def _trust(self, cluster: Cluster, seen: _Seen) -> SeenCertificates | None:
        """Look at the certificates of brokers, whose authorities this operator trusts, too."""
        if cluster.spec.tls is None:
            return None
        made = [stateful_set["metadata"]["name"] for stateful_set in seen.stateful_sets]
        held = await self._certificates.observe(cluster, made)
        self._brokers.trust(cluster, held.trusted_by_clients)
        await self._access.reconcile(cluster)
        return held

    async def _reach(
        self,
        cluster: Cluster,
        replicas: Mapping[str, int],
        pods: Sequence[Document],
        held: SeenCertificates | None,
    ) -> tuple[Outside | None, Condition | None]:
        """Give brokers their certificates and their addresses for clients outside."""
        reached = await self._outside.reconcile(cluster, replicas, pods, held)
        found, hosts = (None, {}) if reached is None else reached
        if held is None:
            return found, None
        return found, await self._certificates.ensure(cluster, replicas, hosts, held)

    async def _observe(self, cluster: Cluster) -> _Seen:
        where = cluster.namespace
        found = await self._api.list(STATEFUL_SET, where, {CLUSTER_LABEL: cluster.name})
        stateful_sets = [stateful_set for stateful_set in found if is_owned(stateful_set, cluster)]
        chosen = await self._api.list(POD, where, selector(cluster.name))
        pods = own_pods(cluster, chosen, stateful_sets)
        await self._tell_zones(cluster, pods)
        return _Seen(stateful_sets, pods)

    async def _grow(self, cluster: Cluster, document: Document, seen: _Seen) -> Growth:
        """Let volumes grow; delete StatefulSets that request less, without their pods."""
        claims = await self._api.list(CLAIM, cluster.namespace, {CLUSTER_LABEL: cluster.name})
        classes: list[Document] = []
        if needs_classes(cluster, seen.pods, claims):
            classes = await self._api.list(STORAGE_CLASS)
        plan = growth(
            cluster,
            seen.stateful_sets,
            seen.pods,
            claims,
            {storage_class["metadata"]["name"]: storage_class for storage_class in classes},
            long_ago=written(self._clock() - GROWTH_PENDING_MAX),
        )
        refused = []
        for claim, storage in plan.grow:
            name = claim["metadata"]["name"]
            change = {"spec": {"resources": {"requests": {"storage": storage}}}}
            try:
                await self._api.patch(CLAIM, cluster.namespace, name, change)
            except ApiError as error:
                if error.status not in REFUSALS:
                    raise
                refused.append(f"{name}: {error}")  # By a quota, for one.
            else:
                await self._tell(document, "VolumeGrows", f"{name} grows to {storage}")
        for stateful_set in plan.recreate:
            metadata = stateful_set["metadata"]
            if (restarted := restarted_at(stateful_set["spec"]["template"])) is not None:
                # Before the deletion: a killed operator finds it there.
                note = {"metadata": {"annotations": {RESTARTED_ANNOTATION: restarted}}}
                patch = self._api.patch(CONFIG_MAP, cluster.namespace, metadata["name"], note)
                if not await unless_changed(patch):
                    continue  # It is made again, and the next look notes it there.
            # With its version: a restart that is asked for now must not go with it.
            await self._api.delete(
                STATEFUL_SET,
                cluster.namespace,
                metadata["name"],
                uid=metadata["uid"],
                version=metadata["resourceVersion"],
                orphan=True,
            )
        problems = [problem for problem in (plan.problem, *refused) if problem]
        return replace(plan, problem="; ".join(problems))

    async def _bring_restarts_back(
        self, cluster: Cluster, made: Mapping[tuple[str, str], Document]
    ) -> None:
        """Give recreated StatefulSets the last restart that somebody asked of the former ones.

        By `kubectl rollout restart`, whose annotation is part of the revision: without it every
        broker would count as outdated. The note of it goes as soon as a StatefulSet has one, this
        or a later one: at another time it would bring back a restart of long ago.
        """
        for (kind, name), stateful_set in made.items():
            config = made.get((CONFIG_MAP.name, name))
            if kind != STATEFUL_SET.name or config is None:
                continue
            restarted, where = restarted_at(config), cluster.namespace
            if restarted is None:
                continue
            if restarted_at(stateful_set["spec"]["template"]) is None:
                template = {"metadata": {"annotations": {RESTARTED_ANNOTATION: restarted}}}
                # With its version: somebody may ask for a later restart this moment.
                same = {key: stateful_set["metadata"][key] for key in ("uid", "resourceVersion")}
                change = {"metadata": same, "spec": {"template": template}}
                if not await unless_changed(self._api.patch(STATEFUL_SET, where, name, change)):
                    continue
            note = {"metadata": {"annotations": {RESTARTED_ANNOTATION: None}}}
            await unless_changed(self._api.patch(CONFIG_MAP, where, name, note))

    async def _tell_zones(self, cluster: Cluster, pods: Sequence[Document]) -> None:
        """Write the zones of their nodes onto waiting pods."""
        for pod in zones.untold(pods):
            node = await self._api.get(NODE, None, pod["spec"]["nodeName"])
            if node is None:
                continue
            metadata = pod["metadata"]
            change = {"uid": metadata["uid"], "annotations": zones.annotations(node)}
            await unless_changed(
                self._api.patch(POD, cluster.namespace, metadata["name"], {"metadata": change})
            )

    async def _replace_lost(
        self,
        cluster: Cluster,
        document: Document,
        seen: _Seen,
        found: Found | None,
    ) -> list[LostBroker]:
        """Let brokers start over whose node is gone for good, if that is wanted and safe."""
        if not any(is_unscheduled(pod.get("status") or {}) for pod in seen.pods):
            return []
        where, chosen = cluster.namespace, {CLUSTER_LABEL: cluster.name}
        lost = lost_brokers(
            seen.pods,
            await self._api.list(CLAIM, where, chosen),
            {volume["metadata"]["name"]: volume for volume in await self._api.list(VOLUME)},
            await self._api.list(NODE),
            None if found is None else found.partitions(),
            fenced=() if found is None else found.fenced,
        )
        if cluster.spec.lost_volumes is LostVolumes.REPLACE:
            for broker in lost:
                if not broker.needed_for:
                    await self._begin_again(cluster, document, broker)
        return lost

    async def _begin_again(self, cluster: Cluster, document: Document, broker: LostBroker) -> None:
        for kind, lost in (*((CLAIM, claim) for claim in broker.claims), (POD, broker.pod)):
            metadata = lost["metadata"]
            await self._api.delete(kind, cluster.namespace, metadata["name"], uid=metadata["uid"])
        await self._tell(
            document,
            "VolumesReplaced",
            f"{broker.name}: the node of its volumes is gone; it begins again with empty ones",
        )

    async def _restart(self, document: Document, step: Restart) -> None:
        pod = step.pod
        events.BROKER_RESTARTED.log(_audit, pod=pod.name, reason=step.why)
        await self._api.delete(POD, document["metadata"]["namespace"], pod.name, uid=pod.uid)
        await self._tell(document, "BrokerRestarted", f"{pod.name}: {step.why}")

    async def _tell(self, document: Document, reason: str, message: str) -> None:
        await self._api.record(document, reason=reason, message=message, now=now())

    async def _refuse(self, document: Document, reason: Reason, message: str) -> None:
        await self._say(document, not_ready(reason, message))

    async def _say_failed(self, document: Document, error: ApiError) -> None:
        """Report a failure, unless the conditions of a look that succeeded still count."""
        metadata, at = document["metadata"], self._clock()
        key = metadata["namespace"], metadata["name"]
        if is_observed(document):
            # Each report is an event that causes a look at once. Where the text of the failure is
            # another one each time, that must not replace the pauses of the retries.
            told = self._failures_told.get(key)
            is_soon = told is not None and at - told < FAILURE_TOLD_AGAIN
            if is_soon or not has_reason(document, "Ready", Reason.NOT_NOW):
                return
        self._failures_told[key] = at
        message = f"the work on the Cluster failed, and is tried again: {error}"
        with suppress(ApiError):  # The first failure is the one to report.
            await self._say(document, Condition("Ready", None, Reason.NOT_NOW, message))

    async def _say(self, document: Document, ready: Condition, authorities: str = "") -> None:
        """Report that no work is done on the Cluster, and why: nothing else is known of it."""
        others = [type_ for type_ in CONDITIONS if type_ != ready.type]
        if (document["spec"].get("listeners") or {}).get("outside") is not None:
            others.append(OUTSIDE_CONDITION)
        if (document["spec"].get("tls") or {}).get("issuerRef") is not None:
            others.append(CERTIFIED_CONDITION)
        known = {**known_before(document), **({"authorities": authorities} if authorities else {})}
        await write_status(self._api, document, [ready, *not_known(others, ready)], known)


def _why_refused(error: ApiError) -> str:
    """Return what the API server refuses, and what to do."""
    told = f"the API server refuses what the Cluster asks for: {error.message}"
    if error.status != HTTPStatus.FORBIDDEN:
        return f"{told}; correct the Cluster's spec"
    return (
        f"{told}; give the operator's ServiceAccount its role back, or upgrade the chart to the "
        "operator's release; where a quota or a policy of the namespace refuses it, correct that, "
        "or the Cluster's spec"
    )


def _check(cluster: Cluster, present: Sequence[Security]) -> None:
    """Refuse what definitions cannot check: bounds of texts, combinations, and what brokers do."""
    check_config(cluster)
    check_release(cluster.spec, present)


def _is_going(document: Document, seen: _Seen, volumes: Growth) -> bool:
    """Whether an object is being deleted, and can be recreated only once it is gone."""
    going = {stateful_set["metadata"]["uid"] for stateful_set in volumes.recreate}
    return document["kind"] == STATEFUL_SET.name and any(
        stateful_set["metadata"]["name"] == document["metadata"]["name"]
        and (
            "deletionTimestamp" in stateful_set["metadata"]
            or stateful_set["metadata"]["uid"] in going
        )
        for stateful_set in seen.stateful_sets
    )
