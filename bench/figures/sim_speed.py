"""Messages, timers and disk completions that code of the product handles in a simulated cluster,
for each second of one core, with all invariants and checkers on: the median of the rounds.
"""

import time
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from tests.sim.hours import HoursCluster
from tests.sim.run import plan_of, run
from tests.sim.world import MINUTE, SECOND

LENGTH_US = 2 * MINUTE


def measure(bench: Bench) -> Outcome:
    """Run seed after seed in this process, for the length of a round."""
    rates: list[float] = []
    times_as_fast: list[float] = []
    seed = 1
    for number in range(bench.rounds):
        handled = simulated_us = 0
        began = time.process_time()
        while (used := time.process_time() - began) < bench.seconds:
            outcome = run(HoursCluster, plan_of(HoursCluster, seed, LENGTH_US))
            if outcome.violation is not None:
                raise LoadFailedError(f"seed {seed}: {outcome.violation}")
            handled += outcome.handled
            simulated_us += outcome.simulated_us
            seed += 1
        rates.append(handled / used)
        times_as_fast.append(simulated_us / SECOND / used)
        say(f"round {number + 1}/{bench.rounds} {rates[-1]:,.0f} events/s")
    return Outcome(
        values={"events handled by the product, for each second of one core": median(rates)},
        detail={"rounds": rates, "simulated_seconds_per_second": times_as_fast, "seeds": seed - 1},
    )
