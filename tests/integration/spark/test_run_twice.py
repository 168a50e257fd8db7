"""Speculative execution: of a task that Spark runs twice, the rows of one attempt count."""

from pathlib import Path

import pytest
from demo.spark_program import SparkProgram
from tests.integration.conftest import StartBroker
from tests.integration.spark.written import create, records

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from tests.integration.spark.standalone_cluster import standalone_cluster

ROWS = 400
BATCHES = 4
SECONDS_MAX = 240.0


@pytest.mark.nightly
@pytest.mark.usefixtures("has_spark")
@pytest.mark.timeout(500)
def test_of_a_task_that_spark_runs_twice_one_attempt_counts(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    create(broker, "in", "out", partitions=1)
    with SyncProducer(broker.address) as producer:
        producer.send_batch("in", [b"%d" % number for number in range(ROWS)])
    with standalone_cluster(tmp_path) as master:
        program = SparkProgram(
            Path(__file__).with_name("run_twice.py"),
            *(master, broker.address, str(tmp_path)),
            log=tmp_path / "driver.log",
        )
        assert program.start().wait(SECONDS_MAX) == 0, program.log_end()
    assert len(list(tmp_path.glob("twice-*"))) == BATCHES, "each had a second attempt"
    assert sorted(int(record.value) for record in records(broker, "out")) == list(range(ROWS))
    with SyncAdmin(broker.address) as admin:
        ((_, end),) = admin.list_offsets("out").items()
    with SyncConsumer(broker.address, isolation="read_uncommitted") as consumer:
        consumer.assign(["out"], start="beginning")
        found = 0
        while (polled := consumer.poll(1000)) or found == 0:
            found += len(polled)
    assert found > ROWS, f"attempts that do not count have written, too (end offset {end})"
