"""Settings as frozen, keyword-only dataclasses whose fields know what they mean.

A class of settings declares each one with `setting(default, meaning, ...)`: its bounds, its unit
and what -1 stands for are data, so that one parser checks every value, one generator writes the
documentation, and neither can forget a setting. A field whose type is such a class is a section.

Values come as a file or a user gives them: text, or what TOML makes of it. All problems are
reported at once, the first few in full, and a name that does not exist is refused with the nearest
one that does. What a stranger wrote is repeated only so far: an answer must not be a multiple of
what was asked.

Inside, sizes are integer bytes and times integer milliseconds. People may write `64MiB` or `7d`:

| unit  | suffixes                                                         |
|-------|------------------------------------------------------------------|
| bytes | `B`, `KiB`, `MiB`, `GiB`, `TiB` (1024), `kB`, `MB`, `GB`, `TB` (1000) |
| ms    | `ms`, `s`, `min`, `h`, `d`                                       |
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum, StrEnum
from functools import cache
from typing import Any, Final, TypeVar, cast, get_origin, get_type_hints

from millrace.core.errors import InvalidConfigError

NO_LIMIT: Final = "no limit"

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

BATCH_INFLATED_BYTES_MAX: Final = 512 << 20
"""The largest record batch, once inflated, that a broker can be set to accept: readers take it."""

PROBLEMS_TOLD_MAX: Final = 10
"""Problems that one text tells; of more it tells how many there are."""
_HINTS_MAX: Final = 3
"""Unknown names for which the nearest known one is looked up, which is dear."""
_TEXT_TOLD_MAX: Final = 80
"""Characters of a name or a value that it repeats."""

_T = TypeVar("_T")
_METADATA: Final = "setting"


class Unit(Enum):
    """What a number counts, with the suffixes that people may write."""

    COUNT = ("", dict[str, int]())
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
    )
    MILLISECONDS = (
        "ms",
        {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000},
    )

    def __init__(self, label: str, suffixes: dict[str, int]) -> None:
        self.label = label
        self.suffixes = suffixes


class Visibility(StrEnum):
    """Whom a setting is for."""

    USER = "user"
    TUNING = "tuning"  # The default suits nearly everybody.


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is known of one setting besides its name, type and default."""

    meaning: str
    unit: Unit
    minimum: int
    maximum: int
    minus_one: str | None  # What -1 stands for; None: -1 is like any other number.
    needs_restart: bool
    visibility: Visibility


def setting(
    default: _T,
    meaning: str,
    *,
    unit: Unit = Unit.COUNT,
    minimum: int = 0,
    maximum: int = INT32_MAX,
    minus_one: str | None = None,
    needs_restart: bool = True,
    visibility: Visibility = Visibility.USER,
) -> _T:
    """Declare a setting: a dataclass field with this default and description.

    Args:
        default: `MISSING` (from dataclasses) when there is none and the user must choose.
        meaning: what it does, and why this default; whole sentences in Markdown.
        minimum: of numbers, inclusive.
        maximum: of numbers, inclusive.
        minus_one: what -1 stands for, allowed besides the bounds.
        needs_restart: whether a change waits for the next start.
    """
    description = Setting(
        meaning=meaning,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        minus_one=minus_one,
        needs_restart=needs_restart,
        visibility=visibility,
    )
    return field(default=default, metadata={_METADATA: description})


def section(cls: type[_T]) -> _T:
    """Declare a section: a field that holds settings of its own, all with defaults."""
    return field(default_factory=cls)


@dataclass(frozen=True, slots=True)
class NamedSetting:
    """One setting as users meet it: under its full name."""

    name: str
    attribute: str
    kind: type
    default: object  # MISSING when the user must choose.
    description: Setting


def settings_of(cls: type, *, separator: str = "_") -> Mapping[str, NamedSetting]:
    """Return the settings of one class by name, sections left out, in order of declaration.

    Args:
        separator: joins the words of a name: `.` gives Kafka's names of topic settings.
    """
    return _settings_of(cls, separator)


def sections_of(cls: type) -> Mapping[str, type]:
    """Return the sections of a class of settings by name."""
    hints = _type_hints(cls)
    return {each.name: hints[each.name] for each in fields(cls) if _is_section(each)}


def parse(cls: type[_T], values: Mapping[str, object], *, separator: str = "_") -> _T:
    """Build settings from names and values; what is not named keeps its default.

    Args:
        values: text or TOML values by name, a mapping for a section.
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
    """Hold settings that were built in Python against their bounds and relations.

    Raises:
        InvalidConfigError: lists the problems.
    """
    problems = [*_out_of_bounds(settings, ""), *_relations(settings, "")]
    if problems:
        raise InvalidConfigError(problem_text(problems))


def parse_number(text: str, unit: Unit = Unit.COUNT) -> int:
    """Read a whole number with an optional suffix of the unit: `-1`, `1048576`, `64MiB`, `1.5h`.

    Raises:
        ValueError: the text is no such number; says what would be.
    """
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    suffix = match[2] if match else ""
    if match and (not suffix or suffix in unit.suffixes):
        whole, _, fraction = match[1].partition(".")
        # Exact: a float would round large sizes.
        scaled = int(whole + fraction) * unit.suffixes.get(suffix, 1)
        number, rest = divmod(scaled, int("1" + "0" * len(fraction)))
        if not rest:
            return number
    kind = f"{unit.label} as a whole number" if unit.label else "a whole number"
    allowed = f", or with one of {', '.join(unit.suffixes)}" if unit.suffixes else ""
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


def unknown_names(names: Sequence[str], known: Iterable[str], path: str = "") -> list[str]:
    """Say of each name that there is no such setting, and of the first which are the nearest."""
    known = list(known)
    return [
        f"{path}{told(name)}: there is no such setting"
        + (_hint(name, known) if number < _HINTS_MAX else "")
        for number, name in enumerate(names)
    ]


def _hint(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.6) if len(name) <= _TEXT_TOLD_MAX else ()
    return f"; did you mean {near[0]!r}?" if near else "; docs/configuration.md lists all"


def told(text: str) -> str:
    """Return a text that somebody wrote as far as it is repeated to him."""
    return text if len(text) <= _TEXT_TOLD_MAX else f"{text[:_TEXT_TOLD_MAX]}..."


def problem_text(problems: Sequence[str]) -> str:
    """Return problems as one text, a line for each of the first ones."""
    more = len(problems) - PROBLEMS_TOLD_MAX
    lines = [*problems[:PROBLEMS_TOLD_MAX], *([f"and {more} more problems"] if more > 0 else [])]
    return "\n".join(lines)


def markdown_table(cls: type, *, separator: str = "_") -> str:
    """Return the settings of one class, sections left out, as a Markdown table."""
    lines = ["| name | default | allowed | change | meaning |", "|---|---|---|---|---|"]
    for name, each in settings_of(cls, separator=separator).items():
        change = "restart" if each.description.needs_restart else "at once"
        note = " *Tuning.*" if each.description.visibility is Visibility.TUNING else ""
        lines.append(
            f"| `{name}` | {_default_text(each)} | {_allowed_text(each, brief=True)} | {change} "
            f"| {each.description.meaning}{note} |"
        )
    return "\n".join(lines)


@cache
def _settings_of(cls: Any, separator: str) -> Mapping[str, NamedSetting]:
    """Cached, for a topic's settings are parsed for every topic when a broker starts."""
    hints = _type_hints(cls)
    named = {}
    for each in fields(cls):
        if _METADATA in each.metadata:
            name = each.name.replace("_", separator)
            kind = get_origin(hints[each.name]) or hints[each.name]
            description = each.metadata[_METADATA]
            named[name] = NamedSetting(name, each.name, kind, each.default, description)
    return named


@cache
def _type_hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _is_section(each: Field[Any]) -> bool:
    return is_dataclass(each.default_factory)


def _parse_section(
    cls: type[_T], values: Mapping[str, object], path: str, separator: str, problems: list[str]
) -> _T:
    known = settings_of(cls, separator=separator)
    sections = sections_of(cls)
    arguments: dict[str, object] = {}
    unknown: list[str] = []
    for name, value in values.items():
        if name in known:
            found = _parse_value(known[name], value)
            if isinstance(found, _Problem):
                problems.append(f"{path}{name} = {told(repr(value))}: {found.text}")
            else:
                arguments[known[name].attribute] = found
        elif name in sections:
            if not isinstance(value, Mapping):
                problems.append(
                    f"{path}{name} = {told(repr(value))}: is a section: write [{path}{name}]"
                )
        else:
            unknown.append(name)
    problems += unknown_names(unknown, [*known, *sections], path)
    for each in known.values():
        if each.default is MISSING and each.name not in values:
            problems.append(f"{path}{each.name}: is required. {each.description.meaning}")
    for name, inner in sections.items():
        inner_values = values.get(name, {})
        if isinstance(inner_values, Mapping):
            arguments[name] = _parse_section(
                inner, inner_values, f"{path}{name}.", separator, problems
            )
    if problems:
        # Never seen by the caller: what is missing must not hide the other sections' problems.
        return cast(_T, None)
    return cls(**arguments)


@dataclass(frozen=True, slots=True)
class _Problem:
    text: str


def _parse_value(each: NamedSetting, value: object) -> object:
    """Return the value as the field's type, or what is wrong with it."""
    kind = each.kind
    parsed: object = value
    if kind is int and isinstance(value, str):
        try:
            parsed = parse_number(value, each.description.unit)
        except ValueError as error:
            return _Problem(str(error))
    elif kind is bool and isinstance(value, str):
        parsed = {"true": True, "false": False}.get(value.lower(), value)
    elif kind is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, list | tuple) and all(isinstance(item, str) for item in items):
            parsed = tuple(item.strip() for item in items)
    elif issubclass(kind, StrEnum) and isinstance(value, str) and value in set(kind):
        parsed = kind(value)
    problem = _problem_of(each, parsed)
    return parsed if problem is None else _Problem(problem)


def _problem_of(each: NamedSetting, value: object) -> str | None:
    """Return what is wrong with a value, or None."""
    if each.kind is int:
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        description = each.description
        in_bounds = description.minimum <= value <= description.maximum
        if not in_bounds and not (value == -1 and description.minus_one):
            return f"must be {_allowed_text(each)}"
        return None
    if not isinstance(value, each.kind):
        return f"must be {_allowed_text(each)}"
    if each.kind is tuple and not all(cast(tuple[str, ...], value)):
        return "must not hold an empty text"
    if each.kind is tuple and not value:
        return "must not be empty"
    return None


def _out_of_bounds(settings: object, path: str) -> Iterator[str]:
    cls = type(settings)
    for each in settings_of(cls).values():
        value = getattr(settings, each.attribute)
        if (problem := _problem_of(each, value)) is not None:
            yield f"{path}{each.name} = {value!r}: {problem}"
    for name in sections_of(cls):
        yield from _out_of_bounds(getattr(settings, name), f"{path}{name}.")


def _relations(settings: object, path: str) -> Iterator[str]:
    """Yield what `validate()`, where a class has one, finds wrong between its settings."""
    validate = getattr(settings, "validate", None)
    if validate is not None:
        yield from (f"{path}{problem}" for problem in validate())
    for name in sections_of(type(settings)):
        yield from _relations(getattr(settings, name), f"{path}{name}.")


def _default_text(each: NamedSetting) -> str:
    if each.default is MISSING:
        return "(required)"
    text = to_text(each.default)
    if each.default == -1 and each.description.minus_one:
        return f"-1 ({each.description.minus_one})"
    if isinstance(each.default, int) and (easy := _for_people(each.default, each.description.unit)):
        return f"{text} ({easy})"
    return text or "(empty)"


def _allowed_text(each: NamedSetting, *, brief: bool = False) -> str:
    """Say which values a setting takes; briefly, without a bound that nobody comes near."""
    if each.kind is bool:
        return "true or false"
    if each.kind is tuple:
        return "a list of texts"
    if issubclass(each.kind, StrEnum):
        return " or ".join(each.kind)
    if each.kind is str:
        return "a text"
    description = each.description
    unit = f" {description.unit.label}" if description.unit.label else ""
    bounds = f"{description.minimum} to {description.maximum}{unit}"
    if brief and description.maximum == INT64_MAX:
        bounds = f"at least {description.minimum}{unit}"
    return bounds + (f", -1: {description.minus_one}" if description.minus_one else "")


def _for_people(number: int, unit: Unit) -> str:
    """Return the number with the largest suffix that leaves it whole, or nothing."""
    for suffix, factor in sorted(unit.suffixes.items(), key=lambda item: -item[1]):
        if factor > 1 and number >= factor and number % factor == 0:
            return f"{number // factor}{suffix}"
    return ""
