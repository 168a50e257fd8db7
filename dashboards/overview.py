"""Is all well, and what does the cluster do?"""

from typing import Final

from dashboards.board import (
    ANY_IS_BAD,
    ANY_IS_TO_WATCH,
    BAD,
    BROKERS,
    GOOD,
    WATCH,
    Board,
    Kind,
    Panel,
    Unit,
    p99,
)

BOARD: Final = Board(
    uid="millrace-overview",
    title="Overview",
    description="Is all well, and what does the cluster do?",
    variables=BROKERS,
    rows={
        "Health": [
            Panel(
                title="Brokers",
                description="Brokers that Prometheus reaches.",
                queries={"brokers": "count(millrace_build_info)"},
                kind=Kind.NUMBER,
            ),
            Panel(
                title="Brokers that are down",
                description="Registered brokers whose session has ended. Their replicas are "
                "missing elsewhere; unregister those that will not come back.",
                queries={"fenced": "sum(millrace_fenced_brokers)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
                runbook="broker-down",
            ),
            Panel(
                title="Controllers",
                description="One for each cluster. Without one nothing is elected or changed; "
                "partitions that have a leader go on.",
                queries={"controllers": "sum(millrace_controller_active)"},
                kind=Kind.NUMBER,
                steps=((0, BAD), (1, GOOD)),
                runbook="no-controller",
            ),
            Panel(
                title="Offline partitions",
                description="Partitions that can neither be written nor read.",
                queries={"offline": "sum(millrace_offline_partitions)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_BAD,
                runbook="partitions-offline",
            ),
            Panel(
                title="Partitions that refuse writes",
                description="Partitions with fewer in-sync replicas than min.insync.replicas: "
                "writes with acks=all are refused, reads go on.",
                queries={"under min ISR": "sum(millrace_under_min_isr_partitions)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_BAD,
                runbook="writes-refused",
            ),
            Panel(
                title="Under-replicated partitions",
                description="Everything works, but fewer brokers may fail than planned.",
                queries={"under-replicated": "sum(millrace_under_replicated_partitions)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
                runbook="under-replicated",
            ),
            Panel(
                title="Failed log directories",
                description="Log directories whose disk failed. Other brokers lead their "
                "partitions.",
                queries={"failed": "sum(millrace_offline_log_dirs)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
                runbook="log-directory-offline",
            ),
            Panel(
                title="Unclean elections",
                description="Elections, in the time that is shown, in which acknowledged records "
                "may have been lost. They happen only in topics that allow them, or on request.",
                queries={
                    "unclean": "sum(increase(millrace_unclean_leader_elections_total[$__range]))"
                },
                kind=Kind.NUMBER,
                steps=ANY_IS_BAD,
                runbook="records-lost",
            ),
        ],
        "Traffic": [
            Panel(
                title="Bytes written and read",
                description="Bytes of batches, as they are stored. Reads include those of "
                "followers.",
                queries={
                    "written": "sum(rate(millrace_topic_appended_bytes_total[$__rate_interval]))",
                    "read": "sum(rate(millrace_topic_fetched_bytes_total[$__rate_interval]))",
                },
                unit=Unit.BYTES_PER_SECOND,
            ),
            Panel(
                title="Records written",
                description="Records that leaders appended.",
                queries={
                    "records": "sum(rate(millrace_topic_appended_records_total[$__rate_interval]))"
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Requests",
                description="Produce requests, fetch responses (followers' too), and calls with "
                "one request and one response.",
                queries={
                    "produce": (
                        'sum(rate(millrace_produce_seconds_count{phase="append"}'
                        "[$__rate_interval]))"
                    ),
                    "fetch": (
                        'sum(rate(millrace_fetch_seconds_count{phase="send"}[$__rate_interval]))'
                    ),
                    "calls": "sum(rate(millrace_call_seconds_count[$__rate_interval]))",
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Refusals",
                description="Calls, requests and batches that were refused, by error. Some errors "
                "are part of normal life: clients that meet NOT_LEADER look up the new leader.",
                queries={
                    "{{error}}": "sum by (error) (rate(millrace_refusals_total[$__rate_interval]))"
                },
                unit=Unit.PER_SECOND,
                kind=Kind.STACKED,
            ),
        ],
        "Latency, 99th percentile": [
            Panel(
                title="Produce requests by phase",
                description="check: checking of batches, with waiting for memory and a thread. "
                "append: write, flush and replication. send: until gRPC has taken the answer.",
                queries={"{{phase}}": p99("millrace_produce_seconds", "phase")},
                unit=Unit.SECONDS,
            ),
            Panel(
                title="Fetch responses by phase",
                description="read: from page cache or disk. send: until gRPC has taken the "
                "response; readers that take their time make it long.",
                queries={"{{phase}}": p99("millrace_fetch_seconds", "phase")},
                unit=Unit.SECONDS,
            ),
            Panel(
                title="Flushes",
                description="A flush of one log before its acknowledgements. Topics with "
                "durability=replicated make none.",
                queries={"{{instance}}": p99("millrace_flush_seconds", "instance")},
                unit=Unit.SECONDS,
                steps=((0, GOOD), (0.1, WATCH), (1, BAD)),
                runbook="disk-slow",
            ),
            Panel(
                title="Event loop delay",
                description="How late the loop runs its timers. All requests of a broker wait "
                "that long.",
                queries={"{{instance}}": p99("millrace_loop_lag_seconds", "instance")},
                unit=Unit.SECONDS,
                steps=((0, GOOD), (0.1, WATCH), (0.5, BAD)),
                runbook="event-loop-slow",
            ),
        ],
        "Readers": [
            Panel(
                title="Groups that are behind most",
                description="Age of the oldest record that a group has not read, of the ten "
                "groups that are behind most.",
                queries={
                    "{{group}} in {{topic}}": (
                        "topk(10, max by (group, topic) (millrace_group_lag_seconds_max))"
                    )
                },
                unit=Unit.SECONDS,
                runbook="group-lag",
            ),
            Panel(
                title="Open transactions",
                description="Readers of committed records wait for them in their partitions.",
                queries={"open": "sum(millrace_transactions_open)"},
                runbook="hanging-transaction",
            ),
            Panel(
                title="Age of the oldest open transaction",
                description="By the coordinators, which end each by its time-out, and by its first "
                "batch in a partition. The latter alone: nobody may end it.",
                queries={
                    "coordinators": "max(millrace_transactions_open_seconds_max)",
                    "partitions": "max(millrace_partition_transaction_open_seconds_max)",
                },
                unit=Unit.SECONDS,
                runbook="hanging-transaction",
            ),
            Panel(
                title="Time that quotas delay clients",
                description="Seconds of delay in each second, by quota: 2 is two clients that "
                "wait all the time.",
                queries={
                    "{{quota}}": (
                        "sum by (quota) "
                        "(rate(millrace_quota_throttled_seconds_total[$__rate_interval]))"
                    )
                },
            ),
        ],
    },
)
