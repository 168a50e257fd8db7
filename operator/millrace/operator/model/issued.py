"""cert-manager's part of a cluster's certificates: what brokers show to clients.

    <cluster>-clients      Certificate: what cert-manager is asked for
    <cluster>-clients-tls  Secret, which cert-manager writes: `tls.crt`, `tls.key`, and `ca.crt`

All brokers of a cluster show the same certificate: a StatefulSet gives its pods the same volumes,
and brokers come and go without another certificate, as one name stands for all pods. Addresses
outside are named one by one. cert-manager renews it, with another key, and the kubelet brings it to
pods.
"""

import ipaddress
from collections.abc import Iterable

from millrace.operator.model.certificates import COMMON_NAME_MAX
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import Document, labels, owned_object
from millrace.operator.model.pod_tls import issued_secret_name
from millrace.operator.model.security import ISSUED_FOR, IssuerReference


def certificate_name(cluster_name: str) -> str:
    """Return the name of the Certificate."""
    return f"{cluster_name}-clients"


def issuer_of(cluster: Cluster) -> IssuerReference | None:
    """Return the issuer for clients; None: the operator is the authority."""
    return None if cluster.spec.tls is None else cluster.spec.tls.issuer_ref


def issued_hosts(cluster: Cluster, outside: Iterable[str]) -> frozenset[str]:
    """Return the names that clients connect to.

    Args:
        outside: names and addresses of brokers outside.
    """
    suffixes = f".{cluster.namespace}.svc", f".{cluster.namespace}"
    first, pods = f"{cluster.name}-bootstrap", f"{cluster.name}-brokers"
    services = {f"{name}{suffix}" for name in (first, pods, f"*.{pods}") for suffix in suffixes}
    return frozenset({first, *services, *outside})


def certificate(cluster: Cluster, outside: Iterable[str]) -> Document:
    """Return the Certificate.

    Args:
        outside: names and addresses of brokers outside.
    """
    tls = cluster.spec.tls
    assert tls is not None
    assert tls.issuer_ref is not None
    hosts = sorted(issued_hosts(cluster, outside))
    addresses = [host for host in hosts if _is_address(host)]
    common = f"{cluster.name}-bootstrap.{cluster.namespace}.svc"
    issuer = tls.issuer_ref
    where = f"ns/{cluster.namespace}/cluster/{cluster.name}"
    spec: Document = {
        "secretName": issued_secret_name(cluster.name),
        "secretTemplate": {"labels": labels(cluster.name)},
        "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": issuer.group},
        "dnsNames": [host for host in hosts if host not in addresses],
        "uris": [f"spiffe://{tls.trust_domain}/{where}"],
        "duration": tls.duration or ISSUED_FOR,
        "usages": ["digital signature", "server auth"],
        "privateKey": {
            "algorithm": "ECDSA",
            "size": 256,
            "encoding": "PKCS8",
            "rotationPolicy": "Always",
        },
        "revisionHistoryLimit": 3,
    }
    if addresses:
        spec["ipAddresses"] = addresses
    if tls.renew_before is not None:
        spec["renewBefore"] = tls.renew_before
    if len(common) <= COMMON_NAME_MAX:
        spec["commonName"] = common  # Some issuers ask for one.
    name = certificate_name(cluster.name)
    return owned_object(cluster, "cert-manager.io/v1", "Certificate", name, spec=spec)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
