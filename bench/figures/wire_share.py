"""The share of raw gRPC streaming's rate that the broker reaches: produce and fetch, messages of
256 KiB and 1 MiB.

The raw server and its client move bytes without reading them. The broker checks, appends and
answers, or reads and frames. Both sides' clients write prebuilt messages, or drop what they
receive. In each round the better of sync and aio raw streaming counts; the value is the smallest of
the four medians.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.measure import Bench, Outcome, Run, ratios, summaries
from bench.millrace_broker import Millrace, running_millrace
from bench.peers.grpc_server import running_grpc_server
from bench.records import write_random_records
from bench.settings import GRPC_OPTIONS, MILLRACE_TOPIC
from bench.sides import Consume, Produce, RawStream, fresh_topic

SIZES = {"256KiB": 256 << 10, "1MiB": 1 << 20}
DIRECTIONS = ("produce", "fetch")
KINDS = ("sync", "aio")
IN_FLIGHT_BYTES = 16 << 20
PARTITIONS = 4
FILL_BYTES = 2 << 30

Side = Callable[[float], Run]


def measure(bench: Bench) -> Outcome:
    """Measure the four combinations one after another, each interleaved with the raw servers."""
    records = write_random_records(bench.directory / "records", 1000)
    shares: dict[str, float] = {}
    detail = {}
    with ExitStack() as stack:
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        servers = {
            kind: stack.enter_context(running_grpc_server(bench.directory, kind, GRPC_OPTIONS))
            for kind in KINDS
        }
        for direction in DIRECTIONS:
            for size_name, size in SIZES.items():
                with fresh_topic(millrace, PARTITIONS, MILLRACE_TOPIC["replicated"]) as filled:
                    ours = _ours(millrace, direction, size, filled, records)
                    sides: dict[str, Side] = {"millrace": ours}
                    for kind, server in servers.items():
                        sides[kind] = RawStream(
                            server=server,
                            kind=kind,
                            direction=direction,
                            message_bytes=size,
                            log=records.with_suffix(".log"),
                        )
                    runs = bench.interleave(sides)
                best = [
                    max(sync.bytes_per_second, aio.bytes_per_second)
                    for sync, aio in zip(runs["sync"], runs["aio"], strict=True)
                ]
                name = f"{direction} {size_name}"
                shares[name] = median(
                    ratios([run.bytes_per_second for run in runs["millrace"]], best)
                )
                detail[name] = summaries(runs)
    return Outcome(
        values={"smallest share": min(shares.values())},
        detail={"shares": shares, "grpc_options": GRPC_OPTIONS, **detail},
    )


def _ours(millrace: Millrace, direction: str, size: int, filled: str, records: Path) -> Side:
    settings = {"message_bytes": size, "in_flight": IN_FLIGHT_BYTES // size}
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
