"""What a query has written to topics, and counts."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.integration.running_broker import wait_until
from tests.spark_jobs.flights import REPLICAS
from tests.spark_jobs.written import Written

from millrace.client import Record, SyncAdmin, SyncConsumer

PARTITIONS = 2
QUIET_MS_MAX = 30_000

Row = dict[str, Any]


class WrittenToTopics(Written):
    """As `Written`, of rows in topics, where only what is committed counts.

    Args:
        folder: where the checkpoint is.
        bootstrap: where the brokers are.
        topics: which; they are made.
        row_of: returns the row that a record is.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        topics: Sequence[str],
        row_of: Callable[[Record], Row],
    ) -> None:
        super().__init__(folder)
        self._bootstrap, self._topics, self._row_of = bootstrap, topics, row_of
        with SyncAdmin(bootstrap) as admin:
            for topic in topics:
                admin.create_topic(topic, PARTITIONS, REPLICAS)

    def listed(self) -> int:
        """Return the last batch whose transaction is committed; -1: none."""
        with SyncAdmin(self._bootstrap) as admin:
            found = [admin.describe_transaction(of) for of in self.transactional_ids(admin)]
        versions = [of.version.number for of in found if of is not None and of.version is not None]
        return max(versions, default=-1)

    @staticmethod
    def transactional_ids(admin: SyncAdmin) -> list[str]:
        """Return those of the cluster: the query's, once it has written."""
        return [found.transactional_id for found in admin.list_transactions()]

    def marks(self) -> set[str]:
        """Return where the partitions end, with what is not decided."""
        with SyncAdmin(self._bootstrap) as admin:
            ends = admin.list_offsets(self._topics, isolation="read_uncommitted")
            return {
                f"{topic}-{partition} ends at {end.offset}"
                for (topic, partition), end in ends.items()
            }

    def leftovers(self) -> int:
        """Return how many records were written, and are none that count: with markers."""
        with SyncAdmin(self._bootstrap) as admin:
            ends = admin.list_offsets(self._topics)
        return sum(end.offset for end in ends.values()) - len(self._records())

    def table(self) -> pa.Table:
        """Return all rows that count."""
        return pa.Table.from_pylist([self._row_of(record) for record in self._records()])

    def _records(self) -> list[Record]:
        return [record for topic in self._topics for record in read_all(self._bootstrap, topic)]


def read_all(bootstrap: str, topic: str) -> list[Record]:
    """Return what counts in a topic, once all is decided, read by a plain consumer."""
    records: list[Record] = []
    with SyncAdmin(bootstrap) as admin, SyncConsumer(bootstrap) as consumer:
        wait_until(lambda: _decided(admin, topic), f"the ends of transactions in {topic}", 60)
        ends = admin.list_offsets(topic, "end")
        consumer.assign([topic], start="beginning")
        while any(consumer.position(place) < end.offset for place, end in ends.items()):
            came = consumer.poll(timeout_ms=QUIET_MS_MAX)
            assert came, f"nothing came for {QUIET_MS_MAX} ms from {topic}"
            records += came
    return records


def _decided(admin: SyncAdmin, topic: str) -> bool:
    undecided = admin.list_offsets(topic, isolation="read_uncommitted")
    return all(
        end.offset == undecided[place].offset for place, end in admin.list_offsets(topic).items()
    )


def delay(record: Record) -> Row:
    """Return an hour of a carrier."""
    row: Row = {"mean_delay": None, "max_delay": None} | json.loads(record.value)
    row["start"] = datetime.fromisoformat(row["start"])
    assert record.key.decode() == f"{row['carrier']}/{row['start']:%Y-%m-%d %H:%M:%S}"
    return row


def event(record: Record) -> Row:
    """Return an event of an airport, or what was rejected."""
    headers = {name: (value or b"").decode() for name, value in record.headers}
    source = tuple(headers.pop(f"source.{name}") for name in ("topic", "partition", "offset"))
    row = {"source": "/".join(source), "to": record.topic, "key": record.key, **headers}
    if record.topic == "rejected":
        return {"event": None, "kind": None, "value": record.value, **row}
    fields = json.loads(record.value)
    return {"event": in_one_way(fields), "value": None, "error.reason": None, **row}


def shuffled(record: Record) -> Row:
    """Return a record that was passed on."""
    return {"to": record.topic, "source": record.key, "value": record.value}


def in_one_way(fields: dict[str, Any]) -> str:
    """Return the fields of an event as the same text, however they were written; null is none."""
    fields = {name: cell for name, cell in fields.items() if cell is not None}
    time = {"time_hour": datetime.fromisoformat(fields["time_hour"]).timestamp()}
    numbers = {k: float(v) for k, v in fields.items() if isinstance(v, int | float)}
    return json.dumps(fields | numbers | time, sort_keys=True)
