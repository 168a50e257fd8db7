"""Amounts as Kubernetes writes them: `10Gi`, `1.5T`, `500m`, `1e9`."""

from decimal import Decimal
from typing import Final

_SUFFIXES: Final = {
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    "m": Decimal("0.001"),
}


def amount(quantity: int | str) -> Decimal:
    """Return an amount as a number.

    Raises:
        decimal.InvalidOperation: the text is not an amount.
    """
    text = str(quantity)
    for suffix, unit in _SUFFIXES.items():
        if text.endswith(suffix):
            return Decimal(text.removesuffix(suffix)) * unit
    return Decimal(text)
