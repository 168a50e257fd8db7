"""Administration when answers are lost, and when brokers do not know the same."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.broker import FakeBroker

from millrace.client import (
    Admin,
    BrokerIdNotRegisteredError,
    ConnectionFailedError,
    Consumer,
    InvalidConfigError,
    OffsetAndTimestamp,
    Producer,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.errors import CorruptLogError, NotLeaderError
from millrace.proto.v1.cluster_pb2 import BrokerMetadata
from millrace.proto.v1.common_pb2 import PartitionLeader


def mislead(stale: FakeBroker, current: FakeBroker, address: str) -> None:
    """Let one broker lead a topic, and the other one say that broker 3 does, at this address."""
    gone = BrokerMetadata(broker_id=3, name="gone", address=address)
    topic_id = stale.create_topic("orders").topic_id
    current.create_topic("orders", topic_id=topic_id)
    stale.log("orders").led_by = PartitionLeader(broker_id=3, leader_epoch=4, address=address)
    current.log("orders").leader_epoch = 5
    stale.metadata_epoch, current.metadata_epoch = 7, 8
    stale.others = [gone, current.described]
    current.others = [gone, stale.described]


async def test_a_topic_whose_creation_was_not_answered_is_not_taken_for_anothers() -> None:
    async with FakeBroker() as broker, Admin(broker.address) as admin:
        broker.lost_changes = 1
        topic = await admin.create_topic("orders", 3)
        assert broker.lost_changes == 0
        assert topic.topic_id == broker.topics["orders"].topic_id
        with pytest.raises(TopicAlreadyExistsError):
            await admin.create_topic("orders", 3)


async def test_a_topic_whose_deletion_was_not_answered_is_gone_as_it_was_wanted() -> None:
    async with FakeBroker(orders=1) as broker, Admin(broker.address) as admin:
        broker.lost_changes = 1
        await admin.delete_topic("orders", validate_only=True)
        assert broker.topics.keys() == {"orders"}
        await admin.delete_topic("orders")
        assert broker.lost_changes == 0
        assert not broker.topics
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.delete_topic("orders")


async def test_a_topic_whose_return_was_not_answered_is_back_as_it_was_wanted() -> None:
    async with FakeBroker() as broker, Admin(broker.address) as admin:
        made = broker.create_topic("orders")
        await admin.delete_topic("orders")
        broker.lost_changes = 1
        assert (await admin.undelete_topic("orders")).topic_id == made.topic_id
        assert broker.lost_changes == 0
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.undelete_topic("orders")


async def test_a_topic_that_was_purged_without_an_answer_is_gone_as_it_was_wanted() -> None:
    async with FakeBroker(orders=1) as broker, Admin(broker.address) as admin:
        await admin.delete_topic("orders")
        broker.lost_changes = 1
        await admin.purge_topic("orders")
        assert broker.lost_changes == 0
        assert await admin.list_deleted_topics() == []
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.purge_topic("orders")


async def test_a_repeated_deletion_does_not_meet_a_new_topic_of_the_same_name() -> None:
    async with FakeBroker(orders=1) as broker, Admin(broker.address) as admin:
        broker.lost_changes = 1
        broker.on_lost_change = lambda: broker.create_topic("orders")
        await admin.delete_topic("orders")
        assert broker.topics.keys() == {"orders"}


async def test_a_broker_whose_unregistering_was_not_answered_is_gone_as_it_was_wanted() -> None:
    async with FakeBroker() as broker, Admin(broker.address) as admin:
        broker.others = [BrokerMetadata(broker_id=7, name="g", address="h:1", fenced=True)]
        broker.lost_changes = 1
        await admin.unregister_broker(7)
        assert broker.lost_changes == 0
        with pytest.raises(BrokerIdNotRegisteredError):
            await admin.unregister_broker(7)


async def start(*brokers: FakeBroker) -> None:
    """Let each tell of the others."""
    for broker in brokers:
        await broker.start()
    for broker in brokers:
        broker.others = [other.described for other in brokers if other is not broker]


async def test_whoever_knows_most_is_believed_whoever_is_asked_first() -> None:
    late, early = FakeBroker(1), FakeBroker(2)
    await start(late, early)
    gone = BrokerMetadata(broker_id=3, name="gone", address="127.0.0.1:1", fenced=True)
    late.metadata_epoch, early.metadata_epoch = 7, 8
    late.create_topic("orders")
    early.others.append(gone)
    async with Admin(late.address) as admin:
        cluster = await admin.describe_cluster()
        assert [broker.broker_id for broker in cluster.brokers] == [1, 2, 3]
        assert cluster.unreachable == ()
        assert (await admin.describe_health()).fenced_brokers == (3,)
    async with Admin(late.address) as admin:
        assert (await admin.describe_health()).fenced_brokers == (3,)
        assert admin._cluster.metadata.topics == {}
    await late.stop()
    await early.stop()


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_broker_that_should_be_there_and_does_not_answer_is_named(is_paused: bool) -> None:
    there, gone = FakeBroker(1), FakeBroker(2)
    await start(there, gone)
    addresses = f"{gone.address},{there.address}"
    if is_paused:
        gone.metadata_gate.clear()
    else:
        await gone.stop()
    began = time.monotonic()
    # The other one is to answer in this time. By default a request has 30 s.
    async with Admin(addresses, metadata_timeout_ms=1_500) as admin:
        health = await admin.describe_health()
        assert time.monotonic() - began < 15
        assert health.unreachable_brokers == (2,)
        assert health.has_controller
        assert not health.is_healthy
        assert (await admin.describe_cluster()).unreachable == (2,)
    gone.metadata_gate.set()
    await there.stop()
    if is_paused:
        await gone.stop()


async def test_who_does_not_say_whether_its_logs_are_sound_is_not_taken_for_well() -> None:
    async with FakeBroker(1) as broker, Admin(broker.address) as admin:
        broker.is_busy = True
        health = await admin.describe_health()
        assert health.unreachable_brokers == (1,)
        assert not health.is_healthy
        assert await admin.describe_damage() == []


@pytest.mark.parametrize("name", ["request_timeout_ms", "metadata_timeout_ms"])
@pytest.mark.parametrize("value", [0, -1, 2**31, 1.5])
async def test_a_time_out_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        Admin("127.0.0.1:1", **{name: value})


async def test_an_offset_that_nobody_can_tell_is_asked_for_less_and_less_often() -> None:
    async with (
        FakeBroker(orders=1) as broker,
        Admin(broker.address, request_timeout_ms=3000) as admin,
    ):
        broker.log("orders").has_leader = False
        with pytest.raises(NotLeaderError):
            await admin.list_offsets("orders")
        assert 2 < broker.look_ups < 20


async def test_where_nobody_answers_one_is_told_why() -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(ConnectionFailedError, match="no broker can be reached") as met:
            await admin.describe_health()
    assert "no broker listens at 127.0.0.1:1" in met.value.message


async def test_what_was_changed_through_one_broker_is_read_from_another_one_that_knows_it() -> None:
    changed, late = FakeBroker(1), FakeBroker(2)
    await start(changed, late)
    changed.metadata_epoch, late.metadata_epoch = 8, 7
    async with Admin(f"{changed.address},{late.address}") as admin:
        topic = await admin.create_topic("orders")
        await changed.stop()

        async def catch_up() -> None:
            await late.until(lambda: late.look_ups > 0)
            late.create_topic("orders", topic_id=topic.topic_id)
            late.metadata_epoch = 8

        catching_up = asyncio.create_task(catch_up())
        assert (await admin.describe_topic("orders")).topic_id == topic.topic_id
        await catching_up
    await late.stop()


async def test_what_cannot_be_looked_up_is_told_beside_what_can() -> None:
    async with (
        FakeBroker(orders=3) as broker,
        Admin(broker.address, request_timeout_ms=1000) as admin,
    ):
        broker.log("orders", 0).has_leader = False
        broker.log("orders", 1).damage = CorruptLogError("a flipped bit")
        with pytest.raises(NotLeaderError):
            await admin.list_offsets("orders")
        found = await admin.list_offsets("orders", return_errors=True)
        assert list(map(type, found.values())) == [
            NotLeaderError,
            CorruptLogError,
            OffsetAndTimestamp,
        ]
        assert list(await admin.list_offsets([("orders", 2)])) == [("orders", 2)]


async def test_offsets_of_many_topics_are_looked_up_at_once() -> None:
    async with FakeBroker(orders=2, payments=1) as broker, Admin(broker.address) as admin:
        async with Producer(broker.address) as producer:
            for number in range(10):
                producer.send("orders", b"", partition=1, timestamp=1000 + number)
        found = await admin.list_offsets(
            {("payments", 0): "end", ("orders", 1): "end", ("orders", 0): 1004}
        )
        assert [(place, at.offset) for place, at in found.items()] == [
            (("payments", 0), 0),
            (("orders", 1), 10),
            (("orders", 0), -1),
        ]
        assert found["orders", 1].topic_id == broker.topics["orders"].topic_id
        assert (await admin.list_offsets({("orders", 1): 1004}))["orders", 1].offset == 4
        assert await admin.list_offsets({}) == {}
        mixed = await admin.list_offsets(["payments", ("orders", 1)], "end")
        assert {place: at.offset for place, at in mixed.items()} == {
            ("payments", 0): 0,
            ("orders", 1): 10,
        }
        assert list(await admin.list_offsets({"orders": "beginning"})) == [
            ("orders", 0),
            ("orders", 1),
        ]
        with pytest.raises(UnknownTopicOrPartitionError, match="partitions 0 to 1, not 2"):
            await admin.list_offsets({("orders", 2): "end"})
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.list_offsets({("nothing", 0): "end"})


async def test_where_a_leader_epoch_ends_tells_what_a_log_has_lost() -> None:
    async with FakeBroker(orders=1) as broker, Admin(broker.address) as admin:
        async with Producer(broker.address, batch_size=1) as producer:
            for _ in range(30):
                producer.send("orders", b"1")
        assert await admin.find_epoch_ends({("orders", 0): 0}) == {("orders", 0): 30}
        broker.log("orders").truncate(20)
        assert await admin.find_epoch_ends({("orders", 0): 0}) == {("orders", 0): 20}
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.find_epoch_ends({("orders", 1): 0})


async def test_who_leads_instead_of_a_silent_broker_is_asked_of_whoever_knows() -> None:
    async with FakeBroker(1) as stale, FakeBroker(2) as current:
        silent = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        mislead(stale, current, address)
        async with Admin(stale.address) as admin:
            began_at = time.monotonic()
            assert (await admin.list_offsets("orders"))["orders", 0].offset == 0
            assert time.monotonic() - began_at < 9  # A connection is waited for for 10 s.
        silent.close()


async def test_a_broker_that_is_cut_off_and_asked_first_hides_no_leader() -> None:
    async with FakeBroker(1) as stale, FakeBroker(2) as current, FakeBroker(3) as dead:
        await dead.stop()
        mislead(stale, current, dead.address)
        bootstrap = [stale.address, current.address]
        asks: list[Callable[[Admin], Coroutine[Any, Any, object]]] = [
            lambda admin: admin.list_offsets("orders"),
            lambda admin: admin.find_epoch_ends({("orders", 0): 5}),
        ]
        for ask in asks:
            async with asyncio.timeout(10), Admin(bootstrap) as admin:
                await ask(admin)
        async with asyncio.timeout(10), Consumer(bootstrap) as consumer:
            await consumer.assign(["orders"], start="end")
            assert await consumer.position(("orders", 0)) == 0
        async with asyncio.timeout(10), Producer(bootstrap, acks=1) as producer:
            assert (await producer.send("orders", b"1")).offset == 0
