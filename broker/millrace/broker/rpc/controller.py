"""The Controller service: brokers' sessions with the controller, where this broker is that.

A session gets all objects first and then each as it is stored, in order, and every answer behind
the metadata that it rests on. What waits for a broker that does not keep up is bounded: beyond that
the metadata in its queue is replaced by the full state of now, in front of the answers.

A session ends when this broker stops being the controller; so does one of a broker that has seen
more of the metadata than is stored here, and then this controller resigns (P39).
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from millrace.broker.config import LimitsConfig
from millrace.broker.controller import ControllerShell
from millrace.broker.peers.controller_messages import (
    metadata_to_proto,
    request_from_proto,
    response_to_proto,
    topic_partition_to_proto,
)
from millrace.broker.rpc.administration import administer
from millrace.broker.rpc.errors import abort
from millrace.broker.runtime.streams import run_until_first
from millrace.broker.runtime.turns import Turns
from millrace.core.errors import (
    BrokerShuttingDownError,
    InvalidConfigError,
    MalformedRequestError,
    MillraceError,
    NotControllerError,
)
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.effects import AskLogEnds
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.requests import Heartbeat
from millrace.core.metadata.seen import NOTHING_SEEN, Seen
from millrace.core.metadata.stored import StoredObject
from millrace.proto.errors import error_to_wire
from millrace.proto.features import check_broker
from millrace.proto.v1 import controller_pb2 as pb

_ENTRY_BYTES: Final = 32
"""Of a client's request: so large is what it says of one topic, or of one partition."""

_Stream = grpc.aio.ServicerContext[bytes, bytes]


class ControllerService:
    """Serves `millrace.proto.v1.Controller`; the observer of the controller's machine."""

    NAME: Final = pb.DESCRIPTOR.services_by_name["Controller"].full_name

    def __init__(self, *, controller: ControllerShell, limits: LimitsConfig, turns: Turns) -> None:
        self.controller = controller
        self.limits = limits
        self.turns = turns
        self._sessions: dict[_Session, None] = {}
        self._is_ending = False

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to register; messages of the stream stay bytes."""
        return grpc.method_handlers_generic_handler(
            self.NAME, {"Session": grpc.stream_stream_rpc_method_handler(self._session)}
        )

    async def _session(self, _: object, context: _Stream) -> None:
        session = _Session(self, context)
        self._sessions[session] = None
        try:
            if self._is_ending:
                session.end(BrokerShuttingDownError("the broker is stopping"))
            await session.run()
        finally:
            del self._sessions[session]
            life = session.life
            if life is not None and all(each.life != life for each in self._sessions):
                self.controller.on_connection_broken(life)

    def end_streams(self) -> None:
        """End all sessions, and those that come, because the broker stops."""
        self._is_ending = True
        for session in self._sessions:
            session.end(BrokerShuttingDownError("the broker is stopping"))

    def on_published(self, objects: Mapping[str, StoredObject]) -> None:
        """Send these objects to every session."""
        for session in self._sessions:
            session.on_published(objects)

    def on_ask_log_ends(self, effect: AskLogEnds) -> None:
        """Pass a question on; a broker that has no session now need not be asked."""
        for session in self._sessions:
            if session.life == effect.broker:
                partitions = [topic_partition_to_proto(each) for each in effect.partitions]
                session.send(pb.SessionResponse(ask_log_ends=pb.AskLogEnds(partitions=partitions)))

    def on_resigned(self) -> None:
        """End all sessions: the brokers look for the next controller."""
        for session in self._sessions:
            session.end(NotControllerError("this broker stopped being the controller"))


class _Session:
    """One broker's stream.

    Attributes:
        life: of the broker, once it has sent a heartbeat.
    """

    def __init__(self, service: ControllerService, context: _Stream) -> None:
        self.life: BrokerLife | None = None
        self._service = service
        self._context = context
        self._is_open = False
        self._outgoing: deque[pb.SessionResponse] = deque()
        self._outgoing_bytes = 0
        self._has_outgoing = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._ended = asyncio.Event()
        self._reason: MillraceError | None = None

    async def run(self) -> None:
        try:
            await self._context.send_initial_metadata(())
            await run_until_first(self._listen(), self._write(), self._wait_for_end())
        except grpc.aio.InternalError:
            pass  # The broker went away in the middle of a message.
        except MillraceError as error:
            await abort(self._context, error)
        finally:
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    def end(self, error: MillraceError) -> None:
        """End the session, and say why."""
        self._reason = error
        self._ended.set()

    async def _wait_for_end(self) -> None:
        await self._ended.wait()
        assert self._reason is not None
        raise self._reason

    async def _listen(self) -> None:
        limits = self._service.limits
        while isinstance(message := await self._context.read(), bytes):  # Then it is EOF.
            try:
                request = pb.SessionRequest.FromString(message)
            except DecodeError as error:
                raise MalformedRequestError(f"the message is no protobuf: {error}") from error
            if not self._is_open:
                self._open(request)
                continue
            if not request.HasField("request"):
                raise MalformedRequestError("a session is opened once, with its first message")
            task = asyncio.create_task(self._answer(request.request))
            self._answering.add(task)
            task.add_done_callback(self._on_answered)
            while len(self._answering) >= limits.controller_requests_in_flight_max:
                self._has_room.clear()
                await self._has_room.wait()

    def _on_answered(self, task: "asyncio.Task[None]") -> None:
        self._answering.discard(task)
        self._has_room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # A fault in here ends the process, as any other.

    def _open(self, request: pb.SessionRequest) -> None:
        opening = request.opening
        controller = self._service.controller
        if not request.HasField("opening"):
            raise MalformedRequestError("a session begins with its opening")
        check_broker(opening.features)
        objects = controller.objects()
        if opening.cluster_id not in ("", controller.cluster_id):
            raise InvalidConfigError(
                f"the controller is of the cluster {controller.cluster_id}, but the broker's log "
                f"directories belong to {opening.cluster_id}: correct the path of one of them"
            )
        seen = Seen(ControllerEpoch(opening.controller_epoch), tuple(opening.versions))
        controller.on_seen_elsewhere(seen.merged(NOTHING_SEEN))
        if not controller.is_controller:
            raise NotControllerError("this broker is not the controller any more")
        self._is_open = True
        opened = pb.SessionOpened(cluster_settings=controller.config.texts())
        self.send(pb.SessionResponse(opened=opened))
        self.send(metadata_to_proto(controller.controller_epoch, objects.items(), is_full=True))

    async def _answer(self, request: pb.ControllerRequest) -> None:
        controller = self._service.controller
        try:
            own = request_from_proto(request)
            if own is None:
                work = self._service.turns.work()
                await work.give_way(request.ByteSize() // _ENTRY_BYTES)
                response = await administer(controller, work, request)
            else:
                if isinstance(own, Heartbeat):
                    self.life = own.life
                response = response_to_proto(own, await controller.request(own))
        except MillraceError as error:
            response = pb.ControllerResponse(error=error_to_wire(error, is_write=True))
        response.correlation_id = request.correlation_id
        self.send(pb.SessionResponse(response=response))

    # --- What goes out -----------------------------------------------------------------------

    def on_published(self, objects: Mapping[str, StoredObject]) -> None:
        """Objects were stored."""
        if not self._is_open:
            return
        epoch = self._service.controller.controller_epoch
        if self._outgoing_bytes <= self._service.limits.controller_lag_bytes_max:
            self.send(metadata_to_proto(epoch, objects.items(), is_full=False))
            return
        answers = [each for each in self._outgoing if not each.HasField("metadata")]
        self._outgoing.clear()
        self._outgoing_bytes = 0
        full = self._service.controller.objects()
        self.send(metadata_to_proto(epoch, full.items(), is_full=True))
        for answer in answers:
            self.send(answer)

    def send(self, message: pb.SessionResponse) -> None:
        """Queue a message."""
        self._outgoing.append(message)
        self._outgoing_bytes += message.ByteSize()
        self._has_outgoing.set()

    async def _write(self) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            while self._outgoing:
                message = self._outgoing.popleft()
                self._outgoing_bytes -= message.ByteSize()
                await self._context.write(message.SerializeToString())
