"""A real Kubernetes with the operator, as in the end-to-end tests (`e2e/`).

A running cluster is used and left running; otherwise one is started, and removed at the end.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import say
from bench.processes import LoadFailedError
from e2e.cluster import providers
from e2e.cluster.commands import CommandError
from e2e.cluster.native import NativeCluster
from e2e.cluster.providers import Cluster
from e2e.installed import Namespace, install_operator


@contextmanager
def running_kubernetes() -> Iterator[Cluster]:
    """Yield a cluster with this checkout's image and operator.

    Raises:
        LoadFailedError: a part of it failed, or this machine cannot run one.
    """
    try:
        cluster = providers.choose()
        with providers.running(cluster, say):
            install_operator(cluster)
            yield cluster
    except CommandError as error:
        raise LoadFailedError(str(error)) from error


@contextmanager
def native_kubernetes() -> Iterator[NativeCluster]:
    """Yield a cluster whose nodes are at hand: what runs on them can be killed, cut off and read.

    Raises:
        LoadFailedError: as `running_kubernetes`, or another provider was chosen.
    """
    with running_kubernetes() as cluster:
        if not isinstance(cluster, NativeCluster):
            raise LoadFailedError("it takes the nodes of the native provider")
        yield cluster


@contextmanager
def fresh_namespace(cluster: Cluster) -> Iterator[Namespace]:
    """Yield a namespace that is deleted with its content."""
    namespace = Namespace(cluster.kubectl, f"figure-{secrets.token_hex(4)}")
    namespace.create()
    try:
        yield namespace
    finally:
        # Kubernetes looks again at a namespace with pods only after half of their grace period.
        ours = "topics.millrace.dev,clusters.millrace.dev"
        namespace("delete", ours, "--all", "--cascade=foreground", "--timeout=300s")
        namespace("delete", "pods", "--all", "--timeout=120s")
        namespace.delete()
