"""Topics and partitions: which are written, read and stored, and how many copies there are."""

from typing import Final

from dashboards.board import (
    ANY_IS_BAD,
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

_OF_TOPIC: Final = '{topic=~"$topic"}'

BOARD: Final = Board(
    uid="millrace-topics",
    title="Topics and partitions",
    description="Traffic, stored bytes and in-sync replicas by topic.",
    variables=BROKERS,
    optional=(TOPIC,),
    rows={
        "Traffic": [
            Panel(
                title="Bytes written",
                description="The ten topics with the most, as they are stored.",
                queries={
                    "{{topic}}": (
                        "topk(10, sum by (topic) (rate(millrace_topic_appended_bytes_total"
                        f"{_OF_TOPIC}[$__rate_interval])))"
                    )
                },
                unit=Unit.BYTES_PER_SECOND,
                kind=Kind.STACKED,
            ),
            Panel(
                title="Records written",
                description="The ten topics with the most.",
                queries={
                    "{{topic}}": (
                        "topk(10, sum by (topic) (rate(millrace_topic_appended_records_total"
                        f"{_OF_TOPIC}[$__rate_interval])))"
                    )
                },
                unit=Unit.PER_SECOND,
                kind=Kind.STACKED,
            ),
            Panel(
                title="Bytes read",
                description="The ten topics with the most; by readers and followers.",
                queries={
                    "{{topic}}": (
                        "topk(10, sum by (topic) (rate(millrace_topic_fetched_bytes_total"
                        f"{_OF_TOPIC}[$__rate_interval])))"
                    )
                },
                unit=Unit.BYTES_PER_SECOND,
                kind=Kind.STACKED,
            ),
            Panel(
                title="Stored bytes of a record",
                description="Bytes written for each record, with the batch's header and after "
                "compression. Small batches make it large.",
                queries={
                    "{{topic}}": (
                        "sum by (topic) (rate(millrace_topic_appended_bytes_total"
                        f"{_OF_TOPIC}[$__rate_interval])) / sum by (topic) "
                        f"(rate(millrace_topic_appended_records_total{_OF_TOPIC}"
                        "[$__rate_interval]) > 0)"
                    )
                },
                unit=Unit.BYTES,
            ),
        ],
        "Copies": [
            Panel(
                title="Stored bytes",
                description="The twenty topics with the most, all replicas together.",
                queries={
                    "{{topic}}": f"topk(20, sum by (topic) (millrace_topic_log_bytes{_OF_TOPIC}))"
                },
                unit=Unit.BYTES,
                kind=Kind.TABLE,
            ),
            Panel(
                title="Fewest in-sync replicas",
                description="Of each topic's partition with the fewest. Compare it with the "
                "topic's replication factor and min.insync.replicas.",
                queries={"{{topic}}": f"min by (topic) (millrace_topic_isr_size_min{_OF_TOPIC})"},
                steps=((0, BAD), (1, WATCH), (2, GOOD)),
                runbook="under-replicated",
            ),
            Panel(
                title="Records lost",
                description="Records that unclean elections removed in the time that is shown. "
                "Each replica that had them counts them.",
                queries={
                    "records": (
                        "sum(increase(millrace_topic_lost_records_total[$__range])) or vector(0)"
                    )
                },
                kind=Kind.NUMBER,
                steps=ANY_IS_BAD,
                runbook="records-lost",
            ),
        ],
        "Placement": [
            Panel(
                title="Replicas by broker",
                description="Partitions of which each broker holds a replica.",
                queries={"{{instance}}": "millrace_partitions"},
                kind=Kind.STACKED,
            ),
            Panel(
                title="Leaders by broker",
                description="Partitions that each broker leads. Leaderships go back to preferred "
                "leaders by themselves.",
                queries={"{{instance}}": "millrace_led_partitions"},
                kind=Kind.STACKED,
            ),
        ],
    },
)
