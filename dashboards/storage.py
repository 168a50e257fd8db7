"""Stored bytes, retention, the cleaner, tiers and the page cache."""

from typing import Final

from dashboards.board import (
    ANY_IS_TO_WATCH,
    BAD,
    BROKERS,
    GOOD,
    TOPIC,
    WATCH,
    Board,
    Kind,
    Panel,
    Unit,
)

BOARD: Final = Board(
    uid="millrace-storage",
    title="Storage",
    description="Stored bytes, retention, compaction, tiers and the page cache.",
    variables=BROKERS,
    optional=(TOPIC,),
    rows={
        "Bytes": [
            Panel(
                title="Bytes of logs by log directory",
                description="Batches of the replicas there; indexes and deleted topics come on "
                "top.",
                queries={"{{instance}} {{log_dir}} ({{media}})": "millrace_log_dir_log_bytes"},
                unit=Unit.BYTES,
            ),
            Panel(
                title="Bytes of logs by topic",
                description="The ten topics with the most, all replicas together.",
                queries={
                    "{{topic}}": (
                        'topk(10, sum by (topic) (millrace_topic_log_bytes{topic=~"$topic"}))'
                    )
                },
                unit=Unit.BYTES,
                kind=Kind.STACKED,
            ),
            Panel(
                title="Growth",
                description="Of all logs, in the last hour, in bytes a second. Below 0 retention "
                "and compaction remove more than comes.",
                queries={
                    "{{instance}}": "sum by (instance) (deriv(millrace_log_dir_log_bytes[1h]))"
                },
                unit=Unit.BYTES_PER_SECOND,
            ),
            Panel(
                title="Free space",
                description="Of each log directory's file system.",
                queries={"{{instance}} {{log_dir}}": "millrace_log_dir_free_bytes"},
                unit=Unit.BYTES,
                runbook="disk-full",
            ),
        ],
        "Retention and page cache": [
            Panel(
                title="Segments that retention deleted",
                description="In partitions that each broker leads. A segment goes as a whole, "
                "when its last record is too old or the log too large.",
                queries={
                    "{{instance}}": (
                        "rate(millrace_retention_deleted_segments_total[$__rate_interval])"
                    )
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Fetch responses read from disk",
                description="Share of the responses with records for which the page cache did not "
                "have all. Readers of old records cause it.",
                queries={
                    "{{instance}}": (
                        "rate(millrace_fetch_disk_reads_total[$__rate_interval]) "
                        "/ on (namespace, instance) (rate(millrace_fetch_seconds_count"
                        '{phase="read"}[$__rate_interval]) > 0)'
                    )
                },
                unit=Unit.SHARE,
            ),
        ],
        "Cleaner": [
            Panel(
                title="Read and written",
                description="Bytes of segments. The difference is what compaction removed.",
                queries={
                    "read": "sum(rate(millrace_cleaner_read_bytes_total[$__rate_interval]))",
                    "written": "sum(rate(millrace_cleaner_written_bytes_total[$__rate_interval]))",
                },
                unit=Unit.BYTES_PER_SECOND,
            ),
            Panel(
                title="Records removed",
                description="Records whose key has a later one, and old tombstones.",
                queries={
                    "{{instance}}": "rate(millrace_cleaner_removed_records_total[$__rate_interval])"
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Cleaners at work",
                description="Threads that clean, on average. All of storage.cleaner_threads, all "
                "the time: logs get dirty faster than they are cleaned.",
                queries={"{{instance}}": "rate(millrace_cleaner_seconds_total[$__rate_interval])"},
            ),
            Panel(
                title="Logs cleaned",
                description="Logs that were cleaned as far as possible.",
                queries={
                    "{{instance}}": "rate(millrace_cleaner_cleanings_total[$__rate_interval])"
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Dirtiest log",
                description="The largest dirty part of a log, of what may be cleaned. It is "
                "cleaned from min.cleanable.dirty.ratio on.",
                queries={"{{instance}}": "millrace_cleaner_dirtiest_ratio"},
                unit=Unit.SHARE,
                steps=((0, GOOD), (0.8, WATCH), (0.95, BAD)),
            ),
            Panel(
                title="Replicas that could not be cleaned",
                description="Their last cleaning was refused; the broker's log names them.",
                queries={"replicas": "sum(millrace_cleaner_uncleanable_partitions) or vector(0)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
                runbook="cleaning-refused",
            ),
        ],
        "Tiers": [
            Panel(
                title="Bytes on HDDs",
                description="Segments of tiered topics, by the log directory on an HDD.",
                queries={"{{instance}} {{log_dir}}": "millrace_tier_bytes"},
                unit=Unit.BYTES,
            ),
            Panel(
                title="Moved bytes",
                description="Copied or verified, to HDDs and from them. "
                "`storage.tier_io_max_bytes_per_second` bounds it for each HDD.",
                queries={
                    "{{way}}": (
                        "sum by (way) (rate(millrace_tier_moved_bytes_total[$__rate_interval]))"
                    )
                },
                unit=Unit.BYTES_PER_SECOND,
            ),
            Panel(
                title="Moved segments",
                description="To HDDs, and back from them.",
                queries={
                    "{{way}}": (
                        "sum by (way) (rate(millrace_tier_moved_segments_total[$__rate_interval]))"
                    )
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Replicas whose moves are refused",
                description="Their last move to an HDD or back was refused; the broker's log names "
                "them.",
                queries={"replicas": "sum(millrace_tier_refused_partitions) or vector(0)"},
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
                runbook="tier-moves-refused",
            ),
        ],
    },
)
