"""One API server for the tests of this folder, each test with a Millrace cluster of its own."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api_server import binaries
from tests.api_server.relay import ApiServerRelay
from tests.api_server.running import RunningApiServer
from tests.integration.kubernetes.operated import Operated

from millrace.broker.coordination.kubernetes.store import KubernetesStore
from millrace.runtime.kubernetes.access import ApiAccess

OpenStore = Callable[..., KubernetesStore]

PATIENT_MS = 30_000
"""For a request of a store: where no fault is meant, a machine that stands still is none."""

_numbers = itertools.count(1)


@contextmanager
def started_api_server(folder: Path) -> Iterator[RunningApiServer]:
    """Start an API server with our definitions; stop it when the block ends."""
    if not binaries.PROGRAMS.are_built():
        pytest.skip("kube-apiserver and etcd are not built yet: make api-server")
    server = RunningApiServer(folder)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApiServer]:
    """An API server with our definitions."""
    with started_api_server(tmp_path_factory.mktemp("api-server")) as server:
        yield server


@pytest.fixture
def cluster_name() -> str:
    """A name that no other test has."""
    return f"c{next(_numbers)}"


@pytest.fixture
def open_store(api_server: RunningApiServer, cluster_name: str) -> Iterator[OpenStore]:
    """Opens stores of this test's cluster, as brokers do; closes them."""
    opened = []

    def open_one(access: ApiAccess | None = None, **settings: Any) -> KubernetesStore:
        access = access or api_server.broker
        settings = {"request_timeout_ms": PATIENT_MS, **settings}
        opened.append(KubernetesStore(access, cluster_name=cluster_name, **settings))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def relay(api_server: RunningApiServer) -> Iterator[ApiServerRelay]:
    """A relay in front of it, which shows the broker's token."""
    relay = ApiServerRelay(api_server.url, api_server.broker.tls, token=api_server.tokens["broker"])
    yield relay
    relay.close()


@pytest.fixture(scope="session")
def nodes(api_server: RunningApiServer) -> None:
    """Nodes in the zones a, b and c; each has a host name."""
    for number, zone in enumerate("abc"):
        labels = {"topology.kubernetes.io/zone": zone}
        node = {"metadata": {"name": f"node-{number}", "labels": labels}}
        status, answer = api_server.request("POST", "/api/v1/nodes", node)
        assert status == 201, answer
        named = {"type": "Hostname", "address": f"host-{number}.example.org"}
        answer["status"] = {"addresses": [named]}
        where = f"/api/v1/nodes/node-{number}/status"
        status, answer = api_server.request("PUT", where, answer)
        assert status == 200, answer


@pytest.fixture
def operated(
    api_server: RunningApiServer, nodes: None, cluster_name: str, tmp_path: Path
) -> Iterator[Operated]:
    """An operator with a namespace of its own."""
    made = Operated(api_server, tmp_path, f"operated-{cluster_name}")
    yield made
    made.close()
