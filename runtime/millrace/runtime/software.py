"""The name and version under which this library calls."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _installed() -> str:
    try:
        return version("millrace")
    except PackageNotFoundError:  # Run from a bare clone.
        return "0"


SOFTWARE_VERSION: Final = _installed()
"""The release that is installed."""
USER_AGENT: Final = f"millrace-python/{SOFTWARE_VERSION}"
