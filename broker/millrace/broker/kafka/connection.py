"""A connection of Kafka's protocol: requests are answered in the order in which they came.

As in Kafka's broker, a request begins when the one before has been handled; but a handler may say
that its response comes `Later`, as Produce does while followers write, and then the next one begins
meanwhile. So many requests are taken and not answered (`kafka.requests_in_flight_max`), and none
begins while answers wait to be sent, or many bytes of them for an earlier one: at any of these
bounds, the connection is not read.

Kafka has no answer for a request that cannot be understood, but for ApiVersions: the connection
ends, and the log says why.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.guard.credentials import Credential
from millrace.broker.kafka.api_versions import unknown_version
from millrace.broker.kafka.requests import (
    ApiKey,
    Encoded,
    KafkaConnectionState,
    Later,
    Request,
    RequestTable,
    Served,
)
from millrace.broker.kafka.wire import codec, frames
from millrace.broker.kafka.wire.frames import RequestHeader
from millrace.broker.rpc.calls import Calls
from millrace.core.callers import CLIENT_ID_CHARACTERS_MAX
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.kafka_config import KafkaConfig
from millrace.core.records.header import Buffer
from millrace.proto.callers import client_id_to_metadata
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.calls import do_nothing
from millrace.runtime.transport.framed_connection import FramedConnection
from millrace.runtime.transport.frames import Frame, FrameError, Hold
from millrace.runtime.transport.receive_memory import Holder
from millrace.runtime.transport.served_connections import (
    ConnectionServer,
    ServedConnection,
    ServerLimits,
)
from millrace.runtime.turns import Turns

_STRANGER_BYTES_MAX: Final = 64 << 10
"""Of a request, before it is known who asks."""
_STRANGERS_REQUESTS_MAX: Final = 20
"""Requests of a connection before it is known who asks, and again: to prove that takes a few."""
_WAITING_BYTES_MAX: Final = 1 << 20
"""Of requests that have come and were not begun, beside one."""
_KEPT_BYTES_MAX: Final = 4 << 20
"""Of answers that wait for an earlier one: with more, no request begins."""
_CHECK_MS: Final = 1_000
"""For how long a credential counts without a look: so soon one that has ended is refused."""
_TAKEN_AT_ONCE: Final = 8
"""Requests of a connection that are handled before others may have their turn."""
_UNPRINTABLE: Final = re.compile(r"[^!-~]")


class _Arrived(NamedTuple):
    """A request that has come, and when."""

    payload: bytes | memoryview
    at_ms: int


class _Answer:
    """The answer to one request, from when it is handled to when its turn comes.

    Attributes:
        header: of the request.
        parts: what is sent; empty: nothing; None: it is not there yet.
        on_sent: see `Encoded`.
    """

    __slots__ = ("header", "on_sent", "parts")

    def __init__(self, header: RequestHeader) -> None:
        self.header = header
        self.parts: Sequence[Buffer] | None = None
        self.on_sent: Callable[[], None] | None = None


class KafkaConnection(ServedConnection):
    """One connection; belongs to a server, and is the `Origin` of its caller's calls.

    Attributes:
        state: what it remembers for the modules of requests.
    """

    def __init__(self, server: "KafkaServer") -> None:
        FramedConnection.__init__(self, server.limits.connection, server.ahead, server.memory)
        self.be_served(server)
        self._server = server
        if server.asks_who_calls:
            self.message_bytes_max = min(self.message_bytes_max, _STRANGER_BYTES_MAX)
        self.state = KafkaConnectionState("")
        self._requests: deque[_Arrived] = deque()
        self._waiting_bytes = 0
        self._answers: deque[_Answer] = deque()  # Of those that have begun.
        self._kept_bytes = 0  # Of answers that wait for an earlier one.
        self._unsent: list[Callable[[], None]] = []  # Of answers that wait to be sent.
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._serving = -1  # The number of the request that was begun last.
        self._caller: GuardedCaller | None = None
        self._credential: Credential | None = None  # With which the caller was found out.
        self._checked_ms = 0  # When it counted.
        self._client_id = ""
        self._strangers_requests = 0

    # --- ServedConnection --------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a request is not answered."""
        return bool(self._requests or self._answers)

    @property
    def tasks(self) -> Sequence["asyncio.Task[Any]"]:
        """What handles its requests."""
        return () if self._running is None else (self._running,)

    def ask_to_go(self) -> None:
        """Take no more requests; Kafka has no words for it, and clients connect again."""
        self.hold_frames(Hold.CALL)
        self.state.draining.set()
        if self._running is None:
            self.close()
        self._news.set()

    def connection_made(self, transport: Any) -> None:
        """Take the transport."""
        super().connection_made(transport)
        self.state.address = self.address
        self.state.close = self.close
        self.state.is_encrypted = transport.get_extra_info("ssl_object") is not None

    def close(self) -> None:
        """Close the connection after what was sent; take nothing more of what has come."""
        self._drop_requests()
        super().close()

    def abort(self, reason: str) -> None:
        """End the connection at once, likewise."""
        self._drop_requests()
        super().abort(reason)

    def _drop_requests(self) -> None:
        while self._requests:
            self._released(len(self._requests.popleft().payload))

    def on_lost(self, reason: str) -> None:
        """Forget what it was doing, but for records that have come.

        A producer that awaits no answers (`acks=0`) closes its connection once it has sent all
        records. They are taken, as by Kafka's broker. A request that awaits an answer, and waits
        for a quota, is refused, as its client sends it again by another connection.
        """
        self._answers.clear()
        self.state.draining.set()
        # They still count: so the memory of connections that are gone has a bound.
        self.holder = Holder(self._server.memory, do_nothing)
        self.holder.belong_to(self.host)
        self.holder.charge_message(self._waiting_bytes)
        self._news.set()
        if self._running is not None and self._serving != ApiKey.PRODUCE:
            self._running.cancel()
            self._running = None
        if self._running is not None:
            return  # It takes the rest when it has taken that.
        if self._requests:
            self._running = asyncio.get_running_loop().create_task(self._take_rest())
        else:
            self._forget()

    async def _take_rest(self) -> None:
        """Take the records that had come when the connection was lost."""
        try:
            async with self._handling() as counted:
                while self._requests:
                    arrived = self._requests.popleft()
                    frame = memoryview(arrived.payload)
                    if frames.parse_request_header(frame).key != ApiKey.PRODUCE:
                        self._released(len(frame))
                        continue
                    await self._serve(arrived, counted)
                    await self._server.turns.next_slice(self._owner)
        finally:
            self._running = None
            self._forget()

    def _forget(self) -> None:
        self._requests.clear()
        self._answers.clear()
        self.holder.close()
        for tell in self.state.on_closed:
            tell()
        self._server.on_closed(self)

    # --- Origin ------------------------------------------------------------------------------

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """What a call over gRPC says of its caller in its metadata."""
        said: list[tuple[str, str | bytes]] = [("user-agent", self.state.software or "kafka")]
        if self._client_id:
            said += client_id_to_metadata(self._client_id)
        return said

    # --- Requests ----------------------------------------------------------------------------

    def parse_header(self, data: bytearray | bytes, at: int, end: int) -> Frame | None:
        """Implement `FrameReader`."""
        return frames.parse_length(data, at, end, self.message_bytes_max)

    def on_frame(self, payload: bytes | memoryview, *, is_charged: bool) -> bool:
        """Implement `FrameReader`."""
        size = len(payload)
        if is_charged:
            self.holder.complete(size)
        else:
            self.holder.charge_message(size)
        self.holder.is_awaited = False
        self._requests.append(_Arrived(payload, monotonic_now()))
        self._waiting_bytes += size
        self.has_called = True
        if self._is_full:
            self.hold_frames(Hold.MESSAGES)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        self._news.set()
        return True

    def on_protocol_error(self, error: FrameError) -> None:
        """Implement `FrameReader`."""
        self._server.on_broken_rules(self, error)
        self.abort(str(error))

    @property
    def _is_full(self) -> bool:
        count = len(self._requests) + len(self._answers)
        most = self._server.requests_in_flight_max
        return count >= most or self._waiting_bytes >= _WAITING_BYTES_MAX

    @property
    def _is_keeping_much(self) -> bool:
        return self._kept_bytes >= _KEPT_BYTES_MAX

    @asynccontextmanager
    async def _handling(self) -> AsyncIterator[AsyncExitStack]:
        """Provide what counts the caller; the server is told which error ends the block."""
        try:
            async with AsyncExitStack() as counted:
                yield counted
        except MillraceError as error:
            self._server.on_broken_rules(self, error)
        except Exception as error:
            self._server.on_failure(error)

    async def _run(self) -> None:
        """Handle requests until the connection ends."""
        taken = 0
        async with self._handling() as counted:
            while not self._is_over:
                is_kept_waiting = not self.is_writable or self._is_keeping_much
                if is_kept_waiting or not self._requests:
                    if not is_kept_waiting:
                        self.await_message()
                    self._news.clear()
                    await self._news.wait()
                    continue
                await self._serve(self._requests.popleft(), counted)
                taken += 1
                if not taken % _TAKEN_AT_ONCE:
                    await self._server.turns.next_slice(self._owner)
                self._go_on_reading()
        if self.is_closed:
            await self._take_rest()
            return
        self._running = None
        self.close()

    @property
    def _owner(self) -> Hashable:
        """As whom it takes turns."""
        return self.host if self._caller is None else self._caller.owner

    @property
    def _is_over(self) -> bool:
        is_drained = self.is_draining and not self.is_busy
        return self.is_closed or self.state.is_refused or is_drained

    def resume_writing(self) -> None:
        """What was sent has left."""
        super().resume_writing()
        self._tell_sent()
        self._news.set()

    def _go_on_reading(self) -> None:
        if not self._is_full and not self.is_closed:
            self.take_frames(Hold.MESSAGES)

    async def _serve(self, arrived: _Arrived, counted: AsyncExitStack) -> None:
        """Handle a request.

        Raises:
            MillraceError: the connection has to end.
        """
        begun, frame = host.monotonic_s(), memoryview(arrived.payload)
        size = len(frame)
        if (take_raw := self.state.take_raw) is not None:
            self._released(size)
            self.transport.writelines(frames.framed(await take_raw(bytes(frame))))
            return
        header = frames.parse_request_header(frame)
        self._serving = header.key
        answer = _Answer(header)
        self._answers.append(answer)
        served = self._server.table.find(header.key, header.version)
        if served is None:
            self._released(size)
            self._complete(answer, self._server.unserved(header))
            return
        caller = await self._caller_of(header, served, counted)
        handled = self._handled(header, served, frame, caller, arrived.at_ms)
        # Produce and Fetch have quotas of their own, and charge their time, too.
        response = await (handled if served.is_raw else self._server.calls.paid(handled, caller))
        if isinstance(response, Later):
            response.response.add_done_callback(lambda done: self._on_later(answer, begun, done))
            return
        if served.is_for_strangers:
            await self._become_known(header, counted)
        self._server.on_answered(header.key, host.monotonic_s() - begun)
        self._complete(answer, response)

    async def _become_known(self, header: RequestHeader, counted: AsyncExitStack) -> None:
        """Find out who asks, as early as possible: a stranger may send small requests alone.

        Raises:
            MillraceError: nobody may ask with what was shown.
        """
        server, shown = self._server, self.state.credential
        if not server.asks_who_calls or self.state.is_refused:
            return
        has_proof = shown is not None and self._credential is not shown
        if has_proof or (self._caller is None and await server.calls.knows(self)):
            await self._introduce(codec.name_of(header.key), counted)

    async def _introduce(self, name: str, counted: AsyncExitStack) -> GuardedCaller:
        """Return who asks, by what is shown now; it counts until something else is shown."""
        shown = self.state.credential
        await counted.aclose()
        self._strangers_requests = 0
        begun = self._server.calls.begun(self, name, shown)
        caller = self._caller = await counted.enter_async_context(begun)
        self._credential, self._checked_ms = shown, monotonic_now()
        return caller

    async def _handled(
        self,
        header: RequestHeader,
        served: Served,
        frame: memoryview,
        caller: GuardedCaller,
        arrived_ms: int,
    ) -> Any:
        """Return what the handler of a request does.

        Raises:
            MillraceError: the connection has to end.
        """
        server, size = self._server, len(frame)
        message: Any = frame[self._body_at(header, frame) :]
        if not served.is_raw:
            await server.turns.give_way_to(size)
            message = codec.decode_request(
                header.key, header.version, message, server.request_entries_max
            )
        request = Request(
            header.key,
            header.version,
            header.client_id,
            message,
            caller,
            self.state,
            arrived_ms,
        )
        if not served.keeps_bytes:
            self._released(size)
        response = await served.handler(request)
        if served.keeps_bytes:
            self._released(size)
        return response

    def _body_at(self, header: RequestHeader, frame: memoryview) -> int:
        if codec.is_flexible(header.key, header.version):
            return frames.after_tags(frame, header.rest_at)
        return header.rest_at

    async def _caller_of(
        self, header: RequestHeader, served: Served, counted: AsyncExitStack
    ) -> GuardedCaller:
        """Return who asks; the connection's first request finds it out.

        Raises:
            MillraceError: nobody may ask so.
        """
        client_id = _UNPRINTABLE.sub("_", header.client_id)[:CLIENT_ID_CHARACTERS_MAX]
        calls, name, shown = self._server.calls, codec.name_of(header.key), self.state.credential
        if self._caller is None or self._credential is not shown:
            self._client_id = client_id
            if served.is_for_strangers and self._server.asks_who_calls:
                self._strangers_requests += 1
                if self._strangers_requests > _STRANGERS_REQUESTS_MAX:
                    raise MalformedRequestError(
                        f"after {_STRANGERS_REQUESTS_MAX} requests nobody knows who asks"
                    )
                return calls.stranger(self)
            if served.is_for_strangers and self._caller is None:
                self.on_known()  # Nobody has to be; its next request names its library, too.
                return calls.stranger(self)
            return await self._introduce(name, counted)
        if not served.is_for_strangers and self._checked_ms + _CHECK_MS < monotonic_now():
            calls.check_again(self._caller, name)
            self._checked_ms = monotonic_now()
        if client_id != self._caller.client_id:
            self._caller = replace(self._caller, client_id=client_id)
        return self._caller

    def _released(self, size: int) -> None:
        """A request's bytes count as received no longer."""
        self._waiting_bytes -= size
        if self.is_closed:
            self.holder.release(size)
        else:
            self.release(size)

    # --- Answers -----------------------------------------------------------------------------

    def _on_later(self, answer: _Answer, begun: float, done: "asyncio.Future[Any]") -> None:
        if self.is_closed:
            return
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            self._server.on_failure(error)
            self.close()
            return
        self._server.on_answered(answer.header.key, host.monotonic_s() - begun)
        self._complete(answer, done.result())
        self._go_on_reading()
        self._news.set()

    def _complete(self, answer: _Answer, response: Any) -> None:
        """Send an answer as soon as those before it are sent."""
        answer.parts = () if response is None else self._encoded(answer.header, response)
        if isinstance(response, Encoded):
            answer.on_sent = response.on_sent
        self._kept_bytes += sum(map(len, answer.parts))
        answers = self._answers
        parts: list[Buffer] = []
        while answers and (ready := answers[0].parts) is not None:
            on_sent = answers.popleft().on_sent
            if on_sent is not None:
                self._unsent.append(on_sent)
            self._kept_bytes -= sum(map(len, ready))
            parts += ready
        if parts and not self.is_closed:
            self.transport.writelines(parts)
        if self.is_writable:
            self._tell_sent()
        if not self.is_busy:
            self.quiet_since_ms = monotonic_now()

    def _tell_sent(self) -> None:
        unsent, self._unsent = self._unsent, []
        for tell in unsent:
            tell()

    def _encoded(self, header: RequestHeader, response: Any) -> Sequence[Buffer]:
        """Return an answer with its header."""
        version = header.version
        if isinstance(response, Encoded):
            parts = response.parts
        else:
            if response.version is not None:
                version = response.version  # Of ApiVersions, it may be another one.
            parts = (codec.encode_response(response, version),)
        has_tags = header.key != ApiKey.API_VERSIONS and codec.is_flexible(header.key, version)
        size = sum(map(len, parts))
        return (frames.answer_header(header.correlation_id, size, has_tags=has_tags), *parts)


class KafkaServer(ConnectionServer[KafkaConnection]):
    """Listens, and serves requests.

    Args:
        limits: of its connections.
        kafka: settings.
        calls: of the listener.
        entries_max: of a request.
        turns: of the loop.
        on_failure: called with what a handler raised that is no `MillraceError`: a bug.
        on_ended: called with an address and a reason when a connection was not taken, or was ended
            for what it did.

    Attributes:
        calls, turns, on_failure: as given.
        table: what is served.
    """

    table: RequestTable

    def __init__(
        self,
        limits: ServerLimits,
        kafka: KafkaConfig,
        calls: Calls,
        *,
        entries_max: int,
        turns: Turns,
        on_failure: Callable[[BaseException], None],
        on_ended: Callable[[str, str], None],
    ) -> None:
        super().__init__(limits, on_ended=on_ended)
        self.requests_in_flight_max = kafka.requests_in_flight_max
        self.request_entries_max = entries_max
        self.asks_who_calls = calls.asks_who_calls
        self.calls = calls
        self.turns = turns
        self.on_failure = on_failure

    def make_connection(self) -> KafkaConnection:
        """Return a connection of Kafka's protocol."""
        return KafkaConnection(self)

    def unserved(self, header: RequestHeader) -> object:
        """Return the answer to a request that is not served.

        Raises:
            MalformedRequestError: there is none, and its connection ends.
        """
        if header.key == ApiKey.API_VERSIONS:
            return unknown_version()
        raise MalformedRequestError(
            f"the client asks for request {header.key} in version {header.version}, which "
            "ApiVersions does not list"
        )

    def on_answered(self, key: int, seconds: float) -> None:
        """Count a request, which took so long."""
        metrics = self.calls.refusals.metrics
        metrics.requests.called(f"Kafka{codec.name_of(key)}", seconds)
