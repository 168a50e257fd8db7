"""Groups, Spark queries and other readers: how far they are behind."""

from typing import Final

from dashboards.board import (
    ANY_IS_TO_WATCH,
    BROKERS,
    GROUP,
    TOPIC,
    Board,
    Kind,
    Panel,
    Unit,
)

_CHOSEN: Final = '{group=~"$group",topic=~"$topic"}'


def _worst(metric: str) -> dict[str, str]:
    return {"{{group}} in {{topic}}": f"topk(20, max by (group, topic) ({metric}{_CHOSEN}))"}


BOARD: Final = Board(
    uid="millrace-groups",
    title="Groups and lag",
    description="How far consumer groups, Spark queries and other readers are behind.",
    variables=BROKERS,
    optional=(GROUP, TOPIC),
    rows={
        "Lag": [
            Panel(
                title="Age of the oldest unread record",
                description="In the partition that is behind most; 0: all is read. The twenty "
                "groups that are behind most. Where a group has committed nothing, all records "
                "are unread. A lag that is not known is absent, not 0.",
                queries=_worst("millrace_group_lag_seconds_max"),
                unit=Unit.SECONDS,
                runbook="group-lag",
            ),
            Panel(
                title="Unread records",
                description="In all partitions of a topic. Offsets count what was written: "
                "compaction may have removed some of it.",
                queries=_worst("millrace_group_lag_records"),
                runbook="group-lag",
            ),
            Panel(
                title="Unread bytes",
                description="Stored bytes of the batches that hold the unread records.",
                queries=_worst("millrace_group_lag_bytes"),
                unit=Unit.BYTES,
                runbook="group-lag",
            ),
            Panel(
                title="Unread records of the worst partition",
                description="Much of all unread records in one partition: its keys are frequent, "
                "or its reader is stuck.",
                queries=_worst("millrace_group_lag_records_max"),
                runbook="group-lag",
            ),
        ],
        "What is not known": [
            Panel(
                title="Partitions whose lag is unknown",
                description="The position is beyond the end of the log, or the leader does not "
                "answer.",
                queries={
                    "{{group}} in {{topic}}": (
                        f"sum by (group, topic) (millrace_group_lag_unknown_partitions{_CHOSEN})"
                    )
                },
                steps=ANY_IS_TO_WATCH,
                runbook="group-lag",
            ),
            Panel(
                title="Groups that are not measured",
                description="groups.lag_series_max leaves no room for them.",
                queries={"groups": "sum(millrace_group_lag_left_out_groups)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
            ),
        ],
        "Positions": [
            Panel(
                title="Positions kept",
                description="By the broker that coordinates the groups.",
                queries={"{{instance}}": "millrace_positions"},
                kind=Kind.STACKED,
            ),
            Panel(
                title="Partitions of positions that are not ready",
                description="Their log is not read yet, or cannot be. The groups in them wait.",
                queries={"{{instance}}": "millrace_positions_unready_partitions"},
                steps=ANY_IS_TO_WATCH,
                runbook="partitions-offline",
            ),
        ],
    },
)
