"""The main job: a year of real flights through three brokers, while a leader is killed.

    make demo

Produces 336,776 flights and the weather to topics with three replicas. After half of the flights
are acknowledged it kills a leader with SIGKILL. Another replica takes over while the producer
continues, and the killed broker comes back and catches up. Each flight also goes to a compacted
topic, which keeps the latest one of each aircraft (`aircraft`). Then a group of three members reads
the flights, of which one is killed and one is added (`group`), and another one copies their delays
exactly once, although members and the coordinator of their transactions are killed
(`exactly_once`). The job reads everything back, and checks that nothing is lost, duplicated, out of
order or changed. It exits with 1 if a check fails.
"""

import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from demo.aircraft import (
    AIRCRAFT,
    by_aircraft,
    check_aircraft,
    create_topic,
    size_of,
    wait_until_compacted,
)
from demo.checks import Check, Consumed, check_all
from demo.dataset import (
    FLIGHTS_COUNT,
    DatasetError,
    Records,
    data_folder,
    read_flights,
    read_weather,
    size_bytes,
    table_of,
)
from demo.exactly_once import DELAYS, check_copy, copy_exactly_once
from demo.group import GroupRun, check_group, run_group
from demo.routes import busiest_routes
from demo.up_process import BROKERS, ClusterProcess

from millrace.cli.console.measures import MEGABYTE, Transfer
from millrace.cli.console.output import print_table
from millrace.cli.console.progress import Progress
from millrace.client import (
    BatchHandle,
    PartitionDescription,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from millrace.core.errors import MillraceError

FLIGHTS, WEATHER = "flights", "weather"
PARTITIONS = 4
ROWS_PER_CALL = 2_000
CALLS_IN_FLIGHT_MAX = 16
ROUTES_SHOWN = 10
DELIVERY_TIMEOUT_MS = 60_000
QUIET_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05


def main() -> int:
    """Run the whole job; return the exit code."""
    started = time.monotonic()
    try:
        folder = data_folder()
        flights, weather = read_flights(folder), read_weather(folder)
        print(f"read     {len(flights):,} flights and {len(weather):,} hours of weather")
        if len(flights) != FLIGHTS_COUNT:
            raise DatasetError(f"the data should hold {FLIGHTS_COUNT:,} flights")
        with tempfile.TemporaryDirectory(prefix="millrace-demo-") as place:
            came = run(Path(place), flights, weather)
    except (DatasetError, MillraceError, RuntimeError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    checks = [
        *check_all(flights, came.flights),
        *check_group(came.group),
        *check_aircraft(flights, came.aircraft),
        *check_copy(flights, came.delays, came.aborted_delays),
    ]
    if not report(checks):
        return 1
    show_routes(
        table_of(came.flights.values, flights.table.schema),
        table_of(came.weather.values, weather.table.schema),
    )
    print(f"\nAll checks hold. {time.monotonic() - started:.0f} seconds in all.")
    return 0


def report(checks: Iterable[Check]) -> bool:
    """Print what every check found; return whether all hold."""
    print("check")
    failed = 0
    for check in checks:
        print(f"  {'ok    ' if check.holds else 'FAILED'}  {check.statement}: {check.detail}")
        failed += not check.holds
    if failed:
        print(f"error: {failed} of the checks failed", file=sys.stderr)
    return not failed


@dataclass(frozen=True, slots=True)
class Came:
    """The records that were read of each topic, and what a group did with the flights."""

    flights: Consumed
    weather: Consumed
    aircraft: Consumed
    delays: Consumed
    aborted_delays: int
    group: GroupRun


def run(place: Path, flights: Records, weather: Records) -> Came:
    """Send all topics through brokers, one of which is killed; return what came back.

    Raises:
        RuntimeError: the brokers did not start, come back or stop as they should.
        MillraceError: records could not be written or read.
    """
    cluster = ClusterProcess(place)
    try:
        seconds = cluster.start()
        print(f"start    millrace up --brokers {BROKERS}, after {seconds:.1f} s")
        with SyncAdmin(cluster.bootstrap) as admin:
            admin.create_topic(FLIGHTS, partitions=PARTITIONS, replication_factor=BROKERS)
            admin.create_topic(WEATHER, partitions=1, replication_factor=BROKERS)
            create_topic(admin)
            crash = Crash(cluster, admin)
            with SyncProducer(
                cluster.bootstrap, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
            ) as producer:
                print(f"produce  weather: {produce(producer, WEATHER, weather)}")
                print(f"produce  flights: {produce(producer, FLIGHTS, flights, crash)}")
                repeated = producer.metrics()["repeated_batches"]
            print(f"{crash.story()}, {repeated} batches sent again")
            print(f"heal     all {BROKERS} replicas in sync again after {crash.healed():.1f} s")
        group = run_group(cluster.bootstrap, FLIGHTS, place)
        aborted_delays = copy_exactly_once(cluster, FLIGHTS, PARTITIONS)
        with SyncAdmin(cluster.bootstrap) as admin:
            left = size_of(wait_until_compacted(admin))
        written = by_aircraft(flights)
        print(
            f"compact  {AIRCRAFT}: {written.size_bytes / MEGABYTE:,.1f} MB were written, "
            f"{left / MEGABYTE:,.1f} MB are left on each broker"
        )
        came = Came(
            flights=consume(cluster.bootstrap, FLIGHTS),
            weather=consume(cluster.bootstrap, WEATHER),
            aircraft=consume(cluster.bootstrap, AIRCRAFT),
            delays=consume(cluster.bootstrap, DELAYS),
            aborted_delays=aborted_delays,
            group=group,
        )
        code = cluster.stop()
        print(f"stop     SIGTERM, the brokers ended with {code}")
        if code:
            raise RuntimeError(f"the brokers ended with {code} instead of 0")
    finally:
        cluster.abandon()
    return came


@dataclass
class Crash:
    """Kills the leader of the flights' first partition during the load."""

    cluster: ClusterProcess
    admin: SyncAdmin
    killed: str = ""
    acknowledged_before: int = 0
    began: float = 0.0
    longest_pause: float = 0.0
    """Longest time without an acknowledgement, in seconds."""

    def begin(self, acknowledged: int) -> None:
        """Kill the leader now."""
        leader = self._partitions()[0].leader_address
        assert leader is not None
        self.acknowledged_before = acknowledged
        self.began = time.monotonic()
        self.killed = self.cluster.kill(leader)

    def story(self) -> str:
        """Return what happened, as a text.

        Raises:
            RuntimeError: no broker was killed.
        """
        if not self.killed:
            raise RuntimeError("no broker was killed: the demo proves nothing")
        return (
            f"crash    kill -9 of {self.killed}, a leader, after {self.acknowledged_before:,} "
            f"acknowledged flights; longest pause of the producer {self.longest_pause:.1f} s"
        )

    def healed(self) -> float:
        """Wait until the killed broker is in sync again; return the seconds since the kill.

        Raises:
            RuntimeError: it did not come back in time.
        """
        deadline = time.monotonic() + QUIET_SECONDS_MAX
        while any(len(partition.isr) < BROKERS for partition in self._partitions()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.killed} is not in sync after {QUIET_SECONDS_MAX:.0f} s")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - self.began

    def _partitions(self) -> Sequence[PartitionDescription]:
        return self.admin.describe_topic(FLIGHTS).partitions


def produce(
    producer: SyncProducer, topic: str, records: Records, crash: Crash | None = None
) -> Transfer:
    """Send all records; start the crash half-way; return the acknowledged records.

    Flights go to the topic of aircraft, too.
    """
    transfer = Transfer()
    started = last = time.monotonic()
    in_flight = deque[tuple[list[BatchHandle], int]]()
    with Progress(f"produce {topic}", len(records)) as progress:

        def acknowledge_oldest() -> None:
            nonlocal last
            handles, count = in_flight.popleft()
            for handle in handles:
                handle.result()
            now = time.monotonic()
            transfer.records += count
            transfer.size_bytes = records.size_bytes * transfer.records // len(records)
            transfer.seconds = now - started
            progress.update(transfer.records, transfer)
            if crash is not None:
                crash.longest_pause = max(crash.longest_pause, now - last)
            last = now

        for first in range(0, len(records), ROWS_PER_CALL):
            part = records.slice(first, ROWS_PER_CALL)
            handles = [producer.send_batch(topic, part.values, part.keys)]
            if topic == FLIGHTS:
                latest = by_aircraft(part)
                handles.append(producer.send_batch(AIRCRAFT, latest.values, latest.keys))
            in_flight.append((handles, len(part)))
            if len(in_flight) > CALLS_IN_FLIGHT_MAX:
                acknowledge_oldest()
            half_way = transfer.records >= len(records) // 2
            if crash is not None and half_way and not crash.killed:
                crash.begin(transfer.records)
        while in_flight:
            acknowledge_oldest()
    return transfer


def consume(address: str, topic: str) -> Consumed:
    """Read a topic from its beginning to its end, including unexpected records.

    Raises:
        RuntimeError: no record came for a long time.
    """
    with SyncAdmin(address) as admin:
        ends = {partition: end.offset for (_, partition), end in admin.list_offsets(topic).items()}
    columns: dict[str, list[pa.Array]] = {"partition": [], "offset": [], "key": [], "value": []}
    transfer = Transfer()
    started = last = time.monotonic()
    with (
        SyncConsumer(address) as consumer,
        Progress(f"consume {topic}", sum(ends.values())) as progress,
    ):
        consumer.assign([topic], start="beginning")
        while any(consumer.position((topic, partition)) < end for partition, end in ends.items()):
            for batch in consumer.poll_batches(1000):
                last = time.monotonic()
                columns["partition"].append(pa.repeat(batch.partition, batch.records.num_rows))
                for name in ("offset", "key", "value"):
                    columns[name].append(batch.records.column(name))
                transfer.records += batch.records.num_rows
                transfer.seconds = last - started
                progress.update(transfer.records, transfer)
            if time.monotonic() - last > QUIET_SECONDS_MAX:
                raise RuntimeError(f"nothing came for {QUIET_SECONDS_MAX:.0f} s after {transfer}")
    came = Consumed(*(pa.concat_arrays(arrays) for arrays in columns.values()))
    transfer.size_bytes = size_bytes(came.keys) + size_bytes(came.values)
    print(f"consume  {topic}: {transfer}")
    return came


def show_routes(flights: pa.Table, weather: pa.Table) -> None:
    """Print the busiest routes of the consumed flights, joined with the weather."""
    print("\nThe busiest routes, and what rain does to them (minutes late at departure)")
    rows = [
        (
            f"{route.origin}-{route.destination}",
            route.flights,
            route.cancelled,
            route.mean_delay,
            route.mean_delay_in_rain,
            route.mean_wind,
        )
        for route in busiest_routes(flights, weather, ROUTES_SHOWN)
    ]
    print_table(["ROUTE", "FLIGHTS", "CANCELLED", "DELAY", "IN RAIN", "WIND MPH"], rows)


if __name__ == "__main__":
    sys.exit(main())
