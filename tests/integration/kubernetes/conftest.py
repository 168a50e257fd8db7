"""One API server for the tests of this folder, each test with a Millrace cluster of its own."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.api_server import binaries
from tests.api_server.relay import ApiServerRelay
from tests.api_server.running import RunningApiServer

from millrace.broker.coordination.kubernetes.access import ApiAccess
from millrace.broker.coordination.kubernetes.store import KubernetesStore

OpenStore = Callable[..., KubernetesStore]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApiServer]:
    """An API server with our definitions."""
    if not binaries.PROGRAMS.are_built():
        pytest.skip("kube-apiserver and etcd are not built yet: make api-server")
    server = RunningApiServer(tmp_path_factory.mktemp("api-server"))
    try:
        yield server.start()
    finally:
        server.stop()


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
