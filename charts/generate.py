"""Writes what is made from the chart by helm: the manifests of `charts/kustomize`, and the outputs
that a test holds the chart against: `make manifests`.
"""

import subprocess
from pathlib import Path
from typing import Final

from e2e import programs

CHART: Final = Path(__file__).with_name("millrace")
KUSTOMIZE: Final = Path(__file__).with_name("kustomize")
EXPECTED: Final = Path(__file__).resolve().parents[1] / "tests" / "data" / "chart"
KUBERNETES: Final = "1.34.4"

_HEADER: Final = "# Made from the chart by `make manifests`.\n"


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run helm; build it first where it is not there."""
    programs.HELM.build()
    return subprocess.run(
        [programs.path("helm"), *arguments], capture_output=True, text=True, check=False
    )


def rendered(*arguments: str) -> str:
    """Return the manifests of a release `millrace` in the namespace `millrace-system`.

    Raises:
        ValueError: helm refuses; says why.
    """
    done = helm(
        *("template", "millrace", str(CHART), "--namespace", "millrace-system"),
        *("--kube-version", KUBERNETES, "--api-versions", "millrace.dev/v1beta1/Cluster"),
        *arguments,
    )
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def files() -> dict[Path, str]:
    """Return the files with their content."""
    without = ("--set", "definitions=false")  # They are in `crds/`.
    by_default = rendered(*without)
    operator = rendered(*without, "--no-hooks").replace("managed-by: Helm", "managed-by: kustomize")
    return {
        KUSTOMIZE / "operator.yaml": _HEADER + operator,
        EXPECTED / "default.yaml": _HEADER + by_default,
        EXPECTED / "all.yaml": _HEADER + rendered("--values", str(EXPECTED / "values.yaml")),
    }


def main() -> None:
    """Write the files."""
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
