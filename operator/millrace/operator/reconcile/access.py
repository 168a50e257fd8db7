"""Who may do what in clusters that leave it to Kubernetes: brokers may ask, the operator is known.

The operator has a token of its own account for each such Cluster, and no other: a token that one
cluster gets proves nothing to another one (G1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from millrace.core.guard.service_account_token import audience_of
from millrace.operator.kube.api import TOKEN_S, Api, ApiError
from millrace.operator.kube.kinds import CLUSTER, CLUSTER_ROLE_BINDING
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import Document
from millrace.operator.plan.reviewers import reviewers
from millrace.operator.reconcile.brokers import Brokers

_RENEWED_S: Final = TOKEN_S / 3
"""A token is replaced after a third of its time: it is looked at every minute or two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnAccount:
    """The operator's ServiceAccount."""

    namespace: str
    name: str

    @property
    def reviewers(self) -> str:
        """The name of the ClusterRoleBinding of brokers that ask about callers."""
        return f"{self.name}-reviewers"


class AccessReconciler:
    """Looks at the access to one Cluster at a time.

    Args:
        account: the operator's own; None: it runs in no pod, and keeps no such Cluster.
        clock: in seconds.
    """

    def __init__(
        self, api: Api, brokers: Brokers, account: OwnAccount | None, clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._brokers = brokers
        self._account = account
        self._clock = clock
        self._renew_at: dict[tuple[str, str], float] = {}

    @property
    def is_known(self) -> bool:
        """Whether the operator has an account, which brokers know."""
        return self._account is not None

    async def problem(self) -> str:
        """Return why brokers cannot ask about callers, and what to do; empty: they can.

        Raises:
            ApiError: the API server did not answer.
        """
        if self._account is None or await self._binding(self._account) is not None:
            return ""
        return (
            f"brokers cannot ask who calls, as ClusterRoleBinding {self._account.reviewers} is not "
            "there, or the operator may not read it: upgrade the chart to the operator's release"
        )

    async def reconcile(self, cluster: Cluster) -> None:
        """Let the cluster's brokers ask about callers, and have a token for them.

        Raises:
            ApiError: the API server refuses it, or does not answer.
        """
        if cluster.spec.access is None and (cluster.namespace, cluster.name) in self._renew_at:
            await self.forget(cluster.namespace, cluster.name)
        if cluster.spec.access is None or self._account is None:
            return
        if not await self._let_ask(self._account):
            return  # No broker could find out whose token it is.
        key, now = (cluster.namespace, cluster.name), self._clock()
        if now >= self._renew_at.get(key, now):
            audience = audience_of(cluster.name, cluster.namespace)
            account = self._account
            token = await self._api.request_token(account.namespace, account.name, audience)
            self._brokers.show(cluster, token)
            self._renew_at[key] = now + _RENEWED_S

    async def forget(self, namespace: str, name: str) -> None:
        """Take the right to ask from the brokers of a Cluster that is gone."""
        self._renew_at.pop((namespace, name), None)
        if self._account is not None:
            await self._let_ask(self._account)

    async def _let_ask(self, account: OwnAccount) -> bool:
        """Let the brokers of all such Clusters ask; return whether there is a way."""
        binding = await self._binding(account)
        if binding is None:
            return False  # A condition says it: see `problem`.
        wanted = reviewers(await self._api.list(CLUSTER))
        found = [
            {key: subject.get(key) for key in ("kind", "namespace", "name")}
            for subject in binding.get("subjects") or ()
        ]
        if found != wanted:
            version = binding["metadata"]["resourceVersion"]
            change = {"metadata": {"resourceVersion": version}, "subjects": wanted}
            await self._api.patch(CLUSTER_ROLE_BINDING, None, account.reviewers, change)
        return True

    async def _binding(self, account: OwnAccount) -> Document | None:
        """Return the ClusterRoleBinding of brokers; None: the chart is older, or without it."""
        try:
            return await self._api.get(CLUSTER_ROLE_BINDING, None, account.reviewers)
        except ApiError as error:
            if error.status != 403:  # The role of an older chart does not allow it.
                raise
            return None
