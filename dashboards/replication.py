"""Replication and controller: who is in sync, who leads, and who decides."""

from typing import Final

from dashboards.board import (
    ANY_IS_BAD,
    ANY_IS_TO_WATCH,
    BROKERS,
    Board,
    Panel,
    Unit,
    p99,
)

BOARD: Final = Board(
    uid="millrace-replication",
    title="Replication and controller",
    description="In-sync replicas, followers, elections and the controller.",
    variables=BROKERS,
    rows={
        "Partitions": [
            Panel(
                title="Under-replicated",
                description="Led partitions that lack an in-sync replica, by leader.",
                queries={"{{instance}}": "millrace_under_replicated_partitions"},
                steps=ANY_IS_TO_WATCH,
                runbook="under-replicated",
            ),
            Panel(
                title="Refuse writes, or nearly",
                description="Led partitions with fewer in-sync replicas than "
                "min.insync.replicas, and those with just as many.",
                queries={
                    "refuse writes": "sum(millrace_under_min_isr_partitions)",
                    "one more loss stops writes": "sum(millrace_at_min_isr_partitions)",
                },
                steps=ANY_IS_BAD,
                runbook="writes-refused",
            ),
            Panel(
                title="Offline",
                description="Partitions without a leader, or whose leader's log is damaged or "
                "gone.",
                queries={"{{instance}}": "sum by (instance) (millrace_offline_partitions)"},
                steps=ANY_IS_BAD,
                runbook="partitions-offline",
            ),
            Panel(
                title="Being reassigned",
                description="Led partitions whose replicas are being changed.",
                queries={"{{instance}}": "millrace_reassigning_partitions"},
            ),
        ],
        "Followers": [
            Panel(
                title="Records behind",
                description="Of each follower (broker id), in the partition with the most.",
                queries={
                    "broker {{follower}}": "max by (follower) (millrace_follower_lag_records_max)"
                },
            ),
            Panel(
                title="Time behind",
                description="For how long each follower (broker id) has not been at the end of a "
                "partition. After replication.replica_lag_time_max_ms it leaves the ISR.",
                queries={
                    "broker {{follower}}": "max by (follower) (millrace_follower_lag_seconds_max)"
                },
                unit=Unit.SECONDS,
                runbook="under-replicated",
            ),
            Panel(
                title="Time of replication, 99th percentile",
                description="From when batches are durable on their leader until all in-sync "
                "replicas have them. Produce requests with acks=all wait that long.",
                queries={"{{instance}}": p99("millrace_replicate_seconds", "instance")},
                unit=Unit.SECONDS,
                runbook="under-replicated",
            ),
            Panel(
                title="Catching up",
                description="Bytes sent to followers that are not in sync.",
                queries={"{{instance}}": "rate(millrace_catch_up_bytes_total[$__rate_interval])"},
                unit=Unit.BYTES_PER_SECOND,
            ),
            Panel(
                title="In-sync replicas that come and go",
                description="Replicas that left and joined ISRs. Both, often, without a restart: "
                "a follower is too slow.",
                queries={
                    "left": "sum(rate(millrace_isr_shrinks_total[$__rate_interval]))",
                    "joined": "sum(rate(millrace_isr_expands_total[$__rate_interval]))",
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Replicas that stopped",
                description="halted: going on would lose committed records. incomplete: it could "
                "lead, but lacks committed records.",
                queries={
                    "{{instance}} halted": "millrace_halted_replicas",
                    "{{instance}} incomplete": "millrace_incomplete_replicas",
                },
                steps=ANY_IS_BAD,
                runbook="replicas-halted",
            ),
        ],
        "Leaders and controller": [
            Panel(
                title="Elections",
                description="Leaders that were elected, and those among them that may have lost "
                "acknowledged records.",
                queries={
                    "all": "sum(rate(millrace_leader_elections_total[$__rate_interval]))",
                    "unclean": (
                        "sum(rate(millrace_unclean_leader_elections_total[$__rate_interval]))"
                    ),
                },
                unit=Unit.PER_SECOND,
                runbook="records-lost",
            ),
            Panel(
                title="Controller",
                description="1 on the broker that is the controller.",
                queries={"{{instance}}": "millrace_controller_active"},
                runbook="no-controller",
            ),
            Panel(
                title="Brokers without a controller",
                description="0 is as it should be. All of them: there is no controller. One: that "
                "broker cannot reach it.",
                queries={"brokers": "count(millrace_controller_session == 0) or vector(0)"},
                steps=ANY_IS_TO_WATCH,
                runbook="no-controller",
            ),
            Panel(
                title="Controller epoch",
                description="Grows with each new controller. A broker that stays behind hears of "
                "no changes.",
                queries={"{{instance}}": "millrace_controller_epoch"},
            ),
            Panel(
                title="Brokers that are down",
                description="As the controller sees it.",
                queries={"fenced": "sum(millrace_fenced_brokers)"},
                steps=ANY_IS_TO_WATCH,
                runbook="broker-down",
            ),
            Panel(
                title="Settings that differ from the controller's",
                description="Settings of [cluster] in the brokers' configurations. Should be 0 "
                "unless an operator is changing them.",
                queries={"{{instance}}": "millrace_differing_cluster_settings"},
                steps=ANY_IS_TO_WATCH,
                runbook="settings-differ",
            ),
        ],
    },
)
