"""Settings as frozen, keyword-only dataclasses with fields that describe themselves.

All settings of brokers, topics, producers, consumers, admins and Spark's options are declared in
this way. A class declares each one with `setting(default, meaning, ...)`: its bounds, its unit, its
other names and the meaning of -1 are data. So one parser checks every value, one generator writes
the documentation, and neither can forget a setting. A field whose type is such a class is a
section. A field with `constant` is no setting: only tests give it another value.

Values come from a file or a user: text, or values of TOML or Python. All problems are reported at
once, the first few in full. An unknown name is refused with the nearest known one, also by Kafka's
name. Messages repeat only the beginning of long names and values: an answer must not be much larger
than its request.

Inside, sizes are integer bytes and times integer milliseconds. People may write `64MiB` or `7d`,
and these mean the same everywhere, as SI and IEC have it: `64MB` is 64,000,000 bytes, and `64MiB`
is 67,108,864. `64m` is no size: it would be the one to some and the other to others.

Kubernetes' own spellings mean the same, too: `64Mi`, and of times `1h30m`.

| unit  | suffixes                                                         |
|-------|------------------------------------------------------------------|
| bytes | `B`, `KiB`, `MiB`, `GiB`, `TiB` (1024), `kB`, `MB`, `GB`, `TB` (1000) |
| ms    | `ms`, `s`, `min` or `m`, `h`, `d`                                |
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from functools import cache
from types import NoneType
from typing import Any, Final, TypeVar, cast, get_args, get_origin, get_type_hints

from millrace.core.errors import InvalidConfigError
from millrace.core.problems import problem_text, told, unknown_names

NO_LIMIT: Final = "no limit"

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

BATCH_INFLATED_BYTES_MAX: Final = 512 << 20
"""The largest inflated record batch that a broker can be set to accept: readers take it."""

_NUMBER_LENGTH_MAX: Final = 64
"""Characters of a number: more than any bound needs, and so few that Python converts it at once."""
_PARTS_MAX: Final = 5
"""Parts of a time, as `1h30m` has two."""
_PART: Final = "([0-9]+)(?:[.]([0-9]+))? *([A-Za-z]*)"

_T = TypeVar("_T")
_METADATA: Final = "setting"
_CONSTANT: Final = "constant"


class Unit(Enum):
    """The unit of a number, with the suffixes that people may write."""

    COUNT = ("", dict[str, int](), "")
    BYTES = (
        "bytes",
        {
            "B": 1,
            "KiB": 1 << 10,
            "MiB": 1 << 20,
            "GiB": 1 << 30,
            "TiB": 1 << 40,
            "kB": 10**3,
            "MB": 10**6,
            "GB": 10**9,
            "TB": 10**12,
        },
        "64MiB or 64Mi",
    )
    MILLISECONDS = (
        "ms",
        {"ms": 1, "s": 1000, "min": 60_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000},
        "90s or 1h30m",
    )

    def __init__(self, label: str, suffixes: dict[str, int], examples: str) -> None:
        self.label = label
        self.suffixes = suffixes
        self.examples = examples

    @property
    def spellings(self) -> dict[str, int]:
        """All suffixes that are read: those of Kubernetes as well."""
        of_kubernetes = {
            name[:-1]: factor for name, factor in self.suffixes.items() if name[-1] == "B"
        }
        return {**of_kubernetes, **self.suffixes} if self.label == "bytes" else self.suffixes

    @property
    def pattern(self) -> str:
        """The regular expression of a number of this unit that is not negative.

        `parse_number` and the API server of Kubernetes both go by it. There it stands in rules
        whose cost is bounded: it is short, and has no backslash. It cannot say that a part of a
        unit must be whole in the smallest one, as `1.5KiB` is and `1.3KiB` is not.
        """
        if not self.suffixes:
            return "[0-9]+"
        smallest = next(suffix for suffix, factor in self.suffixes.items() if factor == 1)
        larger = [suffix for suffix, factor in self.suffixes.items() if factor > 1]
        if smallest == "B":
            with_unit = f"({'|'.join(suffix.removesuffix('B') for suffix in larger)})B?"
        else:
            with_unit = f"({'|'.join(larger)})"
        part = f"[0-9]+(([.]0+)? *{smallest}|([.][0-9]+)? *{with_unit})"
        return f"[0-9]+|({part}){{1,{_PARTS_MAX}}}" if self.label == "ms" else f"[0-9]+|{part}"


class Visibility(StrEnum):
    """The users of a setting."""

    USER = "user"
    TUNING = "tuning"  # The default suits nearly all users.


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The properties of one setting besides its name, type and default."""

    meaning: str
    unit: Unit
    minimum: int
    maximum: int
    minus_one: str | None  # What -1 stands for; None: -1 is like any other number.
    choices: tuple[str, ...]  # The texts that it takes; none: any.
    parse: Callable[[Any], Any] | None  # From a value to a field's type without a rule here.
    allowed: str  # The values that `parse` takes, for people.
    name: str | None  # If it is not the field's.
    aliases: tuple[str, ...]  # Other names that mean the same.
    kafka: str | None  # Kafka's name, if it is another one.
    default_text: str | None  # The default for people, if it is not the field's.
    needs_restart: bool
    visibility: Visibility
    scope: object  # Where it may be given, for classes to which that matters.

    @property
    def documentation(self) -> str:
        """Its meaning, and Kafka's name."""
        return self.meaning + (f" Kafka's `{self.kafka}`." if self.kafka else "")


def setting(
    default: _T,
    meaning: str,
    *,
    unit: Unit = Unit.COUNT,
    minimum: int = 0,
    maximum: int = INT32_MAX,
    minus_one: str | None = None,
    choices: tuple[str, ...] = (),
    parse: Callable[[Any], _T] | None = None,
    allowed: str = "",
    name: str | None = None,
    aliases: tuple[str, ...] = (),
    kafka: str | None = None,
    default_text: str | None = None,
    needs_restart: bool = True,
    visibility: Visibility = Visibility.USER,
    scope: object = None,
    is_secret: bool = False,
) -> _T:
    """Declare a setting: a dataclass field with this default and description.

    The field's type decides how values are read: numbers, truth values, enumerations and
    texts with `choices` in any case, lists of texts. `X | None` takes None as well.

    Args:
        default: `MISSING` (from dataclasses) when there is none and the user must choose.
        meaning: what it does, and why this default; whole sentences in Markdown.
        minimum: of numbers, inclusive.
        maximum: of numbers, inclusive.
        minus_one: what -1 stands for, allowed besides the bounds.
        choices: the texts that are allowed.
        parse: makes the value of any other type; raises ValueError, which says what is allowed.
        allowed: the values that `parse` takes, for people.
        name: its whole name, if it is not the field's.
        aliases: other names that mean the same.
        kafka: Kafka's name, if it is another one.
        default_text: the default for people, if it says more than the value.
        needs_restart: whether a change waits for the next start.
        scope: where it may be given, for classes to which that matters.
        is_secret: it is not shown where all settings are.
    """
    description = Setting(
        meaning=meaning,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        minus_one=minus_one,
        choices=choices,
        parse=parse,
        allowed=allowed,
        name=name,
        aliases=aliases,
        kafka=kafka,
        default_text=default_text,
        needs_restart=needs_restart,
        visibility=visibility,
        scope=scope,
    )
    return field(default=default, metadata={_METADATA: description}, repr=not is_secret)


def section(cls: type[_T]) -> _T:
    """Declare a section: a field that holds settings of its own, all with defaults."""
    return field(default_factory=cls)


def constant(value: _T, *, compare: bool = True) -> _T:
    """Declare a field that is no setting: users cannot change it, and tests make it smaller.

    Args:
        value: of the field.
        compare: whether settings with another value are other settings.
    """
    return field(default=value, metadata={_CONSTANT: True}, compare=compare)


@dataclass(frozen=True, slots=True)
class NamedSetting:
    """One setting under its full name."""

    name: str
    attribute: str
    kind: type
    is_optional: bool  # It may be None.
    default: object  # MISSING when the user must choose.
    description: Setting


def settings_of(cls: type, *, separator: str = "_") -> Mapping[str, NamedSetting]:
    """Return the settings of one class by name, sections left out, in order of declaration.

    Args:
        separator: joins the words of a name: `.` gives Kafka's names of topic settings.
    """
    return _settings_of(cls, separator)


def constants_of(cls: type) -> frozenset[str]:
    """Return the names of the fields that users cannot set."""
    return frozenset(declared.name for declared in fields(cls) if _CONSTANT in declared.metadata)


def sections_of(cls: type) -> Mapping[str, type]:
    """Return the sections of a class of settings by name."""
    hints = _type_hints(cls)
    return {
        declared.name: hints[declared.name] for declared in fields(cls) if _is_section(declared)
    }


def named_values(settings: object, path: str = "") -> Iterator[tuple[str, NamedSetting, object]]:
    """Yield all settings, those of sections too, by full name, `storage.trash_delay_ms`.

    Each has its description and its value.
    """
    cls = type(settings)
    for named in settings_of(cls).values():
        yield f"{path}{named.name}", named, getattr(settings, named.attribute)
    for name in sections_of(cls):
        yield from named_values(getattr(settings, name), f"{path}{name}.")


def parse(cls: type[_T], values: Mapping[str, object], *, separator: str = "_") -> _T:
    """Build settings from names and values; all other settings keep their defaults.

    Args:
        values: text, or TOML's or Python's values, by name; a mapping for a section.
        separator: joins the words of a name.

    Raises:
        InvalidConfigError: lists the problems: unknown names with the nearest known one, values
            of a wrong type or out of bounds, and relations that do not hold.
    """
    problems: list[str] = []
    parsed = _parse_section(cls, values, "", separator, problems)
    if not problems:
        problems += _relations(parsed, "")
    if problems:
        raise InvalidConfigError(problem_text(problems))
    return parsed


def check(settings: object) -> None:
    """Check settings that were built in Python against their bounds and relations.

    Raises:
        InvalidConfigError: lists the problems.
    """
    problems = [*_out_of_bounds(settings), *_relations(settings, "")]
    if problems:
        raise InvalidConfigError(problem_text(problems))


def parse_number(text: str, unit: Unit = Unit.COUNT) -> int:
    """Read a whole number with an optional suffix of the unit: `-1`, `1048576`, `64MiB`, `1.5h`.

    A time may have several parts, as `1h30m`.

    Raises:
        ValueError: the text is no such number; says which texts are.
    """
    text = text.strip()
    digits = text.removeprefix("-")
    if len(text) <= _NUMBER_LENGTH_MAX and re.fullmatch(unit.pattern, digits):
        total, is_whole = 0, True
        for whole, fraction, suffix in re.findall(_PART, digits):
            # Exact: a float would round large sizes.
            scaled = int(whole + fraction) * unit.spellings.get(suffix, 1)
            number, rest = divmod(scaled, 10 ** len(fraction))
            total, is_whole = total + number, is_whole and not rest
        if is_whole:
            return -total if text.startswith("-") else total
    kind = f"{unit.label} as a whole number" if unit.label else "a whole number"
    suffixes = ", ".join(unit.suffixes)
    allowed = f", or with one of {suffixes}, as {unit.examples}" if suffixes else ""
    raise ValueError(f"must be {kind}{allowed}")


def to_text(value: object) -> str:
    """Return a value in the one form in which settings are stored, sent and compared."""
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def known_names(cls: type, *, separator: str = "_") -> Mapping[str, str]:
    """Return every name of the settings of a class, Kafka's included, and the name here."""
    settings = settings_of(cls, separator=separator)
    others = {
        other: name
        for name, named in settings.items()
        for other in (*named.description.aliases, named.description.kafka or name)
    }
    return {**others, **{name: name for name in settings}}


@cache
def _settings_of(cls: Any, separator: str) -> Mapping[str, NamedSetting]:
    """Cached, as a broker's start parses the settings of every topic."""
    hints = _type_hints(cls)
    named = {}
    for declared in fields(cls):
        if _METADATA in declared.metadata:
            description: Setting = declared.metadata[_METADATA]
            name = description.name or declared.name.replace("_", separator)
            hint = hints[declared.name]
            others = [kind for kind in get_args(hint) if kind is not NoneType]
            is_optional = NoneType in get_args(hint)
            hint = others[0] if is_optional else hint
            kind = get_origin(hint) or hint
            named[name] = NamedSetting(
                name, declared.name, kind, is_optional, declared.default, description
            )
    return named


@cache
def _type_hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_section(declared: Field[Any]) -> bool:
    return is_dataclass(declared.default_factory)


def _parse_section(
    cls: type[_T], values: Mapping[str, object], path: str, separator: str, problems: list[str]
) -> _T:
    known = settings_of(cls, separator=separator)
    sections = sections_of(cls)
    aliases = {alias: named for named in known.values() for alias in named.description.aliases}
    arguments: dict[str, object] = {}
    given: dict[str, str] = {}
    unknown: list[str] = []
    for name, value in values.items():
        named = known.get(name) or aliases.get(name)
        if named is not None:
            if named.attribute in given:
                other = given[named.attribute]
                problems.append(f"{path}{other}: {name} means the same: give one of them")
                continue
            given[named.attribute] = name
            try:
                arguments[named.attribute] = _parsed_value(named, value)
            except ValueError as error:
                problems.append(f"{path}{name} = {told(repr(value))}: {error}")
        elif name in sections:
            if not isinstance(value, Mapping):
                problems.append(
                    f"{path}{name} = {told(repr(value))}: is a section: write [{path}{name}]"
                )
        else:
            unknown.append(name)
    if unknown:
        names = {**known_names(cls, separator=separator), **{part: part for part in sections}}
        problems += unknown_names(unknown, names, path)
    for named in known.values():
        if named.default is MISSING and named.attribute not in given:
            problems.append(f"{path}{named.name}: is required. {named.description.meaning}")
    for name, inner in sections.items():
        inner_values = values.get(name, {})
        if isinstance(inner_values, Mapping):
            arguments[name] = _parse_section(
                inner, inner_values, f"{path}{name}.", separator, problems
            )
    if problems:
        # The caller never sees it: a missing setting must not hide problems of other sections.
        return cast(_T, None)
    return cls(**arguments)


def _parsed_value(named: NamedSetting, value: object) -> object:
    """Return the value as the field's type.

    Raises:
        ValueError: it is not allowed; says what is.
    """
    kind, choices = named.kind, _choices(named)
    parsed = value
    if value is None and named.is_optional:
        return None
    if named.description.parse is not None:
        return named.description.parse(value)
    if kind is int and isinstance(value, str):
        parsed = parse_number(value, named.description.unit)
    elif kind is float:
        parsed = _parse_fraction(value)
    elif kind is bool and isinstance(value, str):
        parsed = {"true": True, "false": False}.get(value.lower(), value)
    elif kind is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
            parsed = tuple(item.strip() for item in items)
    elif choices and isinstance(value, str):
        found = {choice.lower(): choice for choice in choices}.get(value.lower())
        parsed = value if found is None else kind(found)
    _check_value(named, parsed)
    return parsed


def _parse_fraction(value: object) -> object:
    """Return a number, or its text, as a float; any other value as it is."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return float(value) if type(value) is int else value


def _choices(named: NamedSetting) -> tuple[str, ...]:
    if isinstance(named.kind, type) and issubclass(named.kind, StrEnum):
        return tuple(named.kind)
    return named.description.choices


def _check_value(named: NamedSetting, value: object) -> None:
    """Refuse a value that is not of the field's type, or out of its bounds.

    Raises:
        ValueError: says what is allowed.
    """
    if value is None and named.is_optional:
        return
    if named.description.parse is not None:
        return  # Python code that built it is responsible for it.
    if named.kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, named.kind):
            raise ValueError(f"must be a {'whole ' if named.kind is int else ''}number")
        assert isinstance(value, int | float)
        description = named.description
        in_bounds = description.minimum <= value <= description.maximum
        if not in_bounds and not (value == -1 and description.minus_one):
            raise ValueError(f"must be {allowed_text(named)}")
        return
    choices = _choices(named)
    if not isinstance(value, named.kind) or (choices and value not in choices):
        raise ValueError(f"must be {allowed_text(named)}")
    if named.kind is tuple and not all(cast(tuple[str, ...], value)):
        raise ValueError("must not hold an empty text")
    if named.kind is tuple and not value:
        raise ValueError("must not be empty")


def _out_of_bounds(settings: object) -> Iterator[str]:
    for name, named, value in named_values(settings):
        try:
            _check_value(named, value)
        except ValueError as error:
            yield f"{name} = {value!r}: {error}"


def _relations(settings: object, path: str) -> Iterator[str]:
    """Yield the problems that `validate()` finds, if a class has it."""
    validate = getattr(settings, "validate", None)
    if validate is not None:
        yield from (f"{path}{problem}" for problem in validate())
    for name in sections_of(type(settings)):
        yield from _relations(getattr(settings, name), f"{path}{name}.")


def default_text(named: NamedSetting) -> str:
    """Return the default of a setting for people."""
    if named.default is MISSING:
        return "(required)"
    if named.description.default_text is not None:
        return named.description.default_text
    if named.default is None:
        return "(none)"
    text = to_text(named.default)
    if named.default == -1 and named.description.minus_one:
        return f"-1 ({named.description.minus_one})"
    if isinstance(named.default, int) and (
        easy := _for_people(named.default, named.description.unit)
    ):
        return f"{text} ({easy})"
    return text or "(empty)"


def allowed_text(named: NamedSetting, *, brief: bool = False) -> str:
    """Return the values that a setting takes; brief: without an upper bound that is never
    reached."""
    if named.description.allowed:
        return named.description.allowed
    if named.kind is bool:
        return "true or false"
    if named.kind is tuple:
        return "a list of texts"
    if choices := _choices(named):
        return " or ".join(choices)
    if named.kind not in (int, float):
        return "a text"
    description = named.description
    unit = f" {description.unit.label}" if description.unit.label else ""
    bounds = f"{description.minimum} to {description.maximum}{unit}"
    if brief and description.maximum == INT64_MAX:
        bounds = f"at least {description.minimum}{unit}"
    return bounds + (f", -1: {description.minus_one}" if description.minus_one else "")


def _for_people(number: int, unit: Unit) -> str:
    """Return the number with the largest suffix that leaves it whole, or an empty text."""
    for suffix, factor in sorted(unit.suffixes.items(), key=lambda item: -item[1]):
        if factor > 1 and number >= factor and number % factor == 0:
            return f"{number // factor}{suffix}"
    return ""
