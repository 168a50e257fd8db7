"""The latency of a paced load beside other work of the broker, over the latency without that work.

1,000 records a second on a topic of their own: end to end, from due time to receipt, and from
`send()` to the acknowledgement; the p99 of each.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import median

import numpy
from bench.loads.paced import WARM_UP_S
from bench.loads.spec import Load, Moved, command_line
from bench.measure import Bench, Outcome
from bench.millrace_broker import Millrace
from bench.processes import last_json, run_loads
from bench.settings import MILLRACE_TOPIC
from bench.sides import GRACE_S, fresh_topic
from bench.steady_load import steady_load

RATE = 1000
PARTITIONS = 4
IDLE = "idle"
"""Name of the runs without the other work."""
_COMPARED = ("end_to_end_p99_ms", "produce_p99_ms")


def latencies(bench: Bench, millrace: Millrace) -> dict[str, float]:
    """Measure one run."""
    found = (_end_to_end(bench, millrace), _produce(bench, millrace))
    return dict(zip(_COMPARED, found, strict=True))


def over(found: Mapping[str, Sequence[Mapping[str, float]]], beside: str) -> Outcome:
    """Return the worse of both latencies over that of idle runs; the median of all rounds."""
    times = {
        what: median(
            busy[what] / idle[what] for busy, idle in zip(found[beside], found[IDLE], strict=True)
        )
        for what in _COMPARED
    }
    return Outcome(
        values={"p99 over p99": max(times.values())},
        detail={
            "over": times,
            **{
                f"{name}_{what}": median(each[what] for each in runs)
                for name, runs in found.items()
                for what in runs[0]
            },
        },
    )


def _end_to_end(bench: Bench, millrace: Millrace) -> float:
    """Return the p99 from due time to receipt."""
    with fresh_topic(millrace, PARTITIONS, MILLRACE_TOPIC["replicated"]) as topic:
        commands = [
            command_line(
                "latency_millrace",
                Load(
                    address=millrace.address,
                    topic=topic,
                    partitions=PARTITIONS,
                    seconds=bench.seconds,
                    rate=RATE,
                    way=way,
                    settings=settings,
                ),
            )
            for way, settings in (("consume", {}), ("produce", {"linger_ms": 0}))
        ]
        log = bench.directory / "latency.log"
        (printed, _), _ = run_loads(commands, log, bench.seconds + WARM_UP_S + GRACE_S)
        return float(Moved(**last_json(printed)).detail["p99_ms"])


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
        time.sleep(bench.seconds)
        records = load.end()
    taken_ns = records["acknowledged_ns"] - records["sent_ns"]
    return float(numpy.percentile(taken_ns, 99)) / 1e6
