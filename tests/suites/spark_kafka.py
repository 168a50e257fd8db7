"""Spark's own source and sink for Kafka, by what its documentation shows.

The checks are ours (`inside/spark_checks.py`). Spark is PySpark of this checkout's environment, and
Maven fetches the source and its client.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.peers.maven import SPARK_VERSION, PeerMissingError, spark_kafka_jars
from demo.spark_program import JAVA_OPTIONS, missing
from tests.suites.outcome import Result
from tests.suites.suite import SuiteMissingError, Target
from tests.suites.told import checks_of, told_by

HERE = Path(__file__).parent
PROGRAM = HERE / "inside" / "spark_checks.py"
TEST_TIMEOUT_S = 60
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class SparkKafka:
    """The suite."""

    name = "spark-kafka"
    version = SPARK_VERSION
    about = "Spark's Kafka source and sink: batches, streams with checkpoints, isolation, headers"
    brokers = 1
    creates_topics = False

    def build(self) -> None:
        """Fetch the source, and look whether there is a Spark."""
        if lacks := missing():
            raise SuiteMissingError(lacks)
        try:
            spark_kafka_jars()
        except PeerMissingError as error:
            raise SuiteMissingError(str(error)) from error

    def tests(self) -> Sequence[str]:
        """Return the tests."""
        return checks_of(PROGRAM)

    def run(self, target: Target, tests: Sequence[str]) -> Iterator[Result]:
        """Run some of them, in one session of Spark."""
        folder = target.folder / self.name
        settings = {
            **SETTINGS,
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        jars = ",".join(map(str, spark_kafka_jars()))
        arguments = [
            *("--master", "local[2]", "--jars", jars),
            *("--driver-java-options", f"'{JAVA_OPTIONS}'"),
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            "pyspark-shell",
        ]
        yield from told_by(
            [sys.executable, "-m", "tests.suites.inside.spark_checks"],
            tests,
            target,
            folder=folder,
            test_timeout_s=TEST_TIMEOUT_S,
            variables={
                "PYTHONPATH": str(HERE.parents[1]),
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_SUBMIT_ARGS": " ".join(arguments),
                "TZ": "UTC",
            },
        )


SPARK_KAFKA = SparkKafka()
