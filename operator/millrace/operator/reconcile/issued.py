"""What brokers show to clients where cert-manager's issuer signs it: asked for, and looked at.

cert-manager makes and renews it, and writes it into a Secret of which pods have a volume. So
nothing here is in the way of a renewal, and no private key is read.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from millrace.core.errors import InvalidConfigError
from millrace.operator.kube.api import REFUSALS, Api, ApiError
from millrace.operator.kube.applied import Applied, NameTakenError
from millrace.operator.kube.kinds import CERTIFICATE, CLUSTER_ISSUER, CONFIG_MAP, ISSUER, SECRET
from millrace.operator.model.certificates import CHANGED_ANNOTATION, authorities_name, trust_bundle
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition, Reason
from millrace.operator.model.issued import certificate, certificate_name, issued_hosts, issuer_of
from millrace.operator.model.objects import Document
from millrace.operator.model.pod_tls import AUTHORITIES, issued_secret_name
from millrace.operator.plan.certificates import Times
from millrace.operator.plan.issued import (
    CERTIFIED_CONDITION,
    Shown,
    condition,
    issuer_problem,
    ready_since,
    trusted,
)
from millrace.operator.reconcile.resources import if_owned
from millrace.runtime.certificates import each_of, read

_ISSUERS: Final = {kind.name: kind for kind in (ISSUER, CLUSTER_ISSUER)}


@dataclass(frozen=True, slots=True)
class SeenIssued:
    """What there is of the issuer's.

    Attributes:
        shown: the certificate in the Secret; None: there is none yet.
        has_authority: whether the Secret says whose it is.
        authorities: that clients trust from now on; empty: none is known yet.
        since: when these were changed last, in seconds since 1970.
        asked: names that the Certificate asks for.
        known_hosts: names that clients may be told.
    """

    shown: Shown | None
    has_authority: bool
    authorities: bytes
    since: float
    asked: frozenset[str]
    known_hosts: frozenset[str]


class IssuedReconciler:
    """Looks at the Certificate of one Cluster at a time.

    Args:
        clock: in step with the API server's clocks.
    """

    def __init__(
        self, api: Api, applied: Applied, clock: Callable[[], datetime], times: Times
    ) -> None:
        self._api = api
        self._applied = applied
        self._clock = clock
        self._times = times

    async def observe(self, cluster: Cluster) -> SeenIssued | None:
        """Read what there is; None: no issuer is wanted.

        Raises:
            ApiError: the API server did not answer.
        """
        if issuer_of(cluster) is None:
            return None
        where, now = cluster.namespace, self._clock().timestamp()
        made = await self._api.get(CERTIFICATE, where, certificate_name(cluster.name))
        secret = await self._api.get(SECRET, where, issued_secret_name(cluster.name))
        told = if_owned(
            await self._api.get(CONFIG_MAP, where, authorities_name(cluster.name)), cluster
        )
        files = {} if secret is None else secret.get("data") or {}
        signed_by = _certificates(base64.b64decode(files.get(AUTHORITIES) or ""))
        shown = _shown(base64.b64decode(files.get("tls.crt") or ""))
        authorities, since = trusted(
            signed_by,
            [] if told is None else _certificates(told["data"][AUTHORITIES].encode()),
            since=_since(told),
            now=now,
            spread=self._times.names_spread,
        )
        ready = _seconds(ready_since(made))
        is_everywhere = ready is not None and now >= ready + self._times.names_spread
        return SeenIssued(
            shown,
            bool(signed_by),
            b"".join(authorities),
            since,
            _asked(made),
            shown.hosts if shown is not None and is_everywhere else frozenset(),
        )

    async def ensure(
        self, cluster: Cluster, outside: frozenset[str], seen: SeenIssued
    ) -> Condition:
        """Ask for the certificate, and tell clients whom to trust; return what became of it.

        Args:
            outside: names of all brokers for clients outside.

        Raises:
            ApiError: the API server did not answer.
        """
        await self.tell(cluster, seen)
        try:
            made = await self._applied.ensure(certificate(cluster, outside))
        except NameTakenError as error:
            return Condition(CERTIFIED_CONDITION, False, Reason.NAME_TAKEN, str(error))
        except ApiError as error:
            return _not_made(error, certificate_name(cluster.name))
        found = condition(
            cluster.name,
            made,
            seen.shown,
            wanted=issued_hosts(cluster, outside),
            has_authority=seen.has_authority,
        )
        if found.reason is not Reason.ISSUING:
            return found
        problem = await self._issuer_problem(cluster)
        return found if problem is None else Condition(CERTIFIED_CONDITION, False, *problem)

    async def tell(self, cluster: Cluster, seen: SeenIssued) -> None:
        """Tell clients whom to trust, once that is known.

        Raises:
            ApiError: the API server did not answer.
        """
        if seen.authorities:
            changed = datetime.fromtimestamp(seen.since, UTC).isoformat()
            await self._applied.ensure(
                trust_bundle(cluster, seen.authorities, {CHANGED_ANNOTATION: changed})
            )

    async def _issuer_problem(self, cluster: Cluster) -> tuple[Reason, str] | None:
        """Return what is wrong with the issuer; None: nothing, or it is of another group."""
        reference = issuer_of(cluster)
        assert reference is not None
        kind = _ISSUERS.get(reference.kind)
        if kind is None or reference.group != kind.api_version.partition("/")[0]:
            return None
        where = cluster.namespace if kind.is_namespaced else None
        return issuer_problem(reference, await self._api.get(kind, where, reference.name))


def _not_made(error: ApiError, name: str) -> Condition:
    if error.status == 404:
        return Condition(
            CERTIFIED_CONDITION,
            False,
            Reason.NO_CERT_MANAGER,
            "the API server knows no Certificates of cert-manager.io/v1: install cert-manager; "
            "until then no broker of the Cluster can start",
        )
    if error.status not in REFUSALS:
        raise error
    return Condition(
        CERTIFIED_CONDITION,
        False,
        Reason.REFUSED,
        f"the API server refuses Certificate {name}: {error.message}; correct spec.tls, or give "
        "the operator the rights of this release's chart",
    )


def _shown(certificates: bytes) -> Shown | None:
    try:
        found = read(certificates)
    except InvalidConfigError:
        return None
    return Shown(found.hosts, datetime.fromtimestamp(found.ends, UTC).isoformat())


def _certificates(bundle: bytes) -> list[bytes]:
    """Return the certificates of a file; what cannot be read counts as missing."""
    try:
        return each_of(bundle)
    except InvalidConfigError:
        return []


def _since(told: Document | None) -> float:
    annotations = (told or {}).get("metadata", {}).get("annotations") or {}
    return _seconds(annotations.get(CHANGED_ANNOTATION)) or 0.0


def _seconds(written: str | None) -> float | None:
    """Return a time in seconds since 1970; None: it cannot be read."""
    try:
        return datetime.fromisoformat(written or "").timestamp()
    except ValueError:
        return None


def _asked(made: Document | None) -> frozenset[str]:
    spec = {} if made is None else made["spec"]
    return frozenset([*spec.get("dnsNames", ()), *spec.get("ipAddresses", ())])
