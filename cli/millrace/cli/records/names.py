"""Names of columns, of which each must be there once."""

from collections import Counter
from collections.abc import Iterable


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]
