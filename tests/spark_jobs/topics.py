"""What a query has written to topics: rows that are repeated count once."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.spark_jobs.flights import REPLICAS
from tests.spark_jobs.written import Written

from millrace.client import Record, SyncAdmin, SyncConsumer

PARTITIONS = 2
QUIET_MS_MAX = 30_000

Row = dict[str, Any]


class WrittenToTopics(Written):
    """As `Written`, of rows in topics, where all is seen that a task has written.

    Args:
        folder: where the checkpoint is.
        bootstrap: where the brokers are.
        topics: which; they are made.
        row_of: returns what a record is called, by which it is known again, and its row.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        topics: Sequence[str],
        row_of: Callable[[Record], tuple[object, Row]],
    ) -> None:
        super().__init__(folder)
        self._bootstrap, self._topics, self._row_of = bootstrap, topics, row_of
        with SyncAdmin(bootstrap) as admin:
            for topic in topics:
                admin.create_topic(topic, PARTITIONS, REPLICAS)

    def listed(self) -> int:
        """Return the last batch that was committed: nothing else says that a batch is whole."""
        return self.committed()

    def marks(self) -> set[str]:
        """Return where the partitions end."""
        with SyncAdmin(self._bootstrap) as admin:
            return {
                f"{topic}-{partition} ends at {end.offset}"
                for (topic, partition), end in admin.list_offsets(self._topics).items()
            }

    def leftovers(self) -> int:
        """Return how many rows were written again."""
        return len(self._records()) - len(self._last_rows())

    def table(self) -> pa.Table:
        """Return the last row of each name."""
        return pa.Table.from_pylist(list(self._last_rows().values()))

    def _records(self) -> list[Record]:
        return [record for topic in self._topics for record in read_all(self._bootstrap, topic)]

    def _last_rows(self) -> dict[object, Row]:
        # Rows of a name share a key and so a partition, and partitions are read in their order.
        return dict(map(self._row_of, self._records()))


def read_all(bootstrap: str, topic: str) -> list[Record]:
    """Return what is in a topic, read by a plain consumer."""
    records: list[Record] = []
    with SyncAdmin(bootstrap) as admin, SyncConsumer(bootstrap) as consumer:
        ends = admin.list_offsets(topic, "end")
        consumer.assign([topic], start="beginning")
        while any(consumer.position(place) < end.offset for place, end in ends.items()):
            came = consumer.poll(timeout_ms=QUIET_MS_MAX)
            assert came, f"nothing came for {QUIET_MS_MAX} ms from {topic}"
            records += came
    return records


def delay(record: Record) -> tuple[object, Row]:
    """Return an hour of a carrier."""
    row = {"mean_delay": None, "max_delay": None} | json.loads(record.value)
    row["start"] = datetime.fromisoformat(row["start"])
    assert record.key.decode() == f"{row['carrier']}/{row['start']:%Y-%m-%d %H:%M:%S}"
    return record.key, row


def event(record: Record) -> tuple[object, Row]:
    """Return an event of an airport, or what was rejected; it is called by where it comes from."""
    headers = {name: (value or b"").decode() for name, value in record.headers}
    source = tuple(headers.pop(f"source.{name}") for name in ("topic", "partition", "offset"))
    row = {"source": "/".join(source), "to": record.topic, "key": record.key, **headers}
    if record.topic == "rejected":
        return source, {"event": None, "kind": None, "value": record.value, **row}
    fields = json.loads(record.value)
    return source, {"event": in_one_way(fields), "value": None, "error.reason": None, **row}


def in_one_way(fields: dict[str, Any]) -> str:
    """Return the fields of an event as the same text, however they were written; null is none."""
    fields = {name: cell for name, cell in fields.items() if cell is not None}
    time = {"time_hour": datetime.fromisoformat(fields["time_hour"]).timestamp()}
    numbers = {k: float(v) for k, v in fields.items() if isinstance(v, int | float)}
    return json.dumps(fields | numbers | time, sort_keys=True)
