"""Where clusters keep what they need: nothing of it is in the checkout."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def cache() -> Path:
    """Return the folder of what is made once and kept: programs, images."""
    return _home("XDG_CACHE_HOME", ".cache")


def state(cluster: str) -> Path:
    """Return the folder of what a running cluster has."""
    return _home("XDG_STATE_HOME", ".local/state") / "clusters" / cluster


def _home(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default) / "millrace"
