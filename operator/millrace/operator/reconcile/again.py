"""When to look again: what a look at a Cluster, or at its Topics or Quotas, returns."""

from enum import Enum
from typing import Final, TypeAlias


class Gone(Enum):
    """There is nothing to look after any more."""

    GONE = "gone"


GONE: Final = Gone.GONE

Again: TypeAlias = float | Gone | None
"""In how many seconds; None: not before something changes; `GONE`: not before it is made again."""
