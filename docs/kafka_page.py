"""The table of `docs/coming-from-kafka.md` that comes from the code: settings without effect."""

import re
from typing import Final

from millrace.broker.kafka.topic_settings import markdown_table

_TABLE: Final = re.compile(
    r"(<!-- settings without effect: made by make docs -->\n).*?"
    r"(<!-- end of settings without effect -->\n)",
    re.DOTALL,
)


def coming_from_kafka(text: str) -> str:
    """Return the page with a new table."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{markdown_table()}\n\n{found[2]}", text)
