"""A Kubernetes API server in front of the simulated store, and a broker's connections to it.

It keeps what `SimulatedStore` keeps: each object of the store as a custom resource, and the lease
as a Lease. Resource versions follow from the contents, and the rules of `crds/` are checked: object
versions are counted one by one, and controller epochs never go back.

A connection has the methods of `urllib3.HTTPConnectionPool` that `KubernetesApi` calls. The calls
travel as all calls to the store do: they are late, throttled or lost.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import urllib3
from tests.sim.machines.coordination import NAME, SimulatedStore, StoreHandle, wait_for_answer
from tests.sim.machines.threads import SimulatedEvent
from tests.sim.world import Violation

from millrace.broker.coordination.kubernetes.resources import (
    CLUSTER_STATE,
    STATE_SHARD,
)
from millrace.broker.coordination.kubernetes.store import KubernetesStore
from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.core.controller.lease import NOBODY, LeaseRecord
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.model import CLUSTER_KEY
from millrace.core.metadata.objects.stored_object import StoredObject
from millrace.runtime.kubernetes.access import ApiAccess
from millrace.runtime.kubernetes.resources import LEASE

_CLUSTER: Final = "simulated"
ACCESS: Final = ApiAccess(
    server="http://api-server", namespace="default", tls=None, tls_server_name=None,
    token=lambda: "a token",
)  # fmt: skip
_PREFIX: Final = "millrace.dev/"
_EVENT: Final = b'{"type":"MODIFIED","object":{}}\n'
_LOOK_S: Final = 0.5
"""Between two looks whether a watch has broken off."""


class Response:
    """What `KubernetesApi` reads of an answer."""

    def __init__(
        self, status: int, document: object, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.data = json.dumps(document).encode()
        self.headers = headers or {}

    def read(self, amount: int) -> bytes:
        """Return the content."""
        return self.data[:amount]

    def close(self) -> None:
        """Nothing is kept open."""


class Watch(Response):
    """A watch of the lease: an event after each write, until its time is up."""

    def __init__(self, store: SimulatedStore, owner: str, seconds: int) -> None:
        super().__init__(200, {})
        self._store = store
        self._ends_at = store.world.now + seconds * 1_000_000
        self._link = store.network.link(NAME, owner)
        self._owner = owner
        self._is_closed = False
        self._has_news = SimulatedEvent()

    def stream(self, amount: int) -> Iterator[bytes]:
        """Yield events; the first is the present state."""
        del amount
        told: object = self
        self._store.watch(self._owner, self._has_news.set)
        while not self._is_closed and self._store.world.now < self._ends_at:
            if self._store.weather.is_out or self._link.is_held:
                raise urllib3.exceptions.ProtocolError("the watch broke off")
            if told != self._store.lease:
                told = self._store.lease
                yield _EVENT
            self._has_news.wait(_LOOK_S)
            self._has_news.clear()

    def shutdown(self) -> None:
        """End it."""
        self._is_closed = True
        self._has_news.set()


class Connections:
    """One broker's connections."""

    def __init__(self, store: SimulatedStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._handle = StoreHandle(store, owner)

    def urlopen(
        self, method: str, path: str, body: bytes | None, headers: object, **_: object
    ) -> Response:
        """Send a request, and wait for the answer.

        Raises:
            urllib3.exceptions.HTTPError: it was refused, or there is none in time.
        """
        del headers
        url = urlsplit(path)
        if "watch=1" in url.query:
            return self._watch(url.query)
        plural, *rest = url.path.split("/namespaces/default/")[1].split("/")
        name = rest[0] if rest else ""
        document: dict[str, Any] | None = None
        if body is not None:
            document = json.loads(body)
            assert document is not None
            name = document["metadata"]["name"]
        if plural == LEASE.plural:
            return self._send(method, partial(self._lease, method, document))
        if method != "GET":
            self._handle.check_writer()
        return self._send(method, partial(self._object, method, plural, name, document))

    def close(self) -> None:
        """Nothing is kept open."""

    def _watch(self, query: str) -> Response:
        if self._store.weather.is_out:
            raise urllib3.exceptions.ProtocolError("no connection")
        seconds = int(query.rpartition("timeoutSeconds=")[2])
        return Watch(self._store, self._owner, seconds)

    def _send(self, method: str, answer: Callable[[], Response]) -> Response:
        refusal = None if method == "GET" else _conflict("it")
        call = partial(self._handle.call, method=answer, refusal=refusal)
        try:
            found = wait_for_answer(call)
        except CoordinationUnavailableError as error:
            if "throttled" in error.message:
                return Response(429, {"message": "too many requests"}, {"Retry-After": "1"})
            raise urllib3.exceptions.HTTPError(error.message) from error
        assert isinstance(found, Response)
        return found

    # --- Objects -----------------------------------------------------------------------------

    def _object(
        self, method: str, plural: str, name: str, document: Mapping[str, Any] | None
    ) -> Response:
        store = self._store
        key = CLUSTER_KEY if plural == CLUSTER_STATE.plural else f"shards/{name[-2:]}"
        assert plural in (CLUSTER_STATE.plural, STATE_SHARD.plural)
        old = store.objects.get(key)
        if document is None:
            return _not_found(name) if old is None else Response(200, _shown(name, old))
        if method == "POST" and old is not None:
            return _conflict(name)
        if method == "PUT" and old is None:
            return _not_found(name)
        if old is not None and document["metadata"]["resourceVersion"] != _revision(old):
            return _conflict(name)
        spec = document["spec"]
        new = StoredObject(
            spec["state"].encode(), spec["version"], ControllerEpoch(spec["controllerEpoch"])
        )
        if not store.swap(key, new, self._owner):
            return Response(422, {"message": "a rule of the definition"})
        return Response(200, _shown(name, new))

    # --- The lease ---------------------------------------------------------------------------

    def _lease(self, method: str, document: Mapping[str, Any] | None) -> Response:
        store, name = self._store, f"{_CLUSTER}-controller"
        if document is None:
            return _not_found(name) if store.lease is None else Response(200, _lease(store.lease))
        if method == "POST" and store.lease is not None:
            return _conflict(name)
        if method == "PUT":
            if store.lease is None:
                return _not_found(name)
            if document["metadata"]["resourceVersion"] != _lease_revision(store.lease):
                return _conflict(name)
        texts = document["metadata"]["annotations"]
        holder = document["spec"].get("holderIdentity", NOBODY)
        assert holder == texts[f"{_PREFIX}holder"]
        new = LeaseRecord(
            holder=holder,
            address=texts[f"{_PREFIX}address"],
            duration_ms=int(texts[f"{_PREFIX}duration-ms"]),
            version=int(texts[f"{_PREFIX}version"]),
            incarnation=texts[f"{_PREFIX}incarnation"],
        )
        if store.lease is not None and new.version != store.lease.version + 1:
            raise Violation(f"{self._owner} writes {new} in place of {store.lease}")
        store.lease = new
        return Response(200, _lease(new))


def open_kubernetes_store(store: SimulatedStore, owner: str) -> KubernetesStore:
    """Return a broker's store, which reaches a simulated API server."""

    def connect(access: ApiAccess, connections_max: int) -> Any:
        del access, connections_max
        return Connections(store, owner)

    return KubernetesStore(ACCESS, connect, cluster_name=_CLUSTER, namespace="default")


def _shown(name: str, stored: StoredObject) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": _revision(stored)},
        "spec": {
            "state": stored.value.decode(),
            "version": stored.version,
            "controllerEpoch": stored.controller_epoch,
        },
    }


def _revision(stored: StoredObject) -> str:
    return f"{stored.version}-{stored.controller_epoch}-{zlib.crc32(stored.value)}"


def _lease(record: LeaseRecord) -> dict[str, Any]:
    texts = {f"{_PREFIX}{name.replace('_', '-')}": str(v) for name, v in asdict(record).items()}
    spec = {} if record.holder == NOBODY else {"holderIdentity": record.holder}
    return {
        "metadata": {
            "name": f"{_CLUSTER}-controller",
            "resourceVersion": _lease_revision(record),
            "annotations": texts,
        },
        "spec": spec,
    }


def _lease_revision(record: LeaseRecord) -> str:
    return f"{record.version}-{record.holder}-{record.address}"


def _not_found(name: str) -> Response:
    return Response(404, {"message": f"{name} is not found", "details": {"name": name}})


def _conflict(name: str) -> Response:
    return Response(409, {"message": f"{name} was written meanwhile"})
