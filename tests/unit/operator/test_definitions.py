"""The definitions that the API server takes: what it would drop or change is not in them."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.core.settings import Unit, parse_number
from millrace.operator.model.definitions import (
    cluster_definition,
    quota_definition,
    topic_definition,
)


def empty_lists(part: Any, path: str = "") -> Iterator[str]:
    """Yield where a schema has an empty list."""
    if part == []:
        yield path
    elif isinstance(part, dict):
        for name, inner in part.items():
            yield from empty_lists(inner, f"{path}.{name}")


@pytest.mark.parametrize("definition", [cluster_definition, quota_definition, topic_definition])
def test_a_definition_has_no_empty_list_which_a_later_apply_would_conflict_with(
    definition: Any,
) -> None:
    assert list(empty_lists(definition())) == []


def test_a_cluster_gives_the_names_of_its_metrics_pages_but_not_where_they_listen() -> None:
    schema = cluster_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    config = schema["properties"]["spec"]["properties"]["config"]["properties"]
    assert {*config["metrics"]["properties"]} == {"names", "topics_max"}


def pattern_of(setting: str) -> str:
    """Return the expression by which the API server judges a text of a topic's setting."""
    settings = topic_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    config = settings["properties"]["spec"]["properties"]["config"]["properties"]
    rules = [validation["rule"] for validation in config[setting]["x-kubernetes-validations"]]
    (rule,) = [rule for rule in rules if "matches" in rule]
    (pattern,) = re.findall(r"matches\('(.+)'\)", rule)
    found: str = pattern
    return found


NUMBERS = ("12", "0", "1.5", "1.0", ".5", "1.", "", "1e3", "+1", "\u0663", "1,5", "0x1", "-2")
SUFFIXES = (*Unit.BYTES.spellings, *Unit.MILLISECONDS.spellings, "parsecs", "kib", "D", "Mib", "bB")
SEVERAL = (
    "1h30m",
    "1h30m5s",
    "1.5h20s",
    "1 h30 m",
    "1h 30m",
    "1h30",
    "30m1h",
    "1s1s1s1s1s",
    "1s1s1s1s1s1s",
    "1h2parsecs",
    "1h1.5ms",
    "1Gi2Mi",
    "1.5 GiB",
    "1 B",
    "1  d",
)


@pytest.mark.parametrize(
    ("setting", "unit"), [("segment.bytes", Unit.BYTES), ("segment.ms", Unit.MILLISECONDS)]
)
def test_the_api_server_takes_the_spellings_that_brokers_read_and_no_others(
    setting: str, unit: Unit
) -> None:
    pattern = pattern_of(setting)
    texts = [*SEVERAL, *(number + suffix for number in NUMBERS for suffix in ("", *SUFFIXES))]
    for text in texts:
        try:
            is_read = parse_number(text, unit) >= 0
        except ValueError:
            is_read = False
        assert bool(re.search(pattern, text)) is is_read, text


def test_only_an_operator_knows_whether_a_part_of_a_unit_is_whole_in_the_smallest_one() -> None:
    assert re.search(pattern_of("segment.bytes"), "1.3KiB")
    with pytest.raises(ValueError, match="as a whole number"):
        parse_number("1.3KiB", Unit.BYTES)
