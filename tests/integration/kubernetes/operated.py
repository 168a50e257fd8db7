"""An operator without its process, in a namespace of its own: each look is made by the test."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.api_server.controllers import Controllers
from tests.api_server.running import RunningApiServer
from tests.fakes.administered_clusters import FakeBrokers, FakeCluster

from millrace.operator.kube.api import Api, ApiError
from millrace.operator.reconcile.access import OwnAccount
from millrace.operator.reconcile.again import Again
from millrace.operator.reconcile.cluster import ClusterReconciler
from millrace.operator.reconcile.quotas import QuotasReconciler
from millrace.operator.reconcile.topics import TopicsReconciler
from millrace.runtime.kubernetes.access import from_kubeconfig

Document = dict[str, Any]

_CRD = "/apis/millrace.dev/v1beta1/namespaces"
_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
LOOKS_MAX = 60


class KilledError(BaseException):
    """The operator was killed."""


class CutApi(Api):
    """An API server for an operator that is killed after so many changes, of brokers too.

    To apply what is so already is a write, and no change.

    Attributes:
        writes: how many there were.
        left: how many changes are left to it; None: any number.
        is_done: whether it dies with its last change, or with the next write.
        meanwhile: called with each write before it is sent, so that others can be quicker: method,
            path and body.
    """

    writes = 0
    left: int | None = None
    is_done = False

    meanwhile: Callable[[str, str, object], None] = staticmethod(lambda *write: None)

    def on_write(self, what: str) -> None:
        """Count a change that brokers are asked for; it is made unless this raises."""
        self._check_lives(is_write=True)
        self.writes += 1
        self._count()

    async def _call(self, method: str, path: str, *given: Any, **more: Any) -> Document:
        self._check_lives(is_write=method != "GET")
        if method == "GET":
            return await super()._call(method, path, *given, **more)
        self.meanwhile(method, path, given[1:])
        self.writes += 1
        before = None
        if method == "PATCH" and self.left is not None:
            with suppress(ApiError):
                before = await super()._call("GET", path.removesuffix("/status"))
        answer = await super()._call(method, path, *given, **more)
        if before is None or _version(before) != _version(answer):
            self._count()
        self._check_lives(is_write=False)
        return answer

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1

    def _check_lives(self, *, is_write: bool) -> None:
        if self.left is not None and self.left <= 0 and (is_write or self.is_done):
            raise KilledError


def _version(document: Document) -> str:
    version: str = document["metadata"]["resourceVersion"]
    return version


class Operated:
    """An operator, its API server, and a clock that a test moves.

    Attributes:
        controllers: what the Kubernetes does beside.
        api: the operator's.
        ahead: how far the operator's clock is ahead.
        held_at: where its clock stands still, but for that; None: it goes.
    """

    def __init__(self, server: RunningApiServer, folder: Path, namespace: str) -> None:
        self.server = server
        self.ahead = timedelta()
        self.held_at: datetime | None = None
        self.namespace = namespace
        self.brokers = FakeBrokers()
        self.controllers = Controllers(server, self.brokers, namespace)
        config = folder / f"kubeconfig-{namespace}"
        config.write_text(server.kubeconfig("admin"))
        self.api = CutApi(from_kubeconfig(config))
        assert self.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        # Of the operator, for its tokens.
        account = {"metadata": {"name": "operator"}}
        self.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
        self.install_reviewers()
        self.restart()
        self.fake().on_write = self.api.on_write

    def restart(self, changes: int | None = None) -> None:
        """Begin with an operator that knows nothing; it is killed after so many changes."""
        self.api.left = changes
        self.clusters = ClusterReconciler(
            self.api,
            self.brokers,
            "millrace:1",
            self.clock,
            account=OwnAccount(namespace=self.namespace, name="operator"),
        )
        self.topics = TopicsReconciler(self.api, self.brokers, self.clock)
        self.quotas = QuotasReconciler(
            self.api,
            self.brokers,
            lambda: time.monotonic() + self.ahead.total_seconds(),
            self.clock,
        )

    def clock(self) -> datetime:
        """Return the operator's time."""
        return (self.held_at or datetime.now(UTC)) + self.ahead

    def install_reviewers(self) -> None:
        """Make the ClusterRoleBinding of the chart, which all tests share, unless it is there."""
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
        name = "operator-reviewers"
        binding = {"metadata": {"name": name}, "roleRef": {**role, "name": name}}
        status, answer = self.server.request("POST", f"{_BINDINGS}", binding)
        assert status in (201, 409), answer

    def remove_reviewers(self) -> None:
        """Delete it."""
        self.request("DELETE", f"{_BINDINGS}/operator-reviewers")

    def fake(self, name: str = "c") -> FakeCluster:
        """Return a cluster's brokers."""
        return self.brokers.of(self.namespace, name)

    def request(self, method: str, path: str, document: object = None) -> Document:
        """Send a request that has to succeed."""
        status, answer = self.server.request(method, path, document)
        assert 200 <= status < 300, answer
        return answer

    def apply(self, kind: str, name: str, spec: Document) -> None:
        """Make a resource, or give it another spec.

        A Cluster that does not say how it is secured is in plain text: most tests are not about it.
        """
        if kind == "clusters":
            spec = {"tls": {"mode": "Disabled"}, **spec}
            if spec["tls"] is None:
                del spec["tls"]
        collection = f"{_CRD}/{self.namespace}/{kind}"
        status, found = self.server.request("GET", f"{collection}/{name}")
        if status == 200:
            self.request("PUT", f"{collection}/{name}", {**found, "spec": spec})
            return
        document = {
            "apiVersion": "millrace.dev/v1beta1",
            "kind": {"clusters": "Cluster", "topics": "Topic", "quotas": "Quota"}[kind],
            "metadata": {"name": name},
            "spec": spec,
        }
        self.request("POST", collection, document)

    def delete(self, kind: str, name: str) -> None:
        """Delete a resource."""
        self.request("DELETE", f"{_CRD}/{self.namespace}/{kind}/{name}")

    def get(self, path: str, name: str) -> Document | None:
        """Return an object; `%s` in the path stands for the namespace."""
        where = path % f"namespaces/{self.namespace}"
        status, answer = self.server.request("GET", f"{where}/{name}")
        return answer if status == 200 else None

    def conditions(self, kind: str = "clusters", name: str = "c") -> dict[str, tuple[str, str]]:
        """Return status and reason of each condition."""
        return {
            type: (status, reason) for type, (status, reason, _) in self.told(kind, name).items()
        }

    def told(self, kind: str = "clusters", name: str = "c") -> dict[str, tuple[str, str, str]]:
        """Return status, reason and message of each condition."""
        found = self.request("GET", f"{_CRD}/{self.namespace}/{kind}/{name}")
        return {
            condition["type"]: (condition["status"], condition["reason"], condition["message"])
            for condition in found.get("status", {}).get("conditions", ())
        }

    def look(self, name: str = "c") -> Again:
        """Let the operator look once, as its workers do: what fails is tried again later."""

        async def one() -> Again:
            again: Again = 0.5
            for reconcile in (
                self.clusters.reconcile,
                self.topics.reconcile,
                self.quotas.reconcile,
            ):
                try:
                    after = await reconcile(self.namespace, name)
                except ApiError:
                    continue
                again = after if reconcile == self.clusters.reconcile else again
            return again

        return asyncio.run(one())

    def until(self, is_so: Callable[[], bool], name: str = "c") -> None:
        """Let operator and Kubernetes take turns until it is so."""
        for _ in range(LOOKS_MAX):
            self.look(name)
            self.controllers.step()
            if is_so():
                return
        raise AssertionError(f"not so after {LOOKS_MAX} looks: {self.told(name=name)}")

    def settle(self, name: str = "c") -> None:
        """Let them take turns until all that the Cluster's conditions say is well."""
        self.until(lambda: self.is_settled(name), name)

    def is_settled(self, name: str = "c") -> bool:
        """Whether the Cluster is as it should be, and was looked at as it is."""
        found = self.request("GET", f"{_CRD}/{self.namespace}/clusters/{name}")
        status = found.get("status") or {}
        conditions = status.get("conditions") or ()
        return status.get("observedGeneration") == found["metadata"]["generation"] and bool(
            conditions and all(condition["status"] == "True" for condition in conditions)
        )

    def close(self) -> None:
        """End its threads."""
        self.api.close()
