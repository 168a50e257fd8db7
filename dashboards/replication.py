"""Replication and controller: who is in sync, who leads, and who decides."""

from typing import Final

from dashboards.board import (
    ANY_IS_BAD,
    ANY_IS_TO_WATCH,
    BROKERS,
    Board,
    Panel,
    Query,
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
                queries=[Query("millrace_under_replicated_partitions", "{{instance}}")],
                unit=Unit.COUNT,
                steps=ANY_IS_TO_WATCH,
                runbook="under-replicated",
            ),
            Panel(
                title="Refuse writes, or nearly",
                description="Led partitions with fewer in-sync replicas than "
                "min.insync.replicas, and those with just as many.",
                queries=[
                    Query("sum(millrace_under_min_isr_partitions)", "refuse writes"),
                    Query("sum(millrace_at_min_isr_partitions)", "one more loss stops writes"),
                ],
                unit=Unit.COUNT,
                steps=ANY_IS_BAD,
                runbook="writes-refused",
            ),
            Panel(
                title="Offline",
                description="Partitions without a leader, or whose leader's log is damaged or "
                "gone.",
                queries=[Query("sum by (instance) (millrace_offline_partitions)", "{{instance}}")],
                unit=Unit.COUNT,
                steps=ANY_IS_BAD,
                runbook="partitions-offline",
            ),
            Panel(
                title="Being reassigned",
                description="Led partitions whose replicas are being changed.",
                queries=[Query("millrace_reassigning_partitions", "{{instance}}")],
                unit=Unit.COUNT,
            ),
        ],
        "Followers": [
            Panel(
                title="Records behind",
                description="Of each follower (broker id), in the partition with the most.",
                queries=[
                    Query(
                        "max by (follower) (millrace_follower_lag_records_max)",
                        "broker {{follower}}",
                    )
                ],
                unit=Unit.COUNT,
            ),
            Panel(
                title="Time behind",
                description="For how long each follower (broker id) has not been at the end of a "
                "partition. After replication.replica_lag_time_max_ms it leaves the ISR.",
                queries=[
                    Query(
                        "max by (follower) (millrace_follower_lag_seconds_max)",
                        "broker {{follower}}",
                    )
                ],
                unit=Unit.SECONDS,
                runbook="under-replicated",
            ),
            Panel(
                title="Time of replication, 99th percentile",
                description="From when batches are durable on their leader until all in-sync "
                "replicas have them. Produce requests with acks=all wait that long.",
                queries=[Query(p99("millrace_replicate_seconds", "instance"), "{{instance}}")],
                unit=Unit.SECONDS,
                runbook="under-replicated",
            ),
            Panel(
                title="Catching up",
                description="Bytes sent to followers that are not in sync.",
                queries=[
                    Query("rate(millrace_catch_up_bytes_total[$__rate_interval])", "{{instance}}")
                ],
                unit=Unit.BYTES_PER_SECOND,
            ),
            Panel(
                title="In-sync replicas that come and go",
                description="Replicas that left and joined ISRs. Both, often, without a restart: "
                "a follower is too slow.",
                queries=[
                    Query("sum(rate(millrace_isr_shrinks_total[$__rate_interval]))", "left"),
                    Query("sum(rate(millrace_isr_expands_total[$__rate_interval]))", "joined"),
                ],
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Replicas that stopped",
                description="halted: going on would lose committed records. incomplete: it could "
                "lead, but lacks committed records.",
                queries=[
                    Query("millrace_halted_replicas", "{{instance}} halted"),
                    Query("millrace_incomplete_replicas", "{{instance}} incomplete"),
                ],
                unit=Unit.COUNT,
                steps=ANY_IS_BAD,
                runbook="replicas-halted",
            ),
        ],
        "Leaders and controller": [
            Panel(
                title="Elections",
                description="Leaders that were elected, and those among them that may have lost "
                "acknowledged records.",
                queries=[
                    Query("sum(rate(millrace_leader_elections_total[$__rate_interval]))", "all"),
                    Query(
                        "sum(rate(millrace_unclean_leader_elections_total[$__rate_interval]))",
                        "unclean",
                    ),
                ],
                unit=Unit.PER_SECOND,
                runbook="records-lost",
            ),
            Panel(
                title="Controller",
                description="1 on the broker that is the controller.",
                queries=[Query("millrace_controller_active", "{{instance}}")],
                unit=Unit.COUNT,
                runbook="no-controller",
            ),
            Panel(
                title="Brokers without a controller",
                description="0 is as it should be. All of them: there is no controller. One: that "
                "broker cannot reach it.",
                queries=[Query("count(millrace_controller_session == 0) or vector(0)", "brokers")],
                unit=Unit.COUNT,
                steps=ANY_IS_TO_WATCH,
                runbook="no-controller",
            ),
            Panel(
                title="Controller epoch",
                description="Grows with each new controller. A broker that stays behind hears of "
                "no changes.",
                queries=[Query("millrace_controller_epoch", "{{instance}}")],
                unit=Unit.COUNT,
            ),
            Panel(
                title="Brokers that are down",
                description="As the controller sees it.",
                queries=[Query("sum(millrace_fenced_brokers)", "fenced")],
                unit=Unit.COUNT,
                steps=ANY_IS_TO_WATCH,
                runbook="broker-down",
            ),
            Panel(
                title="Settings that differ from the controller's",
                description="Settings of [cluster] in the brokers' configurations. Should be 0 "
                "unless an operator is changing them.",
                queries=[Query("millrace_differing_cluster_settings", "{{instance}}")],
                unit=Unit.COUNT,
                steps=ANY_IS_TO_WATCH,
                runbook="settings-differ",
            ),
        ],
    },
)
