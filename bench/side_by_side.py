"""Millrace and Apache Kafka side by side: the same records through both, one after the other.

For 1 and 16 partitions, each codec and both durabilities, Kafka's Java perf tool,
confluent-kafka-python and our client produce; for each codec and number of partitions they consume.
The same follows on three brokers of each system, with one replica and with three. Raw gRPC
streaming is the ceiling. Rates, CPU seconds per million records and the peak memory of every
process go to the terminal, and to docs/bench as a table, JSON and a picture.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import machine
from bench.comparisons.matrix import (
    RECORD_BYTES,
    Case,
    ceilings,
    cluster_cases,
    consume_cases,
    produce_cases,
)
from bench.comparisons.pair import Pair
from bench.directories import CHECKOUT, run_directory
from bench.measure import rounded, settle, summary
from bench.millrace_broker import running_millrace
from bench.millrace_cluster import BROKERS, REPLICATION, running_millrace_cluster
from bench.peers.kafka import running_kafka
from bench.peers.maven import PeerMissingError
from bench.peers.raw_server import running_grpc_server
from bench.processes import LoadFailedError, unwind_on_terminate
from bench.records import write_event_records
from bench.report.picture import draw
from bench.report.tables import as_markdown, consume_table, produce_table
from bench.settings import (
    CONFLUENT_CONSUMER,
    CONFLUENT_PRODUCER,
    GRPC_OPTIONS,
    JAVA_PRODUCER,
    MILLRACE_CONSUMER,
    MILLRACE_PRODUCER,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

REPORT_WIDTH = 140


def main() -> None:
    """Measure as the command line says, and write the report."""
    options = _parse()
    unwind_on_terminate()
    try:
        with run_directory(options.data_root) as directory, ExitStack() as stack:
            kafka = stack.enter_context(running_kafka(directory / "kafka"))
            millrace = stack.enter_context(running_millrace(directory / "millrace"))
            records = write_event_records(directory / "records", RECORD_BYTES)
            servers = {
                kind: stack.enter_context(running_grpc_server(directory, kind, GRPC_OPTIONS))
                for kind in ("sync", "aio")
            }
            pair = Pair(
                kafka=kafka,
                millrace=millrace,
                directory=directory,
                records=records,
                record_bytes=RECORD_BYTES,
            )
            cases = [
                *ceilings(servers, directory),
                *produce_cases(pair),
                *consume_cases(pair),
            ]
            _run(cases, options.rounds, options.seconds)
        with run_directory(options.data_root) as directory, ExitStack() as stack:
            nodes = stack.enter_context(
                running_kafka(directory / "kafka", nodes=BROKERS, replication=REPLICATION)
            )
            cluster = stack.enter_context(running_millrace_cluster(directory / "millrace"))
            records = write_event_records(directory / "records", RECORD_BYTES)
            of_clusters = list(cluster_cases(nodes, cluster, directory, records))
            _run(of_clusters, options.rounds, options.seconds)
            cases += of_clusters
    except (PeerMissingError, LoadFailedError) as error:
        print(f"the comparison was not made: {error}", file=sys.stderr)
        raise SystemExit(3) from error
    _write_report(cases, options)


def _run(cases: list[Case], rounds: int, seconds: float) -> None:
    """Run every side of every case: the sides of a case in turn, round by round."""
    columns = (
        TextColumn("{task.description:40}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=rounds * sum(len(case.sides) for case in cases))
        for case in cases:
            case.prepare()
            names = list(case.sides)
            for number in range(rounds):
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    progress.update(
                        task,
                        description=f"{case.what} {case.partitions or ''} {case.codec}"
                        f" {case.durability} {case.replication}/{case.brokers} {name}",
                    )
                    settle()
                    case.runs.setdefault(name, []).append(case.sides[name](seconds))
                    progress.advance(task)


def _write_report(cases: list[Case], options: argparse.Namespace) -> None:
    described = machine.describe(options.data_root)
    rows: list[dict[str, Any]] = [
        {
            "what": case.what,
            "partitions": case.partitions,
            "codec": case.codec,
            "durability": case.durability,
            "brokers": case.brokers,
            "replication": case.replication,
            "clients": {name: summary(runs) for name, runs in case.runs.items()},
        }
        for case in cases
    ]
    report = rounded(
        {
            "machine": described,
            "record_bytes": RECORD_BYTES,
            "rounds": options.rounds,
            "seconds_per_run": options.seconds,
            "settings": {
                "confluent_producer": CONFLUENT_PRODUCER,
                "confluent_consumer": CONFLUENT_CONSUMER,
                "java_producer": JAVA_PRODUCER,
                "millrace_producer": MILLRACE_PRODUCER,
                "millrace_consumer": MILLRACE_CONSUMER,
                "grpc_options": GRPC_OPTIONS,
            },
            "rows": rows,
        }
    )
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "side_by_side.json").write_text(json.dumps(report, indent=2) + "\n")
    (options.output / "side_by_side.md").write_text(
        as_markdown(report, machine.sentence(described))
    )
    draw(report, options.output / "side_by_side.png")
    console = Console(width=REPORT_WIDTH)
    console.print(produce_table(report), consume_table(report))
    console.print(f"Table, JSON and picture are in {options.output}.")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Millrace with Apache Kafka.")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of each case (default: 2)")
    parser.add_argument("--seconds", type=float, default=5, help="seconds of each run (default: 5)")
    parser.add_argument("--data-root", type=Path, help="where data directories are made")
    parser.add_argument(
        "--output", type=Path, default=CHECKOUT / "docs" / "bench", help="where the report goes"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
