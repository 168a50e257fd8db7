"""The fetch stream to one broker: changes of the session out, responses in."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from millrace.client._cluster import wire
from millrace.client._cluster.connection import Connection
from millrace.client._threads.tasks import CANCELLED_BY_OTHERS, StreamTasks
from millrace.core.client.consumer.sessions import ChangeSession, FetchedPartition
from millrace.core.errors import MillraceError
from millrace.core.ids import BrokerId, LeaderEpoch, Offset
from millrace.proto import codec
from millrace.proto.v1 import fetch_pb2

_METHOD: Final = "/millrace.proto.v1.Fetch/Fetch"

OnFetched = Callable[[BrokerId, list[FetchedPartition]], None]
OnThrottled = Callable[[BrokerId, int], None]
OnBroken = Callable[[BrokerId, "FetchStream", str], None]


class FetchStream:
    """One open session.

    Args:
        broker_id: the broker.
        connection: the greeted connection.
        settings: of the session; they go with the first message.
        partition_bytes_max: bytes of one partition in one response.
        on_fetched: broker and news.
        on_throttled: the broker delays this client, by its quota: broker, ms.
        on_broken: the stream ended, other than by `close()`.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        connection: Connection,
        *,
        settings: fetch_pb2.FetchSettings,
        partition_bytes_max: int,
        on_fetched: OnFetched,
        on_throttled: OnThrottled,
        on_broken: OnBroken,
    ) -> None:
        self.broker_id = broker_id
        self.connection = connection
        self._settings: fetch_pb2.FetchSettings | None = settings
        self._partition_bytes_max = partition_bytes_max
        self._on_fetched = on_fetched
        self._on_throttled = on_throttled
        self._on_broken = on_broken
        self._messages: deque[fetch_pb2.FetchRequest] = deque()
        self._has_message = asyncio.Event()
        self._is_closed = False
        self._call: grpc.aio.StreamStreamCall[Any, Any] = connection.channel.stream_stream(
            _METHOD, request_serializer=fetch_pb2.FetchRequest.SerializeToString
        )()
        self._tasks = StreamTasks(
            "fetch stream",
            self._write(),
            self._read(),
            on_cancelled=self._on_cancelled,
            on_failed=self._break,
        )

    def change(self, effect: ChangeSession) -> None:
        """Queue a change of the session."""
        message = fetch_pb2.FetchRequest(
            remove=effect.removed, credit_bytes=effect.credit_bytes, settings=self._settings
        )
        self._settings = None
        for added in effect.added:
            message.partitions.add(
                handle=added.handle,
                topic_id=added.topic_partition.topic_id,
                partition=added.topic_partition.partition,
                fetch_offset=added.fetch_offset,
                current_leader_epoch=added.current_leader_epoch,
                last_fetched_epoch=added.last_fetched_epoch,
                max_bytes=self._partition_bytes_max,
                from_leader=added.from_leader,
                end_offset=added.end_offset,
                verify_until=added.verify_until,
            )
        self._messages.append(message)
        self._has_message.set()

    def close(self) -> None:
        """End the session; `on_broken` is not called."""
        self._is_closed = True
        self._call.cancel()
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed stream have ended."""
        await self._tasks.wait()

    async def _write(self) -> None:
        try:
            while True:
                while self._messages:
                    await self._call.write(self._messages.popleft())
                self._has_message.clear()
                await self._has_message.wait()
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            self._break(error)

    async def _read(self) -> None:
        try:
            async for message in self._call:
                header, parts = codec.decode_fetch_response(message)
                if header.throttle_time_ms:
                    self._on_throttled(self.broker_id, header.throttle_time_ms)
                self._on_fetched(
                    self.broker_id,
                    [
                        _news(fetched, batches)
                        for fetched, batches in zip(header.partitions, parts, strict=True)
                    ],
                )
            code, details = await self._call.code(), await self._call.details()
            self._break(f"the broker ended the stream: {code.name} {details or ''}".rstrip())
        except (grpc.RpcError, asyncio.InvalidStateError, MillraceError) as error:
            self._break(error)

    def _on_cancelled(self) -> None:
        if self.connection.is_given_up:
            self._break("another call found the connection broken")
        else:
            self._break(f"its task {CANCELLED_BY_OTHERS}")

    def _break(self, reason: str | BaseException) -> None:
        if self._is_closed:
            return
        self.close()
        if isinstance(reason, grpc.RpcError):
            reason = wire.error_from_rpc(reason, self.connection.address).message
        self._on_broken(self.broker_id, self, str(reason))


def _news(fetched: fetch_pb2.FetchedPartition, batches: memoryview) -> FetchedPartition:
    news = FetchedPartition(
        fetched.handle,
        batches,
        Offset(fetched.high_watermark),
        Offset(fetched.log_start_offset),
        Offset(fetched.fetch_offset),
    )
    if (error := wire.error_of(fetched)) is not None:
        news.error = error
        news.is_retriable = error.retriable or fetched.error.retriable
    if fetched.HasField("diverging"):
        news.diverging_epoch = LeaderEpoch(fetched.diverging.leader_epoch)
        news.diverging_end_offset = Offset(fetched.diverging.end_offset)
    if fetched.HasField("preferred_read_replica"):
        news.preferred_read_replica = BrokerId(fetched.preferred_read_replica)
    return news
