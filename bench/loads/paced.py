"""Records at a steady rate that carry their due times, and the resulting latencies.

A record carries the monotonic time at which it was due, which all processes of a machine share. So
a producer that falls behind makes latencies longer instead of making fewer records.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import numpy.typing
from bench.loads.spec import Load, Moved

WARM_UP_S = 2.0
TICK_S = 0.001
RECORD_BYTES = 100
STAMP_BYTES = 8
_PADDING = numpy.random.default_rng(1).bytes(RECORD_BYTES - STAMP_BYTES)


def record_count(load: Load) -> int:
    """Return how many records a paced load sends, those of the warm-up included."""
    return round((load.seconds + WARM_UP_S) * load.rate)


def due_records(load: Load) -> Iterator[list[bytes]]:
    """Yield the records of each tick when they are due."""
    per_tick = max(1, round(load.rate * TICK_S))
    interval = per_tick / load.rate
    started = time.monotonic() + 0.1
    for tick in range(record_count(load) // per_tick):
        due = started + tick * interval
        ahead = due - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        stamp = int(due * 1e9).to_bytes(STAMP_BYTES, "little")
        yield [stamp + _PADDING] * per_tick


def receive(load: Load, poll: Callable[[], Sequence[bytes]]) -> Moved:
    """Receive all records of a paced load and report their latencies.

    Args:
        load: the load, as the producer got it.
        poll: returns the received values; none if none came in time.
    """
    stamps: list[int] = []
    arrivals: list[int] = []
    expected = record_count(load)
    while len(stamps) < expected:
        values = poll()
        if not values:
            raise SystemExit(f"only {len(stamps)} of {expected} records came")
        now = time.monotonic_ns()
        stamps += [int.from_bytes(value[:STAMP_BYTES], "little") for value in values]
        arrivals += [now] * len(values)
    sent = numpy.array(stamps)
    latencies = (numpy.array(arrivals) - sent) / 1e6
    measured = sent >= sent.min() + int(WARM_UP_S * 1e9)
    return Moved(
        records=int(measured.sum()),
        bytes=int(measured.sum()) * RECORD_BYTES,
        seconds=load.seconds,
        detail=percentiles(latencies[measured]),
    )


def percentiles(
    latencies_ms: Sequence[float] | numpy.typing.NDArray[numpy.float64],
) -> dict[str, Any]:
    """Return the usual percentiles of latencies in milliseconds."""
    p50, p99, p999 = numpy.percentile(latencies_ms, [50, 99, 99.9])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "p999_ms": float(p999)}
