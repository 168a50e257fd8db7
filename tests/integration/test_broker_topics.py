"""Topics come, change and go while clients use them."""

import os
from pathlib import Path

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.raw_client import PRODUCE, RawClient, RawStream, batch_of, request_of
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import (
    InvalidConfigError,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TopicPartition
from millrace.proto.v1 import cluster_pb2
from millrace.proto.v1.common_pb2 import ErrorCode


def test_a_topic_is_made_changed_and_deleted_with_its_files(start_broker: StartBroker) -> None:
    broker = start_broker(
        {
            "cluster.deleted_topic_retention_ms": 0,
            "storage.trash_delay_ms": 0,
            "storage.retention_check_interval_ms": 50,
        }
    )
    with SyncAdmin(broker.address) as admin:
        topic = admin.create_topic("orders", partitions=2)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topic("orders")
        first = broker.partition_directory(topic.topic_id, 0)
        assert broker.partition_directory(topic.topic_id, 1).exists()
        altered = admin.alter_topic("orders", partitions=3, set_config={"retention.ms": "1000"})
        assert len(altered.partitions) == 3
        assert broker.partition_directory(topic.topic_id, 2).exists()
        with pytest.raises(InvalidConfigError, match=r"retention\.ms"):
            admin.alter_topic("orders", set_config={"retention.mss": "1000"})
        with SyncProducer(broker.address) as producer:
            assert producer.send("orders", b"x", partition=2).result(10).offset == 0
        admin.delete_topic("orders")
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.describe_topic("orders")
    assert not first.exists()
    wait_until(
        lambda: not any(topic.topic_id.hex() in path.name for path in broker.log_dirs[0].iterdir()),
        "the trash is emptied",
    )


def test_a_topic_may_be_asked_for_again_by_its_id(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    with RawClient(shared_broker.address) as client:

        def create(topic_id: bytes) -> cluster_pb2.CreateTopicsResponse:
            new = cluster_pb2.NewTopic(name=topic_name, replication_factor=1, topic_id=topic_id)
            request = cluster_pb2.CreateTopicsRequest(topics=[new])
            answer: cluster_pb2.CreateTopicsResponse = client.cluster.CreateTopics(request)
            return answer

        chosen = os.urandom(16)
        first, second = create(chosen), create(chosen)
        assert first.results[0].topic.topic_id == chosen
        assert list(second.results) == list(first.results)
        (other,) = create(os.urandom(16)).results
        assert other.error.code == ErrorCode.ERROR_CODE_TOPIC_ALREADY_EXISTS
        known = client.cluster.GetMetadata(cluster_pb2.GetMetadataRequest()).metadata_epoch
        assert 0 < first.metadata_epoch <= known


def test_a_topic_waits_for_the_first_brokers_until_the_file_names_fewer(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    file = tmp_path / "initial-brokers"
    file.write_text("3\n")
    broker = start_broker({"node.initial_brokers_file": file})
    with RawClient(broker.address) as client:
        new = cluster_pb2.NewTopic(name="t", topic_id=os.urandom(16))
        request = cluster_pb2.CreateTopicsRequest(topics=[new])

        def create() -> cluster_pb2.TopicResult:
            answer: cluster_pb2.CreateTopicsResponse = client.cluster.CreateTopics(request)
            return answer.results[0]

        refused = create().error
        assert refused.code == ErrorCode.ERROR_CODE_BROKER_BUSY
        assert "1 of its first 3 brokers have registered" in refused.message
        file.write_text("1\n")
        wait_until(lambda: create().topic.topic_id == new.topic_id, "the topic is made")


def test_a_topic_made_again_never_shows_what_it_held_before(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    with RawClient(shared_broker.address) as client:
        ids = []
        for generation in range(5):
            old = TopicPartition(client.create_topic(topic_name), 0)
            ids.append(old.topic_id)
            assert client.end_offset(old) == 0
            result = client.produce_batch(old, batch_of(old, [b"%d" % generation]))
            assert result.base_offset == 0
            follower, late = client.fetch(), client.fetch()
            follower.ask([(1, old, 1)], credit=1 << 20)
            assert next(follower.answers())[0].high_watermark == 1
            topics = [cluster_pb2.TopicRef(name=topic_name)]
            client.cluster.DeleteTopics(cluster_pb2.DeleteTopicsRequest(topics=topics))
            unknown = ErrorCode.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
            assert follower.next_error().code == unknown
            late.ask([(1, old, 0)], credit=1 << 20)
            assert late.next_error().code == unknown
            assert client.produce_batch(old, batch_of(old)).error.code == unknown
            assert client.list_offset(old, latest=True).error.code == unknown
            follower.close()
            late.close()
        assert len(set(ids)) == 5


def test_a_consumer_of_a_deleted_topic_is_told(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    with SyncAdmin(shared_broker.address) as admin, SyncConsumer(shared_broker.address) as consumer:
        admin.create_topic(topic_name, partitions=1)
        with SyncProducer(shared_broker.address) as producer:
            producer.send(topic_name, b"old").result(10)
        consumer.assign([topic_name], start="beginning")
        assert consumer.poll(20_000).values() == [b"old"]
        admin.delete_topic(topic_name)

        def is_told() -> bool:
            try:
                consumer.poll(100)
            except UnknownTopicOrPartitionError:
                return True
            return False

        wait_until(is_told, "the consumer raises")


def test_topics_come_and_go_under_producers_without_harm(start_broker: StartBroker) -> None:
    broker = start_broker(
        {"storage.retention_check_interval_ms": 10, "storage.recovery_point_interval_ms": 100}
    )
    with RawClient(broker.address) as client:
        keeper = TopicPartition(client.create_topic("keeper"), 0)
        for generation in range(15):
            topic_id = client.create_topic("comes-and-goes", partitions=4, segment_bytes=1 << 20)
            batches = [
                (partition, batch_of(partition, [bytes(5000)] * 20))
                for partition in (TopicPartition(topic_id, number) for number in range(4))
            ]
            stream = RawStream(client.channel, PRODUCE)
            for _ in range(20):
                stream.send(request_of(*batches))
            stream.half_close()
            topics = [cluster_pb2.TopicRef(name="comes-and-goes")]
            client.cluster.DeleteTopics(cluster_pb2.DeleteTopicsRequest(topics=topics))
            assert len(stream.all_answers()) == 20
            assert client.produce_batch(keeper, batch_of(keeper)).base_offset == generation
    assert not broker.log_has('"level": "error"'), broker.log_end()
    assert not broker.log_has('"level": "critical"'), broker.log_end()
    assert broker.metrics()["millrace_offline_log_dirs"] == 0
    assert broker.stop() == 0


@pytest.mark.parametrize("limit", [{"retention_bytes": 2 << 20}, {"retention_records": 3000}])
def test_retention_by_size_or_number_deletes_segments_and_readers_of_them_are_told(
    start_broker: StartBroker, limit: dict[str, int]
) -> None:
    broker = start_broker({"storage.retention_check_interval_ms": 50})
    with RawClient(broker.address) as client:
        topic_id = client.create_topic("short", segment_bytes=1 << 20, **limit)
        partition = TopicPartition(topic_id, 0)
        for _ in range(60):
            result = client.produce_batch(partition, batch_of(partition, [bytes(1000)] * 100))
            assert not result.error.code
        directory = broker.partition_directory(topic_id)
        # Six segments of a million bytes, a thousand records each: without the oldest three, less
        # than the limit is left in closed ones.
        wait_until(lambda: len(list(directory.glob("*.log"))) <= 3, "segments are deleted")
        log = client.log(partition)
        assert 0 < log.log_start_offset < log.log_end_offset == 6000
        assert client.list_offset(partition, earliest=True).offset == log.log_start_offset
        session = client.fetch()
        session.ask([(1, partition, 0)], credit=1 << 20)
        assert session.next_error().code == ErrorCode.ERROR_CODE_OFFSET_OUT_OF_RANGE
        session.ask([(2, partition, log.log_start_offset)])
        partition_news = next(news for news, _ in session.answers() if news.handle == 2)
        assert partition_news.log_start_offset == log.log_start_offset
        session.close()
    with SyncConsumer(broker.address) as consumer:
        consumer.assign([("short", 0)], start=0)
        assert consumer.poll(20_000)[0].offset >= log.log_start_offset
    broker.stop()
    broker.start()
    with RawClient(broker.address) as client:
        assert client.log(partition).log_start_offset >= log.log_start_offset
