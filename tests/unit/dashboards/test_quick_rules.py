"""Quick rules differ from the real ones in their times alone."""

import re
from pathlib import Path

import pytest
import yaml
from dashboards.alerts import ALERTS, Alert
from dashboards.generate import RULES
from tests.watching.quick_rules import quick_expr, quick_rules, seconds_of

AGE = re.compile(r"(?:group_lag_seconds:max|age_seconds\)|timestamp_seconds\)) > (.+)")


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("0m", 0), ("15s", 15), ("5m", 300), ("6h", 21_600), ("1d", 86_400), ("1h30m", 5400)],
)
def test_a_duration_is_read(duration: str, seconds: int) -> None:
    assert seconds_of(duration) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "5y", "-5m", "1.5h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("expr", "quick"),
    [
        ("rate(a_total[5m]) > 5", "rate(a_total[5000ms]) > 5"),
        ("a:b:p99_5m > 0.5", "a:b:p99_5m > 0.5"),
        ("age > 30 * 60", "age > 30"),
        ("a unless a offset 15m", "a unless a offset 15000ms"),
        ("predict_linear(free[6h], 4 * 86400) < 0", "predict_linear(free[360000ms], 5760) < 0"),
        ("0 * sum by (a) (up) == 0", "0 * sum by (a) (up) == 0"),
        ("sum(last_over_time(a[1d]))", "sum(last_over_time(a[1440000ms]))"),
    ],
)
def test_times_are_divided_and_nothing_else(expr: str, quick: str) -> None:
    assert quick_expr(expr, 60) == quick


def test_every_alert_is_there_with_its_hold_divided(tmp_path: Path) -> None:
    document = yaml.safe_load(quick_rules(RULES, tmp_path, 60).read_text(encoding="utf-8"))
    rules = {rule.get("alert"): rule for group in document["groups"] for rule in group["rules"]}
    for alert in ALERTS:
        rule = rules[f"Millrace{alert.name}"]
        assert rule["for"] == f"{seconds_of(alert.hold) * 1000 // 60}ms"
        assert rule["labels"] == {"severity": str(alert.severity)}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_age_is_compared_with_a_time_that_can_be_divided(alert: Alert) -> None:
    for bound in AGE.findall(alert.expr):
        assert re.fullmatch(r"\d+ \* (60|3600|86400)", bound)
