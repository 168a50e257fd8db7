"""Opens the coordination store that the configuration names."""

from pathlib import Path
from typing import Final

from millrace.broker.coordination.sqlite import SqliteStore
from millrace.broker.coordination.store import CoordinationStore
from millrace.core.broker_config import CoordinationConfig, CoordinationKind

_LEASE_PAUSES: Final = 4
"""Pauses that must fit into the renew deadline of the lease."""


def open_store(config: CoordinationConfig) -> CoordinationStore:
    """Open the store. It blocks, and is called in a thread.

    Raises:
        InvalidConfigError: the configuration is wrong.
        CoordinationStoreError: the store is damaged.
    """
    if config.kind is CoordinationKind.SQLITE:
        return SqliteStore(config.path, is_exclusive=not config.shared)
    # Imported only with Kubernetes.
    from millrace.broker.coordination.kubernetes.store import KubernetesStore
    from millrace.runtime.kubernetes import access

    settings = config.kubernetes
    return KubernetesStore(
        access.from_kubeconfig(Path(settings.kubeconfig), context_name=settings.context)
        if settings.kubeconfig
        else access.in_cluster(access.pod_server()),
        cluster_name=settings.cluster_name,
        namespace=settings.namespace,
        request_timeout_ms=settings.request_timeout_ms,
        object_bytes_max=settings.object_bytes_max,
        lease_pause_ms_max=config.lease_times.renew_deadline_ms // _LEASE_PAUSES,
    )
