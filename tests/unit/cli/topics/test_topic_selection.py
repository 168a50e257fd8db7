import click
import pytest

from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.topics.topic_selection import matching

NAMES = ["a", "metrics/cpu", "metrics/disk", "other/metrics"]


def test_a_pattern_matches_whole_names_alone() -> None:
    assert matching(["metrics/.*"], NAMES) == ["metrics/cpu", "metrics/disk"]
    assert matching(["a|other/.*", "."], NAMES) == ["a", "other/metrics"]


def test_patterns_that_match_nothing_or_are_none_are_refused() -> None:
    with pytest.raises(Failure, match=r"no topic matches metrics or b") as refused:
        matching(["metrics", "b"], NAMES)
    assert refused.value.exit_code == ExitCode.NOT_FOUND
    with pytest.raises(click.UsageError, match="no regular expression: missing"):
        matching(["("], NAMES)
