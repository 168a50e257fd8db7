"""Latency while segments move from SSD to HDD, over the latency without: the worse of both ways.

One broker with a log directory of each media. `bench.paced_latency` has the load that is measured.
Another topic is tiered, and gets 8 MB a second; its segments close every second. With moves, each
of them moves at once; without, `local.retention.ms` keeps all of them. Both directories are on the
same disk here, so the moves also take its bandwidth: with two disks they take less.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.measure import Bench, Outcome, settle
from bench.metrics_page import samples
from bench.millrace_broker import Millrace, running_millrace
from bench.paced_latency import compare, latencies
from bench.processes import LoadFailedError
from bench.records import read_records, write_random_records
from bench.settings import MILLRACE_TOPIC
from tests.background import repeated

from millrace.client import SyncAdmin, SyncProducer

TOPIC = "tiered"
MOVED_SHARE_MIN = 0.5
"""Bytes that must have moved, at least, of those written in a run with moves."""
_BYTES_PER_SECOND = 8 << 20
_STEP_S = 0.05
_STORAGE = "tier_check_interval_ms = 100\ntier_free_bytes_min = 0"
_MOVED_BYTES = 'millrace_tier_moved_bytes_total{way="to"}'


def measure(bench: Bench) -> Outcome:
    """Measure with and without, in turn."""
    values = read_records(write_random_records(bench.directory / "records", 1000))
    with (
        running_millrace(
            bench.directory / "millrace", storage=_STORAGE, media=["ssd", "hdd"]
        ) as millrace,
        SyncAdmin(millrace.address) as admin,
        _written(millrace, values),
    ):

        def run(is_moving: bool) -> dict[str, float]:
            kept = {"local.retention.ms": "0" if is_moving else "-1"}
            admin.alter_topic(TOPIC, set_config=kept)
            settle()
            time.sleep(2)  # A move ends, or begins.
            return _measured(bench, millrace, is_moving=is_moving)

        return compare(bench, "moving", run)


@contextmanager
def _written(millrace: Millrace, values: list[bytes]) -> Iterator[None]:
    """Write to the tiered topic for the length of the block; all but a minute of it is deleted."""
    millrace.create_topic(
        TOPIC,
        1,
        {
            **MILLRACE_TOPIC["replicated"],
            "media": "tiered",
            "segment.ms": "1000",
            "retention.ms": "60000",
        },
    )
    count = int(_BYTES_PER_SECOND * _STEP_S) // len(values[0])
    with SyncProducer(millrace.address) as producer:

        def write() -> None:
            producer.send_batch(TOPIC, values[:count])

        with repeated(write, _STEP_S):
            yield


def _measured(bench: Bench, millrace: Millrace, *, is_moving: bool) -> dict[str, float]:
    began_at, before = time.monotonic(), samples(millrace.metrics_addresses).get(_MOVED_BYTES, 0)
    found = latencies(bench, millrace)
    # Each byte counts twice, as it is copied and verified.
    moved = (samples(millrace.metrics_addresses).get(_MOVED_BYTES, 0) - before) / 2
    share = moved / (_BYTES_PER_SECOND * (time.monotonic() - began_at))
    if share < MOVED_SHARE_MIN if is_moving else share > 0:
        raise LoadFailedError(f"{share:.0%} of what was written has moved in the run")
    return {**found, "moved_share": share}
