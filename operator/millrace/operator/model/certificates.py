"""Names in the certificates of brokers, and the objects that bring certificates to them.

    <cluster>-ca          Secret: the authorities of the brokers, with their keys, for the operator
    <cluster>-ca          ConfigMap: the authorities that clients trust, in `ca.crt`
    <cluster>-<pool>-tls  Secret: certificate and key of each broker of the pool, and `ca.crt`

With an issuer of cert-manager, `issued` has what brokers show to clients, and the ConfigMap has its
authority. A pool's Secret is a volume of all its pods, since a StatefulSet cannot name another one
for each pod. The kubelet brings what has changed to a running pod, all files at once.
"""

import base64
import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millrace.core.addresses import split_address
from millrace.core.broker_names import BrokerName
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import Document, owned_object
from millrace.operator.model.pod_tls import AUTHORITIES, pool_secret_name

CHANGED_ANNOTATION: Final = "millrace.dev/changed"
"""Annotation of the ConfigMap: when the authorities of an issuer in it were changed last."""
COMMON_NAME_MAX: Final = 64
"""Characters of a common name (RFC 5280)."""
_DIGEST_LENGTH: Final = 16
_LOCAL: Final = ("localhost", "127.0.0.1")
"""Names by which a broker is reached in its pod."""


class Pair(NamedTuple):
    """A certificate and its key, in PEM form."""

    certificate: bytes
    key: bytes


def authorities_name(cluster_name: str) -> str:
    """Return the name of the Secret of authorities, and of the ConfigMap for clients."""
    return f"{cluster_name}-ca"


def authority_common_name(cluster: Cluster, number: int) -> str:
    """Return the name of an authority for people. One that is too long ends early, with a digest:
    authorities of different clusters and numbers have different names.
    """
    name, role = f"{cluster.namespace}/{cluster.name}", f" brokers {number}"
    if len(name) + len(role) > COMMON_NAME_MAX:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
        name = f"{name[: COMMON_NAME_MAX - len(role) - len(digest) - 1]}~{digest}"
    return f"{name}{role}"


def broker_hosts(cluster: Cluster, broker: str, outside: Iterable[str]) -> frozenset[str]:
    """Return all names and addresses by which a broker is reached.

    Args:
        outside: those for clients outside.
    """
    services = f"{cluster.name}-brokers", f"{cluster.name}-bootstrap"
    suffixes = f".{cluster.namespace}.svc", f".{cluster.namespace}"
    inside = {f"{service}{suffix}" for service in services for suffix in suffixes}
    own = {f"{broker}.{services[0]}{suffix}" for suffix in suffixes}
    return frozenset({*inside, *own, services[1], *_LOCAL, *outside})


def broker_uri(cluster: Cluster, broker: str) -> str:
    """Return the name by which other brokers know a broker (G2)."""
    assert cluster.spec.tls is not None
    domain = cluster.spec.tls.trust_domain
    return BrokerName(domain, cluster.namespace, cluster.name, broker).uri


def host_of(address: str) -> str:
    """Return the host of `host:port` as a certificate has it."""
    host, _ = split_address(address)
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def authorities_secret(cluster: Cluster, authorities: Mapping[int, Pair]) -> Document:
    """Return the Secret with the authorities, by their numbers."""
    return owned_object(
        cluster,
        "v1",
        "Secret",
        authorities_name(cluster.name),
        type="Opaque",
        data=_pairs({str(number): pair for number, pair in authorities.items()}),
    )


def parse_authorities(secret: Document | None) -> dict[int, Pair]:
    """Return the authorities of a Secret."""
    return {int(name): pair for name, pair in parse_pairs(secret).items() if name.isdecimal()}


def bundle_of(authorities: Mapping[int, Pair]) -> bytes:
    """Return the certificates of authorities in one file, the newest first."""
    newest_first = sorted(authorities.items(), reverse=True)
    return b"".join(pair.certificate for _, pair in newest_first)


def pool_secret(
    cluster: Cluster, pool_object: str, brokers: Mapping[str, Pair], bundle: bytes
) -> Document:
    """Return the Secret of a pool.

    Args:
        pool_object: the name of its StatefulSet.
        brokers: certificates by brokers' names.
        bundle: the authorities that brokers trust.
    """
    return owned_object(
        cluster,
        "v1",
        "Secret",
        pool_secret_name(pool_object),
        type="Opaque",
        data={**_pairs(brokers), AUTHORITIES: _encoded(bundle)},
    )


def trust_bundle(
    cluster: Cluster, bundle: bytes, annotations: Mapping[str, str] | None = None
) -> Document:
    """Return the ConfigMap with the authorities that clients trust."""
    name = authorities_name(cluster.name)
    made = owned_object(cluster, "v1", "ConfigMap", name, data={AUTHORITIES: bundle.decode()})
    if annotations:
        made["metadata"]["annotations"] = dict(annotations)
    return made


def parse_pairs(secret: Document | None) -> dict[str, Pair]:
    """Return the certificates of a Secret, by the names of their files; what is no pair is left."""
    data = {} if secret is None else secret.get("data") or {}
    found = {}
    for file, text in data.items():
        name, _, kind = file.rpartition(".")
        if kind == "crt" and f"{name}.key" in data:
            found[name] = Pair(base64.b64decode(text), base64.b64decode(data[f"{name}.key"]))
    return found


def _pairs(pairs: Mapping[str, Pair]) -> dict[str, str]:
    data = {}
    for name, pair in pairs.items():
        data[f"{name}.crt"] = _encoded(pair.certificate)
        data[f"{name}.key"] = _encoded(pair.key)
    return data


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
