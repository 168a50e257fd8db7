"""A job on real flights; drivers and brokers are killed on the way, then its output is judged.

For each kill a portion of the flights is sent. While the job reads it, either a broker that leads
one of the topic's partitions is killed, and started again once the job has gone on without it; or
the driver is killed with all its processes, at a chosen moment of a micro-batch, and started again
with the same checkpoint. At the end a last portion is sent, and a last run reads what is left. Then
the Parquet files that Spark lists must hold exactly what is computed without Spark, and so must
topics when of each row that is there twice the last one is kept.
"""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from demo.spark_program import JOBS, SparkProgram
from tests.integration.running_cluster import RunningCluster
from tests.spark_jobs import expected
from tests.spark_jobs.flights import FLIGHTS, REPLICAS, Feed, Source
from tests.spark_jobs.topics import WrittenToTopics, delay, event
from tests.spark_jobs.written import Written

from millrace.client import SyncAdmin


@dataclass(frozen=True)
class Run:
    """How a job runs.

    Attributes:
        program: of `spark-on-k8s/jobs`.
        topics: that it writes, and the options that name them; none: Parquet files.
        with_bad: whether there are values that are no flights among those that it reads.
        until_the_end: whether it ends when it has read what is there, and has to run again.
    """

    program: str
    topics: tuple[tuple[str, str], ...] = ()
    with_bad: bool = False
    until_the_end: bool = False


RUNS = {
    "carrier_delays": Run("carrier_delays"),
    "carrier_delays_topic": Run("carrier_delays", topics=(("--output-topic", "delays"),)),
    "flights_with_weather": Run("flights_with_weather"),
    "aircraft_sessions": Run("aircraft_sessions"),
    "airport_events": Run(
        "airport_events",
        topics=(("--events-topic", "airport-events"), ("--rejected-topic", "rejected")),
        with_bad=True,
    ),
    "ingest_flights": Run("ingest_flights", with_bad=True, until_the_end=True),
}
BATCHES_A_PORTION = 6
SECONDS_MAX = 240.0
"""For one thing to happen, on a machine that has others to serve."""
_POLL_S = 0.002


class Moment(StrEnum):
    """When a process is killed: a micro-batch has just..."""

    PLANNED = "planned"
    WRITING = "writing"
    LISTED = "listed"
    COMMITTED = "committed"


@dataclass(frozen=True)
class Kill:
    """What is killed: the driver, or a partition's leader; and when."""

    who: str
    moment: Moment
    partition: int = 0


@dataclass
class Outcome:
    """What a job went through, and whether its output is right."""

    job: str
    driver_kills: int = 0
    broker_kills: int = 0
    driver_starts: int = 0
    interrupted: dict[str, int] = field(default_factory=dict)
    """How far the last batch was when the driver was dead."""
    batches: int = 0
    rows: int = 0
    leftovers: int = 0
    """Parquet files that killed tasks have left, and nobody lists; rows that a topic has again."""
    difference: str = ""
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """Of drivers and brokers."""
        return self.driver_kills + self.broker_kills


def plan_of(kills: int, seed: int) -> list[Kill]:
    """Return kills of drivers and brokers in turn, the last of a driver, at moments by the dice."""
    dice = random.Random(seed)
    return [
        Kill(
            "driver" if (kills - number) % 2 else "broker",
            dice.choice(list(Moment)),
            dice.randrange(4),
        )
        for number in range(kills)
    ]


def run(
    job: str,
    plan: Sequence[Kill],
    source: Source,
    folder: Path,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Run a job under kills; its files stay in `folder`.

    Raises:
        AssertionError, RuntimeError: something did not happen in time, or ended that should not.
    """
    started = time.monotonic()
    cluster = RunningCluster(folder).start()
    story = None
    try:
        story = _Story(job, cluster, source, folder, portions=len(plan) + 1, say=say)
        for number, kill in enumerate(plan):
            story.live_through(number, kill)
        story.finish(len(plan))
        story.outcome.seconds = time.monotonic() - started
        return story.outcome
    finally:
        if story is not None:
            story.close()
        cluster.abandon()


class _Story:
    def __init__(
        self,
        job: str,
        cluster: RunningCluster,
        source: Source,
        folder: Path,
        *,
        portions: int,
        say: Callable[[str], None],
    ) -> None:
        self.outcome = Outcome(job)
        self._job, self._cluster, self._source, self._folder = job, cluster, source, folder
        self._run = RUNS[job]
        self._feed = Feed(cluster.bootstrap, source, portions, with_bad=self._run.with_bad)
        self._written = (
            WrittenToTopics(
                folder,
                cluster.bootstrap,
                [topic for _, topic in self._run.topics],
                event if job == "airport_events" else delay,
            )
            if self._run.topics
            else Written(folder)
        )
        self._sender = ThreadPoolExecutor(1)
        self._driver: SparkProgram | None = None
        self._say = say

    def live_through(self, portion: int, kill: Kill) -> None:
        """Send a portion, and kill something while it is read."""
        sending = self._sender.submit(self._feed.send, portion)
        if self._run.until_the_end:
            sending.result()  # A run reads what is there when it begins.
        self._reach(kill.moment)
        if kill.who == "driver":
            self._kill_driver()
        else:
            self._kill_leader(kill.partition)
        sending.result()
        self._say(f"{self._job}: a {kill.who} was killed, {kill.moment} {self._written.planned()}")

    def finish(self, portion: int) -> None:
        """Send what is left, let a last run read it, and judge what was written."""
        assert self._driver is None, "a plan ends with a driver's death"
        self._feed.send(portion)
        driver = self._start("" if self._run.until_the_end else "--available-now")
        code = driver.wait(SECONDS_MAX)
        assert code == 0, f"the last run ended with {code}:\n{driver.log_end()}"
        outcome, written = self.outcome, self._written
        assert written.committed() == written.planned() == written.listed()
        outcome.batches = written.committed() + 1
        outcome.leftovers = written.leftovers()
        found = written.table()
        outcome.rows = found.num_rows
        flights = self._source.flights.table
        match self._job:
            case "carrier_delays" | "carrier_delays_topic":
                wanted = expected.carrier_delays(flights)
            case "aircraft_sessions":
                wanted = expected.aircraft_sessions(flights)
            case "flights_with_weather":
                weather = self._source.weather.table
                wanted = expected.flights_with_weather(flights, weather)
            case "airport_events":
                wanted = expected.airport_events(self._feed.bad, self._cluster.bootstrap)
            case _:
                found = found.drop_columns(["timestamp"])
                wanted = expected.ingest_flights(
                    flights, self._feed.bad, self._cluster.bootstrap, FLIGHTS
                )
        assert wanted.num_rows > 0
        outcome.difference = expected.difference(found, wanted)

    def close(self) -> None:
        """Leave nothing running."""
        if self._driver is not None:
            self._driver.kill()
        self._sender.shutdown()
        self._feed.close()

    def _start(self, *others: str) -> SparkProgram:
        written = self._written
        if self._run.until_the_end:
            size = self._feed.portion_bytes // BATCHES_A_PORTION
            limits = ["--batch-size", str(size)]
        else:
            count = self._feed.portion_rows // BATCHES_A_PORTION
            limits = ["--batch-records", str(count), "--every", "0 seconds"]
        output = [part for option in self._run.topics for part in option]
        arguments = [
            *("--bootstrap", self._cluster.bootstrap, "--checkpoint", str(written.checkpoint)),
            *(output or ["--output", str(written.output)]),
            *limits,
            *filter(None, others),
        ]
        program = JOBS / f"{self._run.program}.py"
        self._driver = SparkProgram(program, *arguments, log=self._folder / "driver.log").start()
        self.outcome.driver_starts += 1
        return self._driver

    def _reach(self, moment: Moment) -> None:
        """Return at the moment of a batch, after another one of the same portion."""
        written = self._written
        before = written.committed()
        if self._driver is None:
            self._start()
        self._wait(lambda: written.committed() > before, "a batch")
        batch, marks = written.committed() + 1, written.marks()
        reached: dict[Moment, Callable[[], bool]] = {
            Moment.PLANNED: lambda: written.planned() >= batch,
            # Or it has no rows to write.
            Moment.WRITING: lambda: bool(written.marks() - marks) or written.listed() >= batch,
            Moment.LISTED: lambda: written.listed() >= batch,
            Moment.COMMITTED: lambda: written.committed() >= batch,
        }
        self._wait(reached[moment], f"batch {batch} {moment}")

    def _kill_driver(self) -> None:
        assert self._driver is not None
        assert self._driver.exit_code() is None, "a run ended before it could be killed"
        self._driver.kill()
        self._driver = None
        self.outcome.driver_kills += 1
        batch = self._written.planned()
        if self._written.committed() == batch:
            state = "committed"
        elif self._written.listed() == batch:
            state = "listed, not committed"
        else:
            state = "planned, not listed"
        self.outcome.interrupted[state] = self.outcome.interrupted.get(state, 0) + 1

    def _kill_leader(self, partition: int) -> None:
        """Kill a leader; it is started again when a batch was read that was planned without it."""
        with SyncAdmin(self._cluster.bootstrap) as admin:

            def is_healed() -> bool:
                return all(
                    len(partition.isr) == REPLICAS
                    for partition in admin.describe_topic(FLIGHTS).partitions
                )

            self._wait(is_healed, "all replicas in sync")
            leader = admin.describe_topic(FLIGHTS).partitions[partition].leader_address
        assert leader is not None
        broker = self._cluster.at(leader)
        broker.kill()
        self.outcome.broker_kills += 1
        planned = self._written.planned()
        self._wait(lambda: self._written.committed() > planned, "a batch without a broker")
        broker.start()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            self._see_that_it_runs(what)
            assert self._driver is not None
            assert time.monotonic() < deadline, f"{what} did not come:\n{self._driver.log_end()}"
            time.sleep(_POLL_S)

    def _see_that_it_runs(self, waits_for: str) -> None:
        """Start the next run of a job that ends when it has read what is there."""
        assert self._driver is not None
        code = self._driver.exit_code()
        if code is None:
            return
        ended, self._driver = self._driver, None
        ended.kill()
        assert code == 0, (
            f"the job ended with {code}, and {waits_for} did not come:\n{ended.log_end()}"
        )
        assert self._run.until_the_end, (
            f"the job ended, and {waits_for} did not come:\n{ended.log_end()}"
        )
        self._start()
