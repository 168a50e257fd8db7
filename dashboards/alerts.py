"""Alerts and recording rules for Prometheus: few, each with a runbook.

`page` wakes somebody: records are lost, refused or out of reach, or will be within hours.
`ticket` waits for working hours: redundancy or room is smaller than planned, and all else works.
A cluster that heals by itself in time alerts nobody: `hold` is longer than that takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import yaml
from dashboards.board import RUNBOOKS

_CLUSTER: Final = "namespace, millrace_cluster"
_BROKER: Final = f"{_CLUSTER}, instance"
_HEADER: Final = "# Made from the code by `make dashboards`.\n"


class Severity(StrEnum):
    """Whom an alert wakes."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert.

    Attributes:
        name: without "Millrace".
        severity: who is told.
        expr: PromQL; each series that it returns is one alert.
        hold: for how long that must be so.
        summary: what is wrong, in a line; with `{{ $labels.x }}` and `{{ $value }}`.
        runbook: name of its page.
    """

    name: str
    severity: Severity
    expr: str
    hold: str
    summary: str
    runbook: str


@dataclass(frozen=True)
class Record:
    """A query that Prometheus keeps the results of."""

    name: str
    expr: str


RECORDS: Final = (
    Record(
        "cluster:millrace_appended_bytes:rate5m",
        f"sum by ({_CLUSTER}) (rate(millrace_topic_appended_bytes_total[5m]))",
    ),
    Record(
        "cluster:millrace_fetched_bytes:rate5m",
        f"sum by ({_CLUSTER}) (rate(millrace_topic_fetched_bytes_total[5m]))",
    ),
    Record(
        "cluster_phase:millrace_produce_seconds:p99_5m",
        f"histogram_quantile(0.99, sum by ({_CLUSTER}, phase, le) "
        "(rate(millrace_produce_seconds_bucket[5m])))",
    ),
    Record(
        "cluster_group_topic:millrace_group_lag_seconds:max",
        f"max by ({_CLUSTER}, group, topic) (millrace_group_lag_seconds_max)",
    ),
    Record(
        "broker:millrace_loop_lag_seconds:p99_5m",
        f"histogram_quantile(0.99, sum by ({_BROKER}, le) "
        "(rate(millrace_loop_lag_seconds_bucket[5m])))",
    ),
)

_OF_CLUSTER: Final = "of cluster {{ $labels.namespace }}/{{ $labels.millrace_cluster }}"
_OF_BROKER: Final = "on {{ $labels.instance }}"


def _certificates_with_less_than(seconds: str) -> str:
    """Return the query for certificates that end soon, and should have been renewed.

    One of a short life is renewed later than that. It should be while a tenth of its life is left.
    Of a broker that does not tell the lifetime, the bound in seconds counts alone.
    """
    return (
        f"min by ({_BROKER}, listener) (millrace_certificate_seconds < {seconds} unless "
        "millrace_certificate_seconds / millrace_certificate_lifetime_seconds >= 0.1)"
    )


_UNCLEAN: Final = "millrace_unclean_leader_elections_total"

BROKERS: Final = (
    Alert(
        name="NoController",
        severity=Severity.PAGE,
        # Any broker knows whether there is one: a single page that cannot be scraped alerts
        # nobody. Where no broker answers, the operator knows that there was one: the result is 0,
        # or -1 for a new Cluster, whose pods may yet start. Elsewhere there are no series but `up`.
        expr=f"(max by ({_CLUSTER}) (millrace_controller_session) or "
        f"max by ({_CLUSTER}) (label_replace(millrace_operator_cluster_formed, "
        '"millrace_cluster", "$1", "name", "(.*)")) - 1 or '
        f'0 * sum by ({_CLUSTER}) (up{{millrace_cluster!=""}})) == 0 '
        f"or sum by ({_CLUSTER}) (millrace_controller_active) > 1",
        hold="2m",
        summary=f"Controllers {_OF_CLUSTER}: {{{{ $value }}}} instead of one.",
        runbook="no-controller",
    ),
    Alert(
        name="PartitionsOffline",
        severity=Severity.PAGE,
        expr=f"sum by ({_CLUSTER}) (millrace_offline_partitions) > 0",
        hold="2m",
        summary=f"Partitions {_OF_CLUSTER} that can neither be written nor read: {{{{ $value }}}}.",
        runbook="partitions-offline",
    ),
    Alert(
        name="WritesRefused",
        severity=Severity.PAGE,
        expr=f"sum by ({_CLUSTER}) (millrace_under_min_isr_partitions) > 0",
        hold="2m",
        summary=f"Partitions {_OF_CLUSTER} that refuse writes with acks=all: {{{{ $value }}}}.",
        runbook="writes-refused",
    ),
    Alert(
        name="RecordsLost",
        severity=Severity.PAGE,
        # The new leader counts. `increase` misses an election while nothing was scraped for longer
        # than its range, and one of a process that has just started: its counter begins above 0.
        expr=f"sum by ({_CLUSTER}) (increase({_UNCLEAN}[15m])) > 0 or "
        f"sum by ({_CLUSTER}) ({_UNCLEAN} > last_over_time({_UNCLEAN}[1d] offset 15m) or "
        f"{_UNCLEAN} and on ({_BROKER}) time() - process_start_time_seconds < 15 * 60) > 0",
        hold="0m",
        summary=f"Unclean elections {_OF_CLUSTER} may have lost acknowledged records.",
        runbook="records-lost",
    ),
    Alert(
        name="DiskFull",
        severity=Severity.PAGE,
        expr="millrace_log_dir_free_bytes / millrace_log_dir_size_bytes < 0.05",
        hold="5m",
        summary=f"{{{{ $labels.log_dir }}}} {_OF_BROKER} has "
        "{{ $value | humanizePercentage }} left.",
        runbook="disk-full",
    ),
    Alert(
        # Nobody ends it: the longest time-out and the time for its end are over.
        name="HangingTransaction",
        severity=Severity.PAGE,
        expr=f"max by ({_BROKER}) (millrace_partition_transaction_open_seconds_max - "
        "millrace_transaction_timeout_max_seconds) > 5 * 60 unless "
        f"max by ({_BROKER}) (millrace_partition_transaction_open_seconds_max) - "
        f"on ({_CLUSTER}) group_left "
        f"max by ({_CLUSTER}) (millrace_transactions_shared_open_seconds_max) <= 5 * 60",
        hold="5m",
        summary=f"Readers of committed records wait {_OF_BROKER} for a transaction that nobody "
        "ends.",
        runbook="hanging-transaction",
    ),
    Alert(
        name="BrokerDown",
        severity=Severity.TICKET,
        expr=f"sum by ({_CLUSTER}) (millrace_fenced_brokers) > 0",
        hold="10m",
        summary=f"Registered brokers {_OF_CLUSTER} that are down: {{{{ $value }}}}.",
        runbook="broker-down",
    ),
    Alert(
        name="UnderReplicated",
        severity=Severity.TICKET,
        expr=f"sum by ({_CLUSTER}) (millrace_under_replicated_partitions) > 0",
        hold="15m",
        summary=f"Partitions {_OF_CLUSTER} that lack an in-sync replica: {{{{ $value }}}}.",
        runbook="under-replicated",
    ),
    Alert(
        name="LogDirectoryOffline",
        severity=Severity.TICKET,
        expr=f"sum by ({_BROKER}) (millrace_offline_log_dirs) > 0",
        hold="1m",
        summary=f"A disk {_OF_BROKER} failed.",
        runbook="log-directory-offline",
    ),
    Alert(
        name="ReplicasOffline",
        severity=Severity.TICKET,
        expr=f"sum by ({_BROKER}) (millrace_offline_replicas) > 0",
        hold="15m",
        summary=f"Damaged replicas {_OF_BROKER} that were not fetched again: {{{{ $value }}}}.",
        runbook="replicas-offline",
    ),
    Alert(
        name="ReplicasHalted",
        severity=Severity.TICKET,
        expr=f"sum by ({_BROKER}) (millrace_halted_replicas + millrace_incomplete_replicas) > 0",
        hold="5m",
        summary=f"Replicas {_OF_BROKER} that stopped so as not to lose records: {{{{ $value }}}}.",
        runbook="replicas-halted",
    ),
    Alert(
        name="DiskFillsUp",
        severity=Severity.TICKET,
        expr="predict_linear(millrace_log_dir_free_bytes[6h], 4 * 86400) < 0 and "
        "millrace_log_dir_free_bytes / millrace_log_dir_size_bytes < 0.4",
        hold="1h",
        summary=f"{{{{ $labels.log_dir }}}} {_OF_BROKER} will be full within four days.",
        runbook="disk-fills-up",
    ),
    Alert(
        name="DiskSlow",
        severity=Severity.TICKET,
        expr=f'sum by ({_BROKER}) (millrace_reluctance{{reason="slow disk"}}) > 0',
        hold="10m",
        summary=f"A disk {_OF_BROKER} is slow: others lead its partitions.",
        runbook="disk-slow",
    ),
    Alert(
        name="EventLoopSlow",
        severity=Severity.TICKET,
        expr="broker:millrace_loop_lag_seconds:p99_5m > 0.5",
        hold="10m",
        summary=f"The event loop {_OF_BROKER} is late by {{{{ $value | humanizeDuration }}}}.",
        runbook="event-loop-slow",
    ),
    Alert(
        name="CleaningRefused",
        severity=Severity.TICKET,
        expr=f"sum by ({_BROKER}, error) (millrace_cleaner_uncleanable_partitions) > 0",
        hold="1h",
        summary=f"Compacted logs {_OF_BROKER} that cannot be cleaned: {{{{ $value }}}} "
        "({{ $labels.error }}).",
        runbook="cleaning-refused",
    ),
    Alert(
        name="TierMovesRefused",
        severity=Severity.TICKET,
        expr=f"sum by ({_BROKER}, log_dir, error) (millrace_tier_refused_partitions) > 0",
        hold="1h",
        summary=f"Tiered logs {_OF_BROKER} whose segments cannot move to {{{{ $labels.log_dir }}}} "
        "or back: {{ $value }} ({{ $labels.error }}).",
        runbook="tier-moves-refused",
    ),
    Alert(
        name="MarkersOwed",
        severity=Severity.TICKET,
        expr=f"max by ({_BROKER}) (millrace_transactions_owed_seconds_max) > 5 * 60",
        hold="5m",
        summary=f"The end of a transaction that is coordinated {_OF_BROKER} could not be written "
        "for {{ $value | humanizeDuration }}.",
        runbook="markers-owed",
    ),
    Alert(
        name="SettingsDiffer",
        severity=Severity.TICKET,
        expr=f"sum by ({_BROKER}) (millrace_differing_cluster_settings) > 0",
        hold="1h",
        summary=f"Settings of [cluster] {_OF_BROKER} that differ from the controller's: "
        "{{ $value }}.",
        runbook="settings-differ",
    ),
    Alert(
        name="AccessFileRefused",
        severity=Severity.TICKET,
        expr=f"max by ({_BROKER}, file) (millrace_access_file_refused) > 0",
        hold="5m",
        summary=f"access.{{{{ $labels.file }}}} {_OF_BROKER} has a mistake, or is away: what it "
        "said before goes on.",
        runbook="access-file-refused",
    ),
    Alert(
        name="CertificateEnds",
        severity=Severity.TICKET,
        expr=_certificates_with_less_than("7 * 86400"),
        hold="1h",
        summary=f"The certificate of listener {{{{ $labels.listener }}}} {_OF_BROKER} ends in "
        "{{ $value | humanizeDuration }}.",
        runbook="certificate-ends",
    ),
    Alert(
        # It is not held for long: of an hour's certificate only six minutes are left.
        name="CertificateEndsNow",
        severity=Severity.PAGE,
        expr=_certificates_with_less_than("6 * 3600"),
        hold="1m",
        summary=f"The certificate of listener {{{{ $labels.listener }}}} {_OF_BROKER} ends in "
        "{{ $value | humanizeDuration }}; then new connections fail.",
        runbook="certificate-ends",
    ),
)
GROUPS: Final = (
    Alert(
        name="GroupLag",
        severity=Severity.TICKET,
        expr="cluster_group_topic:millrace_group_lag_seconds:max > 30 * 60",
        hold="15m",
        summary="Group {{ $labels.group }} is {{ $value | humanizeDuration }} behind in "
        "{{ $labels.topic }}.",
        runbook="group-lag",
    ),
    Alert(
        name="GroupLagUnknown",
        severity=Severity.TICKET,
        expr=f"sum by ({_CLUSTER}, group, topic) (millrace_group_lag_unknown_partitions) > 0",
        hold="30m",
        summary="Partitions of {{ $labels.topic }} in which the lag of group {{ $labels.group }} "
        "is unknown: {{ $value }}.",
        runbook="group-lag",
    ),
)
OPERATOR: Final = (
    Alert(
        name="OperatorStuck",
        severity=Severity.TICKET,
        expr="time() - max by (work, namespace, name) "
        "(millrace_operator_last_success_timestamp_seconds) > 30 * 60",
        hold="5m",
        summary="The operator did not succeed with {{ $labels.work }} of "
        "{{ $labels.namespace }}/{{ $labels.name }} for {{ $value | humanizeDuration }}.",
        runbook="operator-stuck",
    ),
    Alert(
        # A cluster that never succeeded has no time of its last success.
        name="OperatorFails",
        severity=Severity.TICKET,
        expr="sum by (work) (increase(millrace_operator_reconcile_failures_total[30m])) > 5",
        hold="30m",
        summary="Looks at {{ $labels.work }} that failed in half an hour: {{ $value | humanize }}.",
        runbook="operator-stuck",
    ),
    Alert(
        name="NoOperator",
        severity=Severity.TICKET,
        # One that is gone has no series, but had some in the last day. Where there was none in a
        # day, there is none to miss.
        expr="(sum(millrace_operator_acts) or "
        "0 * sum(last_over_time(millrace_operator_acts[1d]))) != 1",
        hold="10m",
        summary="Operators that act: {{ $value }} instead of one.",
        runbook="operator-stuck",
    ),
)
SPARK: Final = (
    Alert(
        name="SparkQueryFailed",
        severity=Severity.TICKET,
        expr="max by (namespace, query) (millrace_spark_failed) > 0",
        hold="1m",
        summary="Query {{ $labels.query }} ended with an error.",
        runbook="spark-query-failed",
    ),
    Alert(
        name="SparkQueryStalled",
        severity=Severity.TICKET,
        expr="max by (namespace, query) (millrace_spark_last_progress_age_seconds) > 15 * 60",
        hold="5m",
        summary="Query {{ $labels.query }} made no progress for {{ $value | humanizeDuration }}.",
        runbook="spark-query-stalled",
    ),
)
ALERTS: Final = (*BROKERS, *GROUPS, *OPERATOR, *SPARK)


def rules_yaml() -> str:
    """Return all rules as Prometheus reads them."""
    groups = [
        {"name": "millrace-records", "rules": [_record(record) for record in RECORDS]},
        _group("millrace-brokers", BROKERS),
        _group("millrace-groups", GROUPS),
        _group("millrace-operator", OPERATOR),
        _group("millrace-spark", SPARK),
    ]
    return _HEADER + yaml.safe_dump({"groups": groups}, sort_keys=False, width=1000)


def _record(record: Record) -> dict[str, Any]:
    return {"record": record.name, "expr": record.expr}


def _group(name: str, alerts: Sequence[Alert]) -> dict[str, Any]:
    return {"name": name, "rules": [_alert(alert) for alert in alerts]}


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": f"Millrace{alert.name}",
        "expr": alert.expr,
        "for": alert.hold,
        "labels": {"severity": str(alert.severity)},
        "annotations": {
            "summary": alert.summary,
            "runbook_url": f"{RUNBOOKS}/{alert.runbook}.md",
        },
    }
