"""A driver that is killed in the commit of a micro-batch: its rows are there once."""

from pathlib import Path

import pytest
from demo.spark_program import SparkProgram
from tests.integration.conftest import StartBroker
from tests.integration.spark.written import create, records

from millrace.client import SyncProducer

ROWS = 300
SECONDS_MAX = 150.0


@pytest.mark.usefixtures("has_spark")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("moment", ["after", pytest.param("before", marks=pytest.mark.nightly)])
def test_a_driver_that_is_killed_in_its_commit_goes_on_and_each_row_is_there_once(
    start_broker: StartBroker, tmp_path: Path, moment: str
) -> None:
    broker = start_broker()
    create(broker, "in", partitions=1)
    create(broker, "out")
    with SyncProducer(broker.address) as producer:
        producer.send_batch("in", [b"%d" % number for number in range(ROWS)])
    program = SparkProgram(
        Path(__file__).with_name("killed_in_commit.py"),
        *(broker.address, str(tmp_path), moment),
        log=tmp_path / "driver.log",
    )
    assert program.start().wait(SECONDS_MAX) != 0, "it is killed"
    assert (tmp_path / "killed").exists(), program.log_end()
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    assert program.start().wait(SECONDS_MAX) == 0, program.log_end()
    found = sorted(int(record.value) for record in records(broker, "out"))
    assert found == list(range(ROWS))
