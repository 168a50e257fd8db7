"""This broker's session with the controller: metadata comes down, requests and heartbeats go up.

Every broker has one such stream to the replica listener of whoever holds the lease, the
controller's own broker too: so there is one way in which metadata spreads. When the stream breaks,
another is opened at once, to the same controller or the next, and the broker goes on in the life
that it is (P28). Whatever waited for an answer then gets `NotControllerError`, as nobody knows what
became of it. Without a controller, and without its store, the data plane goes on in the epochs that
are: nobody is elected, and no ISR changes (P40). Who held the lease last is no controller for that:
only with a session there is one, and why there is none is told once another could have been
elected.

The controller's settings count for every broker while it acts: each session begins with them, and a
broker whose own differ says so. A running broker that is refused for its protocol goes on, as its
partitions can be served without a controller for a while; one that starts ends.

What comes goes through the `MetadataCache`, which refuses what is outdated (P39). What was seen is
kept on disk: a new controller epoch before the metadata that brings it is used, the rest soon.
"""

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from millrace.broker.config import LimitsConfig
from millrace.broker.controller import NO_CONTROLLER
from millrace.broker.peers.connection import connect
from millrace.broker.peers.controller_messages import (
    BrokerRequest,
    objects_from_proto,
    request_to_proto,
    response_from_proto,
    topic_partition_from_proto,
)
from millrace.broker.runtime.streams import run_until_first
from millrace.core.errors import (
    Appended,
    DuplicateBrokerRegistrationError,
    InvalidConfigError,
    MillraceError,
    NotControllerError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
    UnsupportedFeatureError,
)
from millrace.core.ids import NO_BROKER, BrokerId, TopicPartition
from millrace.core.media import Media
from millrace.core.metadata.cache import MetadataCache
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife, Reluctance
from millrace.core.metadata.requests import Heartbeat, HeartbeatAnswer, LogEnd, RegisterBroker
from millrace.core.metadata.seen import Seen
from millrace.proto.features import BROKER_PROTOCOL
from millrace.proto.v1 import controller_pb2 as pb

_log = logging.getLogger(__name__)

_METHOD: Final = "/millrace.proto.v1.Controller/Session"
_REFUSALS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidConfigError,
    grpc.StatusCode.FAILED_PRECONDITION: UnsupportedFeatureError,
}
"""What a session is refused for that another attempt does not change."""
_RECONNECT_SECONDS: Final = 0.05
"""Pause before another try to open a session; well within the controller's grace."""
_RECONNECT_PAUSES: Final = 20
"""So many of them where the same controller has refused for long, as while its store is no good."""
_UNFENCED_PAUSE_SECONDS: Final = 0.02
"""How often a broker that has registered asks whether it may lead."""
_REMEMBER_SECONDS: Final = 1.0
"""Within which changes of the metadata are remembered: a store set back by less is not noticed."""
_CONTROLLER_WAIT_SECONDS: Final = 15.0
"""How long a request waits for a controller: longer than it takes to elect one."""
_MISSED_LEASES: Final = 2
"""After how many lengths of the lease without a session more is amiss than an election's time."""


class ControllerChannel:
    """See the module.

    Args:
        find_controller: returns name and address of the controller; empty while nobody knows.
        own_problem: returns why this broker cannot be the controller.
        lease_ms: how long a controller may be silent before another one takes over.
        cluster_id: of the log directories; None when they are new.
        seen: what was kept of the metadata.
        keep_seen: keeps it on disk.
        on_failure: told once that the process must end.

    Attributes:
        config: the cluster's settings, as the controller has them.
        on_config: called with them whenever a session begins, from when it is set.
        on_image: called with every image, in order, from when it is set.
        log_ends: called to find out where logs end.
        offline: called to find out which replicas the cluster should do without.
        differences: the cluster's settings that are others here than at the controller, with both
            values.
        reluctance: called to find out why this broker would rather not lead.
        media: called to find out of which media it has log directories that work.
        outside_address: called to find out where clients of the outside listener connect.
    """

    def __init__(
        self,
        config: ClusterConfig,
        limits: LimitsConfig,
        *,
        find_controller: Callable[[], tuple[str, str]],
        own_problem: Callable[[], str] = lambda: "",
        lease_ms: int,
        cluster_id: str | None,
        seen: Seen,
        keep_seen: Callable[[Seen], Awaitable[object]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.on_image: Callable[[MetadataImage], None] = lambda image: None
        self.on_config: Callable[[ClusterConfig], None] = lambda config: None
        self.log_ends: Callable[[Iterable[TopicPartition]], Sequence[LogEnd]] = lambda asked: ()
        self.offline: Callable[[], Sequence[TopicPartition]] = lambda: ()
        self.differences: Mapping[str, tuple[str, str]] = {}
        self._own_config = self.config = config
        self.reluctance: Callable[[], Reluctance] = lambda: Reluctance.NONE
        self.media: Callable[[], tuple[Media, ...]] = lambda: ()
        self.outside_address: Callable[[], str] = lambda: ""
        self._limits = limits
        self._find_controller = find_controller
        self._own_problem = own_problem
        self._refusal = ""  # What the controller answered to the latest attempt; told once.
        self._missed_s = _MISSED_LEASES * lease_ms / 1000
        self._down_since = 0.0  # Of the loop's clock: since when there is no session.
        self._last_end = "it was not asked yet"  # What became of the last attempt to have one.
        self._is_missing_told = False
        self._cluster_id = cluster_id
        self._keep_seen = keep_seen
        self._kept = seen
        self._on_failure = on_failure
        self._cache = MetadataCache(cluster_id, seen)
        self._image: MetadataImage | None = None  # Given to `on_image`, once its epoch was kept.
        self._life: BrokerLife | None = None
        self._is_up = asyncio.Event()
        self._has_new_session = asyncio.Event()
        self._outgoing: deque[pb.SessionRequest] = deque()
        self._has_outgoing = asyncio.Event()
        self._correlation_ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[pb.ControllerResponse]] = {}
        self._asked_log_ends: dict[TopicPartition, None] = {}
        self._heard_at = 0.0  # Of the loop's clock: when the controller last said something.

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata; there is some once `ready` has returned."""
        assert self._image is not None
        return self._image

    @property
    def seen(self) -> Seen:
        """What was ever seen of the metadata."""
        return self._cache.seen

    @property
    def controller_id(self) -> BrokerId:
        """Who the controller is, as far as is known here; -1: nobody acts as one."""
        if not self._is_up.is_set():
            return NO_BROKER
        name, _ = self._find_controller()
        broker = self.metadata.cluster.broker_named(name)
        return NO_BROKER if broker is None else broker.broker_id

    @property
    def problem(self) -> str:
        """Why there is no controller, as far as anybody says; empty: there is one, or will be."""
        if self._is_up.is_set():
            return ""
        return self._own_problem() or self._refusal or self._absence()

    @property
    def _missed_at(self) -> float:
        """From when on no session means more than that another controller is being elected."""
        return self._down_since + self._missed_s

    @property
    def _is_missed(self) -> bool:
        return not self._is_up.is_set() and asyncio.get_running_loop().time() >= self._missed_at

    def _absence(self) -> str:
        if not self._is_missed:
            return ""
        name, address = self._find_controller()
        if not name:
            return f"{NO_CONTROLLER}: no broker has taken the lease"
        return f"{NO_CONTROLLER}: {name} at {address} had the lease last, and {self._last_end}"

    async def ready(self) -> None:
        """Return once there is a session, and metadata."""
        await self._is_up.wait()

    async def run(self) -> None:
        """Keep a session, for as long as the broker runs."""
        self._down_since = asyncio.get_running_loop().time()
        while True:
            _, address = self._find_controller()
            if address:
                try:
                    await self._hold_session(address)
                except grpc.aio.AioRpcError as error:
                    refused = _REFUSALS.get(error.code())
                    is_running = self._life is not None
                    if refused is InvalidConfigError or (refused is not None and not is_running):
                        self._on_failure(refused(error.details() or ""))
                        return
                    self._on_no_session(address, error)
                except (StaleControllerEpochError, NotControllerError) as error:
                    _log.info("session ended", extra={"at": address, "error": error.message})
                    self._last_end = f"its session ended: {error.message}"
            if self._is_missed and not (self._is_missing_told or self._refusal):
                self._is_missing_told = True
                _log.warning("no session with a controller", extra={"problem": self.problem})
            await self._pause(address)

    async def _pause(self, address: str) -> None:
        """Wait before another try: for longer where many were in vain, unless another one acts."""
        for _ in range(_RECONNECT_PAUSES if self._is_missed else 1):
            await asyncio.sleep(_RECONNECT_SECONDS)
            if self._find_controller()[1] != address:
                return

    def _on_no_session(self, address: str, error: grpc.aio.AioRpcError) -> None:
        """Note what the controller says itself, once, and not what gRPC says of the connection."""
        said = error.details() or ""
        self._last_end = f"the answer there is: {said}"
        is_refusal = error.code() in _REFUSALS or said.startswith(NO_CONTROLLER)
        before, self._refusal = self._refusal, said if is_refusal else ""
        level = logging.ERROR if self._refusal not in ("", before) else logging.DEBUG
        _log.log(level, "no session", extra={"at": address, "error": said})

    # --- Requests ----------------------------------------------------------------------------

    async def register(self, request: RegisterBroker) -> BrokerLife:
        """Register this process, and send its heartbeats from then on (`heartbeats`).

        An earlier process of this name may have to be waited for until its session is over.

        Raises:
            InvalidConfigError: the log directories are another broker's.
            DuplicateBrokerRegistrationError: another process with the name lives on.
        """
        session_seconds = self.config.broker_session_timeout_ms / 1000
        deadline = asyncio.get_running_loop().time() + 3 * session_seconds
        while True:
            try:
                self._life = await self.request(request)
            except (DuplicateBrokerRegistrationError, NotControllerError) as error:
                is_over = asyncio.get_running_loop().time() > deadline
                if is_over and isinstance(error, DuplicateBrokerRegistrationError):
                    raise
                await asyncio.sleep(_RECONNECT_SECONDS)
            else:
                assert self._life is not None
                return self._life

    async def heartbeat(self, *, wants_shutdown: bool = False) -> HeartbeatAnswer:
        """Tell the controller that this broker is there, and where the logs end that it asked for.

        Raises:
            StaleBrokerEpochError: another process has this broker's name.
            NotControllerError: nobody was told.
        """
        assert self._life is not None
        asked, self._asked_log_ends = self._asked_log_ends, {}
        request = Heartbeat(
            life=self._life,
            metadata_epoch=self.metadata.epoch,
            wants_shutdown=wants_shutdown,
            log_ends=self.log_ends(asked),
            offline=self.offline()[: self.config.request_partitions_max],
            reluctance=self.reluctance(),
            media=self.media(),
            outside_address=self.outside_address(),
        )
        answer: HeartbeatAnswer = await self.request(request)
        return answer

    async def until_unfenced(self) -> None:
        """Send heartbeats until the controller lets this broker lead (P28).

        Raises:
            StaleBrokerEpochError: another process has this broker's name.
        """
        while True:
            try:
                if not (await self.heartbeat()).is_fenced:
                    return
            except NotControllerError:
                pass  # The next one is told.
            await asyncio.sleep(_UNFENCED_PAUSE_SECONDS)

    async def heartbeats(self) -> None:
        """Send heartbeats for as long as the broker runs, one as soon as there is a new session.

        Raises:
            StaleBrokerEpochError: another process has this broker's name: this one must stop.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.broker_heartbeat_interval_ms / 1000):
                    await self._has_new_session.wait()
            self._has_new_session.clear()
            try:
                await self.heartbeat()
            except StaleBrokerEpochError:
                raise
            except MillraceError as error:
                _log.debug("no heartbeat", extra={"error": error.message})

    async def keep_seen(self) -> None:
        """Keep what was seen of the metadata, unless it is kept."""
        seen = self.seen
        if seen != self._kept:
            await self._keep_seen(seen)
            self._kept = seen

    async def remember(self) -> None:
        """Keep what is seen, for as long as the broker runs; not with every change."""
        while True:
            await asyncio.sleep(_REMEMBER_SECONDS)
            await self.keep_seen()

    async def leave(self) -> None:
        """Have the cluster do without this broker; return once it may stop (P32).

        That takes as long as the controller allows at the most; without one, nobody is asked.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.controlled_shutdown_wait_ms / 1000):
                while True:
                    try:
                        if (await self.heartbeat(wants_shutdown=True)).may_stop:
                            return
                    except NotControllerError:
                        pass  # The next one is told.
                    except MillraceError as error:
                        _log.warning("not missed in good order", extra={"error": error.message})
                        return
                    await asyncio.sleep(_RECONNECT_SECONDS)

    async def request(self, request: BrokerRequest) -> Any:
        """Ask for something; see `response_from_proto` for the answers.

        Raises:
            NotControllerError: nobody was asked, or, with `appended` MAYBE, nobody knows.
            MillraceError: it was refused.
        """
        return response_from_proto(await self._ask(request_to_proto(request), is_patient=True))

    async def request_for_client(self, request: BrokerRequest) -> Any:
        """Ask for what a client waits for: it hears soon that there is no controller, and why.

        Raises:
            MillraceError: as in `request`.
        """
        return response_from_proto(await self._ask(request_to_proto(request), is_patient=False))

    async def forward(self, message: pb.ControllerRequest) -> pb.ControllerResponse:
        """Pass a client's request on; return its answer. See `request_for_client`."""
        response = await self._ask(message, is_patient=False)
        response_from_proto(response)  # Raises the error, if it is one.
        return response

    async def _until_up(self, *, is_patient: bool) -> None:
        """Return once there is a session.

        Args:
            is_patient: wait for one although more is amiss than that one is elected just now.

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
            raise NotControllerError(
                self.problem or "no controller can be reached: try again", appended=Appended.NO
            ) from None

    async def _ask(
        self, message: pb.ControllerRequest, *, is_patient: bool
    ) -> pb.ControllerResponse:
        await self._until_up(is_patient=is_patient)
        message.correlation_id = next(self._correlation_ids)
        answer: asyncio.Future[pb.ControllerResponse] = asyncio.get_running_loop().create_future()
        self._waiting[message.correlation_id] = answer
        self._outgoing.append(pb.SessionRequest(request=message))
        self._has_outgoing.set()
        try:
            return await answer
        finally:
            self._waiting.pop(message.correlation_id, None)

    # --- The session -------------------------------------------------------------------------

    async def _hold_session(self, address: str) -> None:
        async with connect(address, self._limits) as connection:
            stream = connection.stream_stream(
                _METHOD,
                request_serializer=pb.SessionRequest.SerializeToString,
                response_deserializer=pb.SessionResponse.FromString,
            )()
            seen = self.seen
            opening = pb.SessionOpening(
                cluster_id=self._cluster_id or "",
                controller_epoch=seen.controller_epoch,
                versions=seen.versions,
                features=[BROKER_PROTOCOL],
            )
            self._heard_at = asyncio.get_running_loop().time()
            try:
                await run_until_first(
                    self._write(stream, opening), self._read(stream), self._until_over(address)
                )
            except asyncio.InvalidStateError:
                pass  # It was over before it was written to; reading says why.
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

    async def _until_over(self, address: str) -> None:
        """Return once the stream leads nowhere although it is open, or about to be.

        A controller whose process stands still, or whose host is gone, closes nothing. The lease
        then names another one; and a controller that has not answered for as long as a session
        lasts has ended this one, or soon will: there is nothing to wait for.
        """
        loop = asyncio.get_running_loop()
        silence_max = self.config.broker_session_timeout_ms / 1000
        while True:
            await asyncio.sleep(_RECONNECT_SECONDS)
            _, holder = self._find_controller()
            if holder and holder != address:
                _log.info("session left", extra={"at": address, "controller": holder})
                return
            is_waited_for = bool(self._waiting) or not self._is_up.is_set()
            if is_waited_for and loop.time() - self._heard_at > silence_max:
                self._last_end = "it does not answer"
                _log.info("session left", extra={"at": address, "error": self._last_end})
                return

    async def _write(self, stream: Any, opening: pb.SessionOpening) -> None:
        await stream.write(pb.SessionRequest(opening=opening))
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            while self._outgoing:
                await stream.write(self._outgoing.popleft())

    async def _read(self, stream: Any) -> None:
        try:
            while isinstance(message := await stream.read(), pb.SessionResponse):  # Then EOF.
                self._heard_at = asyncio.get_running_loop().time()
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
                        for each in message.ask_log_ends.partitions:
                            self._asked_log_ends[topic_partition_from_proto(each)] = None
        except DecodeError as error:
            _log.warning("the controller sent what is no message", extra={"error": str(error)})

    def _on_opened(self, opened: pb.SessionOpened) -> None:
        """Go by the controller's settings, and say which are others here."""
        self._refusal = ""
        if self._is_missing_told:
            self._is_missing_told = False
            _log.info("there is a session with a controller again")
        self.config = self._own_config.overruled_by(opened.cluster_settings)
        self.differences = self._own_config.differences(self.config)
        self.on_config(self.config)
        if self.differences:
            named = ", ".join(
                f"cluster.{name} is {here} here and {there} there"
                for name, (here, there) in self.differences.items()
            )
            _log.warning(
                "settings of the cluster differ from the controller's, which count until another "
                "broker is the controller: give all brokers the same, and restart those that have "
                "others",
                extra={"differences": named},
            )

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
            raise NotControllerError("metadata was missed: the session begins anew")
        if self._kept.controller_epoch < self.seen.controller_epoch:  # P39
            await self.keep_seen()
        image = self._cache.image
        if image is not None and image is not self._image:
            self._image = image
            self._cluster_id = image.cluster.cluster_id
            self.on_image(image)
        if update.is_full:
            self._is_up.set()
            self._has_new_session.set()
