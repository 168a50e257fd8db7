"""A real Kubernetes with the operator installed, and a namespace for each test.

A running cluster is used and left running; otherwise one is started, and ended afterwards.
"""

import secrets
import sys
from collections.abc import Iterator

import pytest
from e2e.cluster import providers
from e2e.cluster.commands import UnableError
from e2e.cluster.native import NativeCluster
from e2e.cluster.providers import Cluster
from e2e.guard.accounts import GUARDED, Account, allow, audience_of, call_as
from e2e.installed import Namespace, install_operator
from tests.spark_jobs.flights import FLIGHTS


def _say(text: str) -> None:
    sys.stderr.write(f"e2e: {text}\n")


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Cluster]:
    """The cluster, with the image of this checkout; skips with the reason if there can be none."""
    cluster = providers.choose()
    try:
        with providers.running(cluster, _say):
            yield cluster
    except UnableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def operator(kubernetes: Cluster) -> Cluster:
    """The cluster with the operator, installed by helm."""
    install_operator(kubernetes)
    return kubernetes


@pytest.fixture
def namespace(operator: Cluster) -> Iterator[Namespace]:
    """A new namespace for the test; it is deleted with its content, and the deletion must end."""
    made = Namespace(operator.kubectl, f"e2e-{secrets.token_hex(4)}")
    made.create()
    yield made
    made.delete()


@pytest.fixture(scope="session")
def with_spark(operator: Cluster) -> NativeCluster:
    """The cluster, whose nodes have the image of Spark's pods."""
    if not isinstance(operator, NativeCluster):
        pytest.skip("what Spark writes is read on the nodes of a native cluster")
    operator.load_spark_image()
    return operator


@pytest.fixture
def with_guarded_flights(with_spark: NativeCluster, namespace: Namespace) -> Namespace:
    """Likewise as `with_flights`, where brokers speak TLS and ask who calls."""
    namespace.make_cluster(**GUARDED)
    namespace.make_topic(FLIGHTS, partitions=4, replicas=3)
    account = Account(namespace.name, "client")
    account.make(namespace.kubectl)
    allow(namespace, account, ("describe", "produce"))
    audience = audience_of("logs", namespace.name)
    namespace.make_client(change=lambda pod: call_as(account.name, audience, pod))
    return namespace


@pytest.fixture
def with_flights(with_spark: NativeCluster, namespace: Namespace) -> Namespace:
    """A namespace with three brokers and a topic for flights, and a client's pod."""
    namespace.make_cluster()
    namespace.make_topic(FLIGHTS, partitions=4, replicas=3)
    namespace.make_client()
    return namespace
