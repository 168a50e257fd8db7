"""The folders of clusters, outside the checkout."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def cache() -> Path:
    """Return the folder of things that are built once and kept: programs, images."""
    return _home("XDG_CACHE_HOME", ".cache")


def state(cluster: str) -> Path:
    """Return the folder of a running cluster's state."""
    return _home("XDG_STATE_HOME", ".local/state") / "clusters" / cluster


def _home(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default) / "millrace"
