"""Quotas: who is delayed, and for how long."""

from typing import Final

from dashboards.board import (
    BAD,
    BROKERS,
    GOOD,
    QUOTA,
    WATCH,
    Board,
    Kind,
    Panel,
    Unit,
)

BOARD: Final = Board(
    uid="millrace-quotas",
    title="Quotas",
    description="Clients and topics that quotas delay.",
    variables=BROKERS,
    optional=(QUOTA,),
    rows={
        "Delays": [
            Panel(
                title="Time that quotas delay clients",
                description="Seconds of delay in each second, by quota and kind of limit: 2 is "
                "two clients that wait all the time.",
                queries={
                    "{{quota}} {{kind}}": (
                        "sum by (quota, kind) (rate(millrace_quota_throttled_seconds_total"
                        '{quota=~"$quota"}[$__rate_interval]))'
                    )
                },
                kind=Kind.STACKED,
            ),
            Panel(
                title="Present delays",
                description="Of the clients and topics that are delayed most; each broker names "
                "twenty. A delay ends after quotas.throttle_ms_max.",
                queries={
                    "{{client_id}}{{topic}}{{topic_namespace}}": (
                        "topk(20, max by (quota, kind, principal, client_id, topic, "
                        'topic_namespace) (millrace_quota_delay_seconds{quota=~"$quota"}))'
                    )
                },
                unit=Unit.SECONDS,
                kind=Kind.TABLE,
            ),
            Panel(
                title="Clients and topics that are counted",
                description="Of each broker. Beyond quotas.buckets_max, 10,000 by default, others "
                "share one limit.",
                queries={"{{instance}}": "millrace_quota_buckets"},
                steps=((0, GOOD), (8000, WATCH), (10_000, BAD)),
            ),
        ],
    },
)
