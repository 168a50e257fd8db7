"""The settings that brokers of the last release know: they refuse other names in `broker.toml`.

`make release` writes them.
"""

import json
from collections.abc import Iterator

from tests.releases.last import SETTINGS

from millrace.broker.config import FORMER_SECTIONS
from millrace.core.broker_config import BrokerConfig
from millrace.core.settings import sections_of, settings_of


def last_release() -> set[str]:
    """Return the full names of the settings of the last release, as `storage.trash_delay_ms`."""
    return set(json.loads(SETTINGS.read_text()))


def known_to_last_release() -> set[str]:
    """Likewise, with the former names: a release knows these beside the present ones."""
    names = last_release()
    return names | set(map(former_name, names))


def former_name(name: str) -> str:
    """Return the name that a setting had in 0.2.0."""
    for former, now in FORMER_SECTIONS.items():
        present = f"{'.'.join(now)}."
        if name.startswith(present):
            return f"{former}.{name.removeprefix(present)}"
    return name


def keep_for_the_next_release() -> None:
    """Write the settings that there are as those of the last release."""
    SETTINGS.write_text(json.dumps(sorted(names_of(BrokerConfig)), indent=1) + "\n")


def names_of(cls: type, path: str = "") -> Iterator[str]:
    """Yield the full names of the settings of a class and of its sections."""
    for name in settings_of(cls):
        yield path + name
    for name, section in sections_of(cls).items():
        yield from names_of(section, f"{path}{name}.")
