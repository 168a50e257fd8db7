"""Deleted topics come back with everything that was acknowledged, for as long as they are kept."""

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster, read_all, write_numbers

from millrace.client import (
    SyncAdmin,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.errors import MalformedRequestError
from millrace.core.ids import NO_BROKER, TopicId

TOPIC = "orders"


COUNT = 500


def numbers(bootstrap: str, count: int) -> list[int]:
    """Return the numbers of the first records."""
    return [int(value) for value in read_all(bootstrap, TOPIC, count)]


def is_led(admin: SyncAdmin, in_sync: int) -> bool:
    (state,) = admin.describe_topic(TOPIC).partitions
    return state.leader != NO_BROKER and len(state.isr) == in_sync


def has_files(broker: RunningBroker, topic_id: bytes) -> bool:
    """Whether a broker has any directory of a topic, under whatever name."""
    return any(path.name.startswith(topic_id.hex()) for path in broker.log_dirs[0].iterdir())


def test_a_broker_that_is_away_from_the_deletion_to_the_return_catches_up(
    cluster: RunningCluster,
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        write_numbers(cluster.bootstrap, TOPIC, range(COUNT))
        (leader,) = (partition.leader for partition in admin.describe_topic(TOPIC).partitions)
        cluster[leader].kill()
        wait_until(lambda: is_led(admin, in_sync=2), "another one leads")
        write_numbers(cluster.bootstrap, TOPIC, range(COUNT, 2 * COUNT))
        admin.delete_topic(TOPIC)
        admin.undelete_topic(TOPIC)
        cluster[leader].start()
        wait_until(lambda: is_led(admin, in_sync=3), "all are in sync again", 40)
        assert numbers(cluster.bootstrap, 2 * COUNT) == list(range(2 * COUNT))


def test_its_name_may_be_another_topics_by_then(start_broker: StartBroker) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address) as admin:
        first = admin.create_topic(TOPIC)
        write_numbers(broker.address, TOPIC, range(COUNT))
        admin.delete_topic(TOPIC)
        second = admin.create_topic(TOPIC)
        with pytest.raises(TopicAlreadyExistsError, match=second.topic_id.hex()):
            admin.undelete_topic(TOPIC)
        admin.delete_topic(TOPIC)
        assert [deleted_topic.topic_id for deleted_topic in admin.list_deleted_topics()] == [
            first.topic_id,
            second.topic_id,
        ]
        with pytest.raises(MalformedRequestError, match=first.topic_id.hex()):
            admin.undelete_topic(TOPIC)
        assert admin.undelete_topic(TOPIC, topic_id=first.topic_id).topic_id == first.topic_id
        # It is there already: a repeated request changes nothing.
        assert admin.undelete_topic(TOPIC, topic_id=first.topic_id).topic_id == first.topic_id
        assert numbers(broker.address, COUNT) == list(range(COUNT))
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.undelete_topic(TOPIC, topic_id=TopicId(bytes(15) + b"x"))
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.undelete_topic("never")


def test_what_is_purged_or_overdue_is_gone_with_its_files(start_broker: StartBroker) -> None:
    broker = start_broker(
        {
            "storage.trash_delay_ms": 60_000,
            "cluster.deleted_topic_retention_ms": 60_000,
            "storage.retention_check_interval_ms": 50,
        }
    )
    with SyncAdmin(broker.address) as admin:
        topic = admin.create_topic(TOPIC)
        admin.delete_topic(TOPIC)
        assert broker.partition_directory(topic.topic_id).exists()
        admin.purge_topic(TOPIC)
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.undelete_topic(TOPIC)
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.purge_topic(TOPIC)
        wait_until(lambda: not has_files(broker, topic.topic_id), "its files are gone")
    broker.stop()
    hasty = start_broker(
        {
            "storage.trash_delay_ms": 0,
            "cluster.deleted_topic_retention_ms": 300,
            "storage.retention_check_interval_ms": 50,
        }
    )
    with SyncAdmin(hasty.address) as admin:
        topic = admin.create_topic(TOPIC)
        admin.delete_topic(TOPIC)
        wait_until(lambda: not admin.list_deleted_topics(), "its time is over")
        wait_until(lambda: not has_files(hasty, topic.topic_id), "its files are gone")
