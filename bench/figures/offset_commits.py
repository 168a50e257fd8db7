"""Committed positions a second that one broker has on its disk, the median.

Readers under names of their own commit again and again, each ten partitions at once as a member of
a group does. A commit counts when it is acknowledged: it is flushed then. Positions are compared
with what the broker returns in the end.
"""

import asyncio
import time
from statistics import median

from bench.measure import Bench, Outcome, say, settle
from bench.millrace_broker import running_millrace
from bench.processes import LoadFailedError
from bench.settings import MILLRACE_TOPIC

from millrace.client import Admin, Position

READERS = 32
PARTITIONS = 10


def measure(bench: Bench) -> Outcome:
    """Commit for as long as a round takes, round after round."""
    rates: list[float] = []
    with running_millrace(bench.directory / "millrace") as millrace:
        millrace.create_topic("t", PARTITIONS, MILLRACE_TOPIC["replicated"])
        for number in range(bench.rounds):
            settle()
            requests = asyncio.run(_commit(millrace.address, bench.seconds))
            rates.append(requests / bench.seconds)
            say(f"round {number + 1}/{bench.rounds} {rates[-1]:,.0f} requests/s")
    return Outcome(
        values={"committed positions a second, ten in a request": PARTITIONS * median(rates)},
        detail={"requests_per_second": rates, "readers": READERS},
    )


async def _commit(address: str, seconds: float) -> int:
    """Return how many requests were acknowledged."""
    async with Admin(address) as admin:
        ends_at = time.monotonic() + seconds

        async def read(name: str) -> int:
            done = 0
            while time.monotonic() < ends_at:
                done += 1
                positions = {("t", number): Position(done) for number in range(PARTITIONS)}
                await admin.commit_positions(name, positions)
            kept = await admin.fetch_positions(name)
            if {position.offset for position in kept.values()} != {done}:
                raise LoadFailedError(f"{name} committed {done}, and {kept} is kept")
            return done

        return sum(await asyncio.gather(*(read(f"reader {number}") for number in range(READERS))))
