"""The tables of `docs/coming-from-kafka.md` that come from elsewhere: clients, settings."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from tests.suites import features

from millrace.broker.kafka import topic_settings

TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "clients": features.markdown_table,
    "settings without effect": topic_settings.markdown_table,
}


def coming_from_kafka(text: str) -> str:
    """Return the page with new tables."""
    for name, made in TABLES.items():
        table = re.compile(
            rf"(<!-- {name}: made by make docs -->\n).*?(<!-- end of {name} -->\n)", re.DOTALL
        )
        lines = made()
        text = table.sub(lambda found, lines=lines: f"{found[1]}\n{lines}\n\n{found[2]}", text)
    return text
