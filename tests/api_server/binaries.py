"""A real kube-apiserver and etcd, built once from their Go modules and kept in the user's cache.

    python -m tests.api_server.binaries

builds them where they are not there yet, which takes some minutes.
"""

import re
from pathlib import Path

from tests.go_programs import GoPrograms, run_go

SOURCE = Path(__file__).with_name("go")


def version() -> str:
    """Return which Kubernetes it is."""
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (SOURCE / "go.mod").read_text())
    assert found is not None
    return found[1]


def _build(go: str, _: Path, destination: Path) -> None:
    major, minor, _patch = version().split(".")
    settings = {"gitVersion": f"v{version()}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(
        f"-X k8s.io/component-base/version.{name}={value}" for name, value in settings.items()
    )
    run_go(
        *(go, "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", f"{destination}/"),
        *("./etcd", "k8s.io/kubernetes/cmd/kube-apiserver"),
        folder=SOURCE,
    )


PROGRAMS = GoPrograms(
    name=f"kubernetes-{version()}",
    about=f"kube-apiserver {version()} and etcd (some minutes)",
    source=SOURCE,
    names=("etcd", "kube-apiserver"),
    build_in=_build,
)


if __name__ == "__main__":
    PROGRAMS.main()
