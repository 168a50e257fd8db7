"""A streaming job on Kubernetes takes flights in while its parts are killed one after another.

See `e2e/spark_kills.py`. `measure_kills` kills drivers, executors and brokers and drains nodes, and
counts those that the job survived; if its final output differs, none counts. `measure_exactly_once`
does the same under a job that writes topics (`e2e/spark_topics.py`), and kills coordinators of its
transactions, stops executors for a while, and cuts the power of nodes, too. `measure_recovery`
kills the driver's pod: it gets a SIGKILL on its node and is deleted, and the Deployment creates
another one. The time ends when the next micro-batch is committed; the median over kills.
"""

from collections.abc import Sequence
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import fresh_namespace, native_kubernetes
from e2e import spark_kills
from e2e.spark_kills import Story, Victim
from e2e.spark_topics import VICTIMS, TopicsStory
from tests.spark_jobs.flights import DAYS_OF_YEAR, read_source

KILLS_PER_ROUND = 6
DRIVER_KILLS_PER_ROUND = 3
EXACTLY_ONCE_KILLS_PER_ROUND = 2 * len(VICTIMS)
SEED = 19


def measure_kills(bench: Bench) -> Outcome:
    """Make so many kills a round, under a job that writes files."""
    return _told(_run(Story, spark_kills.plan_of(KILLS_PER_ROUND * bench.rounds, SEED)))


def measure_exactly_once(bench: Bench) -> Outcome:
    """Make so many kills a round, under a job that writes topics."""
    count = EXACTLY_ONCE_KILLS_PER_ROUND * bench.rounds
    return _told(_run(TopicsStory, spark_kills.plan_of(count, SEED, VICTIMS)))


def measure_recovery(bench: Bench) -> Outcome:
    """Kill the driver so many times a round, under one job."""
    outcome = _run(Story, [Victim.DRIVER] * DRIVER_KILLS_PER_ROUND * bench.rounds)
    seconds = outcome.seconds_of(Victim.DRIVER)
    return Outcome(
        values={"median in s": median(seconds), "outputs that differ": bool(outcome.difference)},
        detail={"slowest_s": max(seconds), "fastest_s": min(seconds), "rows": outcome.rows},
    )


def _told(outcome: spark_kills.Outcome) -> Outcome:
    if outcome.difference:
        say(outcome.difference)
    exact = 0 if outcome.difference else len(outcome.back_s)
    taken = {str(victim): seconds for victim in Victim if (seconds := outcome.seconds_of(victim))}
    return Outcome(
        values={"kills and drains with exact output": exact},
        detail={
            "rows": outcome.rows,
            "records_that_do_not_count": outcome.left_out,
            "difference": outcome.difference,
            "kills": {victim: len(seconds) for victim, seconds in taken.items()},
            "median_s": {victim: round(median(seconds), 1) for victim, seconds in taken.items()},
            "slowest_s": {victim: round(max(seconds), 1) for victim, seconds in taken.items()},
        },
    )


def _run(story: type[Story], plan: Sequence[Victim]) -> spark_kills.Outcome:
    with native_kubernetes() as kubernetes:
        kubernetes.load_spark_image()
        with fresh_namespace(kubernetes) as namespace:
            source = read_source(DAYS_OF_YEAR)
            return spark_kills.run(story(kubernetes, namespace, source), plan, say)
