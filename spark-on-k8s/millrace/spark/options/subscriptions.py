"""Which topics a query reads, and where it begins and ends: what the options say about it, parsed.

Pure: brokers are asked elsewhere.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from millrace.core.errors import InvalidTopicError
from millrace.core.json_objects import unique_members
from millrace.core.numbers import parse_whole_number
from millrace.core.settings import INT64_MAX
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.spark.errors import InvalidOptionError

End: TypeAlias = Literal["earliest", "latest"]

_RELATIVE: Final[Mapping[int, End]] = {-2: "earliest", -1: "latest"}


@dataclass(slots=True, frozen=True)
class AtOffset:
    """Exactly there."""

    offset: int


@dataclass(slots=True, frozen=True)
class AtTime:
    """The first record at or after a time, ms UTC."""

    timestamp_ms: int


At: TypeAlias = End | AtOffset | AtTime


def text_of(at: At) -> str:
    """Return a position as a text: the same for the same, however the option was written."""
    match at:
        case AtOffset():
            return f"offset {at.offset}"
        case AtTime():
            return f"time {at.timestamp_ms}"
    return at


@dataclass(slots=True, frozen=True)
class Topics:
    """Topics that are read with all their partitions."""

    names: tuple[str, ...]

    def within(self, namespace: str) -> "Topics":
        """Return them by their names as brokers tell them; those without a namespace are of this.

        Raises:
            InvalidTopicError: one is no topic's name.
        """
        names = (str(parse_topic_name(name, namespace)) for name in self.names)
        return Topics(tuple(dict.fromkeys(names)))

    def matches(self, name: str) -> bool:
        """Return whether a topic is one of them, by its name as brokers tell it."""
        return name in {str(parse_topic_name(name)) for name in self.names}

    def has(self, place: PartitionName) -> bool:
        """Return whether a partition is of them."""
        return self.matches(place[0])

    def __str__(self) -> str:
        return f"subscribe={','.join(self.names)}"


@dataclass(slots=True, frozen=True)
class TopicPattern:
    """All topics whose whole name matches, also those that come."""

    pattern: str

    def within(self, namespace: str) -> "TopicPattern":
        """Return the same: it matches names as brokers tell them, in whatever namespace."""
        return self

    def matches(self, name: str) -> bool:
        """Return whether a topic is one of them."""
        return re.fullmatch(self.pattern, name) is not None

    def has(self, place: PartitionName) -> bool:
        """Return whether a partition is of them."""
        return self.matches(place[0])

    def __str__(self) -> str:
        return f"subscribePattern={self.pattern}"


@dataclass(slots=True, frozen=True)
class Partitions:
    """Exactly these partitions."""

    places: frozenset[PartitionName]

    def within(self, namespace: str) -> "Partitions":
        """Return them with the names of topics as `Topics.within`."""
        return Partitions(frozenset(_place_within(place, namespace) for place in self.places))

    def matches(self, name: str) -> bool:
        """Return whether a topic has one of them."""
        return any(topic == name for topic, _ in self.places)

    def has(self, place: PartitionName) -> bool:
        """Return whether a partition is one of them."""
        return place in self.places

    def __str__(self) -> str:
        return f"assign={_listed(self.places)}"


Subscription: TypeAlias = Topics | TopicPattern | Partitions


@dataclass(slots=True, frozen=True)
class OffsetsOption:
    """A position for each partition: one for all, or one for each that is named."""

    everywhere: At | None = None
    places: Mapping[PartitionName, At] = field(default_factory=dict)

    def within(self, namespace: str) -> "OffsetsOption":
        """Return it with the names of topics as `Topics.within`.

        Raises:
            InvalidTopicError: one is no topic's name, or two are of the same topic.
        """
        places = {_place_within(place, namespace): at for place, at in self.places.items()}
        if len(places) < len(self.places):
            raise InvalidTopicError(
                "positions name a topic twice, once with its namespace and once without: name it "
                "once"
            )
        return OffsetsOption(self.everywhere, places)

    def of(self, option: str, places: frozenset[PartitionName]) -> dict[PartitionName, At]:
        """Return the position of each of these partitions.

        Raises:
            InvalidOptionError: the option names other partitions than these.
        """
        if self.everywhere is not None:
            return dict.fromkeys(places, self.everywhere)
        missing, unknown = places - self.places.keys(), self.places.keys() - places
        if missing or unknown:
            raise InvalidOptionError(
                f"{option} must name every partition that is read, once. Missing: "
                f"{_listed(missing)}; not read: {_listed(unknown)}"
            )
        return {place: self.places[place] for place in places}


def _place_within(place: PartitionName, namespace: str) -> PartitionName:
    topic, partition = place
    return str(parse_topic_name(topic, namespace)), partition


def topics(text: str) -> Topics:
    """Parse a list of topics, separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("name a topic at least")
    return Topics(names)


def pattern(text: str) -> TopicPattern:
    """Parse a regular expression of Python's."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from error
    return TopicPattern(text)


def partitions(text: str) -> Partitions:
    """Parse `{"clicks": [0, 1]}`."""
    places = frozenset(
        (topic, _natural(number)) for topic, numbers in _object(text) for number in _list(numbers)
    )
    if not places:
        raise ValueError("name a partition at least")
    return Partitions(places)


def offsets(text: str) -> OffsetsOption:
    """Parse `earliest`, `latest` or `{"clicks": {"0": 23, "1": -2}}`: -2 earliest, -1 latest."""
    lower = text.strip().lower()
    if lower in ("earliest", "latest"):
        return OffsetsOption("earliest" if lower == "earliest" else "latest")
    return OffsetsOption(places={place: _offset(value) for place, value in _by_place(text).items()})


def timestamps(text: str) -> OffsetsOption:
    """Parse `{"clicks": {"0": 1672531200000}}`, in ms UTC."""
    return OffsetsOption(
        places={place: AtTime(_natural(value)) for place, value in _by_place(text).items()}
    )


def timestamp(text: str) -> OffsetsOption:
    """Parse one time for all partitions: ms UTC, or ISO 8601, UTC unless it names a zone."""
    from millrace.client.times import parse_time_ms

    text = text.strip()
    # A number beyond the range is no time with a date: `_natural` says which range it has.
    number = parse_whole_number(text, 2 * INT64_MAX)
    if number is not None:
        return OffsetsOption(AtTime(_natural(number)))
    try:
        return OffsetsOption(AtTime(parse_time_ms(text)))
    except ValueError as error:
        raise ValueError("give ms since 1970 UTC, or a time such as 2013-07-04T12:00Z") from error


def _by_place(text: str) -> dict[PartitionName, Any]:
    found = {}
    for topic, by_partition in _object(text):
        if not isinstance(by_partition, dict):
            raise ValueError(f"give a number for each partition of topic {topic!r}")
        for partition, value in by_partition.items():
            number = parse_whole_number(partition, INT64_MAX)
            # Another form, such as "00", would be a second name of a partition.
            if number is None or str(number) != partition:
                raise ValueError(f"{partition!r} is no partition of topic {topic!r}: write 0, 1, …")
            found[topic, number] = value
    return found


def _object(text: str) -> list[tuple[str, Any]]:
    try:
        value = json.loads(text, object_pairs_hook=unique_members)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply: give a JSON object by topic") from error
    if not isinstance(value, dict):
        raise ValueError("it must be a JSON object by topic")
    return list(value.items())


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("give a list of partitions for each topic")
    return value


def _natural(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
        raise ValueError(f"{value!r} is no whole number from 0 to {INT64_MAX}")
    return value


def _offset(value: object) -> At:
    if type(value) is int and value in _RELATIVE:
        return _RELATIVE[value]
    return AtOffset(_natural(value))


def _listed(places: "set[PartitionName] | frozenset[PartitionName]") -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(places)) or "none"
