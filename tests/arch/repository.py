"""The checkout as the architecture tests see it: its import roots, modules and files."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The folders that hold a part of the package `millrace`, in the direction of imports.
IMPORT_ROOTS = (
    "cli",
    "broker",
    "operator",
    "web",
    "spark-on-k8s",
    "client",
    "runtime",
    "proto",
    "core",
)
PACKAGES = {root: root for root in IMPORT_ROOTS} | {"spark-on-k8s": "spark"}
"""The part of `millrace` that each holds."""
SCRIPTS = ("spark-on-k8s", "jobs")
"""Programs, each a file of its own: they are no package, and the wheel leaves them out."""
UNSHIPPED = {SCRIPTS, ("spark-on-k8s", "image"), ("spark-on-k8s", "manifests")}
"""Folders of import roots that the wheel leaves out."""
BESIDE = {"spark-on-k8s": {"pyspark_millrace", *(name for _, name in UNSHIPPED)}}
"""What else an import root holds: `pyspark_millrace`, as Spark looks for modules of such names."""

GENERATED_SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def files() -> list[Path]:
    """Every file of the project, new ones too, but nothing that git ignores; relative to ROOT."""
    listing = subprocess.run(
        # The clone may belong to another user, as in a container.
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (Path(name) for name in sorted(set(listing.split("\0"))) if name)
    return [path for path in paths if (ROOT / path).is_file()]


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, a package standing for its `__init__`."""
    found = {}
    for import_root in IMPORT_ROOTS:
        for path in sorted((ROOT / import_root).rglob("*.py")):
            if path.relative_to(ROOT).parts[:2] == SCRIPTS:
                continue
            parts = path.relative_to(ROOT / import_root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found
