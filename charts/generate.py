"""Writes the version where charts, manifests and documents name it, and the files that helm renders
from the charts: manifests for kustomize, and outputs for a test of the operator's chart.

`make manifests` runs it. The version stands in `pyproject.toml` alone; images have it as their tag.
"""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import yaml
from e2e import programs

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = Path(__file__).with_name("millrace")
KUSTOMIZE: Final = Path(__file__).with_name("kustomize")
EXPECTED: Final = ROOT / "tests" / "data" / "chart"
SPARK_JOB: Final = Path(__file__).with_name("spark-job")
SPARK_JOBS: Final = ROOT / "spark-on-k8s" / "manifests"
VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

_NAMES_THE_VERSION: Final = (
    *(chart / "Chart.yaml" for chart in (CHART, SPARK_JOB)),
    *(folder / "kustomization.yaml" for folder in (KUSTOMIZE, *sorted(SPARK_JOBS.glob("*/")))),
    *(ROOT / name for name in ("README.md", "docs/kubernetes.md", "docs/spark-on-kubernetes.md")),
)
_PLACE: Final = re.compile(
    r"(^version: |^appVersion: |^ *newTag: |\bimage\.tag=|\bmillrace(?:-spark)?:)\d+\.\d+\.\d+",
    re.MULTILINE,
)
_HEADER: Final = "# Generated from the chart by `make manifests`.\n"


def helm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run helm; build it first where it is not there."""
    programs.HELM.build()
    return subprocess.run(
        [programs.path("helm"), *arguments], capture_output=True, text=True, check=False
    )


def rendered(*arguments: str) -> str:
    """Return the manifests of a release `millrace` in the namespace `millrace-system`.

    Raises:
        ValueError: helm refuses; the message says why.
    """
    return _template(
        *("millrace", str(CHART), "--namespace", "millrace-system"),
        *("--api-versions", "millrace.dev/v1beta1/Cluster", *arguments),
    )


def rendered_job(name: str, *arguments: str) -> str:
    """Return the manifests of a Spark job; as `rendered`."""
    return _template(name, str(SPARK_JOB), "--namespace", "default", *arguments)


def _template(*arguments: str) -> str:
    done = helm("template", *arguments)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def versioned() -> dict[Path, str]:
    """Return the files that name the version, with their content."""
    return {
        path: _PLACE.sub(rf"\g<1>{VERSION}", path.read_text(encoding="utf-8"))
        for path in _NAMES_THE_VERSION
    }


def files() -> dict[Path, str]:
    """Return the files that helm renders, with their content."""
    without = ("--set", "definitions=false")  # They are in `crds/`.
    by_default = rendered(*without)
    operator = rendered(*without, "--no-hooks").replace("managed-by: Helm", "managed-by: kustomize")
    return {
        KUSTOMIZE / "operator.yaml": _HEADER + operator,
        EXPECTED / "default.yaml": _HEADER + by_default,
        EXPECTED / "all.yaml": _HEADER + rendered("--values", str(EXPECTED / "values.yaml")),
        **{
            folder / "job.yaml": _HEADER + _kustomized(folder)
            for folder in sorted(path.parent for path in SPARK_JOBS.glob("*/values.yaml"))
        },
    }


def _kustomized(folder: Path) -> str:
    values = folder / "values.yaml"
    name = yaml.safe_load(values.read_text())["job"]["file"]
    release = Path(name).stem.replace("_", "-")
    return rendered_job(release, "--values", str(values)).replace(
        "managed-by: Helm", "managed-by: kustomize"
    )


def main() -> None:
    """Write the files."""
    for made in (versioned, files):
        for path, content in made().items():
            path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
