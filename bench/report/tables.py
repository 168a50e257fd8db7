"""The comparison as tables: for the terminal and as Markdown, from the same cells."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

PRODUCERS = ("millrace", "confluent", "java")
CONSUMERS = ("millrace", "millrace arrow", "confluent", "java")
COLUMNS = (
    "case", "client", "records/s", "MB/s", "of ours", "client CPU s/M", "broker CPU s/M",
    "client peak MB", "broker peak MB",
)  # fmt: skip


def produce_table(report: dict[str, Any]) -> Table:
    """Return the producers' table for the terminal."""
    return _rich("Producing", _cells(report, "produce", PRODUCERS))


def consume_table(report: dict[str, Any]) -> Table:
    """Return the consumers' table for the terminal."""
    return _rich("Consuming", _cells(report, "consume", CONSUMERS))


def as_markdown(report: dict[str, Any], machine_sentence: str) -> str:
    """Return the whole report as a Markdown page."""
    ceilings = ", ".join(
        f"{row['what'].removeprefix('grpc ')} {kind} {cells['mb_per_second']:,.0f}"
        for row in report["rows"]
        if row["what"].startswith("grpc ")
        for kind, cells in row["clients"].items()
    )
    return "\n".join(
        [
            "# Millrace and Apache Kafka side by side",
            "",
            f"Measured by `make bench` on {machine_sentence}",
            "",
            f"Records of {report['record_bytes']} bytes, JSON events; medians of"
            f" {report['rounds']} rounds of {report['seconds_per_run']:g} s. CPU seconds are per"
            " million records and include the start of a client; `of ours` is the rate over ours"
            " in the same row. Consumers make key and value of every record; Arrow leaves them in"
            " columns. A case that ends in `3of3` is three replicas on three brokers; the others"
            " are one broker. `side_by_side.json` has every round and all settings.",
            "",
            f"The ceiling, raw Python gRPC streaming of 1 MiB messages, in MB/s: {ceilings}.",
            "",
            "![rates](side_by_side.png)",
            "",
            "## Producing",
            "",
            *_markdown(_cells(report, "produce", PRODUCERS)),
            "",
            "## Consuming",
            "",
            *_markdown(_cells(report, "consume", CONSUMERS)),
            "",
        ]
    )


def case_name(row: dict[str, Any]) -> str:
    """Return the short name of a case."""
    names = [f"{row['partitions']}p", row["codec"], row["durability"]]
    if row["brokers"] > 1:
        names.append(f"{row['replication']}of{row['brokers']}")
    return " ".join(name for name in names if name)


def _cells(report: dict[str, Any], what: str, clients: Sequence[str]) -> list[list[str]]:
    lines = []
    for row in report["rows"]:
        if row["what"] != what:
            continue
        ours = row["clients"]["millrace"]["records_per_second"]
        for client in clients:
            cells = row["clients"][client]
            lines.append(
                [
                    case_name(row) if client == clients[0] else "",
                    client,
                    f"{cells['records_per_second']:,.0f}",
                    f"{cells['mb_per_second']:,.0f}",
                    f"{cells['records_per_second'] / ours:.2f}",
                    f"{cells['client_cpu_seconds_per_million']:.2f}",
                    f"{cells['broker_cpu_seconds_per_million']:.2f}",
                    f"{cells['client_peak_mb']:,.0f}",
                    f"{cells['broker_peak_mb']:,.0f}",
                ]
            )
    return lines


def _rich(title: str, lines: list[list[str]]) -> Table:
    table = Table(title=title)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in COLUMNS[:2] else "right", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    return table


def _markdown(lines: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|" + "---:|" * (len(COLUMNS) - 2),
        *(f"| {' | '.join(line)} |" for line in lines),
    ]
