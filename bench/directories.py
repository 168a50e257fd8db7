"""Where the benchmark keeps things: fetched peers in the user's cache, data in a directory per run.

All data directories of a run lie on one file system, so that no side has a better disk. The next
run removes the directory of a run that was killed.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def cache_directory() -> Path:
    """Return the directory for downloads, outside the checkout."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "millrace"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def run_directory(root: Path | None = None) -> Iterator[Path]:
    """Create this run's data directory, which is removed with the block.

    Args:
        root: where to make it; None for the cache directory. It should be on the disk to be
            measured: a tmpfs would make every flush free.
    """
    root = root or cache_directory() / "runs"
    root.mkdir(parents=True, exist_ok=True)
    for left_behind in root.glob("run-*-*"):
        if not Path("/proc", left_behind.name.split("-")[1]).exists():
            shutil.rmtree(left_behind, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=root))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
