"""Deviation from a produce quota over ten seconds, as a share of it: the largest of three cases.

A producer with default settings sends as much as it may, from the first record on, for so long as a
run takes: to one broker; to three brokers that share the limit; and to one of three, which should
get all of it. What counts are the bytes of batches in the logs. Each case has the median of its
rounds.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.loads.spec import Load, command_line
from bench.measure import Bench, Outcome, say
from bench.metrics_page import appended_bytes
from bench.millrace_broker import Millrace, running_millrace
from bench.millrace_cluster import BROKERS, MillraceCluster, running_millrace_cluster
from bench.processes import LoadFailedError, start, stop, until
from bench.records import write_random_records
from bench.settings import MILLRACE_TOPIC
from bench.sides import GRACE_S, fresh_topic

from millrace.client import SyncAdmin

BYTES_PER_SECOND = 10_000_000
RECORD_BYTES = 1000
START_TIMEOUT_S = 30
POLL_S = 0.002


def measure(bench: Bench) -> Outcome:
    """Measure each case, once a round."""
    records = write_random_records(bench.directory / "records", RECORD_BYTES)
    cases: dict[str, list[float]] = {"one": [], "three": [], "one_of_three": []}
    with (
        running_millrace(bench.directory / "millrace") as broker,
        running_millrace_cluster(bench.directory / "cluster") as cluster,
    ):
        for number in range(bench.rounds):
            cases["one"].append(_rate(broker, 1, records, bench.seconds))
            cases["three"].append(_rate(cluster, BROKERS, records, bench.seconds))
            cases["one_of_three"].append(_rate(cluster, 1, records, bench.seconds))
            latest = {name: f"{rates[-1] / 1e6:.2f} MB/s" for name, rates in cases.items()}
            say(f"round {number + 1}/{bench.rounds} {latest}")
    deviations = {
        name: [rate / BYTES_PER_SECOND - 1 for rate in rates] for name, rates in cases.items()
    }
    medians = {name: median(map(abs, shares)) for name, shares in deviations.items()}
    return Outcome(
        values={"largest deviation, a share of the quota": max(medians.values())},
        detail={"bytes_per_second": BYTES_PER_SECOND, "median": medians, "rounds": deviations},
    )


def _rate(
    broker: Millrace | MillraceCluster, partitions: int, records: Path, seconds: float
) -> float:
    """Return the bytes a second that a producer gets of a new quota, from its start on."""
    with (
        SyncAdmin(broker.address) as admin,
        fresh_topic(broker, partitions, MILLRACE_TOPIC["replicated"]) as topic,
    ):
        leaders = {partition.leader for partition in admin.describe_topic(topic).partitions}
        if len(leaders) != partitions:
            raise LoadFailedError(f"{len(leaders)} brokers lead {partitions} partitions")
        admin.set_quota(topic, client_id=topic, produce_bytes_per_second=BYTES_PER_SECOND)
        try:
            with _producer(broker.address, topic, partitions, records, seconds):

                def begun() -> float | None:
                    return time.monotonic() if sizes() else None

                def sizes() -> float:
                    return appended_bytes(broker.metrics_addresses, topic)

                began_at = until(begun, "the first record", START_TIMEOUT_S, POLL_S)
                time.sleep(began_at + seconds - time.monotonic())
                return sizes() / (time.monotonic() - began_at)
        finally:
            admin.delete_quota(topic)


@contextmanager
def _producer(
    address: str, topic: str, partitions: int, records: Path, seconds: float
) -> Iterator[None]:
    """Let a client with the topic's name produce to it."""
    load = Load(
        address=address,
        topic=topic,
        partitions=partitions,
        seconds=seconds + GRACE_S,
        records_file=str(records),
        way="batch",
        settings={"client_id": topic},
    )
    process = start(command_line("millrace_produce", load), records.with_suffix(".log"))
    try:
        yield
        if process.poll() is not None:
            raise LoadFailedError(records.with_suffix(".log").read_text(errors="replace")[-4000:])
    finally:
        stop(process, 0)
