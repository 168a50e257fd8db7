"""A driver that is killed, or sleeps, in the commit of a micro-batch: its rows are there once."""

from pathlib import Path

import pytest
from demo.spark_program import SparkProgram
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.spark.written import create, records

from millrace.client import SyncProducer

ROWS = 300
FIRST_BATCH = 100
SECONDS_MAX = 150.0


@pytest.mark.usefixtures("has_spark")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("moment", ["after", pytest.param("before", marks=pytest.mark.nightly)])
def test_a_driver_that_is_killed_in_its_commit_goes_on_and_each_row_is_there_once(
    start_broker: StartBroker, tmp_path: Path, moment: str
) -> None:
    broker = broker_with_numbers(start_broker)
    program = program_of(broker, tmp_path, moment, "driver.log")
    assert program.start().wait(SECONDS_MAX) != 0, "it is killed"
    assert (tmp_path / "killed").exists(), program.log_end()
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    assert program.start().wait(SECONDS_MAX) == 0, program.log_end()
    assert numbers(broker) == list(range(ROWS))


@pytest.mark.nightly
@pytest.mark.usefixtures("has_spark")
@pytest.mark.timeout(400)
def test_a_driver_that_sleeps_in_its_commit_is_refused_when_it_wakes_up(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = broker_with_numbers(start_broker)
    asleep = program_of(broker, tmp_path, "asleep", "asleep.log").start()
    try:
        wait_until((tmp_path / "killed").exists, "it sleeps", SECONDS_MAX)
        other = program_of(broker, tmp_path, "asleep", "other.log")
        assert other.start().wait(SECONDS_MAX) == 0, other.log_end()
        assert numbers(broker) == list(range(ROWS))
        asleep.wake()
        assert asleep.wait(SECONDS_MAX) != 0
        assert "ProducerFencedError: another run of the application" in (
            tmp_path / "asleep.log"
        ).read_text(errors="replace")
        assert numbers(broker) == list(range(ROWS))
    finally:
        asleep.kill()


@pytest.mark.nightly
@pytest.mark.usefixtures("has_spark")
@pytest.mark.timeout(400)
def test_a_machine_that_sleeps_beyond_the_lease_commits_nothing_when_it_wakes_up(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """Nobody has taken its place: readers go on meanwhile, and the next run writes it again."""
    broker = broker_with_numbers(start_broker, {"transactions.lease_ms": 6000})
    asleep = program_of(broker, tmp_path, "asleep", "asleep.log").start()
    try:
        wait_until((tmp_path / "killed").exists, "its driver sleeps", SECONDS_MAX)
        asleep.sleep()
        assert numbers(broker) == list(range(FIRST_BATCH)), "readers do not wait for it"
        asleep.wake()
        assert asleep.wait(SECONDS_MAX) != 0
    finally:
        asleep.kill()
    told = (tmp_path / "asleep.log").read_text(errors="replace")
    assert "TransactionAbortedError: transaction 2 of " in told
    assert "because nobody renewed its lease, or it was open for too long: open anoth" in told
    assert numbers(broker) == list(range(FIRST_BATCH))
    again = program_of(broker, tmp_path, "asleep", "again.log")
    assert again.start().wait(SECONDS_MAX) == 0, again.log_end()
    assert numbers(broker) == list(range(ROWS))


def broker_with_numbers(
    start_broker: StartBroker, settings: dict[str, object] | None = None
) -> RunningBroker:
    broker = start_broker(settings)
    create(broker, "in", partitions=1)
    create(broker, "out")
    with SyncProducer(broker.address) as producer:
        producer.send_batch("in", [b"%d" % number for number in range(ROWS)])
    return broker


def program_of(broker: RunningBroker, folder: Path, moment: str, log: str) -> SparkProgram:
    file = Path(__file__).with_name("killed_in_commit.py")
    return SparkProgram(file, broker.address, str(folder), moment, log=folder / log)


def numbers(broker: RunningBroker) -> list[int]:
    return sorted(int(record.value) for record in records(broker, "out"))
