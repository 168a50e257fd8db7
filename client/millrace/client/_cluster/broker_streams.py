"""The streams of a producer or a consumer, one to each broker that it uses.

This is the shell of `core.client.routing`: it opens streams and looks up metadata as the machine
requests, and reports the outcomes to the machine. A stream that was given up is closed: nothing
that still comes by it counts (P78).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, Protocol, TypeVar

from millrace.client._cluster import wire
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._threads.tasks import CANCELLED_BY_OTHERS, StreamTasks, Tasks
from millrace.core.client.routing.router import Connect, Effect
from millrace.core.errors import AccessDeniedError, MillraceError, RefreshMetadataError
from millrace.core.ids import BrokerId, Leader, MonotonicMs, TopicId, TopicPartition
from millrace.core.records.header import Buffer
from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.calls import CallError, ClientStream, Message


class Machine(Protocol):
    """What sender and fetcher have in common."""

    def on_connected(self, broker_id: BrokerId, message_bytes_max: int) -> None: ...

    def on_disconnected(self, broker_id: BrokerId, reason: str, now: MonotonicMs) -> None: ...

    def on_denied(
        self, broker_id: BrokerId, error: AccessDeniedError, now: MonotonicMs
    ) -> None: ...

    def on_topics(self, topic_ids: Mapping[str, TopicId | None]) -> None: ...

    def on_leaders(self, leaders: Mapping[TopicPartition, Leader]) -> None: ...

    def on_refreshed(self, now: MonotonicMs) -> None: ...


class BrokerStream:
    """A stream to one broker. It breaks once, for good.

    Args:
        broker_id: the broker.
        connection: on which the stream was opened; others use it as well.
        name: of the stream, for people.
        stream: that is open.
        on_broken: called when it ended, other than by `close()`.

    Attributes:
        has_ended_well: whether the broker ended it without an error, as one that is drained.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        connection: Connection,
        name: str,
        stream: ClientStream,
        on_broken: Callable[[BrokerId, Any, str], None],
    ) -> None:
        self.broker_id = broker_id
        self.connection = connection
        self.has_ended_well = False
        self._stream = stream
        self._on_broken = on_broken
        self._messages: deque[tuple[int, Sequence[Buffer]]] = deque()
        self._is_writing = False  # A message that is no longer in the queue waits for its turn.
        self._has_message = asyncio.Event()
        stream.on_draining = self._has_message.set
        self._is_closed = False
        self._is_ending = False
        self._tasks = StreamTasks(
            name,
            self._write(),
            self._read(),
            on_cancelled=self._on_cancelled,
            on_failed=self._break,
        )

    @property
    def unsent(self) -> list[int]:
        """The numbers of the messages that the transport was never given."""
        return [number for number, _ in self._messages]

    def _queue(
        self, parts: Sequence[Buffer], number: int = 0, *, is_sent_later: bool = False
    ) -> None:
        """Send a message: at once where the transport takes it, else soon.

        Args:
            parts: of the message.
            number: of the message, for `unsent` and `_on_sent`.
            is_sent_later: never at once, so that `_on_sent` is called, and not within this call.
        """
        is_next = not (self._is_writing or self._messages or self._is_ending)
        may_go = is_next and not is_sent_later and not self._stream.is_draining
        if not may_go or not self._stream.try_write(*parts):
            self._messages.append((number, parts))
            self._has_message.set()

    def _on_sent(self, number: int) -> None:
        """The transport has taken a message of the queue."""

    def _on_received(self, message: Message) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End the stream; `on_broken` is not called."""
        self._is_closed = True
        self._stream.cancel()
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        """Wait until the tasks of a closed stream have ended."""
        await self._tasks.wait()

    async def _write(self) -> None:
        stream, messages = self._stream, self._messages
        try:
            while True:
                while messages and not stream.is_draining:
                    number, parts = messages.popleft()
                    self._is_writing = True
                    await stream.write(*parts)
                    self._is_writing = False
                    self._on_sent(number)
                if self._is_ending or stream.is_draining:
                    # A broker that asks to connect again answers what it has, and ends the stream.
                    await stream.end_writing()
                    return
                self._has_message.clear()
                await self._has_message.wait()
        except CallError as error:
            self._break(error)

    async def _read(self) -> None:
        try:
            while (message := await self._stream.read()) is not None:
                self._on_received(message)
            self.has_ended_well = True
            self._break("the broker ended the stream")
        except (CallError, MillraceError) as error:
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
        if isinstance(reason, CallError):
            reason = wire.error_from_call(reason, self.connection.address).message
        self._on_broken(self.broker_id, self, str(reason))


AnyStream = TypeVar("AnyStream", bound=BrokerStream)


class BrokerStreams(Generic[AnyStream]):
    """The open streams, by broker. Used on the client's loop.

    Args:
        cluster: connections and metadata.
        machine: gets the outcomes.
        lock: guards the machine; a fork may replace it.
        tasks: of the client.
        method: `/package.Service/Method` of the streams.
        open_stream: takes a stream that is open, with the broker and the connection; `on_broken` is
            called when it ends.
        on_told: the machine got an event, and may act on it.
        on_looked_up: likewise; a look-up is over.
    """

    def __init__(
        self,
        cluster: Cluster,
        machine: Machine,
        *,
        lock: AbstractContextManager[object],
        tasks: Tasks,
        method: str,
        open_stream: Callable[[BrokerId, Connection, ClientStream], AnyStream],
        on_told: Callable[[], None],
        on_looked_up: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._machine = machine
        self.lock = lock
        self._tasks = tasks
        self._method = method
        self._open_stream = open_stream
        self._on_told = on_told
        self._on_looked_up = on_looked_up
        self._streams: dict[BrokerId, AnyStream] = {}
        self._is_closed = False
        self.failures = 0
        """Streams that broke, or that could not be opened."""

    def get(self, broker_id: BrokerId) -> AnyStream | None:
        """Return the stream to a broker; None: there is none."""
        return self._streams.get(broker_id)

    def open_streams(self) -> list[AnyStream]:
        """Return all streams that are open."""
        return list(self._streams.values())

    def perform(self, effect: Effect) -> None:
        """Perform an effect of the machine."""
        if isinstance(effect, Connect):
            self._tasks.spawn(self._connect, effect.broker_id)
        else:
            self._tasks.spawn(self._refresh, effect.topics)

    async def _connect(self, broker_id: BrokerId) -> None:
        try:
            connection = await self._cluster.broker(broker_id)
            stream = await connection.open_stream(self._method)
            if self._is_closed:
                stream.cancel()
                return
            self._streams[broker_id] = self._open_stream(broker_id, connection, stream)
        except AccessDeniedError as error:
            self.failures += 1
            with self.lock:
                self._machine.on_denied(broker_id, error, monotonic_now())
        except MillraceError as error:
            self.failures += 1
            with self.lock:
                self._machine.on_disconnected(broker_id, error.message, monotonic_now())
        else:
            with self.lock:
                self._machine.on_connected(broker_id, connection.hello.message_bytes_max)
        self._on_told()

    def on_broken(self, broker_id: BrokerId, stream: AnyStream, reason: str) -> None:
        """A stream ended by itself."""
        self.failures += 1
        if self._streams.get(broker_id) is stream:
            del self._streams[broker_id]
            with self.lock:
                self._machine.on_disconnected(broker_id, reason, monotonic_now())
        if not stream.has_ended_well:  # Others may have calls under way by the connection.
            self._tasks.spawn(self._cluster.drop, stream.connection)
        self._on_told()

    def give_up(self, broker_id: BrokerId) -> None:
        """End a stream whose broker the machine has given up."""
        self.failures += 1
        stream = self._streams.pop(broker_id)
        stream.close()
        self._tasks.spawn(self._cluster.drop, stream.connection)

    async def _refresh(self, topics: list[str]) -> None:
        with suppress(MillraceError):  # The machine asks again after its pause.
            await self._cluster.look_for_news(topics)
            with self.lock:
                self._machine.on_topics(self._cluster.metadata.topic_ids(topics))
        self.tell_leaders()
        with self.lock:
            self._machine.on_refreshed(monotonic_now())
        self._on_looked_up()

    def tell_leaders(self) -> None:
        """Tell the machine all leaders that the cluster's metadata names."""
        leaders = self._cluster.metadata.leaders()
        with self.lock:
            self._machine.on_leaders(leaders)

    def learn_address(self, error: MillraceError | None) -> None:
        """Take the address of the leader that a refusal names: the machine goes there next."""
        if isinstance(error, RefreshMetadataError) and error.leader is not None:
            self._cluster.metadata.learn_address(error.leader)

    async def close(self) -> None:
        """End all streams, those that open from now on as well, and wait until they have ended."""
        self._is_closed = True
        streams = self.open_streams()
        for stream in streams:  # All of them first: the wait for one may not end.
            stream.close()
        await asyncio.gather(*(stream.wait_closed() for stream in streams))
