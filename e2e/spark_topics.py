"""A streaming job in pods that writes topics exactly once, under kills (`spark_kills`).

`airport_events` reads flights and weather. It shuffles what it writes, so the rows of a micro-batch
that is repeated come in another order. Spark runs tasks that are slow once more (speculation), so
that several attempts of a task write at the same time. Values that are no flights are sent, too. At
the end each record that was read must be in one of the two topics, once, as plain Python makes it.
"""

import json
import time
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
from e2e.cluster.native import NativeCluster
from e2e.installed import Namespace, until
from e2e.spark_kills import Story, Victim
from tests.spark_jobs import expected
from tests.spark_jobs.flights import REPLICAS, WEATHER, Source
from tests.spark_jobs.topics import event

from millrace.client import Record

EVENTS, REJECTED = "airport-events", "rejected"
OUTPUT_PARTITIONS = 2
BAD = ("not a flight", '{"carrier":', "[]]")
"""Values that are no JSON: these are sent before each kill."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "500ms",
}
VICTIMS = tuple(Victim)
_WEATHER_ROWS = 5_000
_POLL_S = 3.0
_BEGUN_SECONDS_MAX = 300.0
_DONE_SECONDS_MAX = 600.0


class TopicsStory(Story):
    """A job from topics to topics, and its kills."""

    def __init__(self, kubernetes: NativeCluster, namespace: Namespace, source: Source) -> None:
        super().__init__(kubernetes, namespace, source)
        self._bad: Counter[str] = Counter()

    def begin(self) -> None:
        """Make the topics and the job; return once it has committed a micro-batch."""
        namespace = self._namespace
        for topic in (EVENTS, REJECTED):
            namespace.make_topic(topic, partitions=OUTPUT_PARTITIONS, replicas=REPLICAS)
        namespace.make_topic(WEATHER, partitions=1, replicas=REPLICAS)
        weather = self._source.weather.slice(0, _WEATHER_ROWS)
        lines = pc.binary_join_element_wise(
            weather.keys.cast(pa.string()), weather.values.cast(pa.string()), "\t"
        )
        namespace.millrace(
            *("produce", f"{namespace.name}/{WEATHER}", "--key-separator", "\t"),
            input="".join(f"{line}\n" for line in lines.to_pylist()),
        )
        self._job.install(
            "airport_events",
            *("--by-airport", "--tasks=2", "--batch-records=5000", "--every=0 seconds"),
            output="",
            executor__cores=2,
            sparkConf=SPECULATION,
        )
        self._job.wait_for_batch(after=-1, seconds=_BEGUN_SECONDS_MAX)

    def kill(self, victim: Victim) -> float:
        """Send bad values, and make a kill; return as `Story.kill`."""
        self._namespace.produce(f"{self._namespace.name}/flights", list(BAD))
        self._bad.update(BAD)
        return super().kill(victim)

    def finish(self, sent: pa.Table) -> None:
        """Let the job read all, stop it, and compare both topics with what was sent."""
        read = self._namespace.records
        wanted = expected.airport_events(self._bad, read)
        events = sum(to == EVENTS for to in wanted.column("to").to_pylist())
        weather = min(_WEATHER_ROWS, len(self._source.weather))
        assert events == sent.num_rows + weather, "the log is not what was sent"
        deadline = time.monotonic() + _DONE_SECONDS_MAX
        while len(read(EVENTS)) + len(read(REJECTED)) < wanted.num_rows:
            assert time.monotonic() < deadline, f"it wrote less: {self._job.last_words()}"
            time.sleep(_POLL_S)
        self._job.stop()
        until(lambda: not self._is_open(), "nothing is open")
        records = [*read(EVENTS), *read(REJECTED)]
        self.outcome.rows = len(records)
        self.outcome.left_out = self._count_all() - len(records)
        found = pa.Table.from_pylist([event(self._without_namespace(record)) for record in records])
        self.outcome.difference = expected.difference(found, wanted)

    def _is_open(self) -> bool:
        states = ("--state", "ongoing", "--state", "prepare_commit", "--state", "prepare_abort")
        listed = self._namespace.millrace("transaction", "list", *states, "--output", "json")
        return bool(json.loads(listed))

    def _without_namespace(self, record: Record) -> Record:
        """Return a record whose source has the name by which the job's own namespace knows it."""
        prefix = f"{self._namespace.name}/".encode()
        headers = tuple((name, cell and cell.removeprefix(prefix)) for name, cell in record.headers)
        return record._replace(headers=headers)

    def _count_all(self) -> int:
        """Return how many records both topics have, also those that do not count."""
        topics = [f"{self._namespace.name}/{topic}" for topic in (EVENTS, REJECTED)]
        shown = ("--isolation", "read_uncommitted", "--format", r"%o\n")
        return len(self._namespace.millrace("consume", *topics, *shown).splitlines())
