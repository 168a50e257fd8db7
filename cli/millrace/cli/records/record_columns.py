"""How records look in the text files that `consume` writes and `produce` reads."""

from typing import Final

RECORD_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""A JSON or CSV file with just these columns is taken for one that `consume` wrote: keys and values
become the bytes that they were."""
BASE64: Final = "base64:"
"""How a cell of such a CSV file begins whose bytes are no text, or begin with this word."""
