"""200 producers, each with its own connections, at 10 single records a second: p99 of the time to
the acknowledgement, and how many connections a producer holds, on average.

In `detail` the percentiles, the connections by protocol, the highest rate held at a p99 of 50 ms,
and percentiles and rate for an echo by bare DRPC frames.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

from bench.loads.paced import percentiles
from bench.many_clients import RATE_EACH, Crowd
from bench.measure import Bench, Outcome, say, settle
from bench.millrace_broker import running_millrace
from bench.peers.raw_server import running_frames_server
from bench.settings import MILLRACE_TOPIC

PARTITIONS = 4
TOPIC = "single-records"


def measure(bench: Bench) -> Outcome:
    """Measure both in turn, then raise the rate of each."""
    log = bench.directory / "clients.log"
    found: dict[str, list[dict[str, Any]]] = {"millrace": [], "frames": []}
    held: Mapping[str, float] = {}
    with ExitStack() as stack:
        millrace = stack.enter_context(running_millrace(bench.directory / "millrace"))
        server = stack.enter_context(running_frames_server(bench.directory))
        millrace.create_topic(TOPIC, PARTITIONS, MILLRACE_TOPIC["replicated"])
        crowds = {
            "millrace": Crowd(address=millrace.address, way="millrace", topic=TOPIC, log=log),
            "frames": Crowd(address=server.address, way="frames", topic="", log=log),
        }
        for number in range(1, bench.rounds + 1):
            for name, crowd in crowds.items():
                settle()
                run = crowd.run(RATE_EACH, bench.seconds)
                found[name].append(percentiles(run.latencies_ms))
                if name == "millrace":
                    held = millrace.by_protocol(run.connections)
                say(f"round {number}/{bench.rounds} {name:12} {found[name][-1]}")
        highest = {name: crowd.highest_rate(bench.seconds) for name, crowd in crowds.items()}
    medians = {
        name: {what: median([latencies[what] for latencies in of_side]) for what in of_side[0]}
        for name, of_side in found.items()
    }
    return Outcome(
        values={
            "p99 in ms": medians["millrace"]["p99_ms"],
            "connections a client": sum(held.values()),
        },
        detail={
            **medians,
            "connections_by_protocol": held,
            "highest_records_per_second_held": highest,
            "rounds": found,
        },
    )
