"""Writes the parts of the documentation that come from the code: `make docs`.

A test fails when what is checked in is not what this would write.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millrace.broker.config import ENVIRONMENT_PREFIX, BrokerConfig
from millrace.core import settings
from millrace.core.metadata.topic_config import SEPARATOR, TopicConfig

CONFIGURATION: Final = Path(__file__).with_name("configuration.md")

_INTRODUCTION: Final = f"""\
# Configuration

This page is made from the code by `make docs`.

A broker reads one TOML file: `millrace broker --config broker.toml`. The smallest one says where
the data lies:

```toml
log_dirs = ["/var/lib/millrace/log"]

[coordination]
path = "/var/lib/millrace/coordination.sqlite"
```

On Kubernetes the metadata lies in resources of the API server, whose definitions are in `crds/`:

```toml
[coordination]
kind = "kubernetes"

[coordination.kubernetes]
cluster_name = "orders"
```

Environment variables override the file: `{ENVIRONMENT_PREFIX}LISTENER__PORT=7192` sets `port` of
`[listener]`, and a list is separated by commas. Relative paths start at the working directory.
`millrace up` needs no file: it takes the defaults below, with everything in one directory.

Sizes are bytes and times milliseconds, as whole numbers, or as texts with a unit: `"64MiB"`
(`B`, `KiB`, `MiB`, `GiB`, `TiB`, or `kB`, `MB`, `GB`, `TB` in thousands), `"7d"`
(`ms`, `s`, `min`, `h`, `d`). All problems of a file are reported at once, and a name that does not
exist is refused with the nearest one that does. The column "change" says when a new value counts:
at once, or when the broker is started again. Settings marked *Tuning* rarely need one.

## Topics

By Kafka's names, set when a topic is created or at any time later:
`millrace topic alter orders --set retention.ms=7d`. What is not set follows the default.
"""

_BROKER: Final = """\
## Brokers
"""


def configuration() -> str:
    """Return the page about configuration."""
    parts = [
        _INTRODUCTION,
        settings.markdown_table(TopicConfig, separator=SEPARATOR),
        "",
        _BROKER,
        *_sections(BrokerConfig, ""),
    ]
    return "\n".join(parts)


def _sections(cls: type, name: str) -> Iterator[str]:
    yield f"### `[{name}]`\n" if name else "### At the top of the file\n"
    if name:
        assert cls.__doc__ is not None
        yield f"{cls.__doc__.splitlines()[0]}\n"
    yield settings.markdown_table(cls) + "\n"
    for inner, section in settings.sections_of(cls).items():
        yield from _sections(section, f"{name}.{inner}".lstrip("."))


if __name__ == "__main__":
    CONFIGURATION.write_text(configuration(), encoding="utf-8")
