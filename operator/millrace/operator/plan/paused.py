"""What a paused Cluster keeps: its brokers as they are, so that their certificates are renewed."""

from collections.abc import Sequence

from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import Document
from millrace.operator.model.security import AccessMode, Security, TlsMode
from millrace.operator.plan.security import with_security


def as_it_is(cluster: Cluster, present: Sequence[Security]) -> Cluster:
    """Return the Cluster as its brokers are, whatever is written about TLS.

    Args:
        present: what its brokers do, in order; none: there are none.
    """
    plain = Security(TlsMode.DISABLED, AccessMode.DISABLED)
    return with_security(cluster, present[-1] if present else plain)


def present_replicas(stateful_sets: Sequence[Document], pods: Sequence[Document]) -> dict[str, int]:
    """Return how many brokers each StatefulSet has, also one that is about to be made again."""
    found = {each["metadata"]["name"]: each["spec"]["replicas"] for each in stateful_sets}
    for pod in pods:
        name, _, number = pod["metadata"]["name"].rpartition("-")
        found[name] = max(found.get(name, 0), int(number) + 1)
    return found
