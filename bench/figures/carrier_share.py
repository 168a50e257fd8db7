"""The share of the rate of bare DRPC frames that the broker reaches: produce and fetch, messages of
256 KiB and 1 MiB.

The bare server and its client move bytes without reading them. The broker checks, appends and
answers, or reads and frames. Its client is that of the bare frames, too: it writes prebuilt
messages, or drops what it receives. The value is the smallest of the four medians. In `detail` the
same bare frames with TLS 1.3 on both sides, and the CPU seconds for each GB of client and server.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.measure import Bench, Outcome, Run, cpu_seconds_per_gb, ratios, summaries
from bench.millrace_broker import Millrace, running_millrace
from bench.peers.raw_server import running_frames_server
from bench.records import write_random_records
from bench.settings import MILLRACE_TOPIC
from bench.sides import Consume, Produce, RawStream, fresh_topic

SIZES = {"256KiB": 256 << 10, "1MiB": 1 << 20}
DIRECTIONS = ("produce", "fetch")
IN_FLIGHT_BYTES = 16 << 20
PARTITIONS = 4
FILL_BYTES = 2 << 30

Side = Callable[[float], Run]


def measure(bench: Bench) -> Outcome:
    """Measure the four combinations one after another, each interleaved with the bare servers."""
    records = write_random_records(bench.directory / "records", 1000)
    shares: dict[str, float] = {}
    tls_shares: dict[str, float] = {}
    cpu: dict[str, dict[str, float]] = {}
    detail = {}
    with ExitStack() as stack:
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        servers = {
            name: stack.enter_context(running_frames_server(bench.directory, with_tls=with_tls))
            for name, with_tls in (("frames", False), ("frames_tls", True))
        }
        for direction in DIRECTIONS:
            for size_name, size in SIZES.items():
                with fresh_topic(millrace, PARTITIONS, MILLRACE_TOPIC["replicated"]) as filled:
                    sides: dict[str, Side] = {
                        "millrace": _ours(millrace, direction, size, filled, records)
                    }
                    for name, server in servers.items():
                        sides[name] = RawStream(
                            server=server,
                            direction=direction,
                            message_bytes=size,
                            log=records.with_suffix(".log"),
                        )
                    runs = bench.interleave(sides)
                rates = {
                    side: [run.bytes_per_second for run in of_side]
                    for side, of_side in runs.items()
                }
                combination = f"{direction} {size_name}"
                shares[combination] = median(ratios(rates["millrace"], rates["frames"]))
                tls_shares[combination] = median(ratios(rates["frames_tls"], rates["frames"]))
                cpu[combination] = {
                    side: median(map(cpu_seconds_per_gb, of_side)) for side, of_side in runs.items()
                }
                detail[combination] = summaries(runs)
    return Outcome(
        values={"smallest share": min(shares.values())},
        detail={
            "shares": shares,
            "bare_frames_with_tls_over_plain": tls_shares,
            "cpu_seconds_per_gb": cpu,
            **detail,
        },
    )


def _ours(millrace: Millrace, direction: str, size: int, filled: str, records: Path) -> Side:
    settings = {
        "message_bytes": size,
        "in_flight": IN_FLIGHT_BYTES // size,
        "drpc": millrace.drpc_address,
    }
    producing = Produce(
        broker=millrace,
        module="wire_millrace",
        way="produce",
        records_file=records,
        topic_config=MILLRACE_TOPIC["replicated"],
        settings=settings,
        partitions=PARTITIONS,
    )
    if direction == "produce":
        return producing
    moved = 0
    while moved < FILL_BYTES:
        moved += producing.to(filled, 1.0).moved.bytes
    return Consume(
        broker=millrace,
        module="wire_millrace",
        way="fetch",
        topic=filled,
        settings=settings,
        log=records.with_suffix(".log"),
        partitions=PARTITIONS,
    )
