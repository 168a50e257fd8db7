"""Many clients at the same time: their spread over processes, their latencies and connections."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.loads.paced import WARM_UP_S, percentiles
from bench.loads.spec import Load, command_line
from bench.processes import last_json, run_loads
from bench.sides import GRACE_S

CLIENTS = 200
RATE_EACH = 10.0
PROCESSES = 2
"""One event loop for each core; more processes only cause more context switches."""
P99_MAX_MS = 50
RATE_STEP = 1.25


@dataclass(frozen=True, kw_only=True)
class CrowdRun:
    """What all clients of a run saw.

    Attributes:
        latencies_ms: of every record.
        connections: how many a client had at the end, on average, by the port of the server.
    """

    latencies_ms: Sequence[float]
    connections: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Clients of one kind against one server."""

    address: str
    way: str
    """`millrace` or `frames` (`bench.loads.many_clients`)."""
    topic: str
    log: Path

    def run(self, rate_each: float, seconds: float) -> CrowdRun:
        """Let all clients send at a rate."""
        load = Load(
            address=self.address,
            topic=self.topic,
            partitions=1,
            seconds=seconds,
            rate=rate_each,
            way=self.way,
            settings={"clients": CLIENTS // PROCESSES},
        )
        commands = [command_line("many_clients", load)] * PROCESSES
        printed = run_loads(commands, self.log, seconds + WARM_UP_S + GRACE_S)
        return together([last_json(text)["detail"] for text, _ in printed])

    def p99_ms(self, rate_each: float, seconds: float) -> float:
        """Return the 99th percentile over all clients."""
        p99: float = percentiles(self.run(rate_each, seconds).latencies_ms)["p99_ms"]
        return p99

    def highest_rate(self, seconds: float) -> float:
        """Return the highest total rate, in records a second, with p99 within `P99_MAX_MS`.

        The rate rises from `RATE_EACH` by `RATE_STEP` until it fails; 0 if the first one fails.
        """
        held = 0.0
        rate_each = RATE_EACH
        while self.p99_ms(rate_each, seconds) <= P99_MAX_MS:
            held = rate_each * CLIENTS
            rate_each *= RATE_STEP
        return held


def together(said: Sequence[Mapping[str, Any]]) -> CrowdRun:
    """Return the run of all clients from what each of their processes said."""
    found: dict[str, float] = {}
    for detail in said:
        for port, number in detail["connections"].items():
            found[port] = found.get(port, 0) + number / CLIENTS
    return CrowdRun(
        latencies_ms=[latency for detail in said for latency in detail["latencies_ms"]],
        connections=found,
    )
