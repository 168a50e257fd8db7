"""The tables of `docs/coming-from-kafka.md` that come from elsewhere: clients, settings."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.suites import features

from millrace.broker.kafka.administration import topic_settings

TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "clients": features.markdown_table,
    "settings without effect": topic_settings.markdown_table,
}


def coming_from_kafka(text: str) -> str:
    """Return the page with new tables."""
    for name, made in TABLES.items():
        begin, end = f"<!-- {name}: made by make docs -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}\n{made()}\n\n{end}{after}"
    return text
