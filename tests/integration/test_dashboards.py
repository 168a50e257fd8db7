"""Every query of every panel returns data from a real Prometheus, and alerts tell of dead brokers.

Three brokers work under load; the operator's and Spark's pages have their own registries.
"""

import time
from pathlib import Path

import pytest
from dashboards.alerts import ALERTS
from dashboards.generate import RULES
from tests.watching import prometheus
from tests.watching.cluster import wait_until, watched_cluster
from tests.watching.panels import (
    dashboards,
    resolved_variables,
    without_data,
)
from tests.watching.quick_rules import quick_rules

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not prometheus.is_there(), reason=prometheus.WHY_NOT),
]

OF_A_DEAD_BROKER = {"MillraceBrokerDown", "MillraceUnderReplicated"}
REFUSED = "MillraceWritesRefused"


@pytest.mark.nightly
def test_every_panel_has_data_and_alerts_fire_for_dead_brokers_alone(tmp_path: Path) -> None:
    rules = quick_rules(RULES, tmp_path / "rules")
    with watched_cluster(tmp_path, [rules]) as watched:
        asked = watched.prometheus
        began = time.time()
        wait_until(asked.is_up, "all pages are scraped")
        wait_until(
            lambda: not without_data(asked, began),
            "every query returns data",
            said=lambda: "\n".join(map(str, without_data(asked, began))),
        )
        for board in dashboards():
            variables = resolved_variables(board, asked)
            assert all(variables.values()), (board["title"], variables)
        groups = asked.ask("rules")["groups"]
        rules_seen = [rule for group in groups for rule in group["rules"]]
        assert [rule for rule in rules_seen if rule["health"] != "ok"] == []
        assert sum(rule["type"] == "alerting" for rule in rules_seen) == len(ALERTS)
        assert asked.fired() == set()

        watched.kill_one()
        killed = time.time()
        wait_until(lambda: asked.fired() >= OF_A_DEAD_BROKER, "the alerts fire")
        wait_until(
            lambda: not without_data(asked, killed),
            "every query returns data again",
            said=lambda: "\n".join(map(str, without_data(asked, killed))),
        )
        assert asked.fired() == OF_A_DEAD_BROKER

        second = watched.kill_one()  # One of three replicas is left.
        wait_until(lambda: REFUSED in asked.fired(), "the page of refused writes fires")
        second.start()
        wait_until(
            lambda: not asked.values(f'ALERTS{{alertname="{REFUSED}",alertstate="firing"}}'),
            "the alert ends once the broker is back",
        )
