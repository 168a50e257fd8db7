"""Chooses the cluster for tests and developers: see CONTRIBUTING.md."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from e2e.cluster import directories
from e2e.cluster.commands import CommandError, UnableError, run
from e2e.cluster.images import DOCKERFILE, PRODUCT, SPARK, SPARK_DOCKERFILE, build_secrets
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.native import NODES, NativeCluster
from e2e.cluster.node import ZONES

_DOWNLOAD_SECONDS_MAX = 1800.0


class Cluster(Protocol):
    """The common part of all providers; tests check the class for anything else."""

    kubectl: Kubectl

    def build(self, say: Callable[[str], None]) -> None:
        """Build what `up` would, and start nothing."""

    def up(self, say: Callable[[str], None]) -> None:
        """Start it, unless it runs; return once everything is ready."""

    def down(self) -> None:
        """Remove it."""

    def load_image(self) -> None:
        """Build the product's image from the checkout, and give it to the nodes."""

    def load_spark_image(self) -> None:
        """The same for the image of Spark's pods."""


class ExistingCluster:
    """A foreign cluster, found by a kubeconfig: the tests install the operator there.

    Beside it they make and delete only namespaces of their own.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self.kubectl = Kubectl(kubeconfig, "kubectl")

    def build(self, say: Callable[[str], None]) -> None:
        """Do nothing: `up` builds nothing."""

    def up(self, say: Callable[[str], None]) -> None:
        """Check that it answers.

        Raises:
            CommandError: it does not answer.
        """
        self.kubectl("wait", "--for=condition=Ready", "--timeout=300s", "nodes", "--all")
        say("it has to find the image by itself: nothing is loaded")

    def down(self) -> None:
        """Do nothing: it stays."""

    def load_image(self) -> None:
        """Do nothing: only its owner can give it an image, as `up` says."""

    load_spark_image = load_image


class KindCluster:
    """A kind cluster, for machines with a Docker engine.

    MILLRACE_KIND_IMAGE names the image of its nodes; unset: kind's default.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._folder = directories.state(name)
        self.kubectl = Kubectl(self._folder / "kubeconfig", "kubectl")
        self._named = (f"--name={name}", f"--kubeconfig={self.kubectl.kubeconfig}")

    def build(self, say: Callable[[str], None]) -> None:
        """Do nothing: only a running cluster takes the image."""

    def up(self, say: Callable[[str], None]) -> None:
        """Start it, unless it runs, and load the image.

        Raises:
            CommandError: something of it failed.
        """
        if self._name not in run("kind", "get", "clusters").split():
            say("kind")
            self._folder.mkdir(parents=True, exist_ok=True)
            workers = [
                {"role": "worker", "labels": {"topology.kubernetes.io/zone": zone}}
                for zone in ZONES[:NODES]
            ]
            configuration = {
                "kind": "Cluster",
                "apiVersion": "kind.x-k8s.io/v1alpha4",
                "nodes": [{"role": "control-plane"}, *workers],
            }
            image = os.environ.get("MILLRACE_KIND_IMAGE")
            run(
                *("kind", "create", "cluster", *self._named, "--config=-", "--wait=120s"),
                *((f"--image={image}",) if image else ()),
                input=json.dumps(configuration),
                seconds_max=_DOWNLOAD_SECONDS_MAX,
            )
        for media in ("ssd", "hdd"):
            storage_class = {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": f"local-{media}"},
                "provisioner": "rancher.io/local-path",  # kind includes it.
                "volumeBindingMode": "WaitForFirstConsumer",
            }
            self.kubectl.apply(json.dumps(storage_class))
        say("images")
        self.load_image()

    def down(self) -> None:
        """Remove it."""
        run("kind", "delete", "cluster", *self._named)
        shutil.rmtree(self._folder, ignore_errors=True)

    def load_image(self) -> None:
        """Build the product's image from the checkout, and load it."""
        self._load(PRODUCT, DOCKERFILE)

    def load_spark_image(self) -> None:
        """The same for the image of Spark's pods, which is built on the product's."""
        self.load_image()
        self._load(SPARK, SPARK_DOCKERFILE, f"--build-arg=MILLRACE_IMAGE={PRODUCT}")

    def _load(self, image: str, dockerfile: Path, *arguments: str) -> None:
        with tempfile.TemporaryDirectory() as made:
            run(
                *("env", "DOCKER_BUILDKIT=1"),  # Docker 20.10 has BuildKit, but not as its default.
                *("docker", "build", f"--tag={image}", f"--file={dockerfile}"),
                *arguments,
                *build_secrets(Path(made)),
                directories.ROOT,
                seconds_max=_DOWNLOAD_SECONDS_MAX,
            )
        run("kind", "load", "docker-image", image, f"--name={self._name}")


def choose() -> Cluster:
    """Return the cluster that the environment asks for.

    MILLRACE_PROVIDER says `native`, `kind` or `existing`. Unset: kind, if it is installed and
    Docker answers; otherwise native. So nothing is installed in somebody's cluster that KUBECONFIG
    happens to name.

    Raises:
        CommandError: there is no such provider, or `existing` lacks KUBECONFIG.
    """
    match os.environ.get("MILLRACE_PROVIDER") or _default():
        case "existing":
            if not (kubeconfig := os.environ.get("KUBECONFIG")):
                raise CommandError("MILLRACE_PROVIDER=existing: set KUBECONFIG, too")
            return ExistingCluster(Path(kubeconfig))
        case "kind":
            return KindCluster(os.environ.get("MILLRACE_CLUSTER", "millrace"))
        case "native":
            return NativeCluster.of_environment()
        case other:
            raise CommandError(f"MILLRACE_PROVIDER={other}: say native, kind or existing")


@contextmanager
def running(cluster: Cluster, say: Callable[[str], None]) -> Iterator[None]:
    """Let a cluster with the image of this checkout run in the block, and on if it ran before.

    Raises:
        CommandError: something of it failed. UnableError: this machine cannot run it.
    """
    ran_before = cluster.kubectl.kubeconfig.exists() and cluster.kubectl.is_ready()
    try:
        cluster.up(say)
        if ran_before:
            cluster.load_image()
        yield
    except UnableError:
        ran_before = True  # Nothing was started.
        raise
    finally:
        if not ran_before:
            cluster.down()


def _default() -> str:
    if shutil.which("kind") and shutil.which("docker"):
        try:
            run("docker", "info", seconds_max=10.0)
        except CommandError:
            return "native"
        return "kind"
    return "native"
