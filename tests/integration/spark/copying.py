"""A query that copies numbers from one topic to another one."""

import json
from pathlib import Path
from typing import Any

from tests.integration.running_broker import RunningBroker
from tests.integration.spark.written import create, records, write


class Copying:
    """A query that copies numbers from a topic to another one, with a checkpoint of its own."""

    def __init__(self, spark: Any, broker: RunningBroker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        create(broker, "in", "out", partitions=2)

    def send(self, numbers: range) -> None:
        frame = self.spark.range(numbers.start, numbers.stop).selectExpr(
            "CAST(id AS STRING) AS value", "CAST(id % 2 AS INT) AS partition"
        )
        write(frame, self.broker, topic="in")

    def read(self) -> Any:
        return (
            self.spark.readStream.format("millrace")
            .option("bootstrap.servers", self.broker.address)
            .option("subscribe", "in")
            .option("startingOffsets", "earliest")
            .load()
        )

    def run(self, *columns: str, topic: str = "out", **options: str) -> None:
        """Read what is there, and write it; without a topic the rows name theirs."""
        rows = self.read().selectExpr(*(columns or ("value",)))
        self.write(rows, topic, **options).trigger(availableNow=True).start().awaitTermination()

    def write(self, rows: Any, topic: str = "out", **options: str) -> Any:
        """Return a query that is to be started."""
        return (
            rows.writeStream.format("millrace")
            .queryName("copying")
            .option("bootstrap.servers", self.broker.address)
            .options(**({"topic": topic} if topic else {}), **options)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
        )

    def query_id(self) -> str:
        """Return the query's id, which the checkpoint has."""
        return str(json.loads((self.folder / "checkpoint" / "metadata").read_text())["id"])

    def change_query_id(self, query_id: str) -> None:
        """Write another one into the checkpoint, as a person might."""
        (self.folder / "checkpoint" / ".metadata.crc").unlink(missing_ok=True)
        (self.folder / "checkpoint" / "metadata").write_text(json.dumps({"id": query_id}))

    def numbers(self) -> list[int]:
        return sorted(int(record.value) for record in records(self.broker, "out"))
