"""Where clients connect to each Cluster: for the web page, which shows all of them.

The page runs in a pod of its own, with no right but to list Clusters: their status has the
authorities to be trusted, so it need not read a ConfigMap of any namespace.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.core.errors import ConnectionFailedError, InvalidConfigError
from millrace.core.guard.service_account_token import audience_of
from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.kinds import CLUSTER
from millrace.operator.model.bootstrap import bootstrap_of
from millrace.operator.model.objects import Document
from millrace.operator.model.security import AccessMode, TlsMode
from millrace.runtime.kubernetes.access import as_kubectl


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How clients connect to a Cluster.

    Attributes:
        address: where they connect first (`host:port`).
        authorities: that brokers' certificates are of, as PEM; empty: brokers speak plain text, or
            the operator has not told yet.
        has_tls: whether brokers speak TLS.
        audience: for which tokens are; empty: brokers ask nobody.
    """

    address: str
    authorities: str
    has_tls: bool
    audience: str


class Bootstraps:
    """Asks the API server where clients connect.

    Raises:
        ConnectionFailedError: no Kubernetes cluster is configured here.
    """

    def __init__(self) -> None:
        try:
            self._api = Api(as_kubectl())
        except InvalidConfigError as error:
            raise ConnectionFailedError(
                f"no Kubernetes cluster is configured: {error.message}"
            ) from error

    async def find(self) -> Mapping[str, Bootstrap]:
        """Return how clients connect, by `namespace/name` of the Cluster.

        Raises:
            ConnectionFailedError: the API server does not answer, or refuses.
        """
        try:
            found = await self._api.list(CLUSTER)
        except ApiError as error:
            raise ConnectionFailedError(f"the Clusters cannot be listed: {error}") from error
        return {
            f"{cluster['metadata']['namespace']}/{cluster['metadata']['name']}": _bootstrap(cluster)
            for cluster in found
        }


def _bootstrap(cluster: Document) -> Bootstrap:
    namespace, name = cluster["metadata"]["namespace"], cluster["metadata"]["name"]
    status = cluster.get("status") or {}
    # What all brokers do by now; they may be on the way to what the Cluster asks for.
    security = status.get("security") or {}
    has_tls = security.get("tls", TlsMode.DISABLED) != TlsMode.DISABLED
    asks = security.get("access", AccessMode.DISABLED) != AccessMode.DISABLED
    address = bootstrap_of(namespace, name)
    return Bootstrap(
        address=status.get("tlsBootstrap", address) if has_tls else address,
        authorities=status.get("authorities") or "",
        has_tls=has_tls,
        audience=audience_of(name, namespace) if asks else "",
    )
