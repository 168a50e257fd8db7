"""Objects of JSON with a name twice."""

import json

import pytest

from millrace.core.json_objects import unique_members


def test_an_object_with_a_name_twice_is_refused_at_any_depth() -> None:
    assert json.loads('{"a": {"a": 1}}', object_pairs_hook=unique_members) == {"a": {"a": 1}}
    with pytest.raises(ValueError, match="an object has the name 'b', 'a' twice"):
        json.loads('[{"b": {"b": 1, "a": 2, "b": 3, "a": 4}}]', object_pairs_hook=unique_members)
