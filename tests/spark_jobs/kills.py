"""A job on real flights; what it needs is killed on the way, then its output is judged.

For each kill a portion of the flights is sent. While the job reads it, something is killed at a
chosen moment of a micro-batch: a broker that leads one of the topic's partitions, or coordinates
the query's transactions, which is started again once the job has gone on without it; an executor,
which Spark replaces; or the driver with all its processes, which is started again with the same
checkpoint. At the end a last portion is sent, and a last run reads what is left. Then the Parquet
files that Spark lists must hold exactly what is computed without Spark, and so must the committed
records of topics.
"""

import functools
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
from tests.spark_jobs.topics import WrittenToTopics, delay, event, read_all, shuffled
from tests.spark_jobs.written import Written

from millrace.client import SyncAdmin
from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.topics import TRANSACTIONS_TOPIC


@dataclass(frozen=True)
class Run:
    """How a job runs.

    Attributes:
        program: of `spark-on-k8s/jobs`, or of `folder`.
        topics: that it writes, and the options that name them; none: Parquet files.
        with_bad: whether there are values that are no flights among those that it reads.
        until_the_end: whether it ends when it has read what is there, and has to run again.
        folder: where the program is.
        options: others.
    """

    program: str
    topics: tuple[tuple[str, str], ...] = ()
    with_bad: bool = False
    until_the_end: bool = False
    folder: Path = JOBS
    options: tuple[str, ...] = ()


RUNS = {
    "carrier_delays": Run("carrier_delays"),
    "carrier_delays_topic": Run("carrier_delays", topics=(("--output-topic", "delays"),)),
    "flights_with_weather": Run("flights_with_weather"),
    "aircraft_sessions": Run("aircraft_sessions"),
    "airport_events": Run(
        "airport_events",
        topics=(("--events-topic", "airport-events"), ("--rejected-topic", "rejected")),
        with_bad=True,
        options=("--by-airport",),
    ),
    "shuffled": Run(
        "shuffled",
        topics=(("--output", "shuffled"),),
        folder=Path(__file__).parent,
    ),
    "ingest_flights": Run("ingest_flights", with_bad=True, until_the_end=True),
}
BATCHES_A_PORTION = 6
SECONDS_MAX = 240.0
"""For one thing to happen, on a machine that has others to serve."""
_POLL_S = 0.002


class Victim(StrEnum):
    """What is killed."""

    DRIVER = "driver"
    BROKER = "broker"
    """That leads a partition which the job reads."""
    COORDINATOR = "coordinator"
    """The broker that decides the query's transactions."""
    EXECUTOR = "executor"


class Moment(StrEnum):
    """When a process is killed: a micro-batch has just..."""

    PLANNED = "planned"
    WRITING = "writing"
    LISTED = "listed"
    COMMITTED = "committed"


@dataclass(frozen=True)
class Kill:
    """What is killed, and when."""

    who: Victim
    moment: Moment
    partition: int = 0


@dataclass
class Outcome:
    """What a job went through, and whether its output is right."""

    job: str
    driver_kills: int = 0
    broker_kills: int = 0
    coordinator_kills: int = 0
    executor_kills: int = 0
    driver_starts: int = 0
    interrupted: dict[str, int] = field(default_factory=dict)
    """How far the last batch was when the driver was dead."""
    batches: int = 0
    rows: int = 0
    leftovers: int = 0
    """Parquet files that killed tasks have left, and nobody lists; records and markers in topics
    that do not count."""
    difference: str = ""
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """Of everything."""
        return self.driver_kills + self.broker_kills + self.coordinator_kills + self.executor_kills


def plan_of(
    kills: int, seed: int, victims: Sequence[Victim] = (Victim.DRIVER, Victim.BROKER)
) -> list[Kill]:
    """Return kills of all victims in turn, the last of the first one, at moments by the dice."""
    dice = random.Random(seed)
    return [
        Kill(
            victims[(kills - 1 - number) % len(victims)],
            dice.choice(list(Moment)),
            dice.randrange(4),
        )
        for number in range(kills)
    ]


def victims_of(job: str) -> list[Victim]:
    """Return what can be killed of a job that writes to topics."""
    victims = [Victim.DRIVER, Victim.BROKER, Victim.COORDINATOR]
    return [*victims, Victim.EXECUTOR] if job == "shuffled" else victims


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
        self._written: Written = Written(folder)
        if self._run.topics:
            topics = [topic for _, topic in self._run.topics]
            row_of = delay
            if job == "airport_events":
                row_of = event
            elif job == "shuffled":
                (name,), row_of = topics, shuffled
                topics = [f"{name}-a", f"{name}-b"]
            self._written = WrittenToTopics(folder, cluster.bootstrap, topics, row_of)
        self._sender = ThreadPoolExecutor(1)
        self._driver: SparkProgram | None = None
        self._say = say

    def live_through(self, portion: int, kill: Kill) -> None:
        """Send a portion, and kill something while it is read."""
        sending = self._sender.submit(self._feed.send, portion)
        if self._run.until_the_end:
            sending.result()  # A run reads what is there when it begins.
        self._reach(kill.moment)
        match kill.who:
            case Victim.DRIVER:
                self._kill_driver()
            case Victim.BROKER:
                self._kill_leader(FLIGHTS, kill.partition)
                self.outcome.broker_kills += 1
            case Victim.COORDINATOR:
                self._kill_leader(str(TRANSACTIONS_TOPIC), None)
                self.outcome.coordinator_kills += 1
            case Victim.EXECUTOR:
                self._kill_executor()
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
            case "shuffled":
                wanted = expected.shuffled(self._cluster.bootstrap, self._run.topics[0][1])
            case "airport_events":
                read = functools.partial(read_all, self._cluster.bootstrap)
                wanted = expected.airport_events(self._feed.bad, read)
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
            *self._run.options,
            *filter(None, others),
        ]
        program = self._run.folder / f"{self._run.program}.py"
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

    def _kill_executor(self) -> None:
        """Kill one executor with its Python workers; Spark starts another one."""
        assert self._driver is not None
        self._driver.kill_executor()
        self.outcome.executor_kills += 1
        planned = self._written.planned()
        self._wait(lambda: self._written.committed() > planned, "a batch without an executor")

    def _kill_leader(self, topic: str, partition: int | None) -> None:
        """Kill a leader; it is started again when a batch was read that was planned without it.

        Args:
            topic: which.
            partition: which; None: that which keeps the query's transactions.
        """
        with SyncAdmin(self._cluster.bootstrap) as admin:

            def is_healed() -> bool:
                return all(
                    len(partition.isr) == REPLICAS
                    for name in (FLIGHTS, topic)
                    for partition in admin.describe_topic(name).partitions
                )

            self._wait(is_healed, "all replicas in sync")
            partitions = admin.describe_topic(topic).partitions
            if partition is None:
                (known,) = WrittenToTopics.transactional_ids(admin)
                partition = partition_of(full_id(known).encode(), len(partitions))
        leader = partitions[partition].leader_address
        assert leader is not None
        broker = self._cluster.at(leader)
        broker.kill()
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
