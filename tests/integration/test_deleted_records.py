"""Records that clients have deleted stay deleted, whatever happens to the brokers (P71)."""

from itertools import islice

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster, write_numbers

from millrace.client import PartitionDescription, Position, SyncAdmin, SyncConsumer
from millrace.core.errors import (
    InvalidRequestError,
    InvalidTopicError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

TOPIC = "clicks"
PLACE = (TOPIC, 0)
COUNT = 1000


def produce(bootstrap: str, first: int, count: int = COUNT) -> None:
    """Write numbers in one batch, so that offsets lie inside of it, and have it acknowledged."""
    numbers = range(first, first + count)
    write_numbers(bootstrap, TOPIC, numbers, linger_ms=100, batch_size="1MiB")


def state(admin: SyncAdmin) -> PartitionDescription:
    return admin.describe_topic(TOPIC).partitions[0]


def earliest(admin: SyncAdmin) -> int:
    return admin.list_offsets([PLACE], "beginning")[PLACE].offset


def read(bootstrap: str, start: int, count: int) -> list[int]:
    """Return the numbers of the records from an offset on."""
    with SyncConsumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign({PLACE: start})
        return [int(record.value) for record in islice(consumer, count)]


def starts_on_all(admin: SyncAdmin) -> set[int]:
    return {log.log_start_offset for log in admin.describe_logs(TOPIC)}


def test_who_was_away_deletes_before_it_is_in_sync(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        produce(cluster.bootstrap, 0)
        before = state(admin)
        away = cluster[before.replicas[2]]
        away.kill()
        wait_until(lambda: len(state(admin).isr) == 2, "it is not in sync")
        assert admin.delete_records({PLACE: 700}) == {PLACE: 700}
        away.start()
        wait_until(lambda: len(state(admin).isr) == 3, "it is in sync again")
        assert starts_on_all(admin) == {700}
        assert admin.delete_records({PLACE: COUNT}) == {PLACE: COUNT}
        assert starts_on_all(admin) == {COUNT}
        produce(cluster.bootstrap, COUNT, 5)
        assert read(cluster.bootstrap, 0, 5) == list(range(COUNT, COUNT + 5))


def test_a_new_replica_copies_a_log_that_begins_within_a_batch(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=2)
        produce(cluster.bootstrap, 0)
        produce(cluster.bootstrap, COUNT)
        admin.delete_records({PLACE: 700})
        replicas = state(admin).replicas
        (new,) = {0, 1, 2} - set(replicas)
        assert admin.reassign_partitions({PLACE: [new, replicas[0]]}) == {PLACE: None}
        wait_until(
            lambda: state(admin).replicas == (new, replicas[0]) and state(admin).leader == new,
            "the new replica leads",
        )
        assert starts_on_all(admin) == {700}
        cluster[replicas[0]].kill()
        assert read(cluster.bootstrap, 0, 1300) == list(range(700, 2000))


def test_nothing_is_deleted_with_too_few_replicas(cluster: RunningCluster) -> None:
    cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
    produce(cluster.bootstrap, 0)
    with SyncAdmin(cluster.bootstrap, request_timeout_ms=5000) as admin:
        first, *others = state(admin).replicas
        for other in others:
            cluster[other].kill()
        wait_until(lambda: state(admin).isr == (first,), "one is alone")
        refused = admin.delete_records({PLACE: 700})[PLACE]
        assert isinstance(refused, NotEnoughReplicasError)
        assert "nothing was deleted" in refused.message
        assert earliest(admin) == 0


@pytest.fixture
def broker(start_broker: StartBroker) -> RunningBroker:
    return start_broker()


def test_what_cannot_be_deleted_is_refused_and_says_why(broker: RunningBroker) -> None:
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(TOPIC, partitions=1)
        produce(broker.address, 0, 10)
        beyond = admin.delete_records({PLACE: 11})[PLACE]
        assert isinstance(beyond, OffsetOutOfRangeError)
        assert "up to offset 10" in beyond.message
        with pytest.raises(InvalidRequestError):
            admin.delete_records({PLACE: -1})
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_records({("other", 0): 1})
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_records({(TOPIC, 1): 1})
        assert earliest(admin) == 0
        assert admin.delete_records({}) == {}
        assert admin.delete_records({PLACE: 7}) == {PLACE: 7}
        assert admin.delete_records({PLACE: 3}) == {PLACE: 7}, "it is gone already"
        admin.resolve_initial("report", {PLACE: Position(0)})
        (internal,) = set(admin.list_topics(internal=True)) - {TOPIC}
        refused = admin.delete_records({(internal, 0): 0})[internal, 0]
        assert isinstance(refused, InvalidTopicError)
    assert broker.log_has('"request": "delete_records"')
