"""The latest flight of each aircraft: a compacted topic, whose key is the tail number.

Every flight goes to it, too, and compaction keeps the last one of each aircraft. What a reader
finds there is compared with a dict of last values. The segments are as small as they may be, for
the cleaner never touches the one that is written to.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from demo.checks import Check, Consumed
from demo.dataset import Records
from demo.up_process import BROKERS

from millrace.client import LogDescription, SyncAdmin

AIRCRAFT = "aircraft"
CLEANED_SECONDS_MAX = 60.0
_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1MiB",
    "min.cleanable.dirty.ratio": "0",  # As soon as there is anything to do.
}
_POLL_SECONDS = 0.2

Places = Mapping[str, tuple[int, int]]
"""Of each airport: the aircraft whose last flight went there, and how many carriers fly them."""


def create_topic(admin: SyncAdmin) -> None:
    """Create the compacted topic."""
    admin.create_topic(AIRCRAFT, partitions=1, replication_factor=BROKERS, config=_CONFIG)


def by_aircraft(flights: Records) -> Records:
    """Return the flights that name their aircraft, with its tail number as the key."""
    tails = flights.table.column("tailnum").combine_chunks()
    named = tails.is_valid()
    return Records(
        flights.table.filter(named),
        tails.filter(named).cast(pa.binary()),
        flights.values.filter(named),
    )


def wait_until_compacted(admin: SyncAdmin) -> Sequence[LogDescription]:
    """Wait until each replica has compacted all that may be; return what the replicas are then.

    Raises:
        RuntimeError: one of them could not, or took too long.
    """
    deadline = time.monotonic() + CLEANED_SECONDS_MAX
    while True:
        logs = admin.describe_logs(AIRCRAFT)
        found = [log.compaction for log in logs if log.compaction is not None]
        for compaction in found:
            if compaction.problem:
                raise RuntimeError(f"{AIRCRAFT} is not compacted: {compaction.problem}")
        if len(found) == BROKERS and not any(compaction.dirty_ratio for compaction in found):
            return logs
        if time.monotonic() > deadline:
            raise RuntimeError(f"{AIRCRAFT} is not compacted after {CLEANED_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)


def size_of(logs: Sequence[LogDescription]) -> int:
    """Return the bytes of the leader's log."""
    return sum(log.size_bytes for log in logs if log.leads)


def check_aircraft(flights: Records, came: Consumed) -> Iterator[Check]:
    """Yield what is to hold for the records that are left."""
    written = by_aircraft(flights)
    expected = _latest(written.keys, written.values)
    found = _latest(came.keys, came.values)
    wrong = [key for key in {*expected, *found} if expected.get(key) != found.get(key)]
    detail = f"{len(wrong):,}, such as {wrong[0]!r}" if wrong else f"{len(found):,} aircraft"
    yield Check("the compacted topic equals a dict of the last values", not wrong, detail)
    detail = f"{len(came):,} of {len(written):,} records are left"
    yield Check("and has lost most of the others", len(came) < len(written) // 2, detail)


def expected_places(flights: Records) -> Places:
    """Return where the aircraft are after their last flight, computed without Spark."""
    written = by_aircraft(flights)
    carriers = defaultdict(list)
    for value in _latest(written.keys, written.values).values():
        row = json.loads(value)
        carriers[row["dest"]].append(row["carrier"])
    return {airport: (len(names), len(set(names))) for airport, names in carriers.items()}


def _latest(keys: pa.Array, values: pa.Array) -> dict[bytes, bytes]:
    return dict(zip(keys.to_pylist(), values.to_pylist(), strict=True))
