"""What the brokers' NetworkPolicy has to know, and its end where none is wanted."""

from typing import Final

from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.kinds import ENDPOINT_SLICE, NETWORK_POLICY
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.network_policy import USUAL_API_PORTS
from millrace.operator.reconcile.resources import is_owned

_DEFAULT: Final = "default"
_API_SERVER: Final = "kubernetes"
"""The Service of the API server, which every cluster has, and the slice of its addresses."""


class NetworkReconciler:
    """Looks at the network of one Cluster at a time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._api_ports: tuple[int, ...] | None = None

    async def reconcile(self, cluster: Cluster) -> tuple[int, ...]:
        """Delete the policy if none is wanted; return the ports of the API server; none: unknown.

        Raises:
            ApiError: the API server did not answer.
        """
        if not cluster.spec.network_policy.enabled:
            await self._remove(cluster)
        if self._api_ports is None:
            self._api_ports = await self._found_ports()
        return self._api_ports or ()

    async def _found_ports(self) -> tuple[int, ...] | None:
        """Return the usual ports, and those that the API server listens at; None: not known."""
        try:
            found = await self._api.get(ENDPOINT_SLICE, _DEFAULT, _API_SERVER)
        except ApiError as error:
            if error.status != 403:  # A chart of an earlier release does not allow it.
                raise
            return None
        if found is None:
            return None
        ports = [port["port"] for port in found.get("ports") or () if port.get("port")]
        return (*USUAL_API_PORTS, *ports)

    async def _remove(self, cluster: Cluster) -> None:
        where, name = cluster.namespace, cluster.name
        found = await self._api.get(NETWORK_POLICY, where, name)
        if found is not None and is_owned(found, cluster):
            await self._api.delete(NETWORK_POLICY, where, name, uid=found["metadata"]["uid"])
