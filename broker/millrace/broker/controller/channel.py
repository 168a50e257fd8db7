"""This broker's session with the controller: metadata comes down, requests go up.

Every broker has one such stream to the replica listener of the lease's holder, the controller's own
broker, too: so metadata spreads in only one way. When the stream breaks, another is opened at once,
to the same controller or the next, and the broker continues in the same life (P28). Waiting
requests then get `NotControllerError`, as their outcome is unknown. Without a controller, and
without its store, the data plane goes on in the present epochs: no leader is elected, and no ISR
changes (P40). The lease's holder counts as the controller only with a session. The reason for a
missing session is reported once another controller could have been elected.

The controller's settings count for every broker while it acts: each session begins with them, and a
broker whose own differ says so. A running broker that is refused for its protocol goes on, as it
can serve its partitions without a controller for a while; a starting one ends.

All metadata goes through the `MetadataCache`, which refuses outdated objects (P39). The versions
seen are stored on disk: a new controller epoch before its metadata is used, the rest soon.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from millrace.broker import events
from millrace.broker.controller.messages import (
    BrokerRequest,
    objects_from_proto,
    request_to_proto,
    response_from_proto,
    topic_partition_from_proto,
)
from millrace.broker.peer_connection import PeerConnections, Way
from millrace.core.callers import Caller
from millrace.core.controller.controller import no_controller
from millrace.core.errors import (
    Appended,
    ControllerNotAvailableError,
    DuplicateBrokerRegistrationError,
    InvalidRequestError,
    MalformedRequestError,
    MillraceError,
    NotControllerError,
    StaleControllerEpochError,
    UnsupportedFeatureError,
)
from millrace.core.ids import NO_BROKER, BrokerId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.objects.cache import MetadataCache
from millrace.core.metadata.objects.store_versions import StoreVersions
from millrace.core.metadata.requests import RegisterBroker
from millrace.proto.callers import caller_to_wire
from millrace.proto.codec import field_of
from millrace.proto.features import BROKER_PROTOCOL
from millrace.proto.v1 import controller_pb2 as pb
from millrace.runtime.streams import run_until_first
from millrace.runtime.transport.calls import CallError, ClientStream, until_draining

_log = logging.getLogger(__name__)

_METHOD: Final = "/millrace.proto.v1.Controller/Session"
_LASTING: Final = (UnsupportedFeatureError, ControllerNotAvailableError)
"""Refusals of a session that the next attempt hardly changes."""
_RECONNECT_SECONDS: Final = 0.05
"""Pause before another try to open a session; well within the controller's grace."""
_RECONNECT_PAUSES: Final = 20
"""Pauses while the same controller refuses for long, as with an unusable store."""
_DRAIN_SECONDS_MAX: Final = 5.0
"""How long a session that ends in good order waits for the answers to its requests."""
_REMEMBER_SECONDS: Final = 1.0
"""Delay of storing metadata versions: a store set back by less is not noticed."""
_CONTROLLER_WAIT_SECONDS: Final = 15.0
"""How long a request waits for a controller: longer than it takes to elect one."""
_MISSED_LEASES: Final = 2
"""Lease durations without a session after which there is more wrong than an election."""


class Election(Protocol):
    """The election of the controller, as far as this broker sees it."""

    @property
    def holder(self) -> tuple[str, str]:
        """Name and address of the lease's holder; empty while it is unknown."""

    @property
    def holder_tls_address(self) -> str:
        """Where the holder is reached by TLS; empty: only at its address, or nobody knows."""

    @property
    def problem(self) -> str:
        """Why this broker cannot be the controller; empty: it is, or it could be."""

    async def held_elsewhere(self, address: str) -> None:
        """Return once the lease has a holder at another address."""


class ForwardedRequest:
    """A kind of clients' requests that go to the controller as they came.

    One that the controller cannot decode would end the session. Protobuf bounds how deep messages
    may nest, from the outermost one on, so a request is decoded within the messages that carry it.
    """

    def __init__(self, name: str) -> None:
        """`name`: of its field in a `ControllerRequest`, as of the answer in the response."""
        field = pb.ControllerRequest.DESCRIPTOR.fields_by_name[name]
        self.name = name
        self.DESCRIPTOR = field.message_type
        self._number = field.number

    def field(self, request: bytes) -> bytes:
        """Return a request as the field of a `ControllerRequest`."""
        return field_of(self._number, request)

    def FromString(self, request: bytes) -> Any:
        """Return a request.

        Raises:
            DecodeError: no such message, or one that nests too deep.
        """
        carried = field_of(pb.SessionRequest.REQUEST_FIELD_NUMBER, self.field(request))
        return getattr(pb.SessionRequest.FromString(carried).request, self.name)


class ControllerChannel:
    """Keeps a session open, sends requests by it, and holds the metadata that came.

    Args:
        election: names the controller.
        lease_ms: how long a controller may be silent before another one takes over.
        cache: of the metadata, with the versions on disk.
        keep_seen: stores the versions seen on disk.
        on_failure: called once when the process must end.

    Attributes:
        config: the cluster's settings, as the controller has them.
        differences: the cluster's settings that differ here from the controller's, with both
            values.
    """

    def __init__(
        self,
        config: ClusterConfig,
        connections: PeerConnections,
        *,
        election: Election,
        lease_ms: int,
        cache: MetadataCache,
        keep_seen: Callable[[StoreVersions], Awaitable[object]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.differences: Mapping[str, tuple[str, str]] = {}
        self._own_config = self.config = config
        self._connections = connections
        self._election = election
        self._refusal = ""  # The controller's answer to the latest attempt; logged once.
        self._missed_s = _MISSED_LEASES * lease_ms / 1000
        self._down_since = 0.0  # Since when there is no session, by the loop's clock.
        self._last_end = "it was not asked yet"  # Outcome of the last attempt.
        self._is_missing_told = False
        self._cache = cache
        self._keep_seen = keep_seen
        self._kept = cache.seen
        self._on_failure = on_failure
        self._image: MetadataImage | None = None  # Published once its epoch was stored.
        self._config_callbacks: list[Callable[[ClusterConfig], None]] = []
        self._image_callbacks: list[Callable[[MetadataImage], None]] = []
        self._is_registered = False
        self._is_up = asyncio.Event()
        self._is_heartbeat_due = asyncio.Event()
        self._outgoing: deque[bytes] = deque()
        self._has_outgoing = asyncio.Event()
        self._correlation_ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[pb.ControllerResponse]] = {}
        self._asked_log_ends: dict[TopicPartition, None] = {}
        # When the controller sent a message last, or was first asked since, by the loop's clock.
        self._silent_since = 0.0

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata; exists once `ready` has returned."""
        assert self._image is not None
        return self._image

    @property
    def seen(self) -> StoreVersions:
        """The highest versions of the metadata ever seen."""
        return self._cache.seen

    @property
    def controller_id(self) -> BrokerId:
        """The controller's broker id, as far as known here; -1: there is none."""
        if not self._is_up.is_set():
            return NO_BROKER
        name, _ = self._election.holder
        broker = self.metadata.cluster.broker_named(name)
        return NO_BROKER if broker is None else broker.broker_id

    @property
    def problem(self) -> str:
        """Why there is no controller, if known; empty: there is one, or will be
        soon."""
        if self._is_up.is_set():
            return ""
        return self._election.problem or self._refusal or self._absence()

    @property
    def _missed_at(self) -> float:
        """The time from which a missing session is more than an election under way."""
        return self._down_since + self._missed_s

    @property
    def _is_missed(self) -> bool:
        return not self._is_up.is_set() and asyncio.get_running_loop().time() >= self._missed_at

    def _absence(self) -> str:
        if not self._is_missed:
            return ""
        name, address = self._election.holder
        if not name:
            return no_controller("no broker has taken the lease").message
        last = f"{name} at {address} had the lease last, and {self._last_end}"
        return no_controller(last).message

    def add_config_callback(self, callback: Callable[[ClusterConfig], None]) -> None:
        """Call this now, and whenever a session begins, with the cluster's settings."""
        self._config_callbacks.append(callback)
        callback(self.config)

    def add_image_callback(self, callback: Callable[[MetadataImage], None]) -> None:
        """Call this with each image in order, beginning with the present one, if there is one."""
        self._image_callbacks.append(callback)
        if self._image is not None:
            callback(self._image)

    async def ready(self) -> None:
        """Return once there is a session, and metadata."""
        await self._is_up.wait()

    async def run(self) -> None:
        """Keep a session, for as long as the broker runs."""
        self._down_since = asyncio.get_running_loop().time()
        while True:
            _, address = self._election.holder
            if address:
                try:
                    way = self._connections.way(address, self._election.holder_tls_address)
                    await self._hold_session(address, way)
                except CallError as error:
                    refusal = error.refusal
                    if isinstance(refusal, InvalidRequestError) and not self._bears(refusal):
                        self._on_failure(refusal)
                        return
                    self._on_no_session(address, error.details, refusal)
                except (StaleControllerEpochError, NotControllerError) as error:
                    events.SESSION_ENDED.log(_log, at=address, error=error.message)
                    self._last_end = f"its session ended: {error.message}"
            if self._is_missed and not (self._is_missing_told or self._refusal):
                self._is_missing_told = True
                events.CONTROLLER_MISSING.log(_log, problem=self.problem)
            await self._pause(address)

    async def _pause(self, address: str) -> None:
        """Wait before the next attempt, longer after many failures; stop at a new controller."""
        pauses = _RECONNECT_PAUSES if self._is_missed else 1
        with suppress(TimeoutError):
            async with asyncio.timeout(pauses * _RECONNECT_SECONDS):
                await self._election.held_elsewhere(address)

    def _bears(self, refusal: InvalidRequestError) -> bool:
        """Whether the broker goes on: a running one serves while the controller is upgraded.

        No message that the controller cannot decode ends a running broker, either.
        """
        is_of_the_protocol = isinstance(refusal, UnsupportedFeatureError | MalformedRequestError)
        return is_of_the_protocol and self._is_registered

    def _on_no_session(self, address: str, said: str, refusal: MillraceError | None) -> None:
        """Log the controller's own answer, once, but not gRPC's errors of the connection.

        Args:
            address: of the controller.
            said: why there is no session.
            refusal: the controller's own error; None: the connection broke.
        """
        self._last_end = f"the answer there is: {said}"
        before, self._refusal = self._refusal, said if isinstance(refusal, _LASTING) else ""
        events.SESSION_REFUSED.log(
            _log, at=address, error=said, is_repeat=self._refusal in ("", before)
        )

    # --- Requests ----------------------------------------------------------------------------

    async def register(self, request: RegisterBroker) -> BrokerLife:
        """Register this process; `BrokerLifecycle` sends its heartbeats from then on.

        It may wait until the session of an earlier process of this name is over.

        Raises:
            InvalidConfigError: the log directories are another broker's.
            DuplicateBrokerRegistrationError: another process with the name lives on.
        """
        session_seconds = self.config.broker_session_timeout_ms / 1000
        deadline = asyncio.get_running_loop().time() + 3 * session_seconds
        while True:
            try:
                life: BrokerLife = await self.request(request)
            except (DuplicateBrokerRegistrationError, NotControllerError) as error:
                is_over = asyncio.get_running_loop().time() > deadline
                if is_over and isinstance(error, DuplicateBrokerRegistrationError):
                    raise
                await asyncio.sleep(_RECONNECT_SECONDS)
            else:
                self._is_registered = True
                return life

    def take_asked_log_ends(self) -> Collection[TopicPartition]:
        """Return the partitions whose log ends the controller has asked for since the last call."""
        asked, self._asked_log_ends = self._asked_log_ends, {}
        return asked

    async def heartbeat_due(self) -> None:
        """Return once there is a new reason for a heartbeat.

        That is a new session, or a question of the controller.
        """
        await self._is_heartbeat_due.wait()
        self._is_heartbeat_due.clear()

    async def keep_seen(self) -> None:
        """Store the versions seen, unless they are stored."""
        seen = self.seen
        if seen != self._kept:
            await self._keep_seen(seen)
            self._kept = seen

    async def remember(self) -> None:
        """Store the versions seen from time to time, for as long as the broker runs."""
        while True:
            await asyncio.sleep(_REMEMBER_SECONDS)
            await self.keep_seen()

    async def request(self, request: BrokerRequest) -> Any:
        """Send a request; see `response_from_proto` for the answers.

        Raises:
            NotControllerError: no controller got it, or, with `appended` MAYBE, the outcome is
                unknown.
            MillraceError: it was refused.
        """
        return response_from_proto(await self._ask(request_to_proto(request), is_patient=True))

    async def request_for_client(self, request: BrokerRequest, caller: Caller) -> Any:
        """Send a request of a waiting client: without a controller it fails soon, with the reason.

        Args:
            request: what to ask.
            caller: the client, for the controller.

        Raises:
            MillraceError: as in `request`.
        """
        return response_from_proto(await self._ask_for(caller, request_to_proto(request)))

    async def forward(
        self, kind: ForwardedRequest, request: bytes, caller: Caller
    ) -> pb.ControllerResponse:
        """Pass a client's request on as it came; return its answer. See `request_for_client`.

        Args:
            kind: of the request.
            request: the bytes, which `kind` has decoded.
            caller: the client.
        """
        response = await self._ask_for(caller, pb.ControllerRequest(), kind.field(request))
        response_from_proto(response)  # Raises the error, if it is one.
        return response

    async def _until_up(self, *, is_patient: bool) -> None:
        """Return once there is a session.

        Args:
            is_patient: wait for one even if there is more wrong than an election.

        Raises:
            NotControllerError: there is none.
        """
        wait_s = _CONTROLLER_WAIT_SECONDS
        if not is_patient:
            wait_s = min(wait_s, self._missed_at - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(wait_s):
                await self._is_up.wait()
        except TimeoutError:
            if problem := self.problem:
                raise ControllerNotAvailableError(problem) from None
            raise NotControllerError("no controller can be reached: try again") from None

    async def _ask_for(
        self, caller: Caller, message: pb.ControllerRequest, more: bytes = b""
    ) -> pb.ControllerResponse:
        message.caller.CopyFrom(caller_to_wire(caller))
        return await self._ask(message, more, is_patient=False)

    async def _ask(
        self, message: pb.ControllerRequest, more: bytes = b"", *, is_patient: bool
    ) -> pb.ControllerResponse:
        """Send a request, with further fields as bytes; return the answer."""
        await self._until_up(is_patient=is_patient)
        message.correlation_id = next(self._correlation_ids)
        answer: asyncio.Future[pb.ControllerResponse] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._silent_since = asyncio.get_running_loop().time()
        self._waiting[message.correlation_id] = answer
        self._outgoing.append(
            field_of(pb.SessionRequest.REQUEST_FIELD_NUMBER, message.SerializeToString() + more)
        )
        self._has_outgoing.set()
        try:
            return await answer
        finally:
            self._waiting.pop(message.correlation_id, None)
            del answer  # The trace of its error refers to this frame, and so to the request.

    # --- The session -------------------------------------------------------------------------

    async def _hold_session(self, address: str, way: Way) -> None:
        async with self._connections.connect(way) as connection:
            stream = connection.stream(_METHOD)
            seen = self.seen
            opening = pb.SessionOpening(
                cluster_id=self._cache.cluster_id or "",
                controller_epoch=seen.controller_epoch,
                versions=seen.versions,
                features=[BROKER_PROTOCOL],
            )
            self._silent_since = asyncio.get_running_loop().time()
            try:
                await run_until_first(
                    self._write(stream, opening),
                    self._read(stream),
                    self._until_held_elsewhere(address),
                    self._until_silent(address),
                    self._until_drained(stream),
                )
            finally:
                if self._is_up.is_set():
                    self._down_since = asyncio.get_running_loop().time()
                self._is_up.clear()
                self._outgoing.clear()
                lost, self._waiting = self._waiting, {}
                for answer in lost.values():
                    if not answer.done():
                        answer.set_exception(
                            NotControllerError(
                                "the connection to the controller broke: try again",
                                appended=Appended.MAYBE,
                            )
                        )
            stream.cancel()

    async def _until_held_elsewhere(self, address: str) -> None:
        """Return once another broker holds the lease.

        A controller whose process stands still, or whose host is gone, closes no stream.
        """
        await self._election.held_elsewhere(address)
        holder = self._election.holder[1]
        events.SESSION_LEFT.log(_log, at=address, reason=f"{holder} is the controller")

    async def _until_drained(self, stream: ClientStream) -> None:
        """Wait until this end wants another connection, and the open requests are answered."""
        await until_draining(stream)
        self._down_since = asyncio.get_running_loop().time()
        self._is_up.clear()  # Further requests wait for the next session.
        if self._waiting:
            await asyncio.wait(self._waiting.values(), timeout=_DRAIN_SECONDS_MAX)
        self._last_end = "this broker is about to connect again"

    async def _until_silent(self, address: str) -> None:
        """Return once the controller has owed an answer for as long as a session lasts.

        It has ended this session then, or soon will.
        """
        loop = asyncio.get_running_loop()
        silence_max = self.config.broker_session_timeout_ms / 1000
        while True:
            left = self._silent_since + silence_max - loop.time()
            if left <= 0 and (self._waiting or not self._is_up.is_set()):
                break
            await asyncio.sleep(left if left > 0 else silence_max)
        self._last_end = "it does not answer"
        events.SESSION_LEFT.log(_log, at=address, reason=self._last_end)

    async def _write(self, stream: ClientStream, opening: pb.SessionOpening) -> None:
        await stream.write(pb.SessionRequest(opening=opening).SerializeToString())
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            while self._outgoing:
                await stream.write(self._outgoing.popleft())

    async def _read(self, stream: ClientStream) -> None:
        try:
            while (data := await stream.read()) is not None:
                message = pb.SessionResponse.FromString(bytes(data))
                self._silent_since = asyncio.get_running_loop().time()
                match message.WhichOneof("content"):
                    case "metadata":
                        await self._on_metadata(message.metadata)
                    case "opened":
                        self._on_opened(message.opened)
                    case "response":
                        answer = self._waiting.pop(message.response.correlation_id, None)
                        if answer is not None and not answer.done():
                            answer.set_result(message.response)
                    case "ask_log_ends":
                        for partition in message.ask_log_ends.partitions:
                            self._asked_log_ends[topic_partition_from_proto(partition)] = None
                        self._is_heartbeat_due.set()  # A partition waits for the answer.
        except DecodeError as error:
            events.CONTROLLER_MESSAGE_MALFORMED.log(_log, error=str(error))

    def _on_opened(self, opened: pb.SessionOpened) -> None:
        """Follow the controller's settings, and log which differ here."""
        self._refusal = ""
        if self._is_missing_told:
            self._is_missing_told = False
            events.CONTROLLER_FOUND.log(_log)
        self.config = self._own_config.overruled_by(opened.cluster_settings)
        self.differences = self._own_config.differences(self.config)
        for callback in self._config_callbacks:
            callback(self.config)
        if self.differences:
            named = ", ".join(
                f"cluster.{name} is {here} here and {there} there"
                for name, (here, there) in self.differences.items()
            )
            events.SETTINGS_DIFFER.log(_log, differences=named)

    async def _on_metadata(self, update: pb.MetadataUpdate) -> None:
        objects = objects_from_proto(update)
        try:
            if update.is_full:
                self._cache.on_full_state(dict(objects))
            else:
                for key, stored in objects:
                    self._cache.on_object(key, stored)
        except StaleControllerEpochError:
            raise
        except MillraceError as error:  # Damaged, or of another cluster.
            self._on_failure(error)
            raise
        if self._cache.has_missed:
            raise NotControllerError("metadata was missed: the session begins again")
        if self._kept.controller_epoch < self.seen.controller_epoch:  # P39
            await self.keep_seen()
        image = self._cache.image
        if image is not None and image is not self._image:
            self._image = image
            for told in self._image_callbacks:
                told(image)
        if update.is_full:
            self._is_up.set()
            self._is_heartbeat_due.set()
