"""A query whose driver is killed, or falls asleep, in the commit of its second micro-batch, once.

Arguments: the brokers, a folder, and the moment: it is killed `before` or `after` the commit is
done, or is `asleep` before it until somebody wakes its processes.
It passes numbers on from `in` to `out`, shuffled by chance.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from millrace.spark.data_source import MillraceDataSource
from millrace.spark.sink.transactions import Written
from millrace.spark.sink.writer import StreamSink, make_stream_sink

KILLED_BATCH = 1
OWN = ("killed", "moment")


class KillingSink(StreamSink):
    """Kills its driver, or lets it sleep."""

    killed: Path
    moment: str

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # Spark's.
        """Commit, or be killed before."""
        is_due = batchId == KILLED_BATCH and not self.killed.exists()
        if is_due and self.moment == "before":
            self._kill(signal.SIGKILL)
        if is_due and self.moment == "asleep":
            self._kill(signal.SIGSTOP)
        super().commit(messages, batchId)
        if is_due and self.moment == "after":
            self._kill(signal.SIGKILL)

    def _kill(self, how: signal.Signals) -> None:
        """Kill the JVM, which has made this process, or the process that has; end likewise."""
        self.killed.touch()
        pid = os.getppid()
        while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, how)
        os.kill(os.getpid(), how)


class KillingDataSource(MillraceDataSource):
    """As the format `millrace`, with such a sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # Spark's.
        """Return the sink."""
        given = {name: text for name, text in self.options.items() if name not in OWN}
        sink = make_stream_sink(given, schema)
        sink.__class__ = KillingSink
        assert isinstance(sink, KillingSink)
        sink.killed, sink.moment = Path(self.options["killed"]), self.options["moment"]
        return sink


def main() -> None:
    """Read what is there, then end."""
    brokers, folder, moment = sys.argv[1:]
    spark = SparkSession.builder.appName("killed_in_commit").getOrCreate()
    spark.dataSource.register(KillingDataSource)
    query = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", brokers)
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
        .selectExpr("value", "rand() AS place")
        .repartition(3, "place")
        .select("value")
        .writeStream.format("killing")
        .option("bootstrap.servers", brokers)
        .option("topic", "out")
        .option("killed", f"{folder}/killed")
        .option("moment", moment)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
