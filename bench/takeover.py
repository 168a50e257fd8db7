"""Watches from outside how partitions find their new leaders: in the metadata, and by fetching.

Every partition holds a record. It is served once its new leader, asked with the new leader epoch,
has answered a fetch from the first offset. Topics are asked for one by one, at the brokers that
live, so that the asking itself costs them little.
"""

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
from bench.processes import LoadFailedError

from millrace.client import TopicDescription
from millrace.proto.codec import decode_fetch_response
from millrace.proto.v1 import cluster_pb2, cluster_pb2_grpc, fetch_pb2

POLL_S = 0.03
CREDIT_BYTES = 1 << 26
RESPONSE_BYTES = 1 << 19


@dataclass(frozen=True, kw_only=True)
class TakeOver:
    """When what was so, in seconds since the kill."""

    first_topic_led: float
    all_topics_led: float
    all_served: float


def watch(
    topics: Sequence[TopicDescription],
    addresses: dict[int, str],
    killed_at: float,
    timeout_s: float,
) -> TakeOver:
    """Return once all partitions are served in an epoch behind the one that `topics` tells of.

    Args:
        addresses: of the brokers that live, by id.
        killed_at: monotonic seconds.

    Raises:
        LoadFailedError: not all were in time.
    """
    watcher = _Watcher(topics, killed_at)
    try:
        return asyncio.run(asyncio.wait_for(watcher.run(addresses), timeout_s))
    except TimeoutError as error:
        raise LoadFailedError(
            f"after {timeout_s:.0f} s {watcher.left} of the partitions were not served"
        ) from error


class _Watcher:
    def __init__(self, topics: Sequence[TopicDescription], killed_at: float) -> None:
        self._epochs = {
            (topic.topic_id, each.partition): each.leader_epoch
            for topic in topics
            for each in topic.partitions
        }
        self._topic_ids = [topic.topic_id for topic in topics]
        self._killed_at = killed_at
        self._handles = itertools.count(1)
        self._asked: dict[int, tuple[bytes, int]] = {}
        self._streams: dict[int, Any] = {}
        self._refused: list[tuple[bytes, int]] = []
        self._known: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._all_served = asyncio.Event()
        self.left = len(self._epochs)

    def _now(self) -> float:
        return time.monotonic() - self._killed_at

    async def run(self, addresses: dict[int, str]) -> TakeOver:
        async with AsyncExitStack() as stack:
            clusters = []
            reading = []
            for broker_id, address in addresses.items():
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
                clusters.append(cluster_pb2_grpc.ClusterStub(channel))  # type: ignore[no-untyped-call]
                stream = channel.stream_stream(
                    "/millrace.proto.v1.Fetch/Fetch",
                    request_serializer=fetch_pb2.FetchRequest.SerializeToString,
                )()
                stack.callback(stream.cancel)
                await stream.write(
                    fetch_pb2.FetchRequest(
                        credit_bytes=CREDIT_BYTES,
                        settings=fetch_pb2.FetchSettings(
                            min_bytes=1, max_wait_ms=500, response_bytes_max=RESPONSE_BYTES
                        ),
                    )
                )
                self._streams[broker_id] = stream
                reading.append(asyncio.create_task(self._read(stream)))
            try:
                led = await self._follow(itertools.cycle(clusters))
                while not self._all_served.is_set():
                    await self._ask_again()
                    await asyncio.sleep(POLL_S)
                return TakeOver(
                    first_topic_led=led[0], all_topics_led=led[-1], all_served=self._served_at
                )
            finally:
                for task in reading:
                    task.cancel()
                await asyncio.gather(*reading, return_exceptions=True)

    async def _follow(self, clusters: "itertools.cycle[Any]") -> list[float]:
        """Wait for each topic's new leaders, and fetch from them; return when they were known."""
        led = []
        for topic_id in self._topic_ids:
            while not await self._is_led(next(clusters), topic_id):
                await self._ask_again()
                await asyncio.sleep(POLL_S)
            led.append(self._now())
        return led

    async def _is_led(self, cluster: Any, topic_id: bytes) -> bool:
        response = await cluster.GetMetadata(cluster_pb2.GetMetadataRequest(topic_ids=[topic_id]))
        (topic,) = response.topics
        found = {(topic_id, each.partition): each.leader for each in topic.partitions}
        if any(
            leader.broker_id not in self._streams or leader.leader_epoch <= self._epochs[key]
            for key, leader in found.items()
        ):
            return False
        for key, leader in found.items():
            self._known[key] = (leader.broker_id, leader.leader_epoch)
        await self._fetch(list(found))
        return True

    async def _ask_again(self) -> None:
        refused, self._refused = self._refused, []
        await self._fetch(refused)

    async def _fetch(self, keys: Sequence[tuple[bytes, int]]) -> None:
        requests: dict[int, list[fetch_pb2.FetchPartition]] = {}
        for key in keys:
            leader, epoch = self._known[key]
            handle = next(self._handles)
            self._asked[handle] = key
            requests.setdefault(leader, []).append(
                fetch_pb2.FetchPartition(
                    handle=handle,
                    topic_id=key[0],
                    partition=key[1],
                    fetch_offset=0,
                    current_leader_epoch=epoch,
                    last_fetched_epoch=-1,
                )
            )
        for leader, partitions in requests.items():
            await self._streams[leader].write(fetch_pb2.FetchRequest(partitions=partitions))

    async def _read(self, stream: Any) -> None:
        while isinstance(message := await stream.read(), bytes):
            header, _ = decode_fetch_response(message)
            for fetched in header.partitions:
                key = self._asked.get(fetched.handle)
                if key is None:
                    continue
                if fetched.error.code:
                    del self._asked[fetched.handle]
                    self._refused.append(key)
                elif fetched.length:
                    del self._asked[fetched.handle]
                    self.left -= 1
            if not self.left:
                self._served_at = self._now()
                self._all_served.set()
