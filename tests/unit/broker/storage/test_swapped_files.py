"""Files of two logs that changed places, each sound in itself (P66): noticed, never believed."""

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import NOW, ROOT, batches_of, open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch

from millrace.broker.storage import inspection, new_beginning
from millrace.broker.storage.inspection import Severity
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import LogDirectory
from millrace.core.errors import CorruptLogError
from millrace.core.ids import BrokerEpoch, MonotonicMs, Offset, TopicPartition

OTHER = TOPIC_PARTITION._replace(partition=TOPIC_PARTITION.partition + 1)
BOTH = (TOPIC_PARTITION, OTHER)
BATCHES = 8
VALUES = b"as long", b"a bit longer"
LENGTH = max(stamped_batch(0, value=value).length for value in VALUES)
CONFIG = LogConfig(segment_bytes=3 * LENGTH, index_interval_bytes=LENGTH)
"""Segments of three batches, however long."""

CLOSED = f"{0:020}"
ACTIVE = f"{6:020}"


def known_of(log: PartitionLog) -> object:
    """All that a log says of itself."""
    return (batches_of(log), log.leader_epochs.entries, log.producer_states.snapshot())


def written(log: PartitionLog, number: int, value: bytes) -> None:
    """Eight batches in three segments, of other producers and leader epochs in each log."""
    for offset in range(BATCHES):
        log.writer.append(
            [
                stamped_batch(
                    offset,
                    value=value,
                    epoch=(0, 3)[number] + (offset > (2, 4)[number]),
                    producer_id=7 + number,
                    sequence=offset,
                    topic_partition=log.topic_partition,
                )
            ],
            NOW,
        )


def two_logs(
    *, is_clean: bool, value: bytes = VALUES[0]
) -> tuple[Disk, dict[TopicPartition, object]]:
    """A directory with two logs of the same files, and what each says of itself.

    Args:
        value: in all batches of the second one.
    """
    disk = Disk()
    directory = open_directory(disk)
    known = {}
    for number, topic_partition in enumerate(BOTH):
        log = directory.open_partition(topic_partition, CONFIG, NOW)
        written(log, number, (VALUES[0], value)[number])
        log.flusher.checkpoint()
        known[topic_partition] = known_of(log)
    directory.checkpoint(MonotonicMs(0))
    if is_clean:
        directory.close(clean=True, broker_epoch=BrokerEpoch(1))
    disk.restart()
    return disk, known


def swap(disk: Disk, name: str) -> None:
    one, other = (f"{ROOT}/{each}/{name}" for each in BOTH)
    contents = disk.contents(one)
    assert contents != disk.contents(other)
    disk.write(one, disk.contents(other))
    disk.write(other, contents)


def scrubbed(log: PartitionLog) -> None:
    while log.scrubber.scrub(1 << 20):
        pass


def reopened(disk: Disk, topic_partition: TopicPartition) -> tuple[LogDirectory, PartitionLog]:
    directory = open_directory(disk)
    return directory, directory.open_partition(topic_partition, CONFIG, NOW)


FILES = [f"{CLOSED}.log", f"{ACTIVE}.log", f"{CLOSED}.index", f"{ACTIVE}.index"]
FILES += ["leader-epochs", f"{BATCHES:020}.snapshot", f"{6:020}.snapshot"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_log_is_never_believed(name: str, is_clean: bool, value: bytes) -> None:
    disk, known = two_logs(is_clean=is_clean, value=value)
    swap(disk, name)
    for topic_partition in BOTH:
        copy = disk.copy()
        try:
            _, log = reopened(copy, topic_partition)
            scrubbed(log)
        except CorruptLogError:
            assert name.endswith(".log")
        else:
            assert not name.endswith(".log")
            assert known_of(log) == known[topic_partition]


@pytest.mark.parametrize("name", [file for file in FILES if not file.endswith(".log")])
def test_a_file_of_another_log_is_told_by_log_verify(name: str) -> None:
    disk, _ = two_logs(is_clean=True)
    swap(disk, name)
    for partition in inspection.partitions(disk, ROOT):
        (finding,) = inspection.verify_partition(disk, partition).findings
        assert finding.severity is Severity.HARMLESS


@pytest.mark.parametrize(
    "name", [f"{CLOSED}.index", f"{ACTIVE}.index", "leader-epochs", f"{BATCHES:020}.snapshot"]
)
def test_what_is_made_again_is_named_and_sound_the_next_time(name: str) -> None:
    disk, _ = two_logs(is_clean=True)
    swap(disk, name)
    directory, log = reopened(disk, TOPIC_PARTITION)
    assert log.mended == (f"{ROOT}/{TOPIC_PARTITION}/{name}",)
    directory.close(clean=True, broker_epoch=BrokerEpoch(2))
    disk.restart()
    partition = next(
        partition
        for partition in inspection.partitions(disk, ROOT)
        if partition.topic_partition == TOPIC_PARTITION
    )
    assert inspection.verify_partition(disk, partition).findings == []
    _, log = reopened(disk, TOPIC_PARTITION)
    assert log.mended == ()


def test_sound_files_are_not_made_again() -> None:
    for is_clean in (True, False):
        disk, known = two_logs(is_clean=is_clean)
        _, log = reopened(disk, TOPIC_PARTITION)
        assert log.mended == ()
        assert known_of(log) == known[TOPIC_PARTITION]


def test_older_leader_epochs_of_the_same_log_are_made_again() -> None:
    disk = Disk()
    directory = open_directory(disk)
    log = directory.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    path = f"{ROOT}/{TOPIC_PARTITION}/leader-epochs"
    log.writer.append([stamped_batch(0, epoch=1)], NOW)
    older = disk.contents(path)
    log.writer.append([stamped_batch(1, epoch=4)], NOW)
    entries = log.leader_epochs.entries
    directory.close(clean=True, broker_epoch=BrokerEpoch(1))
    disk.restart()
    disk.write(path, older)
    _, log = reopened(disk, TOPIC_PARTITION)
    assert log.leader_epochs.entries == entries
    assert log.mended == (path,)


def test_another_logs_mark_does_not_empty_a_log() -> None:
    disk, _ = two_logs(is_clean=True)
    directory = f"{ROOT}/{TOPIC_PARTITION}"
    new_beginning.decide(disk, directory, OTHER, Offset(0))
    with pytest.raises(CorruptLogError, match=new_beginning.MARK):
        reopened(disk, TOPIC_PARTITION)
    assert disk.exists(f"{directory}/{CLOSED}.log")
    partition = inspection.partitions(disk, ROOT)[0]
    assert not inspection.verify_partition(disk, partition).is_sound
