"""How records look in the text files that `consume` writes and `produce` reads."""

from typing import Final

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""If a JSON or CSV file has exactly these columns, `produce` assumes that `consume` wrote it, and
gives keys and values their original bytes."""
BASE64: Final = "base64:"
"""Prefix of a cell in such a CSV file: its bytes are no UTF-8, or begin with this prefix."""
