"""Opens the coordination store that the configuration names."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from millrace.broker.coordination.sqlite import SqliteStore
from millrace.broker.coordination.store import CoordinationStore
from millrace.core.broker_config import CoordinationConfig, CoordinationKind, KubernetesConfig

if TYPE_CHECKING:
    from millrace.runtime.kubernetes.access import ApiAccess

_LEASE_PAUSES: Final = 4
"""Pauses that must fit into the renew deadline of the lease."""


def api_access(settings: KubernetesConfig) -> "ApiAccess":
    """Return the broker's access to the API server.

    Raises:
        InvalidConfigError: it has none that can be used.
    """
    from millrace.runtime.kubernetes import access

    if settings.kubeconfig:
        return access.from_kubeconfig(Path(settings.kubeconfig), context_name=settings.context)
    return access.in_cluster(access.pod_server())


def open_store(config: CoordinationConfig) -> CoordinationStore:
    """Open the store. It blocks, and is called in a thread.

    Raises:
        InvalidConfigError: the configuration is wrong.
        CoordinationStoreError: the store is damaged.
        CoordinationUnavailableError: its disk is full, or it is locked.
    """
    if config.kind is CoordinationKind.SQLITE:
        return SqliteStore(config.path, is_exclusive=not config.shared)
    # Imported only with Kubernetes.
    from millrace.broker.coordination.kubernetes.store import KubernetesStore

    settings = config.kubernetes
    return KubernetesStore(
        api_access(settings),
        cluster_name=settings.cluster_name,
        namespace=settings.namespace,
        request_timeout_ms=settings.request_timeout_ms,
        object_bytes_max=settings.object_bytes_max,
        lease_pause_ms_max=config.lease_times.renew_deadline_ms // _LEASE_PAUSES,
    )
