"""Latency while logs are compacted, over the latency without: the worse of reading and writing.

One broker. A paced load of 1,000 records a second on a topic of its own: end to end, from due time
to receipt, and from `send()` to the acknowledgement; the p99 of each. Meanwhile the cleaner thread
compacts partitions of another topic, one after another, for the whole time, or has nothing to do.
"""

import time
from statistics import median

import numpy
from bench.comparisons.compaction import BACKOFF_MS, FREE, HELD, cells
from bench.loads.paced import WARM_UP_S
from bench.loads.spec import Load, Moved, command_line
from bench.measure import Bench, Bound, Outcome, figure, say, settle
from bench.millrace_broker import Millrace, metrics_of, running_millrace
from bench.processes import LoadFailedError, last_json, run_loads
from bench.records import read_records, write_random_records
from bench.settings import MILLRACE_TOPIC
from bench.sides import GRACE_S, fresh_topic
from bench.steady_load import steady_load

from millrace.client import SyncAdmin, SyncProducer

RATE = 1000
PARTITIONS = 4
RECORDS_PER_SECOND = 400_000
"""As fast as the cleaner may be; the topic has enough for the whole run."""
CLEANED_PARTITIONS = 16
TIMES_MAX = 2


def measure(bench: Bench) -> Outcome:
    """Measure with and without, in turn."""
    values = read_records(write_random_records(bench.directory / "records", 100))
    found: dict[str, list[dict[str, float]]] = {"idle": [], "cleaning": []}
    storage = f"cleaner_backoff_ms = {BACKOFF_MS}"
    with running_millrace(bench.directory / "millrace", storage=storage) as millrace:
        for number in range(bench.rounds):
            for name in list(found)[:: 1 if number % 2 else -1]:
                if name == "cleaning":
                    _fill(millrace, values, bench.seconds)
                settle()
                if name == "cleaning":
                    _free(millrace)
                latencies = _latencies(bench, millrace)
                if name == "cleaning":
                    _check_and_delete(millrace)
                found[name].append(latencies)
                say(f"round {number + 1}/{bench.rounds} {name:9} {latencies}")
    over = {
        what: median(
            cleaning[what] / idle[what]
            for cleaning, idle in zip(found["cleaning"], found["idle"], strict=True)
        )
        for what in ("end_to_end_p99_ms", "produce_p99_ms")
    }
    return Outcome(
        bounds=[Bound(what="p99 over p99", value=max(over.values()), at_most=TIMES_MAX)],
        detail={
            "over": over,
            **{
                f"{name}_{what}": median(each[what] for each in runs)
                for name, runs in found.items()
                for what in runs[0]
            },
        },
    )


def _fill(millrace: Millrace, values: list[bytes], seconds: float) -> None:
    """Write what the cleaner has to do for a whole run."""
    records = int(RECORDS_PER_SECOND * (seconds + WARM_UP_S) * 2)
    millrace.create_topic("compacted", CLEANED_PARTITIONS, {**MILLRACE_TOPIC["replicated"], **HELD})
    with SyncProducer(millrace.address) as producer:
        for keys, some in cells(records, records // 10, values):
            producer.send_batch("compacted", some, keys=keys)
        producer.flush()


def _free(millrace: Millrace) -> None:
    with SyncAdmin(millrace.address) as admin:
        admin.alter_topic("compacted", set_config=FREE)


def _check_and_delete(millrace: Millrace) -> None:
    """Make sure that there was something to clean until the end."""
    if metrics_of(millrace)["millrace_cleaner_dirtiest_ratio"] == 0:
        raise LoadFailedError("everything was compacted before the run ended: fill more")
    millrace.delete_topic("compacted")


def _latencies(bench: Bench, millrace: Millrace) -> dict[str, float]:
    log = bench.directory / "latency.log"
    with fresh_topic(millrace, PARTITIONS, MILLRACE_TOPIC["replicated"]) as topic:
        commands = [
            command_line(
                "latency_millrace",
                Load(
                    address=millrace.address,
                    topic=topic,
                    partitions=PARTITIONS,
                    seconds=bench.seconds / 2,
                    rate=RATE,
                    way=way,
                    settings=settings,
                ),
            )
            for way, settings in (("consume", {}), ("produce", {"linger_ms": 0}))
        ]
        (printed, _), _ = run_loads(commands, log, bench.seconds + WARM_UP_S + GRACE_S)
        end_to_end = Moved(**last_json(printed)).detail["p99_ms"]
    return {"end_to_end_p99_ms": end_to_end, "produce_p99_ms": _produce(bench, millrace)}


def _produce(bench: Bench, millrace: Millrace) -> float:
    """Return the p99 from `send()` to the acknowledgement."""
    with (
        fresh_topic(millrace, PARTITIONS, MILLRACE_TOPIC["replicated"]) as topic,
        steady_load(
            bench.directory,
            millrace.address,
            "steady_millrace",
            topic=topic,
            partitions=PARTITIONS,
            rate=RATE,
        ) as load,
    ):
        load.begin()
        time.sleep(bench.seconds / 2)
        records = load.end()
    taken_ns = records["acknowledged_ns"] - records["sent_ns"]
    return float(numpy.percentile(taken_ns, 99)) / 1e6


if __name__ == "__main__":
    figure("compaction_reads", unit="times", goal="<= 2", measure=measure)
