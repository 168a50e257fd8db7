"""The latency of a paced load beside other work of the broker, over the latency without that work.

1,000 records a second on a topic of their own: end to end, from due time to receipt, and from
`send()` to the acknowledgement; the p99 of each.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

import numpy
from bench.measure import Bench, Outcome, say
from bench.millrace_broker import Millrace
from bench.settings import MILLRACE_TOPIC
from bench.sides import Paced, fresh_topic
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


def compare(bench: Bench, busy: str, run: Callable[[bool], Mapping[str, float]]) -> Outcome:
    """Return the worse of both latencies over that of idle runs; the median of all rounds.

    Args:
        busy: a name for runs with the other work.
        run: measures one run, with the other work or without.
    """
    found: dict[str, list[Mapping[str, float]]] = {IDLE: [], busy: []}
    for number in range(bench.rounds):
        for name in list(found)[:: 1 if number % 2 else -1]:
            found[name].append(run(name == busy))
            say(f"round {number + 1}/{bench.rounds} {name:8} {found[name][-1]}")
    times = {
        what: median(
            with_it[what] / idle[what]
            for with_it, idle in zip(found[busy], found[IDLE], strict=True)
        )
        for what in _COMPARED
    }
    return Outcome(
        values={"p99 over p99": max(times.values())},
        detail={
            "over": times,
            **{
                f"{name}_{what}": median(run[what] for run in runs)
                for name, runs in found.items()
                for what in runs[0]
            },
        },
    )


def _end_to_end(bench: Bench, millrace: Millrace) -> float:
    """Return the p99 from due time to receipt."""
    run = Paced(
        broker=millrace,
        module="latency_millrace",
        rate=RATE,
        topic_config=MILLRACE_TOPIC["replicated"],
        settings={"linger_ms": 0},
        log=bench.directory / "latency.log",
        partitions=PARTITIONS,
    )(bench.seconds)
    return float(run.moved.detail["p99_ms"])


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
