"""Each alert fires for what it is about, no sooner than it should, and says what is wrong.

By Prometheus's own tests of rules (`promtool test rules`), on series that are made up.
"""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards.alerts import ALERTS, Alert
from dashboards.generate import RULES
from tests.watching import prometheus
from tests.watching.causes import STAGES

pytestmark = pytest.mark.skipif(not prometheus.is_there(), reason=prometheus.WHY_NOT)

CLUSTER = {"namespace": "shop", "millrace_cluster": "logs"}
BROKER = {**CLUSTER, "instance": "logs-b-0"}
OTHER_BROKER = {**CLUSTER, "instance": "logs-b-1"}
LOG_DIR = {**BROKER, "log_dir": "/data/log", "media": "ssd"}
OF_OPERATOR = {"namespace": "shop", "name": "logs", "instance": "operator"}
LISTENER = {**BROKER, "listener": "clients"}
ACCESS_FILE = {**BROKER, "file": "rules_file"}
HDD = {**BROKER, "log_dir": "/data/hdd"}
GROUP = {**CLUSTER, "group": "billing", "topic": "orders"}
OF_CLUSTER = "of cluster shop/logs"
GIB = 1 << 30
HOUR = 3600
DAY = 24 * HOUR
HEALTHY = 24 * 60
"""Minutes for which series stay as they should be."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What an alert is about.

    Attributes:
        series: their values a minute, as promtool writes them: such that it should fire, and where
            all is well; one text: in either case; empty: without this one.
        minutes: at which it does not fire yet, and at which it fires.
        labels: of the alert, without its severity.
        summary: what it says.
    """

    series: dict[str, str | tuple[str, str]]
    minutes: tuple[int, int]
    labels: dict[str, str] = field(default_factory=lambda: CLUSTER)
    summary: str


def series(name: str, /, **labels: str) -> str:
    """Return a series as promtool writes it."""
    matchers = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{matchers}}}"


def gauge(name: str, labels: dict[str, str], bad: float, good: float = 0) -> dict[str, Any]:
    """Return the series of a case with one gauge."""
    one = series(name, **labels)
    return {"series": {one: (f"{bad}x{HEALTHY}", f"{good}x{HEALTHY}")}}


LEFT = series("millrace_certificate_seconds", **LISTENER)
LIFETIME = series("millrace_certificate_lifetime_seconds", **LISTENER)

CASES: dict[str, Case] = {
    "NoController": Case(
        series={
            series("millrace_controller_session", **BROKER): ("1 0x100", "1 0 1x100"),
            series("up", **BROKER): "1x100",
            series("millrace_controller_active", **BROKER): ("", "0x100"),
        },
        minutes=(2, 4),
        summary=f"Controllers {OF_CLUSTER}: 0 instead of one.",
    ),
    "PartitionsOffline": Case(
        **gauge("millrace_offline_partitions", BROKER, 3),
        minutes=(1, 2),
        summary=f"Partitions {OF_CLUSTER} that can neither be written nor read: 3.",
    ),
    "WritesRefused": Case(
        **gauge("millrace_under_min_isr_partitions", BROKER, 2),
        minutes=(1, 2),
        summary=f"Partitions {OF_CLUSTER} that refuse writes with acks=all: 2.",
    ),
    "RecordsLost": Case(
        series={
            series("millrace_unclean_leader_elections_total", **BROKER): ("0x10 1x100", "0x110"),
        },
        minutes=(9, 13),
        summary=f"Unclean elections {OF_CLUSTER} may have lost acknowledged records.",
    ),
    "DiskFull": Case(
        series={
            series("millrace_log_dir_free_bytes", **LOG_DIR): (f"{4 * GIB}x100", f"{6 * GIB}x100"),
            series("millrace_log_dir_size_bytes", **LOG_DIR): f"{100 * GIB}x100",
        },
        minutes=(4, 5),
        labels=LOG_DIR,
        summary="/data/log on logs-b-0 has 4% left.",
    ),
    "BrokerDown": Case(
        **gauge("millrace_fenced_brokers", BROKER, 1),
        minutes=(9, 10),
        summary=f"Registered brokers {OF_CLUSTER} that are down: 1.",
    ),
    "UnderReplicated": Case(
        **gauge("millrace_under_replicated_partitions", BROKER, 8),
        minutes=(14, 15),
        summary=f"Partitions {OF_CLUSTER} that lack an in-sync replica: 8.",
    ),
    "LogDirectoryOffline": Case(
        **gauge("millrace_offline_log_dirs", BROKER, 1),
        minutes=(0, 1),
        labels=BROKER,
        summary="A disk on logs-b-0 failed.",
    ),
    "ReplicasOffline": Case(
        **gauge("millrace_offline_replicas", BROKER, 5),
        minutes=(14, 15),
        labels=BROKER,
        summary="Damaged replicas on logs-b-0 that were not fetched again: 5.",
    ),
    "ReplicasHalted": Case(
        series={
            series("millrace_halted_replicas", **BROKER): ("1x100", "0x100"),
            series("millrace_incomplete_replicas", **BROKER): "0x100",
        },
        minutes=(4, 5),
        labels=BROKER,
        summary="Replicas on logs-b-0 that stopped so as not to lose records: 1.",
    ),
    "DiskFillsUp": Case(
        series={
            # A GiB less each ten minutes.
            series("millrace_log_dir_free_bytes", **LOG_DIR): (
                f"{39 * GIB}-{GIB // 10}x180",
                f"{39 * GIB}x180",
            ),
            series("millrace_log_dir_size_bytes", **LOG_DIR): f"{100 * GIB}x180",
        },
        minutes=(59, 70),
        labels=LOG_DIR,
        summary="/data/log on logs-b-0 will be full within four days.",
    ),
    "DiskSlow": Case(
        **gauge("millrace_reluctance", {**BROKER, "reason": "slow disk"}, 1),
        minutes=(9, 10),
        labels=BROKER,
        summary="A disk on logs-b-0 is slow: others lead its partitions.",
    ),
    "EventLoopSlow": Case(
        series={
            series("millrace_loop_lag_seconds_bucket", **BROKER, le="0.5"): ("0x100", "0+60x100"),
            series("millrace_loop_lag_seconds_bucket", **BROKER, le="2"): "0+60x100",
            series("millrace_loop_lag_seconds_bucket", **BROKER, le="+Inf"): "0+60x100",
        },
        minutes=(10, 11),
        labels=BROKER,
        summary="The event loop on logs-b-0 is late by 1.985s.",
    ),
    "CleaningRefused": Case(
        **gauge("millrace_cleaner_uncleanable_partitions", {**BROKER, "error": "STORAGE_FULL"}, 2),
        minutes=(59, 60),
        labels={**BROKER, "error": "STORAGE_FULL"},
        summary="Compacted logs on logs-b-0 that cannot be cleaned: 2 (STORAGE_FULL).",
    ),
    "TierMovesRefused": Case(
        **gauge("millrace_tier_refused_partitions", {**HDD, "error": "STORAGE_FULL"}, 2),
        minutes=(59, 60),
        labels={**HDD, "error": "STORAGE_FULL"},
        summary="Tiered logs on logs-b-0 whose segments cannot move to /data/hdd or back: 2 "
        "(STORAGE_FULL).",
    ),
    "HangingTransaction": Case(
        series={
            series("millrace_partition_transaction_open_seconds_max", **BROKER): (
                "0+60x100",
                "1150x100",
            ),
            series("millrace_transaction_timeout_max_seconds", **BROKER): "900x300",
            series("millrace_transactions_shared_open_seconds_max", **OTHER_BROKER): "600x100",
        },
        minutes=(25, 26),
        labels=BROKER,
        summary="Readers of committed records wait on logs-b-0 for a transaction that nobody ends.",
    ),
    "MarkersOwed": Case(
        series={
            series("millrace_transactions_owed_seconds_max", **BROKER): ("0+60x100", "280x100"),
        },
        minutes=(10, 11),
        labels=BROKER,
        summary="The end of a transaction that is coordinated on logs-b-0 could not be written "
        "for 11m 0s.",
    ),
    "SettingsDiffer": Case(
        **gauge("millrace_differing_cluster_settings", BROKER, 1),
        minutes=(59, 60),
        labels=BROKER,
        summary="Settings of [cluster] on logs-b-0 that differ from the controller's: 1.",
    ),
    "AccessFileRefused": Case(
        **gauge("millrace_access_file_refused", ACCESS_FILE, 1),
        minutes=(4, 5),
        labels=ACCESS_FILE,
        summary="access.rules_file on logs-b-0 has a mistake, or is away: what it said before goes "
        "on.",
    ),
    "CertificateEnds": Case(
        series={
            LEFT: (f"{6 * DAY}x100", f"{8 * DAY}x100"),
            LIFETIME: f"{365 * DAY}x100",
        },
        minutes=(59, 60),
        labels=LISTENER,
        summary="The certificate of listener clients on logs-b-0 ends in 6d 0h 0m 0s.",
    ),
    "CertificateEndsNow": Case(
        series={
            LEFT: (f"{5 * HOUR}x100", f"{7 * HOUR}x100"),
            LIFETIME: f"{365 * DAY}x100",
        },
        minutes=(0, 1),
        labels=LISTENER,
        summary="The certificate of listener clients on logs-b-0 ends in 5h 0m 0s; then new "
        "connections fail.",
    ),
    "GroupLag": Case(
        **gauge("millrace_group_lag_seconds_max", {**GROUP, "instance": "logs-b-1"}, 3600, 1700),
        minutes=(14, 15),
        labels=GROUP,
        summary="Group billing is 1h 0m 0s behind in orders.",
    ),
    "GroupLagUnknown": Case(
        **gauge("millrace_group_lag_unknown_partitions", {**GROUP, "instance": "logs-b-1"}, 4),
        minutes=(29, 30),
        labels=GROUP,
        summary="Partitions of orders in which the lag of group billing is unknown: 4.",
    ),
    "OperatorStuck": Case(
        series={
            series(
                "millrace_operator_last_success_timestamp_seconds",
                work="topics",
                namespace="shop",
                name="logs",
            ): ("60x100", "0+300x100"),
        },
        minutes=(35, 37),
        labels={"work": "topics", "namespace": "shop", "name": "logs"},
        summary="The operator did not succeed with topics of shop/logs for 36m 0s.",
    ),
    "OperatorFails": Case(
        series={
            series("millrace_operator_reconcile_failures_total", work="cluster"): (
                "0+1x100",
                "0 5x100",
            ),
        },
        minutes=(30, 60),
        labels={"work": "cluster"},
        summary="Looks at cluster that failed in half an hour: 30.",
    ),
    "NoOperator": Case(
        series={
            series("millrace_operator_acts", instance="a"): "0x100",
            series("millrace_operator_acts", instance="b"): ("0x100", "1x100"),
        },
        minutes=(9, 10),
        labels={},
        summary="Operators that act: 0 instead of one.",
    ),
    "SparkQueryFailed": Case(
        **gauge("millrace_spark_failed", {"namespace": "shop", "query": "etl"}, 1),
        minutes=(0, 1),
        labels={"namespace": "shop", "query": "etl"},
        summary="Query etl ended with an error.",
    ),
    "SparkQueryStalled": Case(
        **gauge(
            "millrace_spark_last_progress_age_seconds",
            {"namespace": "shop", "query": "etl"},
            1200,
            600,
        ),
        minutes=(4, 5),
        labels={"namespace": "shop", "query": "etl"},
        summary="Query etl made no progress for 20m 0s.",
    ),
}


def said_of(tests: list[dict[str, Any]], folder: Path) -> str:
    """Run tests of the rules; return what promtool says of those that fail."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    file = folder / "test.yaml"
    content = {
        "rule_files": [str(RULES)],
        "group_eval_order": [group["name"] for group in groups],  # What is recorded comes first.
        "tests": tests,
    }
    file.write_text(yaml.safe_dump(content))
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def told(name: str, labels: dict[str, str], summary: str) -> dict[str, Any]:
    """Return what an alert says when it fires."""
    (alert,) = (alert for alert in ALERTS if alert.name == name)
    return {
        "exp_labels": {**labels, "severity": str(alert.severity)},
        "exp_annotations": {
            "summary": summary,
            "runbook_url": f"docs/runbooks/{alert.runbook}.md",
        },
    }


FORMED = series("millrace_operator_cluster_formed", **OF_OPERATOR)
UNCLEAN = series("millrace_unclean_leader_elections_total", **BROKER)
STARTED = series("process_start_time_seconds", **BROKER)
LOST = told(
    "RecordsLost", CLUSTER, f"Unclean elections {OF_CLUSTER} may have lost acknowledged records."
)


def rule_test(
    name: str, values: dict[str, str], expected: Iterable[tuple[int, list[Any]]]
) -> dict[str, Any]:
    """Return a test of an alert: its series, and what it says at some minutes."""
    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": of_one} for one, of_one in values.items()],
        "alert_rule_test": [
            {"eval_time": f"{minutes}m", "alertname": f"Millrace{name}", "exp_alerts": alerts}
            for minutes, alerts in expected
        ],
    }


def check(alert: Alert, folder: Path) -> str:
    """Run Prometheus's tests of an alert; return what it says."""
    case = CASES[alert.name]
    fires = told(alert.name, case.labels, case.summary)
    outcomes: list[list[tuple[int, list[Any]]]] = [
        list(zip(case.minutes, ([], [fires]), strict=True)),
        [(minutes, []) for minutes in (*case.minutes, 90)],
    ]
    tests = [
        rule_test(
            alert.name,
            {
                one: values
                for one, both in case.series.items()
                if (values := both if isinstance(both, str) else both[at])
            },
            outcome,
        )
        for at, outcome in enumerate(outcomes)
    ]
    return said_of(tests, folder)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_when_it_should_and_says_what_is_wrong(alert: Alert, tmp_path: Path) -> None:
    assert check(alert, tmp_path) == ""


def test_no_case_is_left_of_an_alert_that_is_gone() -> None:
    assert set(CASES) == {alert.name for alert in ALERTS}


def test_every_alert_has_one_cause() -> None:
    caused = [name for stage in STAGES for cause in stage for name in cause.alerts]
    assert sorted(caused) == sorted(alert.name for alert in ALERTS)


@pytest.mark.parametrize(
    ("known_by", "value"),
    [
        (series("up", **BROKER), "0"),
        (FORMED, "1"),
    ],
    ids=["its brokers are down", "it has no pods"],
)
def test_a_cluster_none_of_whose_brokers_answers_has_no_controller(
    known_by: str, value: str, tmp_path: Path
) -> None:
    fires = told("NoController", CLUSTER, f"Controllers {OF_CLUSTER}: 0 instead of one.")
    test = rule_test("NoController", {known_by: f"{value}x10"}, [(5, [fires])])
    assert said_of([test], tmp_path) == ""


def test_a_new_cluster_may_take_its_time_to_have_a_controller(tmp_path: Path) -> None:
    """Its pods wait for volumes or images, or the Cluster is refused."""
    succeeded = series(
        "millrace_operator_last_success_timestamp_seconds", **OF_OPERATOR, work="cluster"
    )
    quiet: list[tuple[int, list[Any]]] = [(at, []) for at in range(11)]
    tests = [
        rule_test("NoController", values, quiet)
        for values in (
            {succeeded: "0+60x10", FORMED: "0x10"},
            {succeeded: "0+60x10"},
            {succeeded: "0+60x10", FORMED: "0x10", series("up", **BROKER): "0x10"},
        )
    ]
    assert said_of(tests, tmp_path) == ""


def test_a_cluster_whose_pods_are_all_gone_lacks_a_controller_until_they_are_back(
    tmp_path: Path,
) -> None:
    fires = told("NoController", CLUSTER, f"Controllers {OF_CLUSTER}: 0 instead of one.")
    values = {
        FORMED: "0x5 1x50",
        series("millrace_controller_session", **BROKER): "_x5 1x10 stale _x19 0x1 1x10",
    }
    expected = [(5, []), (15, []), (17, []), (18, [fires]), (37, [fires]), (38, []), (45, [])]
    assert said_of([rule_test("NoController", values, expected)], tmp_path) == ""


def test_an_operator_that_is_gone_is_missed_and_one_that_never_was_is_not(tmp_path: Path) -> None:
    missed = told("NoOperator", {}, "Operators that act: 0 instead of one.")
    tests = [
        rule_test("NoOperator", {series(name, instance="a"): "1x10 stale"}, [(25, alerts)])
        for name, alerts in (("millrace_operator_acts", [missed]), ("another", []))
    ]
    assert said_of(tests, tmp_path) == ""


@pytest.mark.parametrize(
    "counted",
    [
        # `process_start_time_seconds` is 1800 from the 30th minute on.
        "0x5 stale _x23 1x60",
        "5x5 stale _x23 1x60",
        "_x30 1x60",
    ],
    ids=["it counted none before", "it counted more before", "it is new"],
)
def test_an_unclean_election_of_a_broker_that_has_just_started_is_told(
    counted: str, tmp_path: Path
) -> None:
    values = {UNCLEAN: counted, STARTED: "0x5 stale _x23 1800x60"}
    test = rule_test("RecordsLost", values, [(29, []), (31, [LOST]), (44, [LOST]), (60, [])])
    assert said_of([test], tmp_path) == ""


def test_an_unclean_election_while_nothing_was_scraped_is_told(tmp_path: Path) -> None:
    values = {UNCLEAN: "2x20 stale _x30 3x60", STARTED: "0x20 stale _x30 0x60"}
    test = rule_test("RecordsLost", values, [(20, []), (53, [LOST]), (70, [])])
    assert said_of([test], tmp_path) == ""


@pytest.mark.parametrize(
    "counted",
    ["5x20 stale 5x700", "5x20 stale _x40 5x700", "_x20 5x700"],
    ids=["a scrape failed", "many scrapes failed", "Prometheus is new"],
)
def test_an_unclean_election_of_long_ago_is_not_told_again(counted: str, tmp_path: Path) -> None:
    started = counted.replace("5x", "0x")
    test = rule_test(
        "RecordsLost", {UNCLEAN: counted, STARTED: started}, [(at, []) for at in range(20, 100)]
    )
    assert said_of([test], tmp_path) == ""


CERTIFICATE_ALERTS = ("CertificateEnds", "CertificateEndsNow")
LONG_LEFT = {"CertificateEnds": "6d 0h 0m 0s", "CertificateEndsNow": "5h 0m 0s"}


@pytest.mark.parametrize("alert", CERTIFICATE_ALERTS)
def test_a_broker_that_does_not_tell_the_lifetime_of_its_certificate_has_the_bounds_of_a_long_one(
    alert: str, tmp_path: Path
) -> None:
    case = CASES[alert]
    both = case.series[LEFT]
    assert not isinstance(both, str)
    fires = told(alert, LISTENER, case.summary)
    looks: list[list[tuple[int, list[Any]]]] = [[(60, [fires])], [(1, []), (60, []), (90, [])]]
    tests = [rule_test(alert, {LEFT: both[at]}, looks[at]) for at in range(2)]
    assert said_of(tests, tmp_path) == ""


@pytest.mark.parametrize("alert", CERTIFICATE_ALERTS)
@pytest.mark.parametrize(
    ("lifetime", "renewed_at"),
    [
        (HOUR, HOUR // 3),
        (HOUR, HOUR // 5),
        (DAY, 8 * HOUR),
        (7 * DAY, 56 * HOUR),
        (30 * DAY, 6 * DAY),
        (365 * DAY, 8 * DAY),
    ],
)
def test_a_certificate_that_is_renewed_in_time_is_not_told(
    alert: str, lifetime: int, renewed_at: int, tmp_path: Path
) -> None:
    """A Cluster has it renewed at the latest when a fifth of its life is left, or 8 days."""
    minutes = min((lifetime - renewed_at) // 60, 120)
    left = renewed_at + minutes * 60
    values = {
        # Another minute goes by until the broker has the next one.
        LEFT: f"{left}-60x{minutes + 1} {lifetime}-60x20",
        LIFETIME: f"{lifetime}x{minutes + 22}",
    }
    looks: list[tuple[int, list[Any]]] = [(at, []) for at in range(minutes + 20)]
    assert said_of([rule_test(alert, values, looks)], tmp_path) == ""


@pytest.mark.parametrize(
    ("alert", "lifetime", "left", "said"),
    [
        # Less than a tenth of its life was left for as long as the alert holds.
        ("CertificateEndsNow", HOUR, 240, "4m 0s"),
        ("CertificateEndsNow", DAY, 142 * 60, "2h 22m 0s"),
        ("CertificateEnds", DAY, 83 * 60, "1h 23m 0s"),
        ("CertificateEnds", 7 * DAY, 947 * 60, "15h 47m 0s"),
        # Less than six hours, likewise.
        ("CertificateEndsNow", 7 * DAY, 358 * 60, "5h 58m 0s"),
    ],
)
def test_a_certificate_of_a_short_life_is_told_when_nobody_renews_it(
    alert: str, lifetime: int, left: int, said: str, tmp_path: Path
) -> None:
    minutes = min((lifetime - left) // 60, 120)
    values = {
        LEFT: f"{left + minutes * 60}-60x{minutes + 10}",
        LIFETIME: f"{lifetime}x{minutes + 10}",
    }
    fires = told(alert, LISTENER, CASES[alert].summary.replace(LONG_LEFT[alert], said))
    quiet: list[tuple[int, list[Any]]] = [(at, []) for at in range(minutes)]
    test = rule_test(alert, values, [*quiet, (minutes, [fires])])
    assert said_of([test], tmp_path) == ""


def test_a_certificate_that_has_ended_is_told(tmp_path: Path) -> None:
    """Such a one may have had a life of any length."""
    fires = told(
        "CertificateEndsNow",
        LISTENER,
        "The certificate of listener clients on logs-b-0 ends in -1h 0m 0s; then new connections "
        "fail.",
    )
    values = {LEFT: f"-{HOUR}x10", LIFETIME: "300x10"}
    assert said_of([rule_test("CertificateEndsNow", values, [(1, [fires])])], tmp_path) == ""


def test_a_long_write_of_many_tasks_is_no_hanging_transaction_and_hides_no_older_one(
    tmp_path: Path,
) -> None:
    """Another broker coordinates it. It ends after two hours, and what hangs is told then."""
    case = CASES["HangingTransaction"]
    fires = told("HangingTransaction", case.labels, case.summary)
    shared = series("millrace_transactions_shared_open_seconds_max", **OTHER_BROKER)
    ends = {**all_well(case), shared: "0+60x120 0x100"}
    waited = series("millrace_partition_transaction_open_seconds_max", **BROKER)
    quiet: list[tuple[int, list[Any]]] = [(30, []), (120, [])]
    tests = [
        rule_test("HangingTransaction", ends | {waited: "0+60x120 0x100"}, [*quiet, (150, [])]),
        rule_test("HangingTransaction", ends | {waited: "0+60x220"}, [*quiet, (150, [fires])]),
        rule_test("HangingTransaction", ends | {waited: "600+60x220"}, [(30, [fires])]),
    ]
    assert said_of(tests, tmp_path) == ""


def all_well(case: Case) -> dict[str, str]:
    """Return the series of a case as they are where all is well."""
    return {one: both if isinstance(both, str) else both[1] for one, both in case.series.items()}


def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(RULES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
