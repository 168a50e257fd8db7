"""Writes the parts of the documentation that come from the code: `make docs`.

A test fails when what is checked in is not what this would write.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.api_page import api
from docs.events_page import events
from docs.kafka_page import coming_from_kafka
from docs.metrics_page import metrics
from docs.protocol_page import protocol
from docs.safety_page import safety
from docs.security_page import security

from millrace.broker.config import ENVIRONMENT_PREFIX, IF_KNOWN_PREFIX
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._producer.settings import ProducerConfig
from millrace.client._settings import AdminConfig
from millrace.core import settings, settings_table
from millrace.core.broker_config import BrokerConfig
from millrace.core.metadata.topic_config import SEPARATOR, TopicConfig
from millrace.spark.options import sink_options
from millrace.spark.options import source_options as options
from millrace.spark.options.option_table import markdown_refused, markdown_table

CONFIGURATION: Final = Path(__file__).with_name("configuration.md")
METRICS: Final = Path(__file__).with_name("metrics.md")
API: Final = Path(__file__).with_name("api.md")
SPARK_OPTIONS: Final = Path(__file__).with_name("spark-options.md")
EVENTS: Final = Path(__file__).with_name("events.md")
SAFETY: Final = Path(__file__).with_name("safety.md")
SECURITY: Final = Path(__file__).with_name("security.md")
PROTOCOL: Final = Path(__file__).with_name("protocol.md")
COMING_FROM_KAFKA: Final = Path(__file__).with_name("coming-from-kafka.md")

_INTRODUCTION: Final = f"""\
# Configuration

This page is generated from the code by `make docs`.

A broker reads one TOML file: `millrace broker --config broker.toml`. The smallest one
names the data directories:

```toml
log_dirs = ["/var/lib/millrace/log"]

[coordination]
path = "/var/lib/millrace/coordination.sqlite"
```

On Kubernetes the metadata is stored in resources of the API server; `crds/` has their definitions:

```toml
[coordination]
kind = "kubernetes"

[coordination.kubernetes]
cluster_name = "orders"
```

Environment variables override the file: `{ENVIRONMENT_PREFIX}METRICS__PORT=7193` sets `port` of
`[metrics]`, and a list is separated by commas. Relative paths start at the working directory.
A variable that begins with `{IF_KNOWN_PREFIX}` does the same, but a broker that does not
know its setting ignores it: so brokers of several releases can be given the same variables.
`millrace up` needs no file: it takes the defaults below, with everything in one directory.
Variables count over its options, too.

Release 0.2.0 had `[listener]`, `[outside_listener]` and `[replica_listener]` for
`[listeners.clients]`, `[listeners.outside]` and `[listeners.replicas]`. A broker still takes the
former names, one of the two for each listener. It then opens no DRPC listener beside this one
unless that is configured, too: so an earlier file opens the ports that it opened before.

The broker reports all problems of a file at once. It refuses an unknown name, and suggests the
nearest known one. The column "change" says when a new value takes effect: at once, or after a
restart of the broker. For `[cluster]` the controller's values apply;
[clusters.md](clusters.md#changing-the-clusters-settings) says how to change them. Settings marked
*Tuning* rarely need another value.

## Units

Sizes are bytes and times milliseconds, as whole numbers, or as texts with a unit. The units are the
same for brokers, topics, clients, the resources on Kubernetes, and Spark.

| what | units |
|---|---|
| sizes | `B`; `KiB`, `MiB`, `GiB`, `TiB` by 1024; `kB`, `MB`, `GB`, `TB` by 1000 |
| times | `ms`, `s`, `min` or `m`, `h`, `d` |

So `64MiB` is 67,108,864 bytes and `64MB` is 64,000,000. The size `64m` is ambiguous, and refused.
The spellings of Kubernetes mean the same: `64Mi`, `64M`, and of times `1h30m`.

## Topics

The settings of topics have Kafka's names. They are set when a topic is created, or later:
`millrace topic alter orders --set retention.ms=7d`. A setting that is not set has the default.
"""

_CLIENT_CONFIGS: Final = {
    "`Producer` and `SyncProducer`": ProducerConfig,
    "`Consumer` and `SyncConsumer`": ConsumerConfig,
    "`Admin` and `SyncAdmin`": AdminConfig,
}

_BROKER: Final = """\
## Brokers
"""


_CLIENTS: Final = """\
## Clients

Producers, consumers and admins of the Python library take their settings by keyword:
`Producer("localhost:7092", linger_ms=20, buffer_memory="64MiB")`. They cannot change after the
client is created. Names are Kafka's with `_` instead of `.` and `-`, unless noted otherwise.
Spark's options are on [a page of their own](spark-options.md).
"""
_CLIENT_COLUMNS: Final = {
    title: show for title, show in settings_table.COLUMNS.items() if title != "change"
}


def configuration() -> str:
    """Return the page about configuration."""
    parts = [
        _INTRODUCTION,
        settings_table.markdown_table(TopicConfig, separator=SEPARATOR),
        "",
        _BROKER,
        *_sections(BrokerConfig, ""),
        _CLIENTS,
    ]
    for title, config in _CLIENT_CONFIGS.items():
        parts += [f"### {title}\n", settings_table.markdown_table(config, _CLIENT_COLUMNS) + "\n"]
    return "\n".join(parts).rstrip() + "\n"


def _sections(cls: type, name: str) -> Iterator[str]:
    yield f"### `[{name}]`\n" if name else "### At the top of the file\n"
    if name:
        assert cls.__doc__ is not None
        yield f"{cls.__doc__.splitlines()[0]}\n"
    if settings.settings_of(cls):
        yield settings_table.markdown_table(cls) + "\n"
    for inner, section in settings.sections_of(cls).items():
        yield from _sections(section, f"{name}.{inner}".lstrip("."))


_SPARK_OPTIONS: Final = """\
# Options of Spark's data source

This page is generated from the code by `make docs`. [spark.md](spark.md) shows how to use them.

Options have the names of Spark's Kafka source if it has the option; other accepted names are in
parentheses. Names are case-insensitive. Sizes and times may have a unit (`64MiB`, `30s`):
[configuration.md](configuration.md#units) lists the units. An unknown option is refused with the
nearest known name, and all errors are reported at once.

## Reading

"""

_SPARK_REFUSED: Final = """

These options of Kafka's source are refused:

"""

_SPARK_WRITING: Final = """

## Writing

"""

_SPARK_SINK_REFUSED: Final = """

These options of Kafka's sink are refused:

"""

_SPARK_SECRETS: Final = """

## Secrets

Options that hold secrets are refused, too: plans and logs show options.
"""


def spark_options() -> str:
    """Return the page about the options of Spark's data source."""
    return (
        _SPARK_OPTIONS
        + markdown_table(options.SourceOptions)
        + _SPARK_REFUSED
        + markdown_refused(options.REFUSED)
        + _SPARK_WRITING
        + markdown_table(sink_options.SinkOptions)
        + _SPARK_SINK_REFUSED
        + markdown_refused(sink_options.REFUSED)
        + _SPARK_SECRETS
    )


if __name__ == "__main__":
    CONFIGURATION.write_text(configuration(), encoding="utf-8")
    METRICS.write_text(metrics(), encoding="utf-8")
    API.write_text(api(), encoding="utf-8")
    EVENTS.write_text(events(), encoding="utf-8")
    SPARK_OPTIONS.write_text(spark_options(), encoding="utf-8")
    SAFETY.write_text(safety(SAFETY.read_text(encoding="utf-8")), encoding="utf-8")
    SECURITY.write_text(security(SECURITY.read_text(encoding="utf-8")), encoding="utf-8")
    PROTOCOL.write_text(protocol(PROTOCOL.read_text(encoding="utf-8")), encoding="utf-8")
    COMING_FROM_KAFKA.write_text(
        coming_from_kafka(COMING_FROM_KAFKA.read_text(encoding="utf-8")), encoding="utf-8"
    )
