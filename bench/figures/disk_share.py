"""The share of the disk's rate that the broker reaches when it flushes every append.

The broker gets prebuilt requests of one batch each, at most one in flight for each of four
partitions; so each flush covers one batch. The raw side writes the same sizes to one file, each
followed by fdatasync. `detail` shows what group commit adds with more requests in flight.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.loads.spec import Load, Moved, command_line
from bench.measure import Bench, Outcome, Run, ratios, summaries
from bench.millrace_broker import running_millrace
from bench.processes import Usage, last_json, run_load
from bench.records import write_random_records
from bench.settings import MILLRACE_TOPIC
from bench.sides import GRACE_S, Produce

SIZES = {"256KiB": 256 << 10, "1MiB": 1 << 20}
PARTITIONS = 4
PIPELINED_BYTES = 16 << 20


def measure(bench: Bench) -> Outcome:
    """Measure both sizes one after another, each interleaved with raw writes."""
    records = write_random_records(bench.directory / "records", 1000)
    shares: dict[str, float] = {}
    detail = {}
    with running_millrace(bench.directory / "millrace") as millrace:

        def sending(size: int, in_flight: int) -> Produce:
            return Produce(
                broker=millrace,
                module="wire_millrace",
                way="produce",
                records_file=records,
                topic_config=MILLRACE_TOPIC["fsync"],
                settings={
                    "message_bytes": size,
                    "in_flight": in_flight,
                    "drpc": millrace.drpc_address,
                },
                partitions=PARTITIONS,
            )

        for name, size in SIZES.items():
            runs = bench.interleave(
                {
                    "millrace": sending(size, PARTITIONS),
                    "raw": _raw(size, bench.directory),
                    "millrace_pipelined": sending(size, PIPELINED_BYTES // size),
                }
            )
            raw = [run.bytes_per_second for run in runs["raw"]]
            shares[name] = median(ratios([run.bytes_per_second for run in runs["millrace"]], raw))
            pipelined = [run.bytes_per_second for run in runs["millrace_pipelined"]]
            detail[name] = {"pipelined_share": median(ratios(pipelined, raw)), **summaries(runs)}
    return Outcome(
        values={"smaller share": min(shares.values())},
        detail={"shares": shares, **detail},
    )


def _raw(size: int, directory: Path) -> Callable[[float], Run]:
    def run(seconds: float) -> Run:
        load = Load(
            address="",
            topic="",
            partitions=1,
            seconds=seconds,
            settings={"directory": str(directory), "write_bytes": size},
        )
        command = command_line("disk_write", load)
        printed, used = run_load(command, directory / "disk.log", seconds + GRACE_S)
        nobody = Usage(cpu_seconds=0, peak_rss_bytes=0)
        return Run(moved=Moved(**last_json(printed)), client=used, broker=nobody)

    return run
