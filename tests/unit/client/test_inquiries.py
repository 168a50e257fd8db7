"""When a client asks all brokers about topics, as the last good one may be cut off."""

import asyncio
from itertools import pairwise

import pytest

from millrace.client._cluster.cluster import Cluster, Connection
from millrace.core.errors import UnknownTopicOrPartitionError
from millrace.core.ids import TopicId
from millrace.proto.v1 import cluster_pb2 as pb


class Asked(Cluster):
    """One good broker, which has no news, and another one."""

    def __init__(self) -> None:
        super().__init__("good:1,other:1", client_id="c")
        self.partitions = 0
        self.look_ups = 0
        self.asked: list[float] = []
        """When the other one was asked."""
        self.is_asked = asyncio.Event()
        self.answers = asyncio.Event()
        """Set: it answers."""
        self.learn(self._metadata(1), is_full=False)

    def _metadata(self, partitions: int) -> pb.GetMetadataResponse:
        topic = pb.TopicMetadata(name="orders", topic_id=TopicId(b"t" * 16))
        topic.partitions.extend([pb.PartitionMetadata()] * partitions)
        return pb.GetMetadataResponse(topics=[topic])

    async def look_up(self, request: pb.GetMetadataRequest) -> pb.GetMetadataResponse:
        self.look_ups += 1
        return pb.GetMetadataResponse()

    async def _ask(
        self, address: str, request: pb.GetMetadataRequest
    ) -> tuple[Connection, pb.GetMetadataResponse] | None:
        if address == "good:1":
            return None
        self.asked.append(asyncio.get_running_loop().time())
        self.is_asked.set()
        await self.answers.wait()
        return None


def test_look_ups_without_news_ask_all_brokers_seldom_and_ever_more_seldom() -> None:
    async def story() -> None:
        cluster = Asked()
        cluster.answers.set()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        while loop.time() < began_at + 4:
            await cluster.refresh(["orders"])
            await asyncio.sleep(0.01)
        assert cluster.asked, "the good one may be cut off"
        assert len(cluster.asked) <= 6
        pauses = [after - before for before, after in pairwise(cluster.asked)]
        assert min(pauses) >= 0.5
        assert cluster.look_ups > 100, "the good one is asked as before"

    asyncio.run(story())


def test_a_topic_that_is_not_there_is_asked_for_once_by_all_that_want_it() -> None:
    async def story() -> None:
        cluster = Asked()
        wanted = [asyncio.create_task(cluster.topic("payments")) for _ in range(20)]
        await cluster.is_asked.wait()
        wanted += [asyncio.create_task(cluster.topic("payments")) for _ in range(20)]
        await asyncio.sleep(0.01)
        wanted.pop().cancel()  # The others wait on.
        cluster.answers.set()
        answers = await asyncio.gather(*wanted, return_exceptions=True)
        assert {type(each) for each in answers} == {UnknownTopicOrPartitionError}
        with pytest.raises(UnknownTopicOrPartitionError):
            await cluster.topic("payments")
        assert len(cluster.asked) == 1
        await cluster.close()

    asyncio.run(story())


def test_a_partition_that_is_not_there_does_not_ask_all_brokers_at_each_call() -> None:
    async def story() -> None:
        cluster = Asked()
        cluster.answers.set()
        for _ in range(10):
            assert len((await cluster.topic_with("orders", 5)).partitions) == 1
        assert len(cluster.asked) == 1

    asyncio.run(story())
