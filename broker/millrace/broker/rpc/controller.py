"""The Controller service: brokers' sessions with the controller, on the controller's broker.

A session gets all objects first and then each as it is stored, in order, and every answer after the
metadata that it rests on. The queue of a slow broker is bounded: beyond the bound its metadata is
replaced by the present full state, in front of the answers.

A session ends when this broker stops being the controller; so does one of a broker that has seen
more of the metadata than is stored here, and then this controller resigns (P39).
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError

from millrace.broker.controller.messages import (
    BrokerRequest,
    metadata_to_proto,
    request_from_proto,
    response_to_proto,
    topic_partition_to_proto,
)
from millrace.broker.controller.shell import ControllerShell
from millrace.broker.guard.demands import OF_BROKERS
from millrace.broker.rpc.administration import administer
from millrace.broker.rpc.broker_calls import check_id, check_name
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import Caller
from millrace.core.controller.effects import AskLogEnds
from millrace.core.errors import (
    BrokerShuttingDownError,
    InvalidConfigError,
    MalformedRequestError,
    MillraceError,
    NotControllerError,
)
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.broker_levels import FIRST_LEVEL
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.objects.store_versions import NOTHING_SEEN, StoreVersions
from millrace.core.metadata.objects.stored_object import StoredObject
from millrace.core.metadata.requests import (
    AlterPartitions,
    ConfirmDeletions,
    Heartbeat,
    RegisterBroker,
    RenewReplicas,
)
from millrace.proto.callers import caller_from_wire
from millrace.proto.errors import error_to_wire
from millrace.proto.features import check_broker
from millrace.proto.v1 import controller_pb2 as pb
from millrace.runtime.streams import run_until_first
from millrace.runtime.transport.calls import ServerCall
from millrace.runtime.turns import Turns

_REQUESTS_IN_FLIGHT_MAX: Final = 1000
"""Requests of one broker that are not answered yet. At the bound its stream is not read."""


class BrokerSessions:
    """The open sessions; observes the controller's machine and sends its news to all of them."""

    def __init__(self) -> None:
        self._open: dict[_Session, None] = {}

    def add(self, session: "_Session") -> None:
        """A session begins."""
        self._open[session] = None

    def remove(self, session: "_Session") -> None:
        """A session has ended."""
        del self._open[session]

    def has(self, life: BrokerLife) -> bool:
        """Return whether a broker has a session in this life."""
        return any(session.life == life for session in self._open)

    def end(self, error: MillraceError) -> None:
        """End all sessions with an error."""
        for session in self._open:
            session.end(error)

    def on_published(self, objects: Mapping[str, StoredObject]) -> None:
        """Send these objects to every session."""
        for session in self._open:
            session.on_published(objects)

    def on_ask_log_ends(self, effect: AskLogEnds) -> None:
        """Pass a question on, unless the broker has no session now."""
        for session in self._open:
            if session.life == effect.broker:
                partitions = [
                    topic_partition_to_proto(partition) for partition in effect.partitions
                ]
                session.send(pb.SessionResponse(ask_log_ends=pb.AskLogEnds(partitions=partitions)))

    def on_resigned(self) -> None:
        """End all sessions: the brokers look for the next controller."""
        self.end(NotControllerError("this broker stopped being the controller"))


class ControllerService:
    """Serves `millrace.proto.v1.Controller`."""

    NAME = pb.DESCRIPTOR.services_by_name["Controller"].full_name

    def __init__(
        self,
        *,
        controller: ControllerShell,
        sessions: BrokerSessions,
        limits: LimitsConfig,
        turns: Turns,
        calls: Calls,
    ) -> None:
        self.controller = controller
        self.limits = limits
        self.turns = turns
        self._sessions = sessions
        self.audit = calls.audit
        self._calls = calls
        self._is_ending = False

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        return self._calls.methods(self.NAME, streams={"Session": (self._session, OF_BROKERS)})

    async def _session(self, call: ServerCall, caller: Caller) -> None:
        session = _Session(self, call, caller)
        self._sessions.add(session)
        try:
            if self._is_ending:
                session.end(BrokerShuttingDownError("the broker is stopping"))
            await session.run()
        finally:
            self._sessions.remove(session)
            life = session.life
            if life is not None and not self._sessions.has(life):
                self.controller.on_connection_broken(life)

    def end_streams(self) -> None:
        """End all sessions, also later ones, because the broker stops."""
        self._is_ending = True
        self._sessions.end(BrokerShuttingDownError("the broker is stopping"))


class _Session:
    """One broker's stream.

    Attributes:
        life: of the broker, once it has sent a heartbeat.
    """

    def __init__(self, service: ControllerService, call: ServerCall, caller: Caller) -> None:
        self.life: BrokerLife | None = None
        self._service = service
        self._call = call
        self._caller = caller  # The broker.
        self._level = FIRST_LEVEL
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
            await run_until_first(self._listen(), self._write(), self._wait_for_end())
        finally:
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    def end(self, error: MillraceError) -> None:
        """End the session with an error."""
        self._reason = error
        self._ended.set()

    async def _wait_for_end(self) -> None:
        await self._ended.wait()
        assert self._reason is not None
        raise self._reason

    async def _listen(self) -> None:
        while (message := await self._call.read()) is not None:
            try:
                request = pb.SessionRequest.FromString(bytes(message))
            except DecodeError as error:
                raise MalformedRequestError(f"the message is no protobuf: {error}") from error
            if not self._is_open:
                self._open(request)
                continue
            if not request.HasField("request"):
                raise MalformedRequestError("a session is opened once, with its first message")
            task = asyncio.create_task(self._answer(request.request, len(message)))
            self._answering.add(task)
            task.add_done_callback(self._on_answered)
            while len(self._answering) >= _REQUESTS_IN_FLIGHT_MAX:
                self._has_room.clear()
                await self._has_room.wait()

    def _on_answered(self, task: "asyncio.Task[None]") -> None:
        self._answering.discard(task)
        self._has_room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # A bug here ends the process, as any other.

    def _open(self, request: pb.SessionRequest) -> None:
        opening = request.opening
        controller = self._service.controller
        if not request.HasField("opening"):
            raise MalformedRequestError("a session begins with its opening")
        self._level = check_broker(opening.features)
        objects = controller.objects()
        if opening.cluster_id not in ("", controller.cluster_id):
            raise InvalidConfigError(
                f"the controller is of the cluster {controller.cluster_id}, but the broker's log "
                f"directories belong to {opening.cluster_id}: correct the path of one of them"
            )
        seen = StoreVersions(ControllerEpoch(opening.controller_epoch), tuple(opening.versions))
        controller.on_seen_elsewhere(seen.merged(NOTHING_SEEN))
        if not controller.is_controller:
            raise NotControllerError("this broker is not the controller any more")
        self._is_open = True
        opened = pb.SessionOpened(cluster_settings=controller.config.texts())
        self.send(pb.SessionResponse(opened=opened))
        self.send(metadata_to_proto(controller.controller_epoch, objects.items(), is_full=True))

    async def _answer(self, request: pb.ControllerRequest, size: int) -> None:
        controller = self._service.controller
        try:
            own = request_from_proto(request)
            if own is None:
                await self._service.turns.give_way_to(size)
                work = self._service.turns.work()
                response = await administer(
                    controller, work, self._service.audit, request, self._asker(request)
                )
            else:
                self._check_sender(own)
                if isinstance(own, Heartbeat):
                    self.life = own.life
                if isinstance(own, Heartbeat | RegisterBroker):
                    own = replace(own, level=self._level)
                response = response_to_proto(own, await controller.request(own))
        except MillraceError as error:
            response = pb.ControllerResponse(error=error_to_wire(error, is_write=True))
        response.correlation_id = request.correlation_id
        self.send(pb.SessionResponse(response=response))

    def _check_sender(self, request: BrokerRequest) -> None:
        """Refuse a request for another broker than the one of this session.

        Raises:
            MillraceError: says which.
        """
        image = self._service.controller.metadata
        match request:
            case RegisterBroker():
                check_name(self._caller, request.name)
            case Heartbeat():
                check_id(self._caller, request.life.broker_id, image)
            case AlterPartitions():
                for leader in {change.leader.broker_id for change in request.changes}:
                    check_id(self._caller, leader, image)
            case RenewReplicas():
                check_id(self._caller, request.replica.broker_id, image)
            case ConfirmDeletions():
                check_id(self._caller, request.broker_id, image)

    def _asker(self, request: pb.ControllerRequest) -> Caller:
        """Return the caller: the client that the broker names, or the broker itself."""
        return caller_from_wire(request.caller) if request.HasField("caller") else self._caller

    # --- Messages to the broker --------------------------------------------------------------

    def on_published(self, objects: Mapping[str, StoredObject]) -> None:
        """Objects were stored."""
        if not self._is_open:
            return
        epoch = self._service.controller.controller_epoch
        if self._outgoing_bytes <= self._service.limits.controller_lag_bytes_max:
            self.send(metadata_to_proto(epoch, objects.items(), is_full=False))
            return
        answers = [message for message in self._outgoing if not message.HasField("metadata")]
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
                await self._call.write(message.SerializeToString())
