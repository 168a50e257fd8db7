"""Each alert asks for metrics and labels that exist, and has its page."""

import re
from pathlib import Path

import pytest
from dashboards.alerts import ALERTS, RECORDS, Alert, Record
from dashboards.board import RUNBOOKS
from dashboards.generate import BOARDS
from tests.unit.dashboards.queries import problems

ROOT = Path(__file__).resolve().parents[3]
PAGES = {path.stem for path in (ROOT / RUNBOOKS).glob("*.md")}
RECORDED = re.compile(r"\b[a-z_]+:millrace_[a-z_]+:[a-z0-9_]+")
USED_LABEL = re.compile(r"\$labels\.(\w+)")


def inlined(expr: str) -> str:
    """Return an expression with the recorded ones written out."""
    known = {record.name: record.expr for record in RECORDS}
    return RECORDED.sub(lambda found: f"({known[found[0]]})", expr)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_asks_for_what_exists(alert: Alert) -> None:
    used = " ".join(f"{{{{{label}}}}}" for label in USED_LABEL.findall(alert.summary))
    assert [*problems(inlined(alert.expr), used)] == []
    assert re.fullmatch(r"\d+[mh]", alert.hold)
    assert alert.summary.endswith(".")


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_asks_for_what_exists(record: Record) -> None:
    assert [*problems(record.expr)] == []


def test_every_runbook_that_is_named_is_there_and_every_one_is_named() -> None:
    of_alerts = {alert.runbook for alert in ALERTS}
    of_panels = {panel.runbook for board in BOARDS for panel in board.panels()} - {None}
    assert of_panels <= of_alerts
    assert of_alerts == PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_runbook_names_its_alerts_and_says_what_to_do(name: str) -> None:
    text = (ROOT / RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    for alert in ALERTS:
        assert (f"`Millrace{alert.name}`" in text) or alert.runbook != name
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## What it means", "## What to look at", "## What to do"]


def test_no_name_is_there_twice() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    assert len({record.name for record in RECORDS}) == len(RECORDS)
