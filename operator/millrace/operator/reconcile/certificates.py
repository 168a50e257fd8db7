"""Certificates of a cluster's brokers: makes them, renews them, and brings them to pods.

`plan/certificates` decides. What is there is read from Secrets that belong to the Cluster. A
certificate that cannot be read, or is of another authority, counts as missing, so what somebody
changes there is put right.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from millrace.core.errors import InvalidConfigError
from millrace.operator.kube.api import Api
from millrace.operator.kube.applied import Applied, check_owner
from millrace.operator.kube.kinds import SECRET
from millrace.operator.model.certificates import (
    Pair,
    authorities_name,
    authorities_secret,
    authority_common_name,
    broker_hosts,
    broker_uri,
    bundle_of,
    parse_authorities,
    parse_pairs,
    pool_secret,
    trust_bundle,
)
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition
from millrace.operator.model.objects import Document, brokers_of, pool_object_name
from millrace.operator.model.pod_tls import pool_secret_name
from millrace.operator.model.security import TlsMode
from millrace.operator.plan.certificates import (
    Held,
    Span,
    Times,
    Wanted,
    certificates,
    known_hosts,
)
from millrace.operator.plan.security import Secured
from millrace.operator.reconcile.issued import IssuedReconciler, SeenIssued
from millrace.operator.reconcile.renewals import asked_renewals, check_renewals
from millrace.operator.reconcile.resources import if_owned
from millrace.runtime.certificates import Certificate, Issued, Names, issue, new_authority, read

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SeenCertificates:
    """The authorities and certificates of a cluster that can be used.

    Attributes:
        secret: with the name of that of the authorities, also somebody else's; None: there is none
            yet.
        known_hosts: the names of each broker in a certificate of ours that has reached its pod.
        issued: what an issuer signs for clients; None: all is signed here.
    """

    secret: Document | None
    authorities: Mapping[int, Pair]
    spans: Mapping[int, Span]
    pairs: Mapping[str, Pair]
    held: Mapping[str, Held]
    known_hosts: Mapping[str, frozenset[str]]
    issued: SeenIssued | None

    @property
    def trusted_by_clients(self) -> bytes:
        """The certificates of the authorities that clients trust; empty: none is known yet."""
        return bundle_of(self.authorities) if self.issued is None else self.issued.authorities

    def known(self, broker: str) -> frozenset[str]:
        """Return the names of a broker that clients may be told."""
        if self.issued is not None:
            return self.issued.known_hosts
        return self.known_hosts.get(broker, frozenset())

    def present(self, broker: str) -> frozenset[str]:
        """Return the names that a broker has for clients now, or is about to get."""
        if self.issued is not None:
            return self.issued.asked
        return self.held[broker].hosts if broker in self.held else frozenset()


class CertificatesReconciler:
    """Looks at the certificates of one Cluster at a time.

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
        self._issued = IssuedReconciler(api, applied, clock, times)

    async def observe(self, cluster: Cluster, made: Iterable[str]) -> SeenCertificates:
        """Read what there is.

        Args:
            made: the names of the StatefulSets that there are.

        Raises:
            ApiError: the API server did not answer.
        """
        where = cluster.namespace
        secret = await self._api.get(SECRET, where, authorities_name(cluster.name))
        authorities, spans = {}, {}
        for number, pair in parse_authorities(if_owned(secret, cluster)).items():
            found = _read(pair)
            if found is not None:
                authorities[number], spans[number] = pair, Span(found.begins, found.ends)
        pairs: dict[str, Pair] = {}
        asked = (pool_object_name(cluster.name, pool.name) for pool in cluster.spec.pools)
        for pool_object in dict.fromkeys([*made, *asked]):
            found_there = await self._api.get(SECRET, where, pool_secret_name(pool_object))
            pairs |= parse_pairs(if_owned(found_there, cluster))
        held = {}
        for broker, pair in pairs.items():
            found = _read(pair)
            if found is None:
                continue
            signer = next(
                (n for n, each in authorities.items() if found.is_of(each.certificate)), None
            )
            span = Span(found.begins, found.ends)
            uri = found.uris[0] if len(found.uris) == 1 else ""
            held[broker] = Held(span, found.hosts, uri, signer)
        now = self._clock().timestamp()
        hosts = known_hosts(held, held, now, self._times)
        issued = await self._issued.observe(cluster)
        return SeenCertificates(secret, authorities, spans, pairs, held, hosts, issued)

    async def hold(self, cluster: Cluster, secured: Secured) -> tuple[Secured, Condition | None]:
        """Ask an issuer for a certificate before the first broker of a running cluster needs it.

        Returns:
            What brokers are to do now, and why they have to wait in plain text; None: they need
            not.

        Raises:
            ApiError: the API server did not answer.
        """
        is_plain = {each.tls for each in secured.present} == {TlsMode.DISABLED}
        if not is_plain or secured.next.tls is TlsMode.DISABLED:
            return secured, None
        if (seen := await self._issued.observe(cluster)) is None:
            return secured, None
        found = await self._issued.ensure(cluster, frozenset(), seen)
        if found.is_true:
            return secured, None
        return replace(secured, next=secured.slowest), found

    async def ensure(
        self,
        cluster: Cluster,
        replicas: Mapping[str, int],
        outside: Mapping[str, frozenset[str]],
        seen: SeenCertificates,
    ) -> Condition | None:
        """Make what is missing, and bring it to where pods and clients find it.

        Returns:
            What became of the certificate that an issuer signs; None: none does.

        Args:
            replicas: brokers of each pool, by the name of its StatefulSet.
            outside: names of brokers for clients outside.

        Raises:
            ApiError: the API server did not answer.
            NameTakenError: somebody else has an object of a name that is needed.
            InvalidConfigError: what somebody asks for by an annotation cannot be understood; all
                else is done.
        """
        certified = None
        if seen.issued is not None:
            names = frozenset[str]().union(*outside.values())
            certified = await self._issued.ensure(cluster, names, seen.issued)
            outside = {}  # Clients meet no certificate of ours.
        await self._renew(cluster, replicas, outside, seen)
        check_renewals(cluster.annotations)
        return certified

    async def keep(self, cluster: Cluster, replicas: Mapping[str, int]) -> SeenCertificates:
        """Renew what there is, with the names that it has: all that a paused Cluster gets.

        cert-manager renews what it makes by itself.

        Args:
            replicas: as of `ensure`.

        Raises:
            ApiError, NameTakenError, InvalidConfigError: as `ensure`.
        """
        seen = await self.observe(cluster, replicas)
        if seen.issued is not None:
            await self._issued.tell(cluster, seen.issued)
        names = {broker: held.hosts for broker, held in seen.held.items()}
        await self._renew(cluster, replicas, names, seen)
        check_renewals(cluster.annotations)
        return seen

    async def _renew(
        self,
        cluster: Cluster,
        replicas: Mapping[str, int],
        outside: Mapping[str, frozenset[str]],
        seen: SeenCertificates,
    ) -> None:
        wanted = {
            broker: Wanted(
                broker_hosts(cluster, broker, outside.get(broker, ())), broker_uri(cluster, broker)
            )
            for broker in brokers_of(replicas)
        }
        now = self._clock().timestamp()
        asked = asked_renewals(cluster.annotations)
        plan = certificates(seen.spans, seen.held, wanted, now, self._times, asked=asked)
        authorities = {number: seen.authorities[number] for number in plan.trusted[:-1]}
        last = plan.trusted[-1]
        authorities[last] = (
            seen.authorities[last] if plan.new_authority is None else self._authority(cluster, last)
        )
        await self._keep(cluster, authorities, seen)
        bundle = bundle_of(authorities)
        pairs = dict(seen.pairs)
        for broker in plan.issue:
            ends = seen.spans[plan.signing].ends if plan.signing in seen.spans else float("inf")
            lasts_s = min(self._times.certificate, ends - now)
            pairs[broker] = self._issue(authorities[plan.signing], broker, wanted[broker], lasts_s)
        if seen.issued is None:
            # Before brokers show anything that is of a new authority.
            await self._applied.ensure(trust_bundle(cluster, bundle))
        for pool_object, count in replicas.items():
            brokers = {broker: pairs[broker] for broker in brokers_of({pool_object: count})}
            await self._applied.ensure(pool_secret(cluster, pool_object, brokers, bundle))

    async def _keep(
        self, cluster: Cluster, authorities: Mapping[int, Pair], seen: SeenCertificates
    ) -> None:
        """Keep the authorities before anything is signed by a new one.

        Raises:
            NameTakenError: the Secret of this name is somebody else's.
            ApiError: the API server refuses it, or does not answer.
        """
        document = authorities_secret(cluster, authorities)
        if seen.secret is not None and seen.secret.get("data") != document["data"]:
            check_owner(document, seen.secret)
            # Not over what another operator has made meanwhile: then this look fails.
            version = seen.secret["metadata"]["resourceVersion"]
            versioned = {**document["metadata"], "resourceVersion": version}
            await self._api.apply({**document, "metadata": versioned})
        await self._applied.ensure(document)

    def _authority(self, cluster: Cluster, number: int) -> Pair:
        name = authority_common_name(cluster, number)
        made = new_authority(name, days=self._times.authority / _DAY_S)
        return Pair(made.certificate, made.key)

    def _issue(self, authority: Pair, broker: str, wanted: Wanted, lasts_s: float) -> Pair:
        names = Names(common=broker, hosts=sorted(wanted.hosts), uri=wanted.uri)
        made = issue(Issued(*authority), names, days=lasts_s / _DAY_S)
        return Pair(made.certificate, made.key)


def _read(pair: Pair) -> Certificate | None:
    try:
        return read(pair.certificate)
    except InvalidConfigError:
        return None
