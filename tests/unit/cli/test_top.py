"""`millrace top`: rates of two looks, an order that does not jump, and a view of any size."""

from dataclasses import replace

import pytest
from rich.console import Console
from tests.fakes.looks import look

from millrace.cli.top.screen import Line, lines_of, screen
from millrace.cli.top.summary import summarize
from millrace.client import ClusterHealth

SIZES = [(120, 40), (100, 24), (80, 24), (60, 16), (40, 12), (20, 5), (10, 2)]


def test_rates_are_differences_over_the_time_between_two_looks() -> None:
    before = look(100, {"orders": 1_000}, fetched=500)
    now = look(102, {"orders": 5_000}, fetched=2_500)
    (topic,) = summarize(before, now).topics
    assert (topic.rates.records, topic.rates.appended_bytes, topic.rates.fetched_bytes) == (
        *(2_000, 20_000, 1_000),
    )
    leader, follower, _ = summarize(before, now).brokers
    assert (leader.rates.records, follower.rates.records) == (2_000, 0)


def test_without_an_earlier_look_no_rate_is_known() -> None:
    summary = summarize(None, look(1, {"orders": 10}))
    assert summary.topics[0].rates.appended_bytes is None
    assert summary.document()["topics"][0]["records_per_second"] is None


def test_a_broker_that_has_started_again_has_no_rate_until_the_next_look() -> None:
    before = look(1, {"orders": 5_000})
    (row,) = summarize(before, look(2, {"orders": 10})).topics
    assert row.rates.appended_bytes == 0  # Of the followers, which went on.
    leader = summarize(before, look(2, {"orders": 10})).brokers[0]
    assert leader.rates.appended_bytes is None


def test_the_end_of_a_partition_goes_on_counting_under_another_leader() -> None:
    before, now = look(1, {"orders": 100}), look(2, {"orders": 160}, dead=0)
    (row,) = summarize(before, now).topics
    assert row.rates.records == 60


def test_a_dead_broker_has_no_figures_and_is_named_on_top() -> None:
    before, now = look(1, {"orders": 100}), look(2, {"orders": 100}, dead=1)
    summary = summarize(before, now)
    dead = summary.brokers[1]
    assert (dead.state, dead.size_bytes, dead.rates.records) == ("fenced", None, None)
    assert summary.problems == [
        "down: broker 1",
        "1 partition under-replicated, not all replicas are in sync: orders-0",
    ]
    assert not summary.is_healthy
    assert any("start it" in line for line in summary.advice)


def test_a_partition_with_several_problems_is_named_with_the_worst_one() -> None:
    summary = summarize(None, look(2, {"lonely": 1, "orders": 1}, dead=1))
    assert summary.problems == [
        "down: broker 1",
        "1 partition offline, can neither be written nor read: lonely-0",
        "1 partition under-replicated, not all replicas are in sync: orders-0",
    ]
    assert {topic.name: topic.problem for topic in summary.topics} == {
        "lonely": "1 offline",
        "orders": "1 under-replicated",
    }


def test_topics_with_much_traffic_come_first_and_small_differences_move_nothing() -> None:
    before = look(0, {"a": 0, "b": 0, "c": 0})
    for rates in ({"a": 1_100, "b": 1_200, "c": 9_000}, {"a": 1_200, "b": 1_100, "c": 9_000}):
        assert [topic.name for topic in summarize(before, look(1, rates)).topics] == ["c", "a", "b"]
    names = summarize(before, look(1, {"a": 1, "b": 9_000, "c": 5}), by_name=True).topics
    assert [topic.name for topic in names] == ["a", "b", "c"]


def test_groups_that_are_far_behind_come_first() -> None:
    now = look(1, {"orders": 1}, lags={"billing": 3, "report": 90_000})
    groups = summarize(None, now).groups
    assert groups is not None
    assert [group.name for group in groups] == ["report", "billing"]


def test_what_is_unknown_of_groups_is_said() -> None:
    now = replace(look(1, {"orders": 1}), groups=None)
    assert summarize(None, now).document()["groups"] is None
    assert Line("groups: unknown, their coordinators do not answer", "bold") in lines_of(
        summarize(None, now)
    )


def test_a_lost_controller_is_a_problem() -> None:
    now = look(1, {"orders": 1})
    health: ClusterHealth = replace(now.health, has_controller=False)
    assert summarize(None, replace(now, health=health)).problems == [
        "no controller: nothing is elected or changed until a broker is one"
    ]


def rendered(width: int, height: int, *, dead: int | None = None) -> list[str]:
    """Return what a terminal of this size shows."""
    topics = {f"topic-with-a-name-{number}": number for number in range(50)} | {"lonely": 1}
    lags = {f"group-{number}": number for number in range(50)}
    summary = summarize(look(0, topics), look(1, topics, lags=lags, dead=dead))
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        text = screen(lines_of(summary, width, height - 2), Line("q quit"), height)
        console.print(text, end="")
    return captured.get().split("\n")


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("dead", [None, 1])
def test_the_view_fits_a_terminal_of_any_size(width: int, height: int, dead: int | None) -> None:
    lines = rendered(width, height, dead=dead)
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("q quit"[:width])


def test_what_is_wrong_stands_above_what_is_well() -> None:
    lines = rendered(100, 30, dead=1)
    assert lines[1:3] == [
        "down: broker 1",
        "1 partition offline, can neither be written nor read: lonely-0",
    ]
    assert any(line.startswith("     1  broker-1  fenced") for line in lines)


def test_a_table_says_how_many_rows_it_leaves_out() -> None:
    lines = rendered(100, 24)
    assert sum(line.startswith("... ") and line.endswith(" more") for line in lines) == 2
    assert any(line.startswith("GROUP") for line in lines)


def test_a_pipe_gets_every_row_and_column() -> None:
    topics = {f"topic-{number}": number for number in range(50)}
    lines = lines_of(summarize(None, look(1, topics)))
    assert sum(line.text.startswith("topic-") for line in lines) == 50
