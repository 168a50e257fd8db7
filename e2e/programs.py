"""The programs of which a cluster of our own is made, and test tools, built from Go modules.

    python -m e2e.programs

builds those that are not in the user's cache, which takes some minutes.
"""

import re
from pathlib import Path

from tests.api_server import binaries
from tests.go_programs import GoPrograms, run_go

_MODULES = Path(__file__).with_name("go")


def _of_module(name: str, package: str, tags: str = "") -> GoPrograms:
    """Return the one program of one of our Go modules, which pin their dependencies."""
    source = _MODULES / name
    found = re.search(rf"^require \S*{name}\S* v(\S+)", (source / "go.mod").read_text(), re.M)
    assert found is not None

    def build(go: str, _: Path, destination: Path) -> None:
        program = destination / name
        run_go(
            *(go, "build", "-trimpath", "-tags", tags, "-ldflags", "-s -w"),
            *("-o", str(program), package),
            folder=source,
        )

    return GoPrograms(
        name=f"{name}-{found[1]}",
        about=f"{name} {found[1]}",
        source=source,
        names=(name,),
        build_in=build,
    )


API_SERVER = binaries.PROGRAMS
NODES = binaries.of_kubernetes(
    "kubernetes-nodes",
    ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
)
COREDNS = _of_module("coredns", ".")
HELM = _of_module("helm", "helm.sh/helm/v3/cmd/helm")
# With Kubernetes alone of all its kinds of discovery: the others bring the SDKs of many clouds.
PROMETHEUS = _of_module(
    "prometheus",
    "github.com/prometheus/prometheus/cmd/prometheus",
    "remove_all_sd,enable_kubernetes_sd",
)

ALL = (API_SERVER, NODES, COREDNS, HELM, PROMETHEUS)
OF_A_CLUSTER = (API_SERVER, NODES, COREDNS)


def path(name: str) -> Path:
    """Return the path of a program, which may not be built yet.

    Raises:
        KeyError: there is no such program.
    """
    return {name: programs.folder() for programs in ALL for name in programs.names}[name] / name


def main() -> None:
    """Build what is not there yet."""
    for each in ALL:
        each.main()


if __name__ == "__main__":
    main()
