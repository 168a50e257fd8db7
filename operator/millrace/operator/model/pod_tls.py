"""What a broker's pod has so that its listeners speak TLS, and ask who calls, and its page, too."""

from collections.abc import Mapping
from typing import Any, Final

from millrace.operator.model.cluster import Cluster
from millrace.operator.model.listeners import ClientsAuthorities
from millrace.operator.model.ports import TLS_PORTS
from millrace.operator.model.security import AccessMode, MetricsPage, Security, TlsMode

AUTHORITIES: Final = "ca.crt"
"""Name of the file with the authorities to be trusted."""
_FOLDER: Final = "/etc/millrace-tls"
_VOLUME: Final = "broker-tls"
"""No volume of a pool can have this name: theirs have no hyphen."""
_ISSUED_FOLDER: Final = "/etc/millrace-clients-tls"
_ISSUED_VOLUME: Final = "clients-tls"
_CLIENTS_FOLDER: Final = "/etc/millrace-clients-ca"
_CLIENTS_VOLUME: Final = "clients-ca"
_PAGE_FOLDER: Final = "/etc/millrace-metrics"
_PAGE_VOLUME: Final = "metrics-token"
_OWN: Final = {"CERTIFICATE": "$(POD_NAME).crt", "KEY": "$(POD_NAME).key"}
_ISSUED: Final = {"CERTIFICATE": "tls.crt", "KEY": "tls.key"}
"""Files as cert-manager calls them."""


_LISTENERS: Final = "MILLRACE_BROKER__LISTENERS__"
_CERTIFICATE: Final = f"{_LISTENERS}CLIENTS__TLS_CERTIFICATE_FILE"
_BESIDE: Final = f"{_LISTENERS}CLIENTS__TLS_PORT"
_ASKS: Final = "MILLRACE_BROKER__ACCESS__KUBERNETES"
_ENFORCES: Final = "MILLRACE_BROKER__ACCESS__ENFORCED"


def security_of(container: dict[str, Any]) -> Security:
    """Return what the broker of a container does, which `secure` has made."""
    variables = {each["name"]: each.get("value") for each in container.get("env") or ()}
    tls = TlsMode.DISABLED
    if _CERTIFICATE in variables:
        tls = TlsMode.OPTIONAL if _BESIDE in variables else TlsMode.REQUIRED
    access = AccessMode.DISABLED
    if _ASKS in variables:
        access = AccessMode.LOGGED if _ENFORCES in variables else AccessMode.ENFORCED
    return Security(tls, access)


def pool_secret_name(pool_object: str) -> str:
    """Return the name of the Secret with the certificates of a pool's brokers.

    Args:
        pool_object: the name of its StatefulSet.
    """
    return f"{pool_object}-tls"


def issued_secret_name(cluster_name: str) -> str:
    """Return the name of the Secret in which cert-manager keeps what clients are shown."""
    return f"{cluster_name}-clients-tls"


def secure(cluster: Cluster, pool_object: str, pod: dict[str, Any]) -> None:
    """Give a pod's broker its certificate, which is read again, and what it asks about callers."""
    assert cluster.spec.tls is not None
    (container,) = pod["containers"]
    own = {what: f"{_FOLDER}/{file}" for what, file in _OWN.items()}
    trusted, shown = f"{_FOLDER}/{AUTHORITIES}", own
    _mount(pod, _VOLUME, _FOLDER, _secret(pool_secret_name(pool_object)))
    if cluster.spec.tls.issuer_ref is not None:
        trusted = f"{_ISSUED_FOLDER}/{AUTHORITIES}"
        shown = {what: f"{_ISSUED_FOLDER}/{file}" for what, file in _ISSUED.items()}
        _mount(pod, _ISSUED_VOLUME, _ISSUED_FOLDER, _secret(issued_secret_name(cluster.name)))
    sides = {"CLIENTS": shown, "REPLICAS": {**own, "CLIENT_CA": f"{_FOLDER}/{AUTHORITIES}"}}
    has_both = cluster.spec.tls.mode is TlsMode.OPTIONAL
    if (outside := cluster.spec.listeners.outside) is not None:
        sides["OUTSIDE"] = shown
        if outside.clients_ca is not None:  # Pods go on with tokens at theirs (G6).
            sides["OUTSIDE"] = {**shown, "CLIENT_CA": f"{_CLIENTS_FOLDER}/{AUTHORITIES}"}
            _mount(pod, _CLIENTS_VOLUME, _CLIENTS_FOLDER, _authorities(outside.clients_ca))
    # A broker that does not know them must not start, as it would listen in plain text.
    container["env"] += [
        {"name": f"{_LISTENERS}{side}__TLS_{what}_FILE", "value": file}
        for side, files in sides.items()
        for what, file in files.items()
    ]
    if has_both:
        container["env"] += [
            {"name": f"{_LISTENERS}{side}__TLS_PORT", "value": str(TLS_PORTS[side])}
            for side in sides
        ]
    # For the command line in the pod.
    container["env"].append({"name": "MILLRACE_TLS_CA_FILE", "value": trusted})
    if cluster.spec.access is not None:
        container["env"].append({"name": _ASKS, "value": "true"})
        if cluster.spec.access.mode is AccessMode.LOGGED:
            container["env"].append({"name": _ENFORCES, "value": "false"})
    if cluster.spec.metrics_page is not None:
        _guard_page(cluster.spec.metrics_page, shown, pod)


def _guard_page(page: MetricsPage, shown: Mapping[str, str], pod: dict[str, Any]) -> None:
    """Have the metrics page speak TLS, and ask for a token."""
    (container,) = pod["containers"]
    files = {f"TLS_{what}": file for what, file in shown.items()}
    files["TOKEN"] = f"{_PAGE_FOLDER}/token"
    container["env"] += [
        {"name": f"MILLRACE_BROKER__METRICS__{what}_FILE", "value": file}
        for what, file in files.items()
    ]
    source = _secret(page.token_secret)
    source["secret"]["items"] = [{"key": "token", "path": "token"}]
    _mount(pod, _PAGE_VOLUME, _PAGE_FOLDER, source)


def _secret(name: str) -> dict[str, Any]:
    return {"secret": {"secretName": name, "defaultMode": 0o440}}


def _authorities(of: ClientsAuthorities) -> dict[str, Any]:
    items = [{"key": of.key, "path": AUTHORITIES}]
    if of.kind == "Secret":
        return {"secret": {"secretName": of.name, "items": items}}
    return {"configMap": {"name": of.name, "items": items}}


def _mount(pod: dict[str, Any], volume: str, folder: str, source: dict[str, Any]) -> None:
    (container,) = pod["containers"]
    container["volumeMounts"].append({"name": volume, "mountPath": folder, "readOnly": True})
    pod["volumes"].append({"name": volume, **source})
