"""What a query has written to a topic: rows that are repeated count once."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from demo.flights import consume
from tests.spark_jobs.flights import REPLICAS
from tests.spark_jobs.written import Written

from millrace.client import SyncAdmin

PARTITIONS = 2


class WrittenToTopic(Written):
    """As `Written`, of carriers' delays in a topic, where all is seen that a task has written.

    Args:
        folder: where the checkpoint is.
        bootstrap: where the brokers are.
        topic: which; it is made.
    """

    def __init__(self, folder: Path, bootstrap: str, topic: str) -> None:
        super().__init__(folder)
        self._bootstrap, self._topic = bootstrap, topic
        with SyncAdmin(bootstrap) as admin:
            admin.create_topic(topic, PARTITIONS, REPLICAS)

    def listed(self) -> int:
        """Return the last batch that was committed: nothing else says that a batch is whole."""
        return self.committed()

    def marks(self) -> set[str]:
        """Return where the partitions end."""
        with SyncAdmin(self._bootstrap) as admin:
            ends = admin.list_offsets(self._topic, "end")
        return {f"{partition} ends at {end.offset}" for partition, end in ends.items()}

    def leftovers(self) -> int:
        """Return how many rows were written again."""
        return len(consume(self._bootstrap, self._topic)) - len(self._last_rows())

    def table(self) -> pa.Table:
        """Return the last row of each key."""
        return pa.Table.from_pylist(list(self._last_rows().values()))

    def _last_rows(self) -> dict[bytes, dict[str, Any]]:
        came = consume(self._bootstrap, self._topic)
        rows: dict[bytes, dict[str, Any]] = {}
        # Rows of a key share a partition, and partitions are read in their order.
        for key, value in zip(came.keys.to_pylist(), came.values.to_pylist(), strict=True):
            row = {"mean_delay": None, "max_delay": None} | json.loads(value)
            row["start"] = datetime.fromisoformat(row["start"])
            assert key.decode() == f"{row['carrier']}/{row['start']:%Y-%m-%d %H:%M:%S}"
            rows[key] = row
        return rows
