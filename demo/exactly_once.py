"""The delays of all flights in a topic of their own, exactly once, while who copies them dies.

A group of three members copies in transactions (`exactly_once_member`). Two of the members are
killed, and so is the broker that coordinates the transactions of all. What a member had written and
not committed stays in the log, and readers pass over it; the flights that it had read are copied by
another one. So the copy must equal what pyarrow makes of the source: each delay once, each flight's
in their order, the same count and sum of each carrier.
"""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from demo.checks import Check, Consumed
from demo.dataset import Records
from demo.members import QUIET_SECONDS_MAX, Members, wait_for_lag
from demo.up_process import BROKERS, ClusterProcess

from millrace.cli.records.json_cells import json_rows
from millrace.client import SyncAdmin, SyncConsumer
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation

DELAYS: Final = "delays"
GROUP: Final = "delays"
MEMBERS: Final = 3
_COORDINATORS: Final = "__transactions"
_COLUMNS: Final = ("carrier", "dep_delay")
_SCHEMA: Final = pa.schema([("carrier", pa.string()), ("dep_delay", pa.int64())])
_PARSING: Final = pyarrow.json.ParseOptions(
    explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"
)
_SHARES_LEFT: Final = (3 / 4, 1 / 2)
_LAST_SHARE_LEFT: Final = 1 / 4
"""Of the flights, when the members are killed, and when their coordinator is."""
_POLL_SECONDS: Final = 0.1

Sums = dict[str, tuple[int, int]]
"""Of each carrier: how many flights departed, and their delays in minutes together."""


def delays_of(keys: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and values of the delays of flights, without those that never departed.

    Args:
        keys: of the flights' records.
        values: their rows, as JSON.
    """
    rows = _rows(values)
    departed = pc.is_valid(rows.column("dep_delay")).combine_chunks()
    (batch,) = rows.filter(departed).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], _SCHEMA)
    ]
    return keys.filter(departed), json_rows(batch)


def copy_exactly_once(cluster: ClusterProcess, source: str, partitions: int) -> int:
    """Let the group copy a topic to its end; print what happens.

    Returns:
        How many records of the copy belong to no committed transaction.

    Raises:
        RuntimeError: it did not come to the end.
        MillraceError: the lag cannot be had.
    """
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(DELAYS, partitions=partitions, replication_factor=BROKERS)
        address = ",".join(broker.address for broker in admin.describe_cluster().brokers)

        def words(number: int) -> list[str]:
            # Who replaces a dead member takes over its transactional id.
            transactional_id = f"{DELAYS}-{number % MEMBERS}"
            return ["demo.exactly_once_member", address, GROUP, transactional_id, source, DELAYS]

        members = Members(words)

        def wait(share_left: float) -> int:
            return wait_for_lag(admin, GROUP, source, members, until=share_left)

        started = time.monotonic()
        try:
            for _ in range(MEMBERS):
                members.start()
            lags = []
            for number, share_left in enumerate(_SHARES_LEFT):
                lags.append(wait(share_left))
                members.kill(number)
                members.start()
            last = wait(_LAST_SHARE_LEFT)
            coordinator = kill_coordinator(cluster, admin)
            print(
                f"copy     {MEMBERS} members; kill -9 of one at a lag of {lags[0]:,}, of another "
                f"at {lags[1]:,}, and of {coordinator}, which coordinates them, at {last:,}"
            )
            wait(0)
        finally:
            members.stop()
        wait_until_decided(admin)
        print(f"copy     lag 0 after {time.monotonic() - started:.1f} s")
    return count_aborted(address, DELAYS)


def check_copy(flights: Records, came: Consumed, left_out: int) -> Iterator[Check]:
    """Yield what is to hold for the copy.

    Args:
        flights: the source.
        came: what readers of committed records got.
        left_out: records of the copy that belong to no committed transaction.
    """
    keys, values = delays_of(flights.keys, flights.values)
    sent = Counter(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    found = Counter(zip(came.keys.to_pylist(), came.values.to_pylist(), strict=True))
    detail = f"{len(came):,} of {len(values):,}, and {left_out:,} aborted ones that no reader sees"
    lost, more = (sent - found).total(), (found - sent).total()
    if lost or more:
        detail = f"{lost:,} lost, {more:,} doubled or foreign"
    yield Check("the copy has each delay exactly once", not lost and not more, detail)
    wrong = _out_of_order(keys, values, came)
    detail = f"{wrong:,} flight numbers wrong" if wrong else f"{len(pc.unique(keys)):,} of them"
    yield Check("in the order of each flight number", not wrong, detail)
    expected, copied = sums(flights.table), sums(_rows(came.values))
    minutes = sum(minutes for _, minutes in copied.values())
    detail = f"{len(copied)} carriers, {minutes:,} minutes"
    yield Check("and counts and sums equal pyarrow's", copied == expected, detail)


def sums(rows: pa.Table) -> Sums:
    """Return count and sum of each carrier's delays."""
    table = rows.select(_COLUMNS).group_by("carrier")
    found = table.aggregate([("dep_delay", "count"), ("dep_delay", "sum")]).to_pylist()
    return {
        row["carrier"]: (row["dep_delay_count"], row["dep_delay_sum"])
        for row in found
        if row["dep_delay_count"]
    }


def kill_coordinator(cluster: ClusterProcess, admin: SyncAdmin) -> str:
    """Kill the broker that coordinates all transactions; return its name."""
    leader = admin.describe_topic(_COORDINATORS).partitions[0].leader
    brokers = admin.describe_cluster().brokers
    return cluster.kill_named(next(found.name for found in brokers if found.broker_id == leader))


def wait_until_decided(admin: SyncAdmin) -> None:
    """Wait until no transaction is open, so that readers see all that is committed.

    Raises:
        RuntimeError: something stays open.
    """
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    while left := admin.list_transactions(["ongoing", "prepare_commit", "prepare_abort"]):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the transaction of {left[0].transactional_id} is still open")
        time.sleep(_POLL_SECONDS)


def count_aborted(address: str, topic: str) -> int:
    """Return how many records of a topic belong to no committed transaction."""
    return _count(address, topic, READ_UNCOMMITTED) - _count(address, topic, READ_COMMITTED)


def _rows(values: pa.Array) -> pa.Table:
    """Parse the JSON rows of flights or delays; only carrier and delay are read."""
    if not len(values):
        return _SCHEMA.empty_table()
    text = b"\n".join(values.to_pylist())
    options = pyarrow.json.ReadOptions(block_size=16 << 20)
    return pyarrow.json.read_json(pa.BufferReader(text), options, _PARSING)


def _out_of_order(keys: pa.Array, values: pa.Array, came: Consumed) -> int:
    """Return how many keys do not have their values in the order of the source."""
    expected, found = _by_key(keys, values), _by_key(came.keys, came.values)
    return sum(expected.get(key) != found.get(key) for key in expected | found)


def _by_key(keys: pa.Array, values: pa.Array) -> dict[bytes, list[bytes]]:
    sequences: dict[bytes, list[bytes]] = {}
    for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
        sequences.setdefault(key, []).append(value)
    return sequences


def _count(address: str, topic: str, isolation: Isolation) -> int:
    """Return how many records readers of a topic get."""
    count = 0
    with SyncConsumer(address, isolation=isolation) as consumer:
        consumer.assign([topic], start="beginning")
        while any(consumer.lag().values()):
            count += sum(batch.records.num_rows for batch in consumer.poll_batches(1000))
    return count
