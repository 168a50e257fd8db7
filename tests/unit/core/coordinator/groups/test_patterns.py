"""Which topics a regular expression of a subscription names."""

import pytest

from millrace.core.coordinator.groups.patterns import matching

NAMES = ["orders", "pay.1", "default", "team/orders", "team/pay.1", "b/a"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders", ["orders"]),
        (".*", NAMES),
        ("team/.*", ["team/orders", "team/pay.1"]),
        ("default/.*", ["orders", "pay.1", "default"]),
        ("default/(?:.*/orders|orders)", ["orders"]),
        ("default/(?:.*)", ["orders", "pay.1", "default"]),
        ("default/orders|team/orders", ["orders", "team/orders"]),
        ("default/none|orders", ["orders"]),
        ("(default/)?orders", ["orders"]),
        ("(", []),
        ("default/(", []),
    ],
)
def test_a_pattern_matches_whole_names_and_those_of_the_default_namespace_also_in_full(
    pattern: str, found: list[str]
) -> None:
    assert matching(pattern, NAMES) == found
