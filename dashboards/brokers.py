"""Brokers, their processes, connections and disks."""

from typing import Final

from dashboards.board import (
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

_TIMED: Final = '{method!="GroupHeartbeat"}'
"""Calls whose time says something: a heartbeat waits for an assignment."""

BOARD: Final = Board(
    uid="millrace-brokers",
    title="Brokers and disks",
    description="Processes, connections, calls and disks of each broker.",
    variables=BROKERS,
    rows={
        "Processes": [
            Panel(
                title="Brokers",
                description="Id, name and zone of each broker, its release of Millrace and its "
                "version of Python. During an upgrade there are two releases.",
                queries={
                    "{{instance}}": (
                        "sum by (instance, broker_id, name, zone, version, python) "
                        "(millrace_build_info * on (namespace, instance) "
                        "group_left (broker_id, name, zone) millrace_broker_info)"
                    )
                },
                unit=Unit.NONE,
                kind=Kind.TABLE,
            ),
            Panel(
                title="CPU",
                description="Processors that each broker uses. One event loop and some threads "
                "share one interpreter, so little more than one is possible.",
                queries={"{{instance}}": "rate(process_cpu_seconds_total[$__rate_interval])"},
                steps=((0, GOOD), (0.9, WATCH)),
            ),
            Panel(
                title="Memory",
                description="Resident memory, without the page cache. Of it: bytes of requests "
                "that are held, which limits.request_memory_bytes_max bounds.",
                queries={
                    "{{instance}}": "process_resident_memory_bytes",
                    "{{instance}} requests": "millrace_request_memory_bytes",
                },
                unit=Unit.BYTES,
            ),
            Panel(
                title="Open files and connections",
                description="Share of the file descriptors that the process may have.",
                queries={"{{instance}}": "process_open_fds / process_max_fds"},
                unit=Unit.SHARE,
                steps=((0, GOOD), (0.8, WATCH), (0.95, BAD)),
            ),
            Panel(
                title="Event loop delay, 99th percentile",
                description="How late the loop runs its timers. All requests of a broker wait "
                "that long.",
                queries={"{{instance}}": p99("millrace_loop_lag_seconds", "instance")},
                unit=Unit.SECONDS,
                steps=((0, GOOD), (0.1, WATCH), (0.5, BAD)),
                runbook="event-loop-slow",
            ),
            Panel(
                title="Certificates",
                description="How long the certificate of each listener counts. When it has ended, "
                "new connections fail. The lines are bounds of alerts, which tell of shorter "
                "certificates only when less than a tenth of their lifetime is left.",
                queries={
                    "{{instance}} {{listener}}": (
                        "min by (instance, listener) (millrace_certificate_seconds)"
                    )
                },
                unit=Unit.SECONDS,
                steps=((-1e9, BAD), (6 * 3600, WATCH), (7 * 86_400, GOOD)),
                runbook="certificate-ends",
            ),
            Panel(
                title="Restarts",
                description="Starts of each broker in the time that is shown.",
                queries={"{{instance}}": "changes(process_start_time_seconds[$__range])"},
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
                runbook="broker-down",
            ),
        ],
        "Connections and calls": [
            Panel(
                title="Connections by listener",
                description="limits.connections_max bounds them; when few are left, those without "
                "a call are closed.",
                queries={
                    "{{instance}} {{listener}}": (
                        "sum by (instance, listener) (millrace_connections)"
                    )
                },
            ),
            Panel(
                title="Streams",
                description="Open streams of producers, and of readers and followers.",
                queries={
                    "{{instance}} produce": "millrace_produce_streams",
                    "{{instance}} fetch": "millrace_fetch_streams",
                },
            ),
            Panel(
                title="Calls by method",
                description="The ten most frequent methods with one request and one response.",
                queries={
                    "{{method}}": (
                        "topk(10, sum by (method) "
                        "(rate(millrace_call_seconds_count[$__rate_interval])))"
                    )
                },
                unit=Unit.PER_SECOND,
                kind=Kind.STACKED,
            ),
            Panel(
                title="Mean time of calls by method",
                description="The ten slowest methods, without heartbeats of groups, which wait for "
                "an assignment. Others may wait for news, such as ListOffsets of Spark's driver.",
                queries={
                    "{{method}}": (
                        "topk(10, sum by (method) "
                        f"(rate(millrace_call_seconds_sum{_TIMED}[$__rate_interval])) / "
                        "sum by (method) "
                        f"(rate(millrace_call_seconds_count{_TIMED}[$__rate_interval])))"
                    )
                },
                unit=Unit.SECONDS,
            ),
            Panel(
                title="Refusals by broker and method",
                description="One broker that refuses much more than the others is worth a look "
                "at its log.",
                queries={
                    "{{instance}} {{method}}": (
                        "sum by (instance, method) "
                        "(rate(millrace_refusals_total[$__rate_interval]))"
                    )
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Reasons not to lead",
                description="1 while a broker lets others lead: its disk is slow or full, or its "
                "address is new.",
                queries={
                    "{{instance}} {{reason}}": "sum by (instance, reason) (millrace_reluctance)"
                },
                steps=ANY_IS_TO_WATCH,
                runbook="disk-slow",
            ),
        ],
        "Disks": [
            Panel(
                title="Free space",
                description="Share of each log directory's file system. None: it does not answer.",
                queries={
                    "{{instance}} {{log_dir}}": (
                        "millrace_log_dir_free_bytes / millrace_log_dir_size_bytes"
                    )
                },
                unit=Unit.SHARE,
                steps=((0, BAD), (0.1, WATCH), (0.2, GOOD)),
                runbook="disk-full",
            ),
            Panel(
                title="Free space in four days",
                description="If it goes on as in the last six hours. Below 0: it will be full.",
                queries={
                    "{{instance}} {{log_dir}}": (
                        "predict_linear(millrace_log_dir_free_bytes[6h], 4 * 86400)"
                    )
                },
                unit=Unit.BYTES,
                steps=((0, BAD), (1, GOOD)),
                runbook="disk-fills-up",
            ),
            Panel(
                title="Flushes, 99th percentile",
                description="A flush of one log before its acknowledgements.",
                queries={
                    "{{instance}} {{log_dir}}": p99("millrace_flush_seconds", "instance", "log_dir")
                },
                unit=Unit.SECONDS,
                steps=((0, GOOD), (0.1, WATCH), (1, BAD)),
                runbook="disk-slow",
            ),
            Panel(
                title="Flushes",
                description="Flushes of logs in each second. A group commit flushes a log once "
                "for all batches that wait.",
                queries={
                    "{{instance}} {{log_dir}}": (
                        "sum by (instance, log_dir) "
                        "(rate(millrace_flush_seconds_count[$__rate_interval]))"
                    )
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Replicas that are offline",
                description="Replicas that are damaged, or on a log directory that failed. They "
                "are fetched again if that is possible.",
                queries={"{{instance}}": "millrace_offline_replicas"},
                steps=ANY_IS_TO_WATCH,
                runbook="replicas-offline",
            ),
            Panel(
                title="Replicas on other media than asked for, and moving",
                description="Replicas that lie on an SSD and should lie on an HDD, or the other "
                "way; those that move now; and damaged logs that were kept for inspection.",
                queries={
                    "{{instance}} misplaced": "millrace_misplaced_replicas",
                    "{{instance}} moving": "millrace_moving_replicas",
                    "{{instance}} set aside": "sum by (instance) (millrace_damaged_logs)",
                },
            ),
        ],
    },
)
