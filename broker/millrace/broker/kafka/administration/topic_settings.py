"""Settings of topics as clients of Kafka know them (K9).

Ours have Kafka's names and meaning, so nearly all of them pass as they are, both ways. What Kafka
has besides, and what means nothing here, is on a list: tools set it always, so it is accepted, has
no effect, and is not kept. It is shown with the one value that is true here. A value that asks for
something that would be missed is refused.

The settings that only Millrace has are shown as well, and can be set by their names.

Source: Kafka's `TopicConfig` and `LogConfig` (4.3) for names, types and defaults.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from millrace.core.errors import InvalidConfigError
from millrace.core.metadata.topic_config import SETTINGS, TopicConfig
from millrace.core.problems import told
from millrace.core.settings import INT32_MAX, NamedSetting, to_text
from millrace.proto.v1 import cluster_pb2 as pb

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
CLEANUP_POLICY: Final = "cleanup.policy"
_LOCAL: Final = frozenset({"local.retention.ms", "local.retention.bytes"})
_AS_RETENTION: Final = "-2"
"""Kafka's value of the two above for what `retention.*` says."""
_TEXT_CHARACTERS_MAX: Final = 4_096
_DIGITS_MAX: Final = 19
"""Of a number of 64 bits."""


class ConfigType(IntEnum):
    """Kafka's numbers of the types of settings."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Kafka's numbers of where a value comes from."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """A setting of Kafka's that means nothing here.

    Attributes:
        kind: of its values.
        value: that is true here.
        reason: why it means nothing, for people.
        is_fixed: whether a client may set no other value, as it would miss what that stands for.
    """

    kind: ConfigType
    value: str
    reason: str
    is_fixed: bool = False


_THROTTLED: Final = "moves of replicas go by the brokers' own bounds"
_LEVEL: Final = "a batch stays as its producer compressed it"
_REMOTE: Final = "the second tier is a disk of the broker: `media=tiered`"

WITHOUT_EFFECT: Final[Mapping[str, WithoutEffect]] = {
    "compression.type": WithoutEffect(ConfigType.STRING, "producer", _LEVEL),
    "compression.gzip.level": WithoutEffect(ConfigType.INT, "-1", _LEVEL),
    "compression.lz4.level": WithoutEffect(ConfigType.INT, "9", _LEVEL),
    "compression.zstd.level": WithoutEffect(ConfigType.INT, "3", _LEVEL),
    "file.delete.delay.ms": WithoutEffect(
        ConfigType.LONG, "60000", "of all topics of a broker: its `storage.trash_delay_ms`"
    ),
    "flush.messages": WithoutEffect(
        ConfigType.LONG, "9223372036854775807", "`durability` says when records are on disk"
    ),
    "flush.ms": WithoutEffect(
        ConfigType.LONG, "9223372036854775807", "`durability` says when records are on disk"
    ),
    "follower.replication.throttled.replicas": WithoutEffect(ConfigType.LIST, "", _THROTTLED),
    "leader.replication.throttled.replicas": WithoutEffect(ConfigType.LIST, "", _THROTTLED),
    "message.downconversion.enable": WithoutEffect(
        ConfigType.BOOLEAN, "false", "batches of old formats are neither taken nor sent"
    ),
    "message.format.version": WithoutEffect(
        ConfigType.STRING, "3.0-IV1", "there is one format of batches, Kafka's second"
    ),
    "preallocate": WithoutEffect(
        ConfigType.BOOLEAN, "false", "files of segments grow as the brokers find best"
    ),
    "remote.log.copy.disable": WithoutEffect(ConfigType.BOOLEAN, "false", _REMOTE),
    "remote.log.delete.on.disable": WithoutEffect(ConfigType.BOOLEAN, "false", _REMOTE),
    "remote.storage.enable": WithoutEffect(ConfigType.BOOLEAN, "false", _REMOTE, is_fixed=True),
    "segment.index.bytes": WithoutEffect(
        ConfigType.INT, "10485760", "indexes grow with their segment"
    ),
    "segment.jitter.ms": WithoutEffect(
        ConfigType.LONG, "0", "segments of many partitions do not end together anyway"
    ),
}
"""What is accepted and has no effect, by Kafka's name."""


def type_of(setting: NamedSetting) -> ConfigType:
    """Return Kafka's type of one of our settings."""
    if setting.name == CLEANUP_POLICY:
        return ConfigType.LIST
    if setting.kind is bool:
        return ConfigType.BOOLEAN
    if setting.kind is float:
        return ConfigType.DOUBLE
    if setting.kind is int:
        is_long = setting.description.maximum > INT32_MAX
        return ConfigType.LONG if is_long else ConfigType.INT
    return ConfigType.LIST if setting.kind is tuple else ConfigType.STRING


def is_list(name: str) -> bool:
    """Whether values of a setting can be added to, and taken away from."""
    if (ours := SETTINGS.get(name)) is not None:
        return type_of(ours) is ConfigType.LIST
    others = WITHOUT_EFFECT.get(name)
    return others is not None and others.kind is ConfigType.LIST


def to_ours(config: Iterable[tuple[str, str | None]]) -> dict[str, str | None]:
    """Return what a client sets, without what has no effect; None: the default shall count.

    Names that nobody knows are among it: who decides about the topic refuses them.

    Args:
        config: names and values; None as a value: the default shall count.

    Raises:
        InvalidConfigError: a value does not fit a setting that has no effect.
    """
    found: dict[str, str | None] = {}
    for name, value in config:
        if (others := WITHOUT_EFFECT.get(name)) is not None:
            if value is not None:
                _check(name, value, others)
        elif name in _LOCAL and value == _AS_RETENTION:
            found[name] = None
        else:
            found[name] = value
    return found


def _whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX


_FITS: Final[Mapping[ConfigType, Callable[[str], bool]]] = {
    ConfigType.BOOLEAN: lambda text: text.lower() in ("true", "false"),
    ConfigType.INT: _whole,
    ConfigType.LONG: _whole,
}


def _check(name: str, value: str, others: WithoutEffect) -> None:
    text = value.strip()
    fits = _FITS.get(others.kind)
    if len(text) > _TEXT_CHARACTERS_MAX or (fits is not None and not fits(text)):
        raise InvalidConfigError(
            f"{name}: {told(text)!r} is no value of the type {others.kind.name}"
        )
    if others.is_fixed and text.lower() != others.value:
        raise InvalidConfigError(
            f"{name}: only {others.value} is possible here: {others.reason.replace('`', '')}"
        )


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting as DescribeConfigs shows it.

    Attributes:
        name: Kafka's, or ours where Kafka has none.
        value: that counts.
        default: the value that counts where nobody sets one.
        source: where the value comes from.
        kind: of its values.
        documentation: its meaning.
        is_read_only: it cannot be set.
    """

    name: str
    value: str
    default: str
    source: ConfigSource
    kind: ConfigType
    documentation: str
    is_read_only: bool = False


def shown(topic: pb.TopicMetadata) -> list[ShownSetting]:
    """Return all settings of a topic, in the order of their names.

    Args:
        topic: as `GetMetadata` describes it.
    """
    factor = max((len(partition.replicas) for partition in topic.partitions), default=1)
    found = [_without_effect(name, others) for name, others in WITHOUT_EFFECT.items()]
    for entry in topic.config:
        if (setting := SETTINGS.get(entry.name)) is None:
            continue
        default = to_text(setting.default)
        value = entry.value
        if setting.name == MIN_INSYNC_REPLICAS:
            # Its -1 is ours alone: tools compare the number with that of the replicas.
            default = str(TopicConfig().effective_min_insync_replicas(factor))
            value = default if value == "-1" else value
        found.append(
            ShownSetting(
                name=entry.name,
                value=value,
                default=default,
                source=_source(entry.source, value, default),
                kind=type_of(setting),
                documentation=setting.description.documentation,
            )
        )
    return sorted(found, key=lambda setting: setting.name)


def _source(source: int, value: str, default: str) -> ConfigSource:
    if source == pb.CONFIG_SOURCE_TOPIC:
        return ConfigSource.TOPIC
    # Tools point at what is no default: at the cluster's value only if it differs.
    return ConfigSource.DEFAULT if value == default else ConfigSource.STATIC_BROKER


def _without_effect(name: str, others: WithoutEffect) -> ShownSetting:
    return ShownSetting(
        name=name,
        value=others.value,
        default=others.value,
        source=ConfigSource.DEFAULT,
        kind=others.kind,
        documentation=f"It has no effect: {others.reason}.",
    )


def markdown_table() -> str:
    """Return the table of Kafka's settings that have no effect, for the documentation."""
    rows = [
        f"| `{name}` | `{others.value}` | {others.reason} |"
        if others.value
        else f"| `{name}` | | {others.reason} |"
        for name, others in WITHOUT_EFFECT.items()
    ]
    return "\n".join(["| setting | shown as | because |", "|---|---|---|", *rows])
