"""Each query asks for metrics and labels that exist, and each panel explains itself."""

import re
from collections import Counter

import pytest
from dashboards.board import BROKERS, Board, Kind, Panel, scoped
from dashboards.generate import BOARDS
from tests.unit.dashboards.queries import FAMILIES, METRIC, TARGET_LABELS, problems

GRAFANAS = {"__rate_interval", "__range"}
VARIABLE = re.compile(r"\$(\w+)")

QUERIES = [
    pytest.param(board, legend, query, id=f"{board.uid}: {panel.title}, {number}")
    for board in BOARDS
    for panel in board.panels()
    for number, (legend, query) in enumerate(panel.queries.items())
]
PANELS = [
    pytest.param(board, panel, id=f"{board.uid}: {panel.title}")
    for board in BOARDS
    for panel in board.panels()
]


@pytest.mark.parametrize(("board", "legend", "query"), QUERIES)
def test_a_query_asks_for_what_exists(board: Board, legend: str, query: str) -> None:
    assert [*problems(board.expr(query), legend)] == []


@pytest.mark.parametrize(("board", "legend", "query"), QUERIES)
def test_a_query_names_the_variables_of_its_board(board: Board, legend: str, query: str) -> None:
    variables = {variable.name for variable in (*board.variables, *board.optional)}
    named = set(VARIABLE.findall(board.expr(query)))
    assert named - variables - GRAFANAS == set()
    if METRIC.search(query):
        assert {variable.name for variable in board.variables} <= named


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_explains_itself(board: Board, panel: Panel) -> None:
    assert panel.title[0].isupper()
    assert panel.description.endswith(".")
    assert len(panel.description) > 20
    assert panel.queries
    assert panel.kind is not Kind.TABLE or len(panel.queries) == 1
    values = [value for value, _ in panel.steps]
    assert values == sorted(values)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_the_choices_of_a_variable_are_labels_that_exist(board: Board) -> None:
    for variable in (*board.variables, *board.optional):
        family = FAMILIES[variable.metric]
        assert variable.target_label in TARGET_LABELS | {*family.labels}
        choices = board.choices(variable)
        assert f"${variable.name}" not in choices
        assert choices.endswith(f", {variable.target_label})")


def test_no_title_and_no_uid_is_there_twice() -> None:
    assert len({board.uid for board in BOARDS}) == len({board.title for board in BOARDS})
    assert len({board.uid for board in BOARDS}) == len(BOARDS)
    for board in BOARDS:
        titles = Counter(panel.title for panel in board.panels())
        assert [title for title, count in titles.items() if count > 1] == []


@pytest.mark.parametrize(
    ("expr", "legend", "found"),
    [
        ("sum(millrace_partitions)", "", []),
        ("sum(millrace_partition)", "", ["no metric millrace_partition"]),
        ("rate(millrace_refusals[1m])", "", ["no metric millrace_refusals"]),
        ("rate(millrace_flush_seconds[1m])", "", ["no metric millrace_flush_seconds"]),
        ("rate(millrace_partitions_sum[1m])", "", ["no metric millrace_partitions_sum"]),
        ("sum by (le) (rate(millrace_flush_seconds_bucket[1m]))", "", []),
        ('millrace_partitions{topic="t"}', "", ["no label topic"]),
        ("sum by (instance, disk) (millrace_partitions)", "", ["no label disk"]),
        ("millrace_partitions", "{{instance}} {{group}}", ["no label group"]),
    ],
)
def test_what_does_not_exist_is_found(expr: str, legend: str, found: list[str]) -> None:
    assert [*problems(expr, legend)] == found


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("vector(0)", "vector(0)"),
        ("up", "up"),
        ("millrace_a", "millrace_a{M}"),
        ("rate(millrace_a_total[5m])", "rate(millrace_a_total{M}[5m])"),
        ('millrace_a{topic="t"}', 'millrace_a{M,topic="t"}'),
        (
            "sum by (millrace_cluster) (millrace_a) / process_open_fds",
            "sum by (millrace_cluster) (millrace_a{M}) / process_open_fds{M}",
        ),
    ],
)
def test_every_metric_of_a_query_gets_the_matchers_of_the_board(expr: str, expected: str) -> None:
    matchers = 'namespace=~"$namespace",millrace_cluster=~"$cluster",instance=~"$broker"'
    assert scoped(expr, BROKERS) == expected.replace("M", matchers)
