"""What a broker's pod has so that its listeners speak TLS, and ask who calls."""

from typing import Any, Final

from millrace.operator.model.cluster import Cluster

AUTHORITIES: Final = "ca.crt"
"""Name of the file with the authorities to be trusted."""
_FOLDER: Final = "/etc/millrace-tls"
_VOLUME: Final = "broker-tls"
"""No volume of a pool can have this name: theirs have no hyphen."""
_OWN: Final = {"CERTIFICATE": "$(POD_NAME).crt", "KEY": "$(POD_NAME).key"}


def pool_secret_name(pool_object: str) -> str:
    """Return the name of the Secret with the certificates of a pool's brokers.

    Args:
        pool_object: the name of its StatefulSet.
    """
    return f"{pool_object}-tls"


def secure(cluster: Cluster, pool_object: str, pod: dict[str, Any]) -> None:
    """Give a pod's broker its certificate, which is read again, and what it asks about callers."""
    (container,) = pod["containers"]
    sides = {"CLIENTS": _OWN, "REPLICAS": {**_OWN, "CLIENT_CA": AUTHORITIES}}
    if cluster.spec.listeners.outside is not None:
        sides["OUTSIDE"] = _OWN
    # A broker that does not know them must not start, as it would listen in plain text.
    container["env"] += [
        {
            "name": f"MILLRACE_BROKER__LISTENERS__{side}__TLS_{what}_FILE",
            "value": f"{_FOLDER}/{file}",
        }
        for side, files in sides.items()
        for what, file in files.items()
    ]
    # For the command line in the pod.
    container["env"].append({"name": "MILLRACE_TLS_CA_FILE", "value": f"{_FOLDER}/{AUTHORITIES}"})
    if cluster.spec.access is not None:
        container["env"].append({"name": "MILLRACE_BROKER__ACCESS__KUBERNETES", "value": "true"})
    mount = {"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}
    container["volumeMounts"].append(mount)
    source = {"secretName": pool_secret_name(pool_object), "defaultMode": 0o440}
    pod["volumes"].append({"name": _VOLUME, "secret": source})
