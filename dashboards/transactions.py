"""Transactions: how they end, what is open, and what readers wait for."""

from typing import Final

from dashboards.board import (
    ANY_IS_BAD,
    ANY_IS_TO_WATCH,
    BROKERS,
    TOPIC,
    Board,
    Kind,
    Panel,
    Unit,
)

BOARD: Final = Board(
    uid="millrace-transactions",
    title="Transactions",
    description="How transactions end, which are open, and what readers wait for.",
    variables=BROKERS,
    optional=(TOPIC,),
    rows={
        "Ends": [
            Panel(
                title="Transactions that end",
                description="Commits, and aborts by reason: by their producer, by time, by "
                "another producer that began with the id, or by a person.",
                queries={
                    "committed": "sum(rate(millrace_transactions_committed_total"
                    "[$__rate_interval]))",
                    "aborted: {{reason}}": "sum by (reason) "
                    "(rate(millrace_transactions_aborted_total[$__rate_interval]))",
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Transactions aborted by time",
                description="In the time that is shown. A producer died, or takes longer for a "
                "transaction than the time-out that it chose. The log names the ids.",
                queries={
                    "aborted": 'sum(increase(millrace_transactions_aborted_total{reason="timeout"}'
                    "[$__range]))"
                },
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
            ),
        ],
        "Coordinators": [
            Panel(
                title="Open transactions",
                description="By the broker that coordinates them.",
                queries={"{{instance}}": "millrace_transactions_open"},
                kind=Kind.STACKED,
            ),
            Panel(
                title="Age of the oldest open transaction",
                description="Readers of committed records wait for it in its partitions. Its "
                "time-out ends it.",
                queries={"{{instance}}": "millrace_transactions_open_seconds_max"},
                unit=Unit.SECONDS,
            ),
            Panel(
                title="Decided transactions that are not over",
                description="A partition or a group has not heard of the decision yet. Some at "
                "any moment are normal where many transactions end.",
                queries={"{{instance}}": "millrace_transactions_owed"},
                kind=Kind.STACKED,
                runbook="markers-owed",
            ),
            Panel(
                title="Age of the oldest decision that is not over",
                description="More than a few seconds: a partition cannot take the end of the "
                "transaction. `millrace transaction describe` says which, and why.",
                queries={"{{instance}}": "millrace_transactions_owed_seconds_max"},
                unit=Unit.SECONDS,
                runbook="markers-owed",
            ),
            Panel(
                title="Ends that deleted topics are owed",
                description="They get them when they are brought back. Until then these ends delay "
                "nobody.",
                queries={"{{instance}}": "millrace_deleted_topic_markers_owed"},
                kind=Kind.STACKED,
            ),
            Panel(
                title="Transactional ids",
                description="Kept until they are unused for transactions.id_expiration_ms. A line "
                "that only rises is a program that takes a new id with each start.",
                queries={"{{instance}}": "millrace_transactional_ids"},
                kind=Kind.STACKED,
            ),
            Panel(
                title="Partitions of transactions that are not ready",
                description="Their log is not read yet, or cannot be. The ids in them wait.",
                queries={"{{instance}}": "millrace_transactions_unready_partitions"},
                steps=ANY_IS_TO_WATCH,
                runbook="partitions-offline",
            ),
        ],
        "Partitions": [
            Panel(
                title="Records that readers do not see yet",
                description="Replicated, and not shown to readers of committed records: a "
                "transaction is open or has just ended. In the partition with the most, by topic; "
                "the twenty topics with the most.",
                queries={
                    "{{topic}}": "topk(20, max by (topic) "
                    '(millrace_topic_undecided_records_max{topic=~"$topic"}))'
                },
                runbook="hanging-transaction",
            ),
            Panel(
                title="Partitions with a hanging transaction",
                description="Readers of committed records wait there for a transaction that is "
                "open for too long. Nobody will end it, and `millrace transaction hanging` names "
                "it; or it is one of many producers, such as tasks of Spark, that keep it open.",
                queries={"hanging": "sum(millrace_hanging_transaction_partitions)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_BAD,
                runbook="hanging-transaction",
            ),
            Panel(
                title="Open transactions in partitions",
                description="By the broker that leads the partitions; a transaction counts in "
                "each of its partitions.",
                queries={"{{instance}}": "millrace_partition_transactions_open"},
                kind=Kind.STACKED,
            ),
            Panel(
                title="Age of the oldest open transaction in partitions",
                description="Since its first batch in the partition, by the broker that leads it; "
                "the longest time-out that a producer may choose; and the age of the oldest one "
                "of many producers, which they keep open.",
                queries={
                    "{{instance}}": "millrace_partition_transaction_open_seconds_max",
                    "time-out": "max(millrace_transaction_timeout_max_seconds)",
                    "with participants": "max(millrace_transactions_shared_open_seconds_max)",
                },
                unit=Unit.SECONDS,
                runbook="hanging-transaction",
            ),
        ],
    },
)
