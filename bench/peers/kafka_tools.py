"""Kafka's own Java perf tools, run as its scripts run them, and their summaries read.

They are bounded by records, not by time: the caller gives a count that lasts long enough.
"""

import re
from pathlib import Path

from bench.loads.spec import Moved
from bench.peers.kafka import java_command
from bench.processes import LoadFailedError, Usage, run_load

TOOL_HEAP = "1g"  # The scripts' 512 MB would starve a producer with a large buffer.memory.

PRODUCED = re.compile(
    r"(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec .*?"
    r"(?P<mean>[\d.]+) ms avg latency, (?P<worst>[\d.]+) ms max latency, "
    r"(?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th"
)


def produce(
    directory: Path,
    address: str,
    topic: str,
    *,
    records_file: Path,
    record_bytes: int,
    records: int,
    settings: dict[str, str],
    timeout_s: float,
    rate: float = -1,
) -> tuple[Moved, Usage]:
    """Run ProducerPerformance.

    Args:
        directory: Kafka's directory, for the log settings and the output.
        rate: records per second, -1 for as fast as it goes.

    Raises:
        LoadFailedError: it failed, took too long, or printed no summary.
    """
    properties = {"bootstrap.servers": address, "acks": "all", **settings}
    command = java_command(
        directory, TOOL_HEAP, "org.apache.kafka.tools.ProducerPerformance",
        "--topic", topic, "--num-records", str(records), "--throughput", f"{rate:g}",
        "--payload-file", str(records_file),
        "--producer-props", *(f"{name}={value}" for name, value in properties.items()),
    )  # fmt: skip
    printed, used = run_load(command, directory / "producer-perf.log", timeout_s)
    summary = PRODUCED.search(printed.rstrip().rpartition("\n")[2])
    if summary is None or int(summary["records"]) != records:
        raise LoadFailedError(f"no summary from Kafka's producer tool:\n{printed[-2000:]}")
    moved = Moved(
        records=records,
        bytes=records * record_bytes,
        seconds=records / float(summary["rate"]),
        detail={"latency_ms": {name: float(summary[name]) for name in ("p50", "p95", "p99")}},
    )
    return moved, used


def consume(
    directory: Path,
    address: str,
    topic: str,
    *,
    records: int,
    record_bytes: int,
    fetch_bytes: int,
    settings: dict[str, str],
    timeout_s: float,
) -> tuple[Moved, Usage]:
    """Run ConsumerPerformance over `records` records; its time without joining the group counts.

    Raises:
        LoadFailedError: it failed, took too long, or printed no summary.
    """
    config = directory / "consumer-perf.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = java_command(
        directory, TOOL_HEAP, "org.apache.kafka.tools.ConsumerPerformance",
        "--bootstrap-server", address, "--topic", topic, "--messages", str(records),
        "--fetch-size", str(fetch_bytes), "--consumer.config", str(config), "--hide-header",
    )  # fmt: skip
    printed, used = run_load(command, directory / "consumer-perf.log", timeout_s)
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, fetch MB/s, fetch records/s
    columns = printed.rstrip().rpartition("\n")[2].split(", ")
    if len(columns) != 10 or int(columns[4]) < records:
        raise LoadFailedError(f"no summary from Kafka's consumer tool:\n{printed[-2000:]}")
    count = int(columns[4])
    return Moved(records=count, bytes=count * record_bytes, seconds=int(columns[7]) / 1000), used
