"""The programs of which a cluster of our own is made, and test tools, built from Go modules.

    python -m e2e.programs [NAME...]

builds those that are not in the user's cache, all or the named ones, which takes some minutes.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.api_server import binaries
from tests.go_programs import GoPrograms, run_go

_MODULES = Path(__file__).with_name("go")


def _of_module(
    name: str, package: str, tags: str = "", variables: Mapping[str, str] = MappingProxyType({})
) -> GoPrograms:
    """Return the one program of one of our Go modules, which pin their dependencies.

    Args:
        variables: values of the program's variables that its own build sets.
    """
    source = _MODULES / name
    found = re.search(rf"^require \S*{name}\S* v(\S+)", (source / "go.mod").read_text(), re.M)
    assert found is not None
    set_to = " ".join(f"-X {variable}={value}" for variable, value in variables.items())

    def build(go: str, _: Path, destination: Path) -> None:
        program = destination / name
        run_go(
            *(go, "build", "-trimpath", "-tags", tags, "-ldflags", f"-s -w {set_to}"),
            *("-o", str(program), package),
            folder=source,
        )

    return GoPrograms(
        name=f"{name}-{found[1]}",
        about=f"{name} {found[1]}",
        source=source,
        names=(name,),
        build_in=build,
        made_with=set_to,
    )


def _helm() -> GoPrograms:
    """Return helm. By its own build it knows its version, and renders for the Kubernetes of its
    modules; without these it takes itself for one of v1.20, and refuses our charts.
    """
    modules = (_MODULES / "helm" / "go.mod").read_text()
    helm = re.search(r"^require helm\.sh/helm/v3 (v\S+)", modules, re.M)
    kubernetes = re.search(r"k8s\.io/client-go v0\.(\d+)\.", modules)
    assert helm is not None
    assert kubernetes is not None
    of_helm = "helm.sh/helm/v3"
    versions = {
        f"{of_helm}/{package}.k8sVersion{part}": value
        for package in ("pkg/lint/rules", "pkg/chartutil")
        for part, value in (("Major", "1"), ("Minor", kubernetes[1]))
    }
    version = {f"{of_helm}/internal/version.version": helm[1]}
    return _of_module("helm", f"{of_helm}/cmd/helm", variables={**version, **versions})


API_SERVER = binaries.PROGRAMS
NODES = binaries.of_kubernetes(
    "kubernetes-nodes",
    ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
)
COREDNS = _of_module("coredns", ".")
HELM = _helm()
# With Kubernetes alone of all its kinds of discovery: the others bring the SDKs of many clouds.
PROMETHEUS = _of_module(
    "prometheus",
    "github.com/prometheus/prometheus/cmd/prometheus",
    "remove_all_sd,enable_kubernetes_sd",
)

ALL = (API_SERVER, NODES, COREDNS, HELM, PROMETHEUS)
OF_A_CLUSTER = (API_SERVER, NODES, COREDNS)


_BY_NAME = {name: programs for programs in ALL for name in programs.names}


def path(name: str) -> Path:
    """Return the path of a program, which may not be built yet.

    Raises:
        KeyError: there is no such program.
    """
    return _BY_NAME[name].folder() / name


def main() -> None:
    """Build what is not there yet."""
    for program in [_BY_NAME[name] for name in sys.argv[1:]] or ALL:
        program.main()


if __name__ == "__main__":
    main()
