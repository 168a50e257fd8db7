"""A native cluster, whose machines can be broken, and a namespace for each test."""

import secrets
from collections.abc import Iterator

import pytest
from e2e.cluster.native import NativeCluster
from e2e.cluster.providers import Cluster


@pytest.fixture(scope="session")
def cluster(kubernetes: Cluster) -> NativeCluster:
    """The cluster, if it is a native one."""
    if not isinstance(kubernetes, NativeCluster):
        pytest.skip("it breaks machines, which the native provider alone makes")
    return kubernetes


@pytest.fixture
def namespace(cluster: NativeCluster) -> Iterator[str]:
    """The name of a namespace that is deleted afterwards with its content."""
    name = f"t{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        cluster.kubectl("delete", "namespace", name)
