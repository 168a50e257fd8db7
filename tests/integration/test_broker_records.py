"""What is produced is what is consumed; offsets are found by place, time and epoch."""

import time
from itertools import islice
from typing import Any, Literal

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.raw_client import TIMEOUT_SECONDS, RawClient, batch_of, named, request_of
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import (
    InvalidTimestampError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    Record,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from millrace.core.ids import TopicPartition
from millrace.core.records.batch import walk
from millrace.core.records.compression import CODEC_NAMES
from millrace.proto.v1 import fetch_pb2
from millrace.proto.v1.common_pb2 import ErrorCode

MINUTE = 60_000


def consumed(address: str, topic: str, count: int) -> list[Record]:
    """Read the first `count` records of a topic."""
    with SyncConsumer(address) as consumer:
        consumer.assign([topic], start="beginning")
        return list(islice(consumer, count))


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_every_kind_of_record_comes_back_as_it_was(
    shared_broker: RunningBroker, topic_name: str, durability: str, codec: str
) -> None:
    now = int(time.time() * 1000)
    sent = [
        (b"key", b"value", [("h", b"1"), ("h", None), ("leer", b"")], now),
        (None, b"no key", None, now - MINUTE),
        (b"a tombstone", None, None, now - 2 * MINUTE),
        (b"", b"", None, now),
        (None, None, None, now + 1),
        (b"long", bytes(200_000), None, now),
        ("schlüssel".encode(), b"\x00\xff" * 500, [("ü", b"\x00")], now),
    ]
    shared_broker.create_topic(topic_name, partitions=1, config={"durability": durability})
    with SyncProducer(shared_broker.address, compression=codec) as producer:
        handles = [
            producer.send(topic_name, value, key, partition=0, headers=headers, timestamp=timestamp)
            for key, value, headers, timestamp in sent
        ]
        offsets = [handle.result(20).offset for handle in handles]
    assert offsets == list(range(len(sent)))
    records = consumed(shared_broker.address, topic_name, len(sent))
    assert [record.offset for record in records] == offsets
    assert [
        (record.key, record.value, list(record.headers) or None, record.timestamp)
        for record in records
    ] == sent


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_a_record_that_no_broker_takes_is_refused_at_once(
    shared_broker: RunningBroker, topic_name: str, acks: Any
) -> None:
    shared_broker.create_topic(topic_name, partitions=1)
    with SyncProducer(shared_broker.address, acks=acks) as producer:
        before = producer.send(topic_name, b"before")
        refused = producer.send(topic_name, bytes(8 << 20))
        after = producer.send(topic_name, b"after")
        with pytest.raises(MessageTooLargeError, match=r"limits\.message_bytes_max=8388608"):
            refused.result(20)
        before.result(20)
        after.result(20)
    assert producer.metrics()["repeated_batches"] == 0
    values = [record.value for record in consumed(shared_broker.address, topic_name, 2)]
    assert values == [b"before", b"after"]


def test_records_of_many_partitions_and_batches_keep_their_order(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    shared_broker.create_topic(topic_name, partitions=8)
    with SyncProducer(shared_broker.address, batch_size=2000) as producer:
        for number in range(20_000):
            producer.send(topic_name, b"%d" % number, partition=number % 8)
    records = consumed(shared_broker.address, topic_name, 20_000)
    by_partition: dict[int, list[int]] = {}
    for record in records:
        by_partition.setdefault(record.partition, []).append(int(record.value))
    assert by_partition == {p: list(range(p, 20_000, 8)) for p in range(8)}


def test_append_time_replaces_the_producers_time(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    shared_broker.create_topic(
        topic_name, partitions=1, config={"message.timestamp.type": "LogAppendTime"}
    )
    before = int(time.time() * 1000)
    with SyncProducer(shared_broker.address) as producer:
        metadata = producer.send(topic_name, b"x", timestamp=1000).result(20)
    after = int(time.time() * 1000)
    assert before <= metadata.timestamp <= after
    (record,) = consumed(shared_broker.address, topic_name, 1)
    assert record.timestamp == metadata.timestamp


def test_refusals_name_the_topic_as_people_do(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    topic = shared_broker.create_topic(topic_name, partitions=2)
    producer = SyncProducer(shared_broker.address)
    producer.send(topic_name, b"there", partition=1).result(20)
    producer.send(topic_name, b"from the future", partition=1, timestamp=2**47)
    with pytest.raises(InvalidTimestampError, match=f"^{topic_name}-1: ") as refused:
        producer.close()
    assert topic.topic_id.hex() not in refused.value.message
    with SyncConsumer(shared_broker.address, auto_offset_reset="none") as consumer:
        consumer.assign([(topic_name, 1)], start=99)
        with pytest.raises(OffsetOutOfRangeError, match=topic_name):
            consumer.poll(20_000)
    with RawClient(shared_broker.address) as client:
        found = client.list_offset(TopicPartition(topic.topic_id, 7), latest=True)
        assert f"{topic_name}-7: this broker has no replica of it" in found.error.message


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(
    shared_broker: RunningBroker, topic_name: str, acks: Literal["all", 0, 1]
) -> None:
    shared_broker.create_topic(topic_name, partitions=1)
    with SyncProducer(shared_broker.address, acks=acks) as producer:
        for number in range(1000):
            producer.send(topic_name, b"%d" % number)
        producer.flush()
        records = consumed(shared_broker.address, topic_name, 1000)
    assert [int(record.value) for record in records] == list(range(1000))


def test_offsets_are_found_by_place_and_by_time(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    now = int(time.time() * 1000)
    times = [now - 5000, now - 3000, now - 4000, now - 1000]
    with SyncAdmin(shared_broker.address) as admin:
        admin.create_topic(topic_name, partitions=1)
        for timestamp in times:
            with SyncProducer(shared_broker.address) as producer:
                producer.send(topic_name, b"x", timestamp=timestamp).result(20)
        assert admin.list_offsets(topic_name, "beginning")[topic_name, 0].offset == 0
        assert admin.list_offsets(topic_name, "end")[topic_name, 0].offset == 4
        newest = admin.list_offsets(topic_name, "max_timestamp")[topic_name, 0]
        assert (newest.offset, newest.timestamp) == (3, times[3])
        # The first record that is not older, in the order of offsets: not of times.
        found = [
            admin.list_offsets(topic_name, time)[topic_name, 0]
            for time in (0, now - 4500, now - 2000)
        ]
        assert [(offset.offset, offset.timestamp) for offset in found] == [
            (0, times[0]),
            (1, times[1]),
            (3, times[3]),
        ]
    with RawClient(shared_broker.address) as client:
        topic_id = client.create_topic(topic_name + "-empty")
        empty = TopicPartition(topic_id, 0)
        assert client.list_offset(empty, timestamp=now).offset == -1
        assert client.list_offset(empty, max_timestamp=True).offset == -1
        assert client.list_offset(empty, latest=True).offset == 0
        assert client.list_offset(empty).error.code == ErrorCode.ERROR_CODE_MALFORMED_REQUEST


def test_a_record_that_waits_is_sent_as_soon_as_it_is_there(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    with RawClient(shared_broker.address) as client:
        partition = TopicPartition(client.create_topic(topic_name), 0)
        session = client.fetch()
        session.ask([(7, partition, 0)], credit=1 << 20, max_wait_ms=60_000)
        wait_until(
            lambda: shared_broker.metrics()["millrace_fetch_streams"] > 0, "the session is open"
        )
        client.produce_batch(partition, batch_of(partition))
        news, batch = next(session.answers())
        assert (news.handle, news.high_watermark, news.fetch_offset) == (7, 1, 0)
        assert len(batch) == news.length > 0
        session.close()


@pytest.mark.parametrize(("end_offset", "read"), [(1, 2), (4, 4), (5, 6), (6, 6)])
def test_a_reader_that_names_an_end_gets_no_batch_after_it(
    shared_broker: RunningBroker, topic_name: str, end_offset: int, read: int
) -> None:
    with RawClient(shared_broker.address) as client:
        topic_id = client.create_topic(topic_name, 2)
        partition, other = TopicPartition(topic_id, 0), TopicPartition(topic_id, 1)
        for _ in range(5):
            client.produce_batch(partition, batch_of(partition, [b"a", b"b"]))
        session = client.fetch()
        session.ask([(1, partition, 0)], credit=1 << 20, end_offset=end_offset)
        offsets: list[int] = []
        while not offsets or offsets[-1] + 1 < end_offset:
            news, data = next(session.answers())
            offsets += [
                offset
                for header, _ in walk(data)
                for offset in range(header.base_offset, header.next_offset)
            ]
        # It has left the session: what comes later tells nothing of it.
        client.produce_batch(partition, batch_of(partition))
        client.produce_batch(other, batch_of(other))
        session.ask([(2, other, 0)])
        news, _ = next(session.answers())
        assert (news.handle, offsets) == (2, list(range(read)))
        session.close()


def test_a_look_up_may_wait_until_an_end_moves(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    with RawClient(shared_broker.address) as client:
        topic_id = client.create_topic(topic_name, 2)
        places = [TopicPartition(topic_id, number) for number in range(2)]

        def ask(wait_ms: int, *known: int) -> Any:
            queries = [
                fetch_pb2.ListOffsetsPartition(
                    topic_partition=named(place), current_leader_epoch=-1, latest_after=end
                )
                for place, end in zip(places, known, strict=True)
            ]
            request = fetch_pb2.ListOffsetsRequest(partitions=queries, max_wait_ms=wait_ms)
            return client.fetches.ListOffsets.future(request, timeout=TIMEOUT_SECONDS)

        assert [offset.offset for offset in ask(1, 0, 0).result().offsets] == [0, 0]
        waiting = ask(60_000, 0, 0)
        client.produce_batch(places[1], batch_of(places[1]))
        assert [offset.offset for offset in waiting.result().offsets] == [0, 1]
        assert [offset.offset for offset in ask(60_000, 0, 0).result().offsets] == [0, 1]
        gone = TopicPartition(topic_id, 7)
        places.append(gone)
        (*_, refused) = ask(60_000, 0, 1, 0).result().offsets
        assert refused.error.code == ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION


def test_a_look_up_that_waits_ends_with_the_broker(start_broker: StartBroker) -> None:
    # `stop` waits for a third of it: it must not wait for calls to end by themselves.
    broker = start_broker({"shutdown.grace_ms": 90_000})
    with RawClient(broker.address) as client:
        partition = TopicPartition(client.create_topic("waited-for"), 0)
        query = fetch_pb2.ListOffsetsPartition(
            topic_partition=named(partition), current_leader_epoch=-1, latest_after=0
        )
        request = fetch_pb2.ListOffsetsRequest(partitions=[query], max_wait_ms=60_000)
        waiting = client.fetches.ListOffsets.future(request, timeout=60)
        broker.stop()
        assert waiting.exception() or waiting.result().offsets


def test_epochs_grow_over_restarts_and_their_ends_are_known(start_broker: StartBroker) -> None:
    broker = start_broker()
    with RawClient(broker.address) as client:
        partition = TopicPartition(client.create_topic("epochs"), 0)
    appended = []
    for restart in range(3):
        if restart:
            broker.kill() if restart == 1 else broker.stop()
            broker.start()
        with RawClient(broker.address) as client:
            appended.append(client.produce_batch(partition, batch_of(partition, [b"x"] * 2)))
            epoch = client.list_offset(partition, latest=True).leader_epoch
            future = client.produce_batch(partition, batch_of(partition), epoch=epoch + 1)
            if restart:
                stale = client.produce_batch(partition, batch_of(partition), epoch=epoch - 1)
                assert stale.error.code == ErrorCode.ERROR_CODE_FENCED_LEADER_EPOCH
            assert future.error.code == ErrorCode.ERROR_CODE_UNKNOWN_LEADER_EPOCH
    assert [result.base_offset for result in appended] == [0, 2, 4]
    with RawClient(broker.address) as client:
        epochs = [
            client.list_offset(partition, timestamp=0).leader_epoch,
            client.list_offset(partition, latest=True).leader_epoch,
        ]
        first, last = epochs
        assert first < last

        def end_of(epoch: int) -> tuple[int, int]:
            query = fetch_pb2.LeaderEpochQuery(
                topic_partition=named(partition), current_leader_epoch=last, leader_epoch=epoch
            )
            request = fetch_pb2.OffsetsForLeaderEpochRequest(partitions=[query])
            (result,) = client.fetches.OffsetsForLeaderEpoch(request, timeout=10).results
            assert not result.error.code, result.error
            return result.end.leader_epoch, result.end.end_offset

        assert end_of(first) == (first, 2)
        assert end_of(last) == (last, 6)
        for unknown in (last + 1, 2**31 - 1, -1, -(2**31)):
            assert end_of(unknown) == (-1, -1)


def test_a_request_whose_batches_partly_fail_appends_the_others(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    with RawClient(shared_broker.address) as client:
        topic_id = client.create_topic(topic_name, partitions=3)
        good, bad, other = (TopicPartition(topic_id, number) for number in range(3))
        missing = TopicPartition(topic_id, 3)
        (answer,) = client.produce(
            request_of(
                (good, batch_of(good, [b"a"] * 3)),
                (bad, batch_of(good)),
                (missing, batch_of(missing)),
                (other, batch_of(other)),
            )
        )
        assert [result.error.code for result in answer.results] == [
            0,
            ErrorCode.ERROR_CODE_CORRUPT_BATCH,
            ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION,
            0,
        ]
        assert [result.base_offset for result in answer.results] == [0, -1, -1, 0]
        ends = [client.end_offset(partition) for partition in (good, bad, other)]
        assert ends == [3, 0, 1]


def test_memory_of_requests_is_given_back(shared_broker: RunningBroker, topic_name: str) -> None:
    shared_broker.create_topic(topic_name, partitions=4)
    with SyncProducer(shared_broker.address) as producer:
        producer.send_batch(topic_name, [bytes(1000)] * 20_000)
        producer.flush()
    wait_until(
        lambda: shared_broker.metrics()["millrace_request_memory_bytes"] == 0, "all given back"
    )


def test_a_topic_made_durable_acknowledges_what_is_under_way(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address) as admin, SyncProducer(broker.address) as producer:
        admin.create_topic("changing", partitions=1, config={"durability": "replicated"})
        handles = []
        for change in range(20):
            handles += [producer.send("changing", b"%d" % change) for _ in range(50)]
            durability = ("fsync", "replicated")[change % 2]
            admin.alter_topic("changing", set_config={"durability": durability})
        assert [handle.result(30).offset for handle in handles] == list(range(1000))
