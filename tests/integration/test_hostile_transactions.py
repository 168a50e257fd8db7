"""Transactions of strangers: in races with each other and with time, and more than is usual."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.fakes.stamped_batches import control_batch
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig, LogDirectory
from millrace.broker.storage.log_directory.ownership import read_identity
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.errors import AbortedError, FencedError, TransactionInDoubtError
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation
from millrace.core.records.batch import PreparedBatch, prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header, stamp
from millrace.core.records.markers import Marker, WrittenMarker
from millrace.proto.v1 import common_pb2 as E
from millrace.proto.v1 import positions_pb2 as positions
from millrace.proto.v1 import positions_pb2_grpc

MANY_PARTITIONS = 1_000
MOST_PARTITIONS = 10_000
MANY_TRANSACTIONS = 300
PRODUCERS = ENDS = 1_000
"""So many transactions of each producer, and ends in each control batch: together a million."""
GAINED_BYTES_MAX = 256 << 20


Figures = Callable[[str, object], None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with RunningBroker(folder, {"cluster.transactions_partitions": 1}) as running:
        yield running


def make_topic(broker: RunningBroker, name: str, partitions: int = 1) -> None:
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(name, partitions=partitions)


def committed(broker: RunningBroker, topic: str, partitions: int = 1) -> list[bytes]:
    """Return the values of all that is committed, once nothing is open there."""
    places = [(topic, number) for number in range(partitions)]
    found: list[bytes] = []
    with SyncAdmin(broker.address) as admin, SyncConsumer(broker.address) as consumer:
        consumer.assign([topic], start="beginning")

        def is_all() -> bool:
            records = consumer.poll(200)
            found.extend(record.value for record in records)
            if len(records):
                return False
            ends = admin.list_offsets(topic, isolation="read_uncommitted")
            return all(consumer.position(place) >= ends[place].offset for place in places)

        wait_until(is_all, f"{topic} is read to its end", 60)
    return found


def test_a_transaction_over_many_partitions_counts_everywhere_or_nowhere(
    broker: RunningBroker, topic_name: str
) -> None:
    make_topic(broker, topic_name, MANY_PARTITIONS)
    with SyncProducer(
        broker.address, transactional_id=topic_name, transaction_timeout_ms=300_000
    ) as producer:
        for value, is_committed in ((b"no", False), (b"yes", True)):
            producer.begin_transaction()
            for partition in range(MANY_PARTITIONS):
                producer.send(topic_name, value, partition=partition)
            producer.flush()
            if is_committed:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert committed(broker, topic_name, MANY_PARTITIONS) == [b"yes"] * MANY_PARTITIONS


def test_readers_pass_many_aborted_transactions(broker: RunningBroker, topic_name: str) -> None:
    make_topic(broker, topic_name)
    expected = []
    with SyncProducer(broker.address, transactional_id=topic_name, linger_ms=0) as producer:
        for number in range(MANY_TRANSACTIONS):
            producer.begin_transaction()
            producer.send(topic_name, b"%d" % number)
            producer.flush()
            if number % 50:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected.append(b"%d" % number)
    began = time.monotonic()
    assert committed(broker, topic_name) == expected
    assert time.monotonic() - began < 30, "it did not wait for each of them"


def test_a_commit_that_races_its_time_out_is_all_or_nothing(
    broker: RunningBroker, topic_name: str
) -> None:
    """P53, T17: whoever is first decides, and the program hears which it was."""
    make_topic(broker, topic_name, 3)
    expected: list[bytes] = []
    lock = threading.Lock()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        value = b"%d" % number
        with SyncProducer(
            broker.address, transactional_id=f"{topic_name}-{number}", transaction_timeout_ms=1_000
        ) as producer:
            producer.begin_transaction()
            for partition in range(3):
                producer.send(topic_name, value, partition=partition)
            producer.flush()
            time.sleep(0.9 + number * 0.1)  # The coordinator looks once a second.
            while True:
                try:
                    producer.commit_transaction()
                except TransactionInDoubtError:
                    continue
                except AbortedError:
                    return
                with lock:
                    expected.extend([value] * 3)
                return

    def run(number: int) -> None:
        try:
            write(number)
        except AbortedError:
            pass  # On a slow machine its time was over before all was sent: nothing of it counts.
        except BaseException as failure:
            failures.append(failure)

    writers = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    assert sorted(committed(broker, topic_name, 3)) == sorted(expected)


def test_of_two_producers_with_one_id_only_what_was_committed_counts(
    broker: RunningBroker, topic_name: str
) -> None:
    """P47: they take the id from each other, again and again."""
    make_topic(broker, topic_name, 2)
    expected: list[bytes] = []
    fenced: list[int] = []
    failures: list[BaseException] = []
    lock = threading.Lock()
    began = time.monotonic()

    def goes_on() -> bool:
        """For four seconds, and on a slow machine until each has lost the id."""
        took = time.monotonic() - began
        return took < 4 or (took < 60 and set(fenced) != {0, 1} and not failures)

    def write(number: int) -> None:
        attempt = 0
        while goes_on():
            with SyncProducer(broker.address, transactional_id=topic_name) as producer:
                try:
                    while goes_on():
                        attempt += 1
                        value = b"%d-%d" % (number, attempt)
                        with producer.transaction() as t:
                            for partition in range(2):
                                t.send(topic_name, value, partition=partition)
                        with lock:
                            expected.extend([value] * 2)
                except FencedError:
                    fenced.append(number)
                except AbortedError:
                    pass

    def run(number: int) -> None:
        try:
            write(number)
        except BaseException as failure:
            failures.append(failure)

    writers = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    assert set(fenced) == {0, 1}
    assert sorted(committed(broker, topic_name, 2)) == sorted(expected)


def test_who_is_not_in_the_group_commits_nothing_for_it(
    broker: RunningBroker, topic_name: str
) -> None:
    """P56: neither a stranger's position, nor one of an epoch that is over, joins a transaction."""
    make_topic(broker, topic_name)
    with (
        SyncAdmin(broker.address) as admin,
        SyncConsumer(broker.address, group=topic_name) as member,
        SyncProducer(broker.address, transactional_id=topic_name) as producer,
        grpc.insecure_channel(broker.address) as channel,
    ):
        member.subscribe([topic_name])
        wait_until(lambda: member.poll(100) is not None and member.assignment(), "it has its share")
        producer.begin_transaction()
        producer.send(topic_name, b"open").result()
        topic_id = admin.describe_topic(topic_name).topic_id
        stub = positions_pb2_grpc.PositionsStub(channel)  # type: ignore[no-untyped-call]
        described = admin.describe_transaction(topic_name)
        assert described is not None

        def refusal(**who: Any) -> int:
            position = positions.Position(
                topic_partition=E.TopicPartition(topic_id=topic_id, partition=0), offset=1
            )
            request = positions.CommitPositionsRequest(
                name=topic_name,
                positions=[position],
                transactional_id=f"default/{topic_name}",
                producer_id=described.producer_id,
                producer_epoch=described.producer_epoch,
                number=1,
                **who,
            )
            code: int = stub.CommitPositions(request, timeout=20).error.code
            return code

        assert refusal(member_id="a stranger", epoch=1) == E.ERROR_CODE_UNKNOWN_MEMBER_ID
        assert refusal() == E.ERROR_CODE_UNKNOWN_MEMBER_ID
        producer.commit_transaction()
        assert admin.fetch_positions(topic_name) == {}


def batch_in_a_transaction(
    prepared: PreparedBatch, offset: int, producer: int, epoch: ProducerEpoch
) -> StampedBatch:
    """Return a batch as its leader stamps it; its records are prepared once for all."""
    header = prepared.finish(ProducerId(producer), epoch, 0, is_transactional=True)
    stamped = stamp(header, base_offset=Offset(offset), leader_epoch=LeaderEpoch(0))
    return StampedBatch.of(parse_header(header), stamped, prepared.body)


def write_aborted(broker: RunningBroker, topic_id: bytes) -> int:
    """Write transactions of a record each into a stopped broker's partition; return its end.

    All are aborted, but for the first and the last one.
    """
    files, path = PosixFileSystem(), str(broker.log_dirs[0])
    place = TopicPartition(TopicId(topic_id), 0)
    identity = read_identity(files, path)
    directory = LogDirectory.open(
        files,
        path,
        DirectoryConfig(ballast_bytes=0),
        cluster_id=identity.cluster_id,
        broker_id=identity.broker_id,
        new_directory_id=identity.directory_id,
    )
    life = directory.closed_by
    log = directory.open_partition(place, LogConfig(), WallMs(1))
    now = WallMs(int(time.time() * 1000))
    prepared = prepare(place, Columns(1, now, [b"aborted"]))
    for number in range(ENDS):
        base = log.log_end_offset
        epoch = ProducerEpoch(number)
        batches = [
            batch_in_a_transaction(prepared, base + producer, producer, epoch)
            for producer in range(PRODUCERS)
        ]
        is_commit = {(0, 0), (ENDS - 1, PRODUCERS - 1)}
        ends = [
            WrittenMarker(
                Marker(
                    ProducerId(producer),
                    ProducerEpoch(number + 1),
                    (number, producer) in is_commit,
                    LeaderEpoch(0),
                ),
                Offset(base + producer),
                Offset(base + producer),
            )
            for producer in range(PRODUCERS)
        ]
        log.writer.append(batches, now)
        log.writer.append(
            [control_batch(log.log_end_offset, *ends, timestamp=now, topic_partition=place)], now
        )
    end = log.log_end_offset
    directory.close(clean=True, broker_epoch=life)
    return end


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_million_aborted_transactions_cost_readers_and_memory_little(
    tmp_path: Path, record_property: Figures
) -> None:
    """P52: the index is searched, and never handed out as a whole."""
    with RunningBroker(tmp_path) as broker:
        topic_id = broker.create_topic("t").topic_id
        broker.stop()
        end = write_aborted(broker, topic_id)
        broker.start()
        before = broker.rss_bytes()
        times: dict[str, float] = {}
        counts: dict[Isolation, int] = {READ_UNCOMMITTED: PRODUCERS * ENDS, READ_COMMITTED: 2}
        for isolation, count in counts.items():
            began = time.monotonic()
            with SyncConsumer(broker.address, isolation=isolation) as consumer:
                consumer.assign(["t"], start="beginning")
                found = 0
                while consumer.position(("t", 0)) < end:
                    found += len(consumer.poll(200))
            times[isolation] = time.monotonic() - began
            assert found == count
        with SyncConsumer(broker.address) as consumer:  # The last one is found from the end.
            began = time.monotonic()
            consumer.assign([("t", 0)])
            consumer.seek(("t", 0), end - PRODUCERS - 1)
            assert len(consumer.poll(5_000)) == 1
            times["last"] = time.monotonic() - began
        gained = broker.rss_bytes() - before
    record_property("a million aborted", {**times, "gained_bytes": gained})
    assert times[READ_COMMITTED] < 2 * times[READ_UNCOMMITTED] + 1
    assert times["last"] < 1
    assert gained < GAINED_BYTES_MAX


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_transaction_over_as_many_partitions_as_there_may_be(
    tmp_path: Path, record_property: Figures
) -> None:
    """T12: the end is one decision, whose answer waits for no partition; nobody else is delayed."""
    with RunningBroker(tmp_path, {"cluster.broker_partitions_max": 2 * MOST_PARTITIONS}) as broker:
        make_topic(broker, "small")
        make_topic(broker, "large", MOST_PARTITIONS)
        with (
            SyncProducer(
                broker.address, transactional_id="large", transaction_timeout_ms=600_000
            ) as producer,
            SyncProducer(broker.address, transactional_id="small") as other,
        ):
            producer.begin_transaction()
            for partition in range(MOST_PARTITIONS):
                producer.send("large", b"yes", partition=partition)
            producer.flush()
            began = time.monotonic()
            producer.commit_transaction()
            decided = time.monotonic() - began
            slowest = 0.0
            with SyncAdmin(broker.address) as admin:
                while True:
                    began = time.monotonic()
                    with other.transaction() as t:
                        t.send("small", b"quick")
                    slowest = max(slowest, time.monotonic() - began)
                    described = admin.describe_transaction("large")
                    assert described is not None
                    if described.state == "complete_commit":
                        break
        record_property("10,000 partitions", {"decided_s": decided, "slowest_other_s": slowest})
        assert decided < 5
        assert slowest < 5
        some = [("large", partition) for partition in range(0, MOST_PARTITIONS, 100)]
        found: list[bytes] = []
        with SyncConsumer(broker.address) as consumer:
            consumer.assign(some, start="beginning")

            def is_all() -> bool:
                found.extend(record.value for record in consumer.poll(200))
                return len(found) >= len(some)

            wait_until(is_all, "its records are read", 60)
        assert found == [b"yes"] * len(some)
