"""Disks that are full, go away, or forget what was written to them."""

import resource
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import grpc
from tests.integration.cli.command_line import CommandLine
from tests.integration.conftest import StartBroker
from tests.integration.raw_client import RawClient, batch_of
from tests.integration.running_broker import RunningBroker, flip, wait_until
from tests.integration.small_disk import fill, small_disk

from millrace.client import SyncConsumer
from millrace.core.ids import TopicPartition
from millrace.core.records.header import HEADER_BYTES
from millrace.proto.v1.common_pb2 import APPENDED_NO, ErrorCode
from millrace.proto.v1.produce_pb2 import InitProducerIdRequest, ProduceResult

MIB = 1 << 20
FULL = ErrorCode.ERROR_CODE_STORAGE_FULL
FAILED = ErrorCode.ERROR_CODE_LOG_DIR_FAILED
CORRUPT = ErrorCode.ERROR_CODE_CORRUPT_LOG


def big_batch(partition: TopicPartition, producer_id: int = -1, sequence: int = -1) -> bytes:
    """Return a batch of about 400 kB."""
    values = [bytes(4000)] * 100
    return batch_of(partition, values, producer_id=producer_id, sequence=sequence)


def two_directories(start_broker: StartBroker, tmp_path: Path, **others: object) -> RunningBroker:
    return start_broker(log_dirs=[tmp_path / "good", tmp_path / "bad"], **others)


def by_directory(client: RawClient, topic_id: bytes, count: int) -> dict[str, list[TopicPartition]]:
    """Return a topic's partitions by the names of the directories that they are in."""
    found: dict[str, list[TopicPartition]] = {}
    for number in range(count):
        partition = TopicPartition(topic_id, number)  # type: ignore[arg-type]
        found.setdefault(Path(client.log(partition).log_dir).parent.name, []).append(partition)
    return found


def test_a_directory_that_goes_away_takes_only_its_partitions_offline(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = two_directories(start_broker, tmp_path)
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("spread", partitions=4, segment_bytes=MIB)
        partitions = by_directory(client, topic_id, 4)
        good, bad = partitions["good"], partitions["bad"]
        assert len(good) == len(bad) == 2
        follower = client.fetch()
        follower.ask([(1, bad[1], 0)], credit=MIB)
        appended = {}
        for partition in good + bad:
            appended[partition] = client.produce_batch(partition, big_batch(partition))
        (tmp_path / "bad").rename(tmp_path / "away")
        results: list[ProduceResult] = []
        while not results or not results[-1].error.code:
            assert len(results) < 10
            results.append(client.produce_batch(bad[0], big_batch(bad[0])))
        assert results[-1].error.code == FAILED
        for partition in bad:
            assert client.produce_batch(partition, batch_of(partition)).error.code == FAILED
            assert client.list_offset(partition, latest=True).error.code == FAILED
        assert follower.next_error().code == FAILED
        follower.close()
        for partition in good:
            assert client.produce_batch(partition, batch_of(partition)).base_offset == 100
        wait_until(lambda: broker.metrics()["millrace_offline_log_dirs"] == 1, "the gauge says so")
    assert broker.stop() == 0
    assert (tmp_path / "good" / "clean-shutdown").exists()
    (tmp_path / "away").rename(tmp_path / "bad")
    assert not (tmp_path / "bad" / "clean-shutdown").exists()
    broker.start()
    with RawClient(broker.address) as client:
        assert client.end_offset(good[0]) == 101
        assert client.end_offset(bad[1]) == 100
        acknowledged = 100 + 100 * (len(results) - 1)
        assert client.end_offset(bad[0]) >= acknowledged


def test_the_last_directory_takes_the_process_with_it(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        partition = TopicPartition(client.create_topic("doomed", segment_bytes=MIB), 0)
        broker.log_dirs[0].rename(tmp_path / "away")
        with suppress(grpc.RpcError):  # The stream ends with the broker.
            for _ in range(10):
                client.produce_batch(partition, big_batch(partition))
    assert broker.wait() == 1
    assert broker.log_has("log directory failed")


def fill_and_recover(
    broker: RunningBroker,
    client: RawClient,
    fill: Callable[[], object],
    free: Callable[[], object],
) -> None:
    """Fill the disk, see that nothing is consumed, free it, and see that all goes on by itself."""
    partition = TopicPartition(client.create_topic("filling"), 0)
    producer_id = client.producers.InitProducerId(InitProducerIdRequest(), timeout=10).producer_id
    sequence = 0
    fill()
    while True:
        assert sequence < 100 * 200
        result = client.produce_batch(partition, big_batch(partition, producer_id, sequence))
        if result.error.code:
            break
        assert result.base_offset == sequence
        sequence += 100
    assert (result.error.code, result.error.appended) == (FULL, APPENDED_NO)
    for _ in range(3):
        again = client.produce_batch(partition, big_batch(partition, producer_id, sequence))
        assert (again.error.code, again.error.appended) == (FULL, APPENDED_NO)
    assert broker.metrics()['millrace_refusals_total{error="STORAGE_FULL",method="Produce"}'] == 4
    assert client.end_offset(partition) == sequence
    log = client.log(partition)
    assert log.log_end_offset == sequence
    if sequence:
        session = client.fetch()
        session.ask([(1, partition, 0)], credit=MIB)
        assert next(session.answers())[0].length > 0
        session.close()
    free()
    again = client.produce_batch(partition, big_batch(partition, producer_id, sequence))
    assert (again.error.code, again.base_offset) == (0, sequence)
    assert broker.metrics()["millrace_offline_log_dirs"] == 0


def test_a_limit_on_file_sizes_refuses_writes_and_consumes_nothing(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size, hard))

    with RawClient(broker.address) as client:
        fill_and_recover(broker, client, lambda: limit(MIB), lambda: limit(resource.RLIM_INFINITY))
    assert broker.stop() == 0
    assert (broker.log_dirs[0] / "clean-shutdown").exists()


def test_a_process_without_descriptors_goes_on_when_it_has_some_again(
    start_broker: StartBroker,
) -> None:
    broker = start_broker({"storage.recovery_point_interval_ms": 200})
    limits = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("t", segment_bytes=MIB)
        partition = TopicPartition(topic_id, 0)
        assert client.produce_batch(partition, batch_of(partition)).base_offset == 0
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            wait_until(lambda: broker.log_has("Too many open files"), "something is refused")
            answers = [client.produce_batch(partition, big_batch(partition)) for _ in range(5)]
        finally:
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, limits)
        refused = [answer for answer in answers if answer.error.code]
        assert {answer.error.code for answer in refused} == {ErrorCode.ERROR_CODE_STORAGE_BUSY}
        assert {answer.error.appended for answer in refused} == {APPENDED_NO}
        kept = 1 + 100 * (len(answers) - len(refused))
        assert client.produce_batch(partition, batch_of(partition)).base_offset == kept
        assert client.end_offset(partition) == kept + 1
    assert broker.metrics()["millrace_offline_log_dirs"] == 0
    assert broker.stop() == 0
    assert (broker.log_dirs[0] / "clean-shutdown").exists()


def test_a_full_disk_refuses_writes_and_consumes_nothing(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 80 * MIB) as disk, ExitStack() as started:
        broker = start_broker(log_dirs=[disk / "log"])
        started.callback(broker.abandon)
        filler = disk / "filler"
        with RawClient(broker.address) as client:
            fill_and_recover(
                broker, client, lambda: filler.write_bytes(bytes(6 * MIB)), filler.unlink
            )
            topic_id = client.create_topic("t")
        partition = TopicPartition(topic_id, 0)
        for _ in range(2):  # What is kept for this comes back each time.
            fill(filler)
            broker.kill()
            broker.start()
            filler.unlink(missing_ok=True)
            wait_until(partial(has_room, broker, partition), "there is room again")
        assert broker.stop() == 0
        assert (disk / "log" / "clean-shutdown").exists()


def has_room(broker: RunningBroker, partition: TopicPartition) -> bool:
    with RawClient(broker.address) as client:
        return not client.produce_batch(partition, batch_of(partition)).error.code


def closed_segment(broker: RunningBroker, topic_id: bytes) -> Path:
    """Return the first segment of partition 0, which must be closed."""
    segments = sorted(broker.partition_directory(topic_id).glob("*.log"))
    assert len(segments) > 2
    return segments[0]


def with_segments(client: RawClient, name: str) -> tuple[TopicPartition, TopicPartition]:
    """Return two partitions with a few closed segments each."""
    topic_id = client.create_topic(name, partitions=2, segment_bytes=MIB)
    partitions = TopicPartition(topic_id, 0), TopicPartition(topic_id, 1)
    for _ in range(10):
        for partition in partitions:
            assert not client.produce_batch(partition, big_batch(partition)).error.code
    return partitions


def test_scrubbing_takes_a_damaged_partition_offline_and_no_other(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        damaged, other = with_segments(client, "scrubbed")
        follower = client.fetch()
        follower.ask([(1, damaged, 1000)], credit=MIB)
        flip(closed_segment(broker, damaged.topic_id), HEADER_BYTES + 5000)
        assert follower.next_error().code == CORRUPT
        follower.close()
        refused = client.produce_batch(damaged, batch_of(damaged))
        assert (refused.error.code, refused.error.appended) == (CORRUPT, APPENDED_NO)
        assert client.produce_batch(other, batch_of(other)).base_offset == 1000
    assert broker.log_has("partition is offline")
    wait_until(lambda: broker.metrics()["millrace_offline_partitions"] == 1, "people are woken")
    described = CommandLine(broker.address).run("topic", "describe", "scrubbed")
    first, second = (line.split() for line in described.stdout.splitlines()[2:4])
    assert (first[:2], first[3:7]) == (["0", "-"], ["0", "0", "-", "0"])  # Offline, without leader.
    assert (second[:2], second[3:7]) == (["1", "0"], ["0", "0", "-", "-"])
    assert "millrace cluster health" in described.stderr
    assert broker.stop() == 0


def test_a_reader_that_gets_a_flipped_bit_takes_the_partition_offline_and_no_other(
    start_broker: StartBroker,
) -> None:
    broker = start_broker({"storage.scrub_bytes_per_second": -1})
    with RawClient(broker.address) as client:
        damaged, _ = with_segments(client, "read")
        flip(closed_segment(broker, damaged.topic_id), HEADER_BYTES + 5000)
    with SyncConsumer(broker.address) as consumer:
        consumer.assign([("read", 0)], start="beginning")

        def is_offline() -> bool:
            assert not consumer.poll(100), "nothing of it is handed out"
            return broker.metrics()["millrace_offline_partitions"] == 1

        wait_until(is_offline, "the broker has verified its copy")
        assert consumer.awaited_partitions() == [("read", 0)]
        consumer.assign([("read", 1)], start="beginning")
        assert consumer.poll(10_000)[0].offset == 0


def test_a_lost_replica_directory_is_not_begun_anew(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = two_directories(start_broker, tmp_path)
    with RawClient(broker.address) as client:
        partitions = by_directory(client, client.create_topic("lost", partitions=2), 2)
        (good,), (bad,) = partitions["good"], partitions["bad"]
        for partition in (good, bad):
            client.produce_batch(partition, batch_of(partition))
    broker.stop()
    shutil.rmtree(tmp_path / "bad")
    broker.start()
    with RawClient(broker.address) as client:
        # Which replicas the lost directory had only the broker knows: it is asked (P31).
        wait_until(lambda: client.end_offset(good) == 1, "what is there is served")
        assert client.list_offset(bad, latest=True).error.code == CORRUPT
        assert client.produce_batch(bad, batch_of(bad)).error.code == CORRUPT
        assert client.produce_batch(good, batch_of(good)).base_offset == 1
