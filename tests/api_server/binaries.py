"""A real Kubernetes and etcd, built once from their Go modules and kept in the user's cache.

    python -m tests.api_server.binaries

builds what an API server alone needs where it is not there yet, which takes some minutes.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from tests.go_programs import GoPrograms, run_go

SOURCE = Path(__file__).with_name("go")


def version() -> str:
    """Return which Kubernetes it is."""
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (SOURCE / "go.mod").read_text())
    assert found is not None
    return found[1]


def of_kubernetes(group: str, names: Sequence[str]) -> GoPrograms:
    """Return programs of Kubernetes that are built together; `etcd` may be one of them.

    Args:
        group: tells their folder in the cache from that of others.
        names: of the programs, as their folders in `cmd` are called.
    """
    major, minor, _ = version().split(".")
    settings = {"gitVersion": f"v{version()}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(
        f"-X k8s.io/component-base/version.{name}={value}" for name, value in settings.items()
    )
    packages = ["./etcd" if name == "etcd" else f"k8s.io/kubernetes/cmd/{name}" for name in names]

    def build(go: str, _: Path, destination: Path) -> None:
        run_go(
            *(go, "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", f"{destination}/"),
            *packages,
            folder=SOURCE,
        )

    return GoPrograms(
        name=f"{group}-{version()}",
        about=f"{', '.join(names)} of Kubernetes {version()} (some minutes)",
        source=SOURCE,
        names=names,
        build_in=build,
    )


PROGRAMS = of_kubernetes("kubernetes", ("etcd", "kube-apiserver"))


if __name__ == "__main__":
    PROGRAMS.main()
