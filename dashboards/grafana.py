"""Grafana's JSON of a board, by Grafana's own builders."""

import json
from collections.abc import Sequence
from typing import Any, Final

from dashboards.board import Board, Kind, Panel, Unit, Variable
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

TAG: Final = "millrace"
RUNBOOKS_URL: Final = "https://example.org/docs/runbooks"
"""Where the links to runbooks begin by default, as the project does not know where they are read.
The dashboards have a field for it, and the chart a value."""

_SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
_ALL: Final = dashboard.VariableOption(selected=True, text="All", value="$__all")
_COLUMNS: Final = 24
_NUMBER_HEIGHT: Final = 4
_GRAPH_HEIGHT: Final = 8

_Builder = timeseries.Panel | stat.Panel | table.Panel


def grafana_json(board: Board) -> str:
    """Return a board as Grafana imports it."""
    builder = (
        builders.Dashboard(f"Millrace: {board.title}")
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .link(
            builders.DashboardLink("Millrace")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(
            builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
    )
    for variable in (*board.variables, *board.optional):
        builder.with_variable(_variable(board, variable))
    builder.with_variable(
        builders.TextBoxVariable("runbooks").label("Runbooks").default_value(RUNBOOKS_URL)
    )
    number = 0
    for title, panels in board.rows.items():
        builder.with_row(builders.Row(title))
        for panel, width in zip(panels, _widths(panels), strict=True):
            number += 1
            builder.with_panel(_panel(board, panel, number, width))
    found: dict[str, Any] = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    for choice in found["templating"]["list"]:  # The builders give all kinds what one kind has.
        for name in ("auto", "auto_min", "auto_count"):
            del choice[name]
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _widths(panels: Sequence[Panel]) -> list[int]:
    """Return the columns of each panel of a row: numbers are narrow, two graphs stand abreast."""
    numbers = sum(panel.kind is Kind.NUMBER for panel in panels)
    is_narrow = numbers == len(panels)
    return [
        max(_COLUMNS // numbers, 3) if is_narrow else 8 if len(panels) % 3 == 0 else 12
        for _ in panels
    ]


def _variable(board: Board, variable: Variable) -> builders.QueryVariable:
    made = (
        builders.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(_SOURCE)
        .query(board.choices(variable))
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .current(_ALL)
    )
    return made.all_value(".*") if variable.may_be_missing else made


def _panel(board: Board, panel: Panel, number: int, width: int) -> _Builder:
    made: _Builder
    match panel.kind:
        case Kind.NUMBER:
            made = (
                stat.Panel()
                .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
                .color_mode(
                    common.BigValueColorMode.BACKGROUND
                    if panel.steps
                    else common.BigValueColorMode.NONE
                )
                .graph_mode(common.BigValueGraphMode.NONE)
            )
        case Kind.TABLE:
            made = table.Panel().with_transformation(_columns(panel))
        case Kind.GRAPH | Kind.STACKED:
            made = _graph(panel)
    made.id(number).title(panel.title).unit(panel.unit).datasource(_SOURCE)
    made.span(width).height(_NUMBER_HEIGHT if panel.kind is Kind.NUMBER else _GRAPH_HEIGHT)
    made.description(panel.description)
    if panel.runbook is not None:
        link = builders.DashboardLink("Runbook").url(f"${{runbooks}}/{panel.runbook}.md")
        made.links([link.type(dashboard.DashboardLinkType.LINK).target_blank(True)])
    if panel.steps:
        made.thresholds(_thresholds(panel))
    for letter, (legend, query) in zip("ABCDEFGH", panel.queries.items(), strict=False):
        target = prometheus.Dataquery().ref_id(letter).datasource(_SOURCE).expr(board.expr(query))
        if panel.kind is Kind.TABLE:
            made.with_target(target.instant().format(PromQueryFormat.TABLE))
        else:
            made.with_target(target.range().legend_format(legend))
    return made


def _columns(panel: Panel) -> dashboard.DataTransformerConfig:
    """Leave out the time, and a value that says nothing, as that of build information."""
    hidden = ["Time", "Value"] if panel.unit is Unit.NONE else ["Time"]
    return dashboard.DataTransformerConfig(
        id_val="organize", options={"excludeByName": dict.fromkeys(hidden, True)}
    )


def _graph(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
        .line_width(1)
        .show_points(common.VisibilityMode.NEVER)
    )
    if panel.kind is Kind.STACKED:
        stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL)
        made.stacking(stacking).fill_opacity(30)
    if panel.unit in (Unit.COUNT, Unit.SHARE):
        made.axis_soft_max(1)  # By itself Grafana draws nothing but zeros on a scale up to 100.
    if panel.unit is Unit.SHARE or panel.kind is Kind.STACKED:
        made.axis_soft_min(0)  # Else areas begin somewhere, and show no proportions.
    if panel.steps:
        style = common_builders.GraphThresholdsStyleConfig()
        made.thresholds_style(style.mode(common.GraphThresholdsStyleMode.DASHED))
    return made


def _thresholds(panel: Panel) -> builders.ThresholdsConfig:
    steps = [
        dashboard.Threshold(value=value if number else None, color=color)
        for number, (value, color) in enumerate(panel.steps)
    ]
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)
