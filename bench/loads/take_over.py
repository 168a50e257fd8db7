"""Watches from outside how partitions get new leaders: by metadata, and by fetches.

Every partition holds a record. It is served once a new leader, asked with the new leader epoch, has
answered a fetch from the first offset. Topics are asked for one by one, at the brokers that stay
alive, so that the requests cost them little.

The first printed line says that it watches; only then may a broker be killed. `settings`: `topics`,
their names; `addresses`, those of the brokers that stay alive, by id. Times are monotonic.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
from bench.loads.spec import Load, Moved, run_from_command_line

from millrace.proto.codec import decode_fetch_response
from millrace.proto.v1 import cluster_pb2, cluster_pb2_grpc, fetch_pb2

POLL_S = 0.03
CREDIT_BYTES = 1 << 26
RESPONSE_BYTES = 1 << 19
WAIT_MS = 500

Key = tuple[bytes, int]
"""Topic id and partition."""


def watch(load: Load) -> Moved:
    """Return once all partitions are served by others, in later epochs than at first."""
    try:
        return asyncio.run(asyncio.wait_for(_Watcher().run(load), load.seconds))
    except TimeoutError:
        raise SystemExit(f"not all partitions were served in {load.seconds:.0f} s") from None


class _Watcher:
    def __init__(self) -> None:
        self._topic_ids: list[bytes] = []
        self._leaders: dict[Key, tuple[int, int]] = {}
        """Leader and epoch, as of the last look."""
        self._streams: dict[int, Any] = {}
        self._handles = itertools.count(1)
        self._asked: dict[int, Key] = {}
        self._refused: list[Key] = []
        self._left = 0
        self._served_at = 0.0

    async def run(self, load: Load) -> Moved:
        async with AsyncExitStack() as stack:
            clusters: list[Any] = []
            reading = []
            for broker_id, address in load.settings["addresses"].items():
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
                clusters.append(cluster_pb2_grpc.ClusterStub(channel))  # type: ignore[no-untyped-call]
                stream = self._streams[int(broker_id)] = await _open(channel)
                reading.append(asyncio.create_task(self._read(stream)))
            try:
                await self._look_first(clusters[0], load.settings["topics"])
                print(json.dumps({"partitions": self._left}), flush=True)
                led_at = [
                    await self._until_led(topic_id, itertools.cycle(clusters))
                    for topic_id in self._topic_ids
                ]
                while self._left:
                    await self._ask_again()
                    await asyncio.sleep(POLL_S)
            finally:
                for task in reading:
                    task.cancel()
                await asyncio.gather(*reading, return_exceptions=True)
        return Moved(
            records=len(self._leaders),
            bytes=0,
            seconds=0,
            detail={
                "first_topic_led": led_at[0],
                "all_topics_led": led_at[-1],
                "all_served": self._served_at,
            },
        )

    async def _look_first(self, cluster: Any, names: Sequence[str]) -> None:
        for name in names:
            response = await cluster.GetMetadata(cluster_pb2.GetMetadataRequest(topics=[name]))
            (topic,) = response.topics
            self._topic_ids.append(topic.topic_id)
            self._leaders |= _leaders_of(topic)
        self._left = len(self._leaders)

    async def _until_led(self, topic_id: bytes, clusters: Iterator[Any]) -> float:
        """Wait for a topic's new leaders, and fetch from them; return when they were known."""
        request = cluster_pb2.GetMetadataRequest(topic_ids=[topic_id])
        while True:
            (topic,) = (await next(clusters).GetMetadata(request)).topics
            found = _leaders_of(topic)
            if all(
                leader in self._streams and epoch > self._leaders[key][1]
                for key, (leader, epoch) in found.items()
            ):
                self._leaders |= found
                await self._fetch(list(found))
                return time.monotonic()
            await self._ask_again()
            await asyncio.sleep(POLL_S)

    async def _ask_again(self) -> None:
        refused, self._refused = self._refused, []
        await self._fetch(refused)

    async def _fetch(self, keys: Sequence[Key]) -> None:
        requests: dict[int, list[fetch_pb2.FetchPartition]] = {}
        for key in keys:
            leader, epoch = self._leaders[key]
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
                key = self._asked.pop(fetched.handle, None)
                if key is None:
                    continue  # A change of a partition that is served already.
                if fetched.error.code:
                    self._refused.append(key)
                elif fetched.length:
                    self._left -= 1
                    self._served_at = time.monotonic()
                else:
                    self._asked[fetched.handle] = key
        raise SystemExit("a broker that should live ended the stream")


def _leaders_of(topic: cluster_pb2.TopicMetadata) -> dict[Key, tuple[int, int]]:
    return {
        (topic.topic_id, partition.partition): (
            partition.leader.broker_id,
            partition.leader.leader_epoch,
        )
        for partition in topic.partitions
    }


async def _open(channel: grpc.aio.Channel) -> Any:
    stream: Any = channel.stream_stream(
        "/millrace.proto.v1.Fetch/Fetch",
        request_serializer=fetch_pb2.FetchRequest.SerializeToString,
    )()
    settings = fetch_pb2.FetchSettings(
        min_bytes=1, max_wait_ms=WAIT_MS, response_bytes_max=RESPONSE_BYTES
    )
    await stream.write(fetch_pb2.FetchRequest(credit_bytes=CREDIT_BYTES, settings=settings))
    return stream


if __name__ == "__main__":
    run_from_command_line(watch)
