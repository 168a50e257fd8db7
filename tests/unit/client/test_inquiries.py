"""When a client asks all brokers about topics, as the last good one may be cut off."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.fakes.virtual_loop import in_virtual_time

from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.core.errors import UnknownTopicOrPartitionError
from millrace.core.ids import TopicId
from millrace.proto.v1 import cluster_pb2 as pb

GOOD, OTHER, SLOW = "good:1", "other:1", "slow:1"


class Asked(Cluster):
    """A good broker, which is asked first and knows one partition of `orders` for ever.

    Attributes:
        known: how many partitions of `orders` each other broker knows.
        slow_s: how long the slow one takes for an answer.
        look_ups: when the good one was asked.
        asked: when the other one was asked.
    """

    def __init__(self, *others: str) -> None:
        super().__init__([GOOD, *(others or [OTHER])], client_id="c")
        self.known = dict.fromkeys(others or [OTHER], 1)
        self.slow_s = 0.1
        self.look_ups: list[float] = []
        self.asked: list[float] = []
        self.metadata.learn(_orders(1), is_full=False)

    async def look_up(self, request: pb.GetMetadataRequest, **_: Any) -> pb.GetMetadataResponse:
        self.look_ups.append(asyncio.get_running_loop().time())
        return pb.GetMetadataResponse()

    async def _ask(
        self, address: str, request: pb.GetMetadataRequest
    ) -> tuple[Connection, pb.GetMetadataResponse] | None:
        if address == GOOD:
            return None
        if address == OTHER:
            self.asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.slow_s if address == SLOW else 0)
        answer = _orders(self.known[address])
        return Connection(address, None), answer  # type: ignore[arg-type]  # It is not used.

    def partitions(self) -> int:
        """Return how many partitions of `orders` the client knows."""
        return len(self.metadata.topics["orders"].partitions)

    async def look_each_second(self, seconds: int) -> None:
        """Look for news of `orders`, again and again."""
        for _ in range(seconds):
            await self.look_for_news(["orders"])
            await asyncio.sleep(1)


def _orders(partitions: int) -> pb.GetMetadataResponse:
    topic = pb.TopicMetadata(name="orders", topic_id=TopicId(b"t" * 16))
    topic.partitions.extend([pb.PartitionMetadata()] * partitions)
    return pb.GetMetadataResponse(topics=[topic])


@in_virtual_time
async def test_look_ups_without_news_ask_all_brokers_seldom_and_ever_more_seldom() -> None:
    cluster = Asked()
    for _ in range(1000):
        await cluster.look_for_news(["orders"])
        await asyncio.sleep(0.1)
    assert len(cluster.look_ups) == 1000, "the good one is asked as before"
    assert 1 <= cluster.asked[0] <= 1.5, "the good one may be cut off"
    pauses = [after - before for before, after in pairwise(cluster.asked)]
    assert pauses[0] >= 0.5
    assert all(after > before - 0.2 for before, after in pairwise(pauses))
    assert 10 <= pauses[-1] <= 10.2


@in_virtual_time
async def test_look_ups_of_metadata_that_nothing_proved_wrong_ask_no_other_broker() -> None:
    cluster = Asked()
    for _ in range(60):
        await cluster.refresh(["orders"])
        await asyncio.sleep(1)
    assert len(cluster.look_ups) == 60
    assert not cluster.asked


@in_virtual_time
async def test_news_from_anywhere_end_the_pause() -> None:
    cluster = Asked()
    await cluster.look_each_second(60)
    cluster.metadata.learn(_orders(2), is_full=False)
    inquiries = len(cluster.asked)
    await cluster.look_each_second(3)
    assert len(cluster.asked) > inquiries, "after a second without news, as at first"


@in_virtual_time
async def test_an_inquiry_with_news_ends_the_pause() -> None:
    cluster = Asked()
    await cluster.look_each_second(60)
    cluster.known[OTHER] = 2
    await cluster.look_each_second(11)
    assert cluster.partitions() == 2
    inquiries = len(cluster.asked)
    await cluster.look_each_second(3)
    assert len(cluster.asked) > inquiries, "after a second without news, as at first"


@in_virtual_time
async def test_look_ups_without_news_delay_no_question_about_a_new_partition() -> None:
    cluster = Asked()
    await cluster.look_each_second(60)
    for partition in (1, 2, 3):
        cluster.known[OTHER] = partition + 1
        topic = await cluster.topic_with("orders", partition)
        assert len(topic.partitions) == partition + 1


@in_virtual_time
async def test_a_partition_that_is_not_there_delays_no_question_about_another_one() -> None:
    cluster = Asked()
    for _ in range(60):
        await cluster.topic_with("orders", 7)
        await asyncio.sleep(1)
    cluster.known[OTHER] = 2
    assert len((await cluster.topic_with("orders", 1)).partitions) == 2


@in_virtual_time
async def test_each_caller_waits_for_the_answer_to_its_own_question() -> None:
    cluster = Asked(OTHER, SLOW)
    cluster.known.update({OTHER: 2, SLOW: 3})
    wanted = (cluster.topic_with("orders", partition) for partition in (1, 2, 1, 2))
    topics = await asyncio.gather(*wanted)
    assert [len(topic.partitions) for topic in topics] == [2, 3, 2, 3]


@in_virtual_time
async def test_a_topic_that_is_not_there_is_asked_for_once_by_all_that_want_it() -> None:
    cluster = Asked(OTHER, SLOW)
    wanted = [asyncio.create_task(cluster.topic("payments")) for _ in range(20)]
    await asyncio.sleep(cluster.slow_s / 2)
    assert len(cluster.asked) == 1
    wanted += [asyncio.create_task(cluster.topic("payments")) for _ in range(20)]
    await asyncio.sleep(cluster.slow_s / 4)
    wanted.pop().cancel()  # The others wait on.
    answers = await asyncio.gather(*wanted, return_exceptions=True)
    assert {type(answer) for answer in answers} == {UnknownTopicOrPartitionError}
    with pytest.raises(UnknownTopicOrPartitionError):
        await cluster.topic("payments")
    assert len(cluster.asked) == 1
    await cluster.close()


@in_virtual_time
async def test_a_partition_that_is_not_there_does_not_ask_all_brokers_at_each_call() -> None:
    cluster = Asked()
    for _ in range(10):
        assert len((await cluster.topic_with("orders", 5)).partitions) == 1
    assert len(cluster.asked) == 1


@in_virtual_time
async def test_the_pause_begins_when_all_brokers_have_answered_or_were_silent() -> None:
    cluster = Asked(OTHER, SLOW)
    cluster.slow_s = 3
    loop = asyncio.get_running_loop()
    await cluster.topic_with("orders", 5)
    answered_at = loop.time()
    while len(cluster.asked) == 1:
        await cluster.topic_with("orders", 5)
        await asyncio.sleep(0.1)
    assert cluster.asked[1] - answered_at >= 0.5
