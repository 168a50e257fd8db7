"""The settings that brokers of a pool get: in `broker.toml`, which they share, and by variables.

Brokers of earlier releases read both. They refuse names in `broker.toml` that they do not know, so
that has only what the last release knows, and the variables have the rest.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from millrace.core.broker_config import check_settings
from millrace.core.errors import InvalidConfigError
from millrace.core.metadata.cluster_config import usual_replication_factor
from millrace.core.settings import to_text
from millrace.operator.model.cluster import Cluster, Pool, Volume
from millrace.operator.model.ports import (
    CLIENT_DRPC_PORT_NAME,
    CLIENT_KAFKA_PORT,
    CLIENT_KAFKA_TLS_PORT,
    CLIENT_PORT,
    METRICS_PORT,
    OUTSIDE_DRPC_PORT_NAME,
    OUTSIDE_KAFKA_PORT,
    OUTSIDE_KAFKA_TLS_PORT,
    OUTSIDE_PORT,
    REPLICA_DRPC_PORT_NAME,
    REPLICA_PORT,
    outside_ports,
    twin_ports,
)
from millrace.operator.model.security import AccessMode, TlsMode

DATA: Final = "/var/lib/millrace"
"""Folder of the volumes."""
IF_KNOWN: Final = "MILLRACE_BROKER_IF_KNOWN__"
"""Prefix of variables for settings that brokers of earlier releases lack: such a broker ignores the
variable, and would refuse the name in `broker.toml`. A broker may be of an earlier release for a
long time, by `spec.version`, and may restart before its turn in an upgrade."""
LACKING_BEFORE: Final[Mapping[str, Sequence[str]]] = {
    "limits": (
        "connections_per_host_max",
        "connections_per_host_rate_max",
        "connections_unknown_max",
        "connection_unknown_bytes_max",
        "principal_connections_max",
        "principal_calls_max",
        "token_reviews_per_host_rate_max",
        "connection_age_ms_max",
        "incomplete_bytes_max",
        "message_ms_max",
    ),
    "cluster": (
        "positions_durability",
        "transactions_partitions",
        "transactions_replication_factor",
        "transactions_durability",
    ),
    "groups": (
        "classic_rebalance_delay_ms",
        "classic_session_timeout_ms_min",
        "classic_session_timeout_ms_max",
        "classic_group_bytes_max",
        "classic_partition_bytes_max",
    ),
    "kafka": (
        "auto_create_topics",
        "requests_in_flight_max",
        "fetch_session_partitions_max",
        "fetch_response_bytes_max",
        "large_answers_bytes_max",
        "converted_bytes_max",
    ),
    "transactions": (
        "timeout_ms_max",
        "id_expiration_ms",
        "partition_ids_max",
        "partitions_max",
        "partition_participants_max",
        "participants_max",
        "lease_ms",
        "lease_ms_max",
    ),
}
"""Settings of `spec.config` that brokers of the last release lack, by section."""
_IN_ITS_OWN_FILE: Final = {"cluster": ("initial_brokers",)}
"""Settings of `spec.config` that are in a file beside `broker.toml`, by section: no broker restarts
because of another value."""
_ADDRESS_SETTLE_MS: Final = 30_000
"""How long CoreDNS may answer with the old address of a recreated pod, in its usual setup (`ttl 30`
and `cache 30`).
"""
_DRPC_LISTENERS: Final = {
    CLIENT_DRPC_PORT_NAME: "CLIENTS_DRPC",
    REPLICA_DRPC_PORT_NAME: "REPLICAS_DRPC",
    OUTSIDE_DRPC_PORT_NAME: "OUTSIDE_DRPC",
}


def check_config(cluster: Cluster) -> None:
    """Check `spec.config` as a broker would at its start.

    Raises:
        InvalidConfigError: lists the problems.
    """
    try:
        check_settings(cluster.spec.config)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"spec.config: {error}") from error


def initial_brokers(cluster: Cluster) -> int:
    """Return how many brokers must register before a new cluster makes its topics (P77)."""
    chosen = cluster.spec.config.get("cluster", {}).get("initial_brokers")
    if chosen is not None:
        return int(chosen)
    return usual_replication_factor(sum(pool.replicas for pool in cluster.spec.pools))


def broker_toml(cluster: Cluster, pool: Pool) -> str:
    """Return the settings that the pool's brokers share; each gets its name by the environment.

    Listeners have the names of 0.2.0.
    """
    own: dict[str, dict[str, object]] = {
        "node": {"rack": pool.zone} if pool.zone else {},
        "coordination": {"kind": "kubernetes"},
        "coordination.kubernetes": {"cluster_name": cluster.name, "namespace": cluster.namespace},
        "listener": {"host": "0.0.0.0", "port": CLIENT_PORT},
        "outside_listener": {}
        if cluster.spec.listeners.outside is None
        else {"host": "0.0.0.0", "port": OUTSIDE_PORT},
        "replica_listener": {"host": "0.0.0.0", "port": REPLICA_PORT},
        "metrics": {"host": "0.0.0.0", "port": METRICS_PORT},
        "cluster": {"address_settle_ms": _ADDRESS_SETTLE_MS},
    }
    config = cluster.spec.config
    sections = {
        section: {**own.get(section, {}), **_in_toml(section, config.get(section, {}))}
        for section in dict.fromkeys([*own, *config])
    }
    lines = [f"log_dirs = {json.dumps([_log_dir(volume) for volume in pool.volumes])}"]
    for section, settings in sections.items():
        if settings:
            # Texts, numbers and truth values are written alike in JSON and TOML.
            lines += ["", f"[{section}]"]
            lines += [f"{name} = {json.dumps(value)}" for name, value in sorted(settings.items())]
    return "\n".join(lines) + "\n"


def variables_if_known(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield name and value of the variables for what brokers of the last release lack."""
    for section, names in LACKING_BEFORE.items():
        chosen = cluster.spec.config.get(section, {})
        for name in names:
            if name in chosen:
                yield f"{IF_KNOWN}{section.upper()}__{name.upper()}", to_text(chosen[name])
    tls, access = cluster.spec.tls, cluster.spec.access
    is_closed = tls is not None and tls.mode is TlsMode.REQUIRED
    if not is_closed or access is None or access.mode is not AccessMode.ENFORCED:
        # A pod's listeners are reached from elsewhere: without both, no broker starts.
        yield f"{IF_KNOWN}INSECURE", "true"
    # All else of these listeners is as of those of gRPC.
    ports = {**twin_ports(cluster), **outside_ports(cluster)}
    for name, listener in _DRPC_LISTENERS.items():
        if name in ports:
            yield f"{IF_KNOWN}LISTENERS__{listener}__PORT", str(ports[name])
    for side, (namespace, port, tls_port) in _for_kafka(cluster).items():
        settings = {"PORT": str(port), "NAMESPACE": namespace}
        if tls is not None and tls.mode is TlsMode.OPTIONAL:
            settings["TLS_PORT"] = str(tls_port)
        for setting, value in settings.items():
            yield f"{IF_KNOWN}LISTENERS__{side}_KAFKA__{setting}", value


def _for_kafka(cluster: Cluster) -> dict[str, tuple[str, int, int]]:
    """Return namespace, port, and port with TLS of the listeners for clients of Kafka, by side."""
    inside, outside = cluster.spec.listeners.kafka, cluster.spec.listeners.outside_kafka
    found = {}
    if inside.enabled:
        found["CLIENTS"] = (inside.namespace, CLIENT_KAFKA_PORT, CLIENT_KAFKA_TLS_PORT)
    if outside is not None:
        found["OUTSIDE"] = (outside.namespace, OUTSIDE_KAFKA_PORT, OUTSIDE_KAFKA_TLS_PORT)
    return found


def _in_toml(section: str, chosen: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a section of `spec.config` that `broker.toml` has."""
    elsewhere = (*LACKING_BEFORE.get(section, ()), *_IN_ITS_OWN_FILE.get(section, ()))
    return {name: value for name, value in chosen.items() if name not in elsewhere}


def _log_dir(volume: Volume) -> str:
    # Not the volume's root, where a file system keeps `lost+found`.
    return f"{volume.media}:{DATA}/{volume.name}/log"
