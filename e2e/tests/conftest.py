"""A real Kubernetes with the operator installed, and a namespace for each test.

The cluster is started where none runs, and ended then; one that runs already is used and left.
"""

import secrets
import sys
from collections.abc import Iterator

import pytest
from e2e import programs
from e2e.cluster import providers
from e2e.cluster.commands import UnableError, run
from e2e.cluster.places import ROOT
from e2e.cluster.providers import Cluster
from e2e.tests.installed import Namespace

CHART = ROOT / "charts" / "millrace"
SYSTEM = "millrace-system"


def _say(text: str) -> None:
    sys.stderr.write(f"e2e: {text}\n")


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Cluster]:
    """The cluster, with the image of this checkout; skips, and says why, where there is none."""
    programs.HELM.main()
    cluster = providers.choose()
    ran_before = cluster.kubectl.kubeconfig.exists() and cluster.kubectl.is_ready()
    try:
        cluster.up(_say)
        if ran_before:
            cluster.load_image()
        yield cluster
    except UnableError as error:
        ran_before = True  # There is nothing to end.
        pytest.skip(str(error))
    finally:
        if not ran_before:
            cluster.down()


@pytest.fixture(scope="session")
def operator(kubernetes: Cluster) -> Cluster:
    """The cluster with the operator, installed by helm."""
    helm(
        kubernetes,
        *("upgrade", "--install", "millrace", CHART, "--namespace", SYSTEM, "--create-namespace"),
        *("--set", "image.repository=localhost/millrace", "--set", "image.tag=dev"),
        *("--wait", "--timeout", "180s"),
    )
    return kubernetes


@pytest.fixture
def namespace(operator: Cluster) -> Iterator[Namespace]:
    """A namespace that no other test has; deleted with all that is in it, which has to end."""
    made = Namespace(operator.kubectl, f"e2e-{secrets.token_hex(4)}")
    made.create()
    yield made
    made.delete()


def helm(cluster: Cluster, *arguments: object) -> str:
    """Run helm on the cluster."""
    config = f"--kubeconfig={cluster.kubectl.kubeconfig}"
    return run(programs.path("helm"), config, *map(str, arguments))
