"""A real Kubernetes with the operator installed, as the end-to-end tests have it (`e2e/`).

One that runs is used and left; else one is started, and removed at the end.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import say
from bench.processes import LoadFailedError
from e2e.cluster import providers
from e2e.cluster.commands import CommandError
from e2e.cluster.providers import Cluster
from e2e.installed import Namespace, install_operator


@contextmanager
def running_kubernetes() -> Iterator[Cluster]:
    """Yield a cluster with this checkout's image and operator.

    Raises:
        LoadFailedError: something of it failed, or this machine cannot run one.
    """
    try:
        cluster = providers.choose()
        ran_before = cluster.kubectl.kubeconfig.exists() and cluster.kubectl.is_ready()
        try:
            cluster.up(say)
            if ran_before:
                cluster.load_image()
            install_operator(cluster)
            yield cluster
        finally:
            if not ran_before:
                cluster.down()
    except CommandError as error:
        raise LoadFailedError(str(error)) from error


@contextmanager
def fresh_namespace(cluster: Cluster) -> Iterator[Namespace]:
    """Yield a namespace that goes with all that is in it."""
    namespace = Namespace(cluster.kubectl, f"figure-{secrets.token_hex(4)}")
    namespace.create()
    try:
        yield namespace
    finally:
        # A namespace that has pods is looked at again only after half of their grace.
        ours = "topics.millrace.dev,clusters.millrace.dev"
        namespace("delete", ours, "--all", "--cascade=foreground", "--timeout=300s")
        namespace("delete", "pods", "--all", "--timeout=120s")
        namespace.delete()
