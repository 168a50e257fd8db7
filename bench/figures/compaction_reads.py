"""Latency while a log is compacted, over the latency without: the worse of reading and writing.

One broker. `bench.paced_latency` has the load that is measured. Another topic has 2 M keys
and gets a few records a second, and its segments end every second. While it is compacted, the
cleaner copies all of it again and again; without, its `min.compaction.lag.ms` holds the cleaner
back.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.comparisons.compaction import BACKOFF_MS, FREE, HELD, numbered_cells
from bench.measure import Bench, Outcome, settle
from bench.metrics_page import samples
from bench.millrace_broker import Millrace, running_millrace
from bench.paced_latency import compare, latencies
from bench.processes import LoadFailedError
from bench.records import KEY_BYTES, read_records, write_random_records
from bench.settings import MILLRACE_TOPIC
from tests.background import repeated

from millrace.client import SyncAdmin, SyncProducer

TOPIC = "compacted"
KEYS = 2_000_000
CLEANING_SHARE_MIN = 0.5
"""Of a run, at least, in which the cleaner must have been at work."""
_TRICKLE_S = 0.1
_SECONDS = "millrace_cleaner_seconds_total"


def measure(bench: Bench) -> Outcome:
    """Measure with and without, in turn."""
    values = read_records(write_random_records(bench.directory / "records", 100))
    storage = f"cleaner_backoff_ms = {BACKOFF_MS}"
    with (
        running_millrace(bench.directory / "millrace", storage=storage) as millrace,
        SyncAdmin(millrace.address) as admin,
        _trickle(millrace, values),
    ):

        def run(is_cleaning: bool) -> dict[str, float]:
            lag = (FREE if is_cleaning else HELD)["min.compaction.lag.ms"]
            admin.alter_topic(TOPIC, set_config={"min.compaction.lag.ms": lag})
            settle()
            time.sleep(2)  # A pass ends, or begins.
            return _latencies(bench, millrace, is_cleaning=is_cleaning)

        return compare(bench, "cleaning", run)


@contextmanager
def _trickle(millrace: Millrace, values: list[bytes]) -> Iterator[None]:
    """Fill the topic that is compacted, and write to it for the length of the block."""
    config = {**MILLRACE_TOPIC["replicated"], **HELD, "segment.ms": "1000"}
    millrace.create_topic(TOPIC, 1, config)
    with SyncProducer(millrace.address) as producer:
        for keys, some in numbered_cells(KEYS, values):
            producer.send_batch(TOPIC, some, keys=keys)
        producer.flush()

        def write() -> None:
            producer.send(TOPIC, values[0], key=b"%0*d" % (KEY_BYTES, 0))

        with repeated(write, _TRICKLE_S):
            yield


def _latencies(bench: Bench, millrace: Millrace, *, is_cleaning: bool) -> dict[str, float]:
    began_at, before = time.monotonic(), samples(millrace.metrics_addresses)[_SECONDS]
    found = latencies(bench, millrace)
    share = (samples(millrace.metrics_addresses)[_SECONDS] - before) / (time.monotonic() - began_at)
    if is_cleaning and share < CLEANING_SHARE_MIN:
        raise LoadFailedError(f"the cleaner was at work for {share:.0%} of the run only")
    return {**found, "cleaning_share": share}
