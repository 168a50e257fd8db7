import sys
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from enum import StrEnum
from typing import Any, cast

import pytest

from millrace.core import settings, settings_table
from millrace.core.errors import InvalidConfigError
from millrace.core.problems import PROBLEMS_TOLD_MAX, nearest
from millrace.core.settings import Unit, constant, section, setting


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    low: int = setting(1, "The lower one.")
    high: int = setting(2, "The higher one.")

    def validate(self) -> Iterator[str]:
        if self.low > self.high:
            yield "low: must not be more than high"


@dataclass(frozen=True, kw_only=True)
class Outer:
    paths: tuple[str, ...] = setting(cast(Any, MISSING), "Where.")
    size_bytes: int = setting(
        4096, "How large.", unit=Unit.BYTES, minimum=10, maximum=1 << 40, minus_one="no limit"
    )
    wait_ms: int = setting(5, "How long.", unit=Unit.MILLISECONDS)
    colour: Colour = setting(Colour.RED, "Which.")
    is_on: bool = setting(False, "Whether.")
    inner: Inner = section(Inner)


def _even(value: object) -> int:
    if not isinstance(value, int) or value % 2:
        raise ValueError("must be even")
    return value


@dataclass(frozen=True, kw_only=True)
class Named:
    """What is named in other ways, and read by other rules."""

    fetch_bytes: int | None = setting(
        None, "How much.", unit=Unit.BYTES, name="fetchBytes", aliases=("kafka.fetch.max.bytes",)
    )
    pairs: int = setting(2, "How many.", parse=_even, allowed="an even number", kafka="num.pairs")
    codec: str = setting("none", "Which.", choices=("none", "LZ4"), default_text="none at all")
    pause_ms: int = constant(20)


def problems(values: dict[str, object]) -> list[str]:
    with pytest.raises(InvalidConfigError) as raised:
        settings.parse(Outer, values)
    return raised.value.message.splitlines()


def test_values_come_as_text_or_as_toml_gives_them() -> None:
    as_text = {
        "paths": "a, b",
        "size_bytes": "4096",
        "wait_ms": "7",
        "colour": "blue",
        "is_on": "True",
    }
    as_toml = {
        "paths": ["a", "b"],
        "size_bytes": 4096,
        "wait_ms": 7,
        "colour": "blue",
        "is_on": True,
    }
    parsed = settings.parse(Outer, as_text)
    assert parsed == settings.parse(Outer, as_toml)
    assert parsed == Outer(paths=("a", "b"), wait_ms=7, colour=Colour.BLUE, is_on=True)
    assert parsed.colour is Colour.BLUE


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("0", Unit.COUNT, 0),
        ("-1", Unit.COUNT, -1),
        (" 12 ", Unit.BYTES, 12),
        ("64MiB", Unit.BYTES, 64 << 20),
        ("64 MB", Unit.BYTES, 64_000_000),
        ("1.5GiB", Unit.BYTES, 3 << 29),
        ("9007199254740993B", Unit.BYTES, 2**53 + 1),
        ("7d", Unit.MILLISECONDS, 604_800_000),
        ("1.5s", Unit.MILLISECONDS, 1500),
        ("2min", Unit.MILLISECONDS, 120_000),
        ("2m", Unit.MILLISECONDS, 120_000),
        ("250ms", Unit.MILLISECONDS, 250),
    ],
)
def test_people_may_write_units(text: str, unit: Unit, number: int) -> None:
    assert settings.parse_number(text, unit) == number


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("64Mi", Unit.BYTES, 64 << 20),
        ("1.5Gi", Unit.BYTES, 3 << 29),
        ("10G", Unit.BYTES, 10**10),
        ("8k", Unit.BYTES, 8000),
        ("1h30m", Unit.MILLISECONDS, 5_400_000),
        ("1.5h20s", Unit.MILLISECONDS, 5_420_000),
        ("1 h30 m", Unit.MILLISECONDS, 5_400_000),
        ("1.0ms", Unit.MILLISECONDS, 1),
        ("2m", Unit.MILLISECONDS, 120_000),
    ],
)
def test_the_quantities_and_durations_of_kubernetes_are_read(
    text: str, unit: Unit, number: int
) -> None:
    assert settings.parse_number(text, unit) == number


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", Unit.COUNT),
        ("1.5", Unit.COUNT),
        ("0.5ms", Unit.MILLISECONDS),
        ("7d", Unit.BYTES),
        ("7D", Unit.MILLISECONDS),
        ("64mib", Unit.BYTES),
        ("64m", Unit.BYTES),
        ("", Unit.BYTES),
        ("1Gi2Mi", Unit.BYTES),
        ("1h30", Unit.MILLISECONDS),
        ("1h 30m", Unit.MILLISECONDS),
        ("1s1s1s1s1s1s", Unit.MILLISECONDS),
        ("1.5", Unit.BYTES),
        ("1.5B", Unit.BYTES),
        ("1.3KiB", Unit.BYTES),
        ("1" * 65, Unit.BYTES),
        ("1h2parsecs", Unit.MILLISECONDS),
        ("1e3", Unit.COUNT),
        ("٣", Unit.COUNT),
        ("--1", Unit.COUNT),
        ("1 2", Unit.COUNT),
    ],
)
def test_a_number_that_is_none_or_not_whole_is_refused(text: str, unit: Unit) -> None:
    with pytest.raises(ValueError, match="whole number"):
        settings.parse_number(text, unit)


def test_all_problems_are_reported_at_once() -> None:
    found = problems(
        {
            "size_byte": 1,
            "size_bytes": 9,
            "wait_ms": "7 parsecs",
            "colour": "green",
            "is_on": "maybe",
            "inner": {"low": -1, "lowe": 3},
        }
    )
    assert found == [
        "size_bytes = 9: must be 10 to 1099511627776 bytes, -1: no limit",
        "wait_ms = '7 parsecs': must be ms as a whole number, or with one of ms, s, min, m, h, d, "
        "as 90s or 1h30m",
        "colour = 'green': must be red or blue",
        "is_on = 'maybe': must be true or false",
        "size_byte: there is no such setting; did you mean 'size_bytes'?",
        "paths: is required. Where.",
        "inner.low = -1: must be 0 to 2147483647",
        "inner.lowe: there is no such setting; did you mean 'low'?",
    ]


def test_an_unknown_name_without_a_near_one_is_told_where_they_are() -> None:
    (found,) = problems({"paths": "a", "zzz": 1})
    assert found == "zzz: there is no such setting; docs/configuration.md lists all"


def test_many_problems_make_a_short_text_that_says_how_many_there_are() -> None:
    found = problems({f"unknown {number}": 1 for number in range(10_000)})
    assert found[-1] == "and 9991 more problems"  # `paths` is missing as well.
    assert len(found) == PROBLEMS_TOLD_MAX + 1


def test_what_a_stranger_wrote_is_repeated_only_in_part() -> None:
    found = problems({"paths": "a", "colour": "x" * 100_000, "n" * 100_000: 1})
    assert max(map(len, found)) < 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size_bytes", True),
        ("size_bytes", 4096.0),
        ("size_bytes", ["4096"]),
        ("size_bytes", -2),
        ("wait_ms", -1),
        ("colour", ["red"]),
        ("colour", 1),
        ("is_on", 1),
        ("paths", 1),
        ("paths", [1]),
        ("paths", []),
        ("paths", ""),
        ("paths", "a,,b"),
        ("inner", 3),
    ],
)
def test_a_value_of_a_wrong_type_or_out_of_bounds_is_named(name: str, value: object) -> None:
    (found,) = problems({"paths": "a"} | {name: value})
    assert found.startswith(f"{name} = {value!r}: ")


def test_minus_one_is_what_the_setting_says_it_is() -> None:
    assert settings.parse(Outer, {"paths": "a", "size_bytes": -1}).size_bytes == -1
    assert settings.parse(Outer, {"paths": "a", "size_bytes": "-1"}).size_bytes == -1


def test_relations_are_checked_in_every_section() -> None:
    assert problems({"paths": "a", "inner": {"low": 3}}) == [
        "inner.low: must not be more than high"
    ]


def test_settings_built_in_python_are_checked_the_same() -> None:
    settings.check(Outer(paths=("a",)))
    with pytest.raises(InvalidConfigError) as raised:
        settings.check(Outer(paths=(), size_bytes=3, inner=Inner(low=9)))
    assert raised.value.message.splitlines() == [
        "paths = (): must not be empty",
        "size_bytes = 3: must be 10 to 1099511627776 bytes, -1: no limit",
        "inner.low: must not be more than high",
    ]


def test_the_stored_form_of_a_value_reads_back_as_the_value() -> None:
    outer = Outer(paths=("a", "b"), colour=Colour.BLUE, is_on=True, size_bytes=-1)
    texts = {
        name: settings.to_text(getattr(outer, each.attribute))
        for name, each in settings.settings_of(Outer).items()
    }
    assert texts == {
        "paths": "a,b",
        "size_bytes": "-1",
        "wait_ms": "5",
        "colour": "blue",
        "is_on": "true",
    }
    assert settings.parse(Outer, texts) == outer


def test_the_table_says_default_bounds_and_meaning() -> None:
    table = settings_table.markdown_table(Outer, separator=".").splitlines()
    assert "| `paths` | (required) | a list of texts | restart | Where. |" in table
    assert (
        "| `size.bytes` | 4096 (4KiB) | 10 to 1099511627776 bytes, -1: no limit | restart "
        "| How large. |"
    ) in table
    assert "| `wait.ms` | 5 | 0 to 2147483647 ms | restart | How long. |" in table


def test_a_setting_has_other_names() -> None:
    assert settings.parse(Named, {"fetchBytes": "1KiB"}).fetch_bytes == 1024
    assert settings.parse(Named, {"kafka.fetch.max.bytes": 7}).fetch_bytes == 7
    with pytest.raises(InvalidConfigError, match=r"kafka\.fetch\.max\.bytes means the same"):
        settings.parse(Named, {"fetchBytes": 1, "kafka.fetch.max.bytes": 2})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("fetchbytes", "fetchBytes"), ("fetch.max.bytes", "fetchBytes"), ("num.pairs", "pairs")],
)
def test_a_name_of_kafka_s_leads_to_ours(name: str, meant: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"did you mean '{meant}'"):
        settings.parse(Named, {name: 1})


def test_a_setting_may_be_none_or_read_by_a_rule_of_its_own() -> None:
    assert settings.parse(Named, {"fetchBytes": None, "pairs": 4}) == Named(pairs=4)
    with pytest.raises(InvalidConfigError, match="pairs = 3: must be even"):
        settings.parse(Named, {"pairs": 3})
    with pytest.raises(InvalidConfigError, match="codec = None: must be none or LZ4"):
        settings.parse(Named, {"codec": None})


def test_choices_are_taken_in_any_case() -> None:
    assert settings.parse(Named, {"codec": "lz4"}).codec == "LZ4"
    assert settings.parse(Outer, {"paths": "a", "colour": "BLUE"}).colour is Colour.BLUE
    with pytest.raises(InvalidConfigError, match="codec = 'zip': must be none or LZ4"):
        settings.check(Named(codec="zip"))


def test_users_cannot_set_a_constant() -> None:
    with pytest.raises(InvalidConfigError, match="pause_ms: there is no such setting"):
        settings.parse(Named, {"pause_ms": 1})
    assert "pause_ms" not in settings_table.markdown_table(Named)
    assert settings.constants_of(Named) == {"pause_ms"}
    assert Named(pause_ms=1).pause_ms == 1


def test_the_table_says_other_names_and_other_defaults() -> None:
    assert settings_table.markdown_table(Named).splitlines()[2:] == [
        "| `fetchBytes` (`kafka.fetch.max.bytes`) | (none) | 0 to 2147483647 bytes | restart "
        "| How much. |",
        "| `pairs` | 2 | an even number | restart | How many. Kafka's `num.pairs`. |",
        "| `codec` | none at all | none or LZ4 | restart | Which. |",
    ]


@dataclass(frozen=True, kw_only=True)
class Parts:
    ratio: float = setting(0.5, "How much of it.", maximum=1)


def test_a_part_of_a_whole_is_a_number_between_its_bounds() -> None:
    for value, expected in (("0.25", 0.25), (1, 1.0), (0.75, 0.75), ("0", 0.0)):
        parsed = settings.parse(Parts, {"ratio": value})
        assert parsed.ratio == expected
        assert type(parsed.ratio) is float
    for wrong in ("1.01", -0.1, "half", True, None, "nan"):
        with pytest.raises(InvalidConfigError, match=r"ratio.*must be"):
            settings.parse(Parts, {"ratio": wrong})


def test_a_misspelt_name_of_many_topics_is_compared_with_the_known_ones_once() -> None:
    """That takes a tenth of a millisecond, and a request may have a thousand topics."""
    compared = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal compared
        compared += event == "call" and frame.f_code.co_name == "get_close_matches"

    sys.setprofile(count)
    try:
        found = {nearest("retention.mss", ["retention.ms", "x"]) for _ in range(100)}
    finally:
        sys.setprofile(None)
    assert found == {"retention.ms"}
    assert compared == 1
