"""Spark writes the flights that departed to a topic, exactly once, while all that it needs dies.

A Spark program (`departures_job`) shuffles the flights and writes a record for each that departed.
While a transaction of it is open, an executor is killed with SIGKILL, then the broker that
coordinates the transaction, and then the driver with all its processes, which is started again.
What they had written stays in the log, and readers pass over it. The topic must hold each departure
once: it is compared with what pyarrow finds in the source.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from demo.checks import Check
from demo.dataset import Records, table_of
from demo.exactly_once import count_aborted, kill_coordinator, wait_until_decided
from demo.spark_program import SparkProgram
from demo.up_process import BROKERS, ClusterProcess

from millrace.cli.console.measures import Transfer
from millrace.cli.console.progress import Progress
from millrace.client import SyncAdmin, SyncConsumer

DEPARTURES: Final = "departures"
PARTITIONS: Final = 2
BATCHES: Final = 12
QUIET_SECONDS_MAX: Final = 180.0
_PROGRAM: Final = Path(__file__).with_name("departures_job.py")
_COLUMNS: Final = ("carrier", "dest", "dep_delay")
_SHARES: Final = (1 / 5, 2 / 5, 3 / 5)
"""Of the departures that readers have when the executor, the coordinator and the driver die."""


def departed(flights: Records) -> Records:
    """Return the flights that departed."""
    mask = pc.is_valid(flights.table.column("dep_delay")).combine_chunks()
    table = flights.table.filter(mask).select(_COLUMNS)
    return Records(table, flights.keys.filter(mask), flights.values.filter(mask))


class Came:
    """What readers of committed records get of the departures, as they arrive.

    Attributes:
        aborted: records that belong to no committed transaction, once all has come.
    """

    def __init__(self, consumer: SyncConsumer, admin: SyncAdmin, expected: int) -> None:
        self.aborted = 0
        self._consumer, self._admin, self._expected = consumer, admin, expected
        self._keys: list[pa.Array] = []
        self._values: list[pa.Array] = []
        self._count = 0
        self._began = time.monotonic()

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> pa.Array:
        """Of all records."""
        return pa.concat_arrays(self._keys)

    @property
    def values(self) -> pa.Array:
        """Of all records."""
        return pa.concat_arrays(self._values)

    def wait_for(self, share: float, program: SparkProgram, progress: Progress) -> int:
        """Read until a share has come, and a later transaction has written; return how many came.

        For the whole no transaction is waited for.

        Raises:
            RuntimeError: the program ended, or no record came for too long.
        """
        heard_at = time.monotonic()
        while self._count < self._expected * share or (share < 1 and not self._is_open()):
            if self.read():
                heard_at = time.monotonic()
            progress.update(self._count, Transfer(self._count, 0, heard_at - self._began))
            if program.exit_code() is not None:
                raise RuntimeError(f"the program ended; its log ends with\n{program.log_end()}")
            if time.monotonic() - heard_at > QUIET_SECONDS_MAX:
                raise RuntimeError(
                    f"nothing came for {QUIET_SECONDS_MAX:.0f} s, at {self._count:,} of "
                    f"{self._expected:,} departures; Spark's log ends with\n{program.log_end()}"
                )
        return self._count

    def read(self) -> int:
        """Read what is there; return how many records that was."""
        before = self._count
        for batch in self._consumer.poll_batches(20):
            self._keys.append(batch.records.column("key"))
            self._values.append(batch.records.column("value"))
            self._count += batch.records.num_rows
        return self._count - before

    def read_the_rest(self) -> None:
        """Read to the end, so that what is too much comes, too."""
        while any(self._consumer.lag().values()):
            self.read()

    def _is_open(self) -> bool:
        """Return whether records of a transaction that is not decided are in the topic."""
        ends = self._admin.list_offsets(DEPARTURES, isolation="read_uncommitted")
        decided = self._admin.list_offsets(DEPARTURES)
        return any(end.offset > decided[place].offset for place, end in ends.items())


def write_exactly_once(cluster: ClusterProcess, flights: Records, source: str, place: Path) -> Came:
    """Let Spark write the departures of a topic's flights; print what happens.

    Args:
        cluster: has the topic.
        flights: that are in the topic.
        source: the topic.
        place: for Spark's checkpoint and log.

    Raises:
        RuntimeError: a process did not end as it should, or made no progress.
        MillraceError: records could not be read.
    """
    started = time.monotonic()
    expected = len(departed(flights))
    with SyncAdmin(cluster.bootstrap) as admin, SyncConsumer(cluster.bootstrap) as consumer:
        admin.create_topic(DEPARTURES, partitions=PARTITIONS, replication_factor=BROKERS)
        consumer.assign([DEPARTURES], start="beginning")
        program = SparkProgram(
            _PROGRAM,
            *("--bootstrap", cluster.bootstrap, "--flights", source, "--topic", DEPARTURES),
            *("--checkpoint", str(place / "departures-checkpoint")),
            *("--batch-records", str(len(flights) // BATCHES)),
            log=place / "departures.log",
        )
        came = Came(consumer, admin, expected)
        try:
            program.start()
            with Progress("departures written by Spark", expected) as progress:
                executor_at, broker_at, driver_at = _SHARES
                executor_at = came.wait_for(executor_at, program, progress)
                program.kill_executor()
                broker_at = came.wait_for(broker_at, program, progress)
                broker = kill_coordinator(cluster, admin)
                driver_at = came.wait_for(driver_at, program, progress)
                program.kill()
                program.start()
                came.wait_for(1, program, progress)
            print(
                f"exactly  kill -9 of an executor of Spark at {executor_at:,} departures; of "
                f"{broker}, which coordinates the transaction, at {broker_at:,}; of the driver and "
                f"all its processes at {driver_at:,}, which was started again"
            )
            program.end()
        finally:
            program.kill()
        wait_until_decided(admin)
        came.read_the_rest()
        came.aborted = count_aborted(cluster.bootstrap, DEPARTURES)
    print(f"exactly  all departures are there after {time.monotonic() - started:.1f} s")
    return came


def check_departures(flights: Records, came: Came) -> Iterator[Check]:
    """Yield what is to hold for the departures in the topic."""
    expected = departed(flights)
    detail = (
        f"{len(came):,} came, {len(expected):,} expected; and {came.aborted:,} of killed tasks "
        "that no reader sees"
    )
    yield Check("Spark wrote each departure exactly once", len(came) == len(expected), detail)
    wanted = _counts(expected.table, expected.keys)
    found = _counts(table_of(came.values, expected.table.schema), came.keys)
    wrong = [row for row in {*wanted, *found} if wanted.get(row) != found.get(row)]
    detail = f"{len(wrong):,} differ, such as {wrong[0]}" if wrong else f"{len(found):,} different"
    yield Check("and they are those that pyarrow finds", not wrong, detail)


def _counts(rows: pa.Table, keys: pa.Array) -> dict[tuple[object, ...], int]:
    """Return how often each row is there, with its key."""
    table = rows.select(_COLUMNS).append_column("key", keys)
    found = table.group_by([*_COLUMNS, "key"]).aggregate([([], "count_all")])
    *columns, counts = (column.to_pylist() for column in found.columns)
    return dict(zip(zip(*columns, strict=True), counts, strict=True))
