"""What an option is, and how its text becomes a value. The options themselves: `options`."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any, Final, TypeVar

from millrace.core.addresses import parse_addresses
from millrace.core.errors import InvalidTopicError
from millrace.core.settings import INT64_MAX
from millrace.core.topics import DEFAULT_NAMESPACE, parse_topic_name

_T = TypeVar("_T")
METADATA: Final = "option"


class Use(Flag):
    """What kind of query an option is for."""

    BATCH = auto()
    STREAM = auto()
    READ = BATCH | STREAM


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of one option."""

    name: str
    parse: Callable[[str], Any]
    meaning: str
    use: Use
    aliases: tuple[str, ...]
    default: str


def option(
    name: str,
    parse: Callable[[str], _T],
    value: object,
    meaning: str,
    *,
    use: Use = Use.READ,
    aliases: tuple[str, ...] = (),
    default: str | None = None,
) -> Any:
    """Declare an option: a field with this default, and what is known of it."""
    shown = default if default is not None else "" if value is None else str(value).lower()
    return field(
        default=value,
        metadata={METADATA: Option(name, parse, meaning, use, aliases, shown)},
    )


def brokers(text: str) -> str:
    parse_addresses(text)
    return text


def namespace(text: str) -> str:
    try:
        return parse_topic_name("topic", text).namespace
    except InvalidTopicError as error:
        raise ValueError(
            "it is a Kubernetes namespace: lower case letters, digits and hyphens"
        ) from error


def namespace_option() -> Any:
    """Declare the option that readers and writers share."""
    return option(
        "namespace", namespace, DEFAULT_NAMESPACE,
        "Of topics that are named without one, wherever options name topics. Not in Kafka.",
        default="`MILLRACE_NAMESPACE` of the driver, else default",
    )  # fmt: skip


def yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


_UNITS: Final = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_SIZES: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def number(minimum: int = 1, maximum: int = INT64_MAX) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text.strip()) or not minimum <= int(text) <= maximum:
            raise ValueError(f"it is a whole number from {minimum} to {maximum}")
        return int(text)

    return parse


def duration(maximum_ms: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h|d)?", text.strip().lower())
        milliseconds = -1 if found is None else int(found[1]) * _UNITS[found[2] or "ms"]
        if not 0 <= milliseconds <= maximum_ms:
            raise ValueError(f"it is a time such as 500ms, 30s or 15m, up to {maximum_ms} ms")
        return milliseconds

    return parse


def size(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        found = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
        length = -1 if found is None else int(found[1]) * _SIZES[found[2]]
        if not minimum <= length <= maximum:
            raise ValueError(f"it is a size such as 64m, from {minimum} to {maximum} bytes")
        return length

    return parse


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"choose {' or '.join(choices)}")
        return text.lower()

    return parse
