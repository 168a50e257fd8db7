"""Where clients connect to each Cluster: for the web page, which shows all of them.

The page runs in a pod of its own, with no right but to list Clusters.
"""

from collections.abc import Mapping

from millrace.core.errors import ConnectionFailedError, InvalidConfigError
from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.kinds import CLUSTER
from millrace.operator.model.objects import bootstrap_of
from millrace.runtime.kubernetes.access import as_kubectl


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

    async def find(self) -> Mapping[str, str]:
        """Return where clients connect first (`host:port`), by `namespace/name` of the Cluster.

        Raises:
            ConnectionFailedError: the API server does not answer, or refuses.
        """
        try:
            found = await self._api.list(CLUSTER, is_metadata_enough=True)
        except ApiError as error:
            raise ConnectionFailedError(f"the Clusters cannot be listed: {error}") from error
        names = [
            (cluster["metadata"]["namespace"], cluster["metadata"]["name"]) for cluster in found
        ]
        return {f"{namespace}/{name}": bootstrap_of(namespace, name) for namespace, name in names}
