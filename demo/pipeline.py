"""The pipeline: flights stream through three brokers into Spark, which writes its results.

    python -m demo.pipeline

A Spark program (`delays_job.py`) sums up the delays of each carrier in each hour of the day, joined
with the weather, and writes the sums to a topic and to Parquet. Meanwhile a leader is killed with
SIGKILL, and later the program itself; it is started again and continues. Both outputs are compared
with the same sums computed by pyarrow. At its end the program reads a compacted topic, with the
latest flight of each aircraft, as a table, and counts where they are; that is compared with a dict.
Then another program writes the departures to a topic exactly once, while an executor of it, a
broker and its driver are killed (`departures`). It exits with 1 if anything differs. Without Java
for Spark it says so and exits with 0.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset
from demo import delays
from demo.aircraft import (
    AIRCRAFT,
    Places,
    by_aircraft,
    create_topic,
    expected_places,
    wait_until_compacted,
)
from demo.checks import Check
from demo.dataset import DatasetError, Records, data_folder, read_flights, read_weather
from demo.departures import Came, check_departures, write_exactly_once
from demo.flights import (
    DELIVERY_TIMEOUT_MS,
    FLIGHTS,
    PARTITIONS,
    ROWS_PER_CALL,
    WEATHER,
    report,
)
from demo.spark_program import SparkProgram, missing
from demo.up_process import BROKERS, ClusterProcess

from millrace.cli.console.measures import Transfer
from millrace.cli.console.output import print_table
from millrace.cli.console.progress import Progress
from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.errors import MillraceError

DELAYS = "delays"
QUIET_SECONDS_MAX = 240.0
PICTURE = Path("flight-delays.png")
PROGRAM = Path(__file__).with_name("delays_job.py")
AIRPORTS_SHOWN = 5
_STAGES = (0.4, 0.7, 1.0)
"""Shares of the flights written before the broker is killed, before the program is, and in all."""


def main() -> int:
    """Run the pipeline; return the exit code."""
    if lacks := missing():
        print(f"skipped  the pipeline: {lacks}")
        return 0
    started = time.monotonic()
    try:
        folder = data_folder()
        flights, weather = read_flights(folder), read_weather(folder)
        with tempfile.TemporaryDirectory(prefix="millrace-pipeline-") as place:
            found = run(Path(place), flights, weather)
    except (DatasetError, MillraceError, RuntimeError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sums = delays.expected(flights.table, weather.table)
    checks = [
        _check("what pyarrow finds is in the topic's last records", sums, found.in_topic, "sums"),
        _check("what pyarrow finds is in the Parquet table", sums, found.in_parquet, "sums"),
        _check(
            "Spark's table of aircraft equals a dict of the last values",
            expected_places(flights),
            found.places,
            "airports",
        ),
        *check_departures(flights, found.departures),
    ]
    if not report(checks):
        return 1
    _show(found)
    delays.draw(found.in_topic, PICTURE)
    print(f"\nDrawn in {PICTURE}. {time.monotonic() - started:.0f} seconds in all.")
    return 0


def _check(
    statement: str, expected: Mapping[Any, Any], found: Mapping[Any, Any], what: str
) -> Check:
    wrong = [key for key in {*expected, *found} if expected.get(key) != found.get(key)]
    detail = f"{len(wrong)} differ, such as {wrong[0]}" if wrong else f"{len(found)} {what}"
    return Check(statement, not wrong, detail)


@dataclass(frozen=True, slots=True)
class Found:
    """The results: sums of delays in topic and table, where the aircraft are, and departures."""

    in_topic: delays.Table
    in_parquet: delays.Table
    places: Places
    departures: Came


def run(place: Path, flights: Records, weather: Records) -> Found:
    """Send the flights through brokers and Spark; return the results.

    Raises:
        RuntimeError: a process did not start, or made no progress.
        MillraceError: records could not be written or read.
    """
    cluster = ClusterProcess(place)
    program: SparkProgram | None = None
    try:
        print(f"start    {BROKERS} brokers, after {cluster.start():.1f} s")
        with SyncAdmin(cluster.bootstrap) as admin:
            for topic, partitions in ((FLIGHTS, PARTITIONS), (WEATHER, 1), (DELAYS, 2)):
                admin.create_topic(topic, partitions=partitions, replication_factor=BROKERS)
            create_topic(admin)
            with (
                SyncProducer(
                    cluster.bootstrap, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
                ) as producer,
                SyncConsumer(cluster.bootstrap) as consumer,
            ):
                consumer.assign([DELAYS], start="beginning")
                _send(producer, WEATHER, weather)
                program = SparkProgram(
                    PROGRAM,
                    *("--bootstrap", cluster.bootstrap),
                    *("--flights", FLIGHTS, "--weather", WEATHER, "--aircraft", AIRCRAFT),
                    *("--topic", DELAYS, "--table", str(place / "table")),
                    *("--places", str(place / "places")),
                    *("--checkpoint", str(place / "checkpoint")),
                    log=place / "spark.log",
                ).start()
                latest = Latest(consumer)
                first, second, last = (int(len(flights) * share) for share in _STAGES)
                with Progress("flights summed up by Spark", len(flights)) as progress:
                    _send_flights(producer, flights.slice(0, first))
                    latest.follow(first // 4, program, progress)
                    leader = admin.describe_topic(FLIGHTS).partitions[0].leader_address
                    assert leader is not None
                    killed = cluster.kill(leader)
                    broker_killed_at = latest.flights
                    _send_flights(producer, flights.slice(first, second - first))
                    latest.follow((first + second) // 2, program, progress)
                    program.kill()
                    program_killed_at = latest.flights
                    _send_flights(producer, flights.slice(second, last - second))
                    program.start()
                    latest.follow(len(flights), program, progress)
                print(
                    f"crash    kill -9 of {killed}, a leader, at {broker_killed_at:,} flights; "
                    f"of the Spark program at {program_killed_at:,}, which was started again"
                )
            wait_until_compacted(admin)
        program.end()
        departures = write_exactly_once(cluster, flights, FLIGHTS, place)
        stop(cluster)
        return Found(
            latest.table,
            _read_table(place / "table"),
            _read_places(place / "places"),
            departures,
        )
    finally:
        try:
            if program is not None:
                program.kill()
        finally:
            cluster.abandon()


def stop(cluster: ClusterProcess) -> None:
    """Tell the brokers to end.

    Raises:
        RuntimeError: they did not end cleanly.
    """
    if code := cluster.stop():
        raise RuntimeError(f"the brokers ended with {code} instead of 0")


def _send_flights(producer: SyncProducer, flights: Records) -> None:
    """Write flights to both of their topics."""
    _send(producer, FLIGHTS, flights)
    _send(producer, AIRCRAFT, by_aircraft(flights))


def _send(producer: SyncProducer, topic: str, records: Records) -> None:
    """Write records, and wait for their acknowledgements."""
    parts = (records.slice(first, ROWS_PER_CALL) for first in range(0, len(records), ROWS_PER_CALL))
    for handle in [producer.send_batch(topic, part.values, part.keys) for part in parts]:
        handle.result()


class Latest:
    """The last record of each key in the topic of sums, as it arrives.

    Attributes:
        table: the content of these records.
    """

    def __init__(self, consumer: SyncConsumer) -> None:
        self.table: dict[tuple[str, int], delays.Row] = {}
        self._consumer = consumer
        self._began = time.monotonic()

    @property
    def flights(self) -> int:
        """How many flights the sums contain."""
        return sum(row[0] for row in self.table.values())

    def follow(self, flights: int, program: SparkProgram, progress: Progress) -> None:
        """Read until the sums contain so many flights.

        Raises:
            RuntimeError: the program ended, or no record came for too long.
        """
        heard_at = time.monotonic()
        while self.flights < flights:
            for batch in self._consumer.poll_batches(200):
                heard_at = time.monotonic()
                values = batch.records.column("value").to_pylist()
                self.table.update(delays.table_of(json.loads(value) for value in values))
            progress.update(self.flights, Transfer(self.flights, 0, time.monotonic() - self._began))
            if program.exit_code() is not None:
                raise RuntimeError(f"the program ended; its log ends with\n{program.log_end()}")
            if time.monotonic() - heard_at > QUIET_SECONDS_MAX:
                raise RuntimeError(
                    f"nothing came for {QUIET_SECONDS_MAX:.0f} s, at {self.flights:,} of "
                    f"{flights:,} flights; Spark's log ends with\n{program.log_end()}"
                )


def _read_table(folder: Path) -> delays.Table:
    """Return the last sums of each key; only folders that Spark has completed count."""
    batches = sorted(
        (path for path in folder.iterdir() if (path / "_SUCCESS").exists()),
        key=lambda path: int(path.name.partition("=")[2]),
    )

    def rows() -> Iterator[dict[str, Any]]:
        for path in batches:
            yield from pyarrow.dataset.dataset(path, format="parquet").to_table().to_pylist()

    return delays.table_of(rows())


def _read_places(folder: Path) -> Places:
    rows = pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist()
    return {row["airport"]: (row["aircraft"], row["carriers"]) for row in rows}


def _show(found: Found) -> None:
    print("\nHow late they leave, in minutes, and in rain or snow")
    print_table(
        ["CARRIER", "FLIGHTS", "DELAY", "IN RAIN", "WORST HOUR"],
        delays.by_carrier(found.in_topic),
    )
    print("\nWhere most aircraft are after their last flight")
    places = sorted(found.places.items(), key=lambda place: place[1], reverse=True)
    rows = [(airport, *counts) for airport, counts in places[:AIRPORTS_SHOWN]]
    print_table(["AIRPORT", "AIRCRAFT", "CARRIERS"], rows)


if __name__ == "__main__":
    sys.exit(main())
