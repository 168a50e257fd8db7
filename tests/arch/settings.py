"""The settings that brokers of the last release know: they refuse other names in `broker.toml`.

`make release` writes them.
"""

import json
from collections.abc import Iterator

from tests.releases.last import SETTINGS

from millrace.core.broker_config import BrokerConfig
from millrace.core.settings import sections_of, settings_of


def last_release() -> set[str]:
    """Return the full names of the settings of the last release, as `storage.trash_delay_ms`."""
    return set(json.loads(SETTINGS.read_text()))


def keep_for_the_next_release() -> None:
    """Write the settings that there are as those of the last release."""
    SETTINGS.write_text(json.dumps(sorted(names_of(BrokerConfig)), indent=1) + "\n")


def names_of(cls: type, path: str = "") -> Iterator[str]:
    """Yield the full names of the settings of a class and of its sections."""
    for name in settings_of(cls):
        yield path + name
    for name, section in sections_of(cls).items():
        yield from names_of(section, f"{path}{name}.")
