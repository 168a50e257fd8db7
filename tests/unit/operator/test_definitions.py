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


@pytest.mark.parametrize("unit", [Unit.BYTES, Unit.MILLISECONDS])
def test_each_spelling_that_operator_and_brokers_read_passes_the_api_server(unit: Unit) -> None:
    settings = topic_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    config = settings["properties"]["spec"]["properties"]["config"]["properties"]
    name = "segment.bytes" if unit is Unit.BYTES else "segment.ms"
    (rule,) = [
        each["rule"]
        for each in config[name]["x-kubernetes-validations"]
        if "matches" in each["rule"]
    ]
    (pattern,) = re.findall(r"matches\('(.+)'\)", rule)
    for suffix in ("", *unit.spellings):
        assert re.search(pattern, f"12{suffix}"), suffix
        assert parse_number(f"12{suffix}", unit)
    assert bool(re.search(pattern, "1h30m")) is (unit is Unit.MILLISECONDS)
    assert not re.search(pattern, "7 parsecs")
