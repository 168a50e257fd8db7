"""Sessions of brokers with the controller: both ends over a connection of this process."""

import asyncio
import contextlib
import gc
import logging
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from tests.fakes.call_context import CALLER, CallContext, calls_of, serve_call
from tests.fakes.cluster import registration
from tests.fakes.controller_driver import ControllerDriver
from tests.fakes.coordination_store import MemoryStore
from tests.fakes.quotas import no_quotas
from tests.fakes.until import until

from millrace.broker.controller.broker_lifecycle import BrokerLifecycle
from millrace.broker.controller.channel import (
    ControllerChannel,
    Election,
    ForwardedRequest,
)
from millrace.broker.controller.shell import ControllerShell
from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.broker.peer_connection import PeerConnections
from millrace.broker.rpc.controller import BrokerSessions, ControllerService
from millrace.broker.rpc.errors import abort
from millrace.broker.rpc.grpc_calls import grpc_handlers
from millrace.broker.rpc.server import make_server
from millrace.core.broker_config import LimitsConfig
from millrace.core.controller.controller import no_controller
from millrace.core.controller.lease import NOBODY, LeaseTimes
from millrace.core.errors import (
    Appended,
    ControllerNotAvailableError,
    MillraceError,
    NotControllerError,
    TopicAlreadyExistsError,
    UnsupportedFeatureError,
)
from millrace.core.ids import ControllerEpoch, MonotonicMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import CLUSTER_KEY, NOWHERE, KafkaAddresses, Listener, Reluctance
from millrace.core.metadata.objects.cache import MetadataCache
from millrace.core.metadata.objects.store_versions import (
    NOTHING_SEEN,
    RememberedVersions,
    StoreVersions,
)
from millrace.core.metadata.requests import AllocateProducerIds
from millrace.proto.errors import error_from_wire
from millrace.proto.features import BROKER_PROTOCOL
from millrace.proto.v1 import cluster_pb2
from millrace.proto.v1 import controller_pb2 as pb
from millrace.proto.v1.common_pb2 import Feature
from millrace.runtime.turns import Turns

LIMITS = LimitsConfig(controller_lag_bytes_max=64 << 10)
CREATE_TOPICS = ForwardedRequest("create_topics")
LEASE_MS = 60_000
SHORT_LEASE_MS = 250


class NamedHolder:
    """An election whose outcome the test decides."""

    problem = ""
    holder_tls_address = ""

    def __init__(self, name: str, address: str) -> None:
        self.holder = (name, address)
        self._has_new = asyncio.Event()

    def name(self, holder: tuple[str, str]) -> None:
        self.holder = holder
        self._has_new.set()
        self._has_new.clear()

    async def held_elsewhere(self, address: str) -> None:
        while self.holder[1] == address:
            await self._has_new.wait()


@dataclass
class Running:
    """A controller, and one broker's channel to it."""

    store: MemoryStore
    shell: ControllerShell
    service: ControllerService
    sessions: BrokerSessions
    channel: ControllerChannel
    kept: list[StoreVersions]
    failures: list[BaseException]
    lifecycle: BrokerLifecycle = field(init=False)

    async def create(self, name: str) -> cluster_pb2.TopicResult:
        request = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name=name)])
        response = await self.channel.forward(CREATE_TOPICS, request.SerializeToString(), CALLER)
        return response.create_topics.results[0]

    @contextlib.asynccontextmanager
    async def another_channel(
        self,
        election: Election,
        limits: LimitsConfig = LIMITS,
        config: ClusterConfig | None = None,
        lease_ms: int = LEASE_MS,
        keep_seen: Callable[[StoreVersions], Awaitable[object]] | None = None,
    ) -> AsyncIterator[ControllerChannel]:
        """Run another broker's channel, for ten seconds at the most."""
        channel = ControllerChannel(
            config or ClusterConfig(),
            PeerConnections(limits),
            election=election,
            lease_ms=lease_ms,
            cache=MetadataCache(),
            keep_seen=keep_seen or self.channel._keep_seen,
            on_failure=self.failures.append,
        )
        session = asyncio.create_task(channel.run())
        try:
            async with asyncio.timeout(10):
                yield channel
        finally:
            session.cancel()
            await asyncio.gather(session, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(
    limits: LimitsConfig = LIMITS, lease_ms: int = LEASE_MS
) -> AsyncIterator[Running]:
    store = MemoryStore()
    kept: list[StoreVersions] = []
    failures: list[BaseException] = []
    server = make_server(limits, is_for_brokers=True)
    port = server.add_insecure_port("127.0.0.1:0")

    async def keep(seen: StoreVersions) -> None:
        kept.append(seen)

    sessions = BrokerSessions()
    shell = ControllerShell(
        ClusterConfig(),
        store,
        LeaseTimes(duration_ms=60_000, renew_deadline_ms=50_000, retry_ms=5, watch_ms=5),
        name="a",
        address=f"127.0.0.1:{port}",
        observer=sessions,
        keep_seen_elsewhere=keep,
        on_failure=failures.append,
    )
    shell.on_serving()
    service = ControllerService(
        controller=shell,
        sessions=sessions,
        limits=limits,
        turns=Turns(),
        calls=calls_of(Listener.BROKERS, limits),
    )

    channel = ControllerChannel(
        ClusterConfig(),
        PeerConnections(limits),
        election=shell,
        lease_ms=lease_ms,
        cache=MetadataCache(),
        keep_seen=keep,
        on_failure=failures.append,
    )
    the = Running(store, shell, service, sessions, channel, kept, failures)
    server.add_generic_rpc_handlers([grpc_handlers(service.methods())])
    await server.start()
    await shell.start()
    session = asyncio.create_task(channel.run())
    try:
        async with asyncio.timeout(30):
            await channel.ready()
            life = await channel.register(replace(registration(0), name="a"))
            the.lifecycle = BrokerLifecycle(
                channel,
                life,
                log_ends=lambda asked: (),
                offline=lambda: (),
                reluctance=lambda: Reluctance.NONE,
                media=lambda: (),
                outside_address=lambda: "",
                drpc_addresses=lambda: NOWHERE,
                tls_addresses=lambda: NOWHERE,
                kafka_addresses=KafkaAddresses,
                quotas=no_quotas(),
            )
            await the.lifecycle.until_unfenced()
            yield the
    finally:
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)
        service.end_streams()
        await server.stop(None)
        await shell.stop()
    assert failures == []


async def test_an_answer_comes_after_the_metadata_that_it_rests_on() -> None:
    async with running() as the:
        images: list[MetadataImage] = []
        the.channel.add_image_callback(images.append)
        created = await the.create("t")
        assert created.topic.name == "t"
        assert [str(name) for name in the.channel.metadata.topics] == ["t"]
        assert images[-1] is the.channel.metadata
        refused = await the.create("t")
        assert isinstance(error_from_wire(refused.error), TopicAlreadyExistsError)
        assert await the.channel.request(AllocateProducerIds()) == range(1000)
        assert [each.controller_epoch for each in the.kept] == [1]


async def test_the_same_life_goes_on_with_the_next_controller() -> None:
    async with running() as the:
        before = the.channel.metadata
        the.store.take_lease("b")
        await until(lambda: not the.channel._is_up.is_set())
        the.store.take_lease(NOBODY)
        assert (await the.create("t")).topic.name == "t"
        await the.lifecycle.heartbeat()
        after = the.channel.metadata
        assert after.cluster.controller_epoch == before.cluster.controller_epoch + 1
        assert after.cluster.brokers == before.cluster.brokers
        assert [each.controller_epoch for each in the.kept] == [1, 2]


def test_who_held_the_lease_last_is_no_controller_without_a_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Why there is none is told once another one could have been elected."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with running(lease_ms=SHORT_LEASE_MS) as the:
            assert (the.channel.controller_id, the.channel.problem) == (0, "")
            the.store.take_lease("gone")
            await until(lambda: not the.channel._is_up.is_set())
            assert (the.channel.controller_id, the.channel.problem) == (-1, "")
            await until(lambda: bool(the.channel.problem))
            assert the.channel.problem.startswith("there is no controller: gone at ")
            await asyncio.sleep(0.2)
            the.store.take_lease(NOBODY)
            await until(lambda: the.channel.controller_id == 0)
            assert the.channel.problem == ""

    asyncio.run(scenario())
    told = [record.message for record in caplog.records if "with a controller" in record.message]
    assert told == [
        "no session with a controller",
        "there is a session with a controller again",
    ]


async def test_what_the_holder_of_the_lease_answers_is_told() -> None:
    async with running() as the:
        election = NamedHolder(*the.shell.holder)  # Of a broker that knows no more.
        async with the.another_channel(election, lease_ms=SHORT_LEASE_MS) as channel:
            await channel.ready()
            the.store.lease_outage = CoordinationUnavailableError("the disk is full")
            the.shell._election._held_until = MonotonicMs(0)
            await until(lambda: bool(channel.problem))
            assert "not the controller now: the disk is full" in channel.problem
            the.store.lease_outage = None
            await until(lambda: channel.controller_id == 0)


async def test_heartbeats_are_answered_while_the_store_takes_no_writes() -> None:
    async with running() as the:
        the.store.gate.clear()
        waiting = asyncio.create_task(the.channel.request(AllocateProducerIds()))
        await until(lambda: bool(the.channel._waiting))
        assert not (await the.lifecycle.heartbeat()).is_fenced
        assert not waiting.done()
        the.store.gate.set()
        assert await waiting


async def test_a_session_that_ends_while_its_epoch_is_kept_leaves_nothing_out() -> None:
    """P39: the epoch is kept before the image is used, and that is used in the next session."""
    asked: list[StoreVersions] = []
    images: list[MetadataImage] = []
    may_keep = asyncio.Event()

    async def keep(seen: StoreVersions) -> None:
        asked.append(seen)
        await may_keep.wait()

    async with running() as the, the.another_channel(the.shell, keep_seen=keep) as channel:
        channel.add_image_callback(images.append)
        await until(lambda: len(asked) == 1)
        the.sessions.on_resigned()
        await until(lambda: len(asked) == 2)
        assert not images
        assert not channel._is_up.is_set()
        may_keep.set()
        await channel.ready()
        assert images == [channel.metadata]


async def test_clients_hear_soon_that_there_is_no_controller_and_brokers_wait_for_one() -> None:
    async with running(lease_ms=SHORT_LEASE_MS) as the:
        the.store.take_lease("gone")
        await until(lambda: not the.channel._is_up.is_set())
        own = asyncio.create_task(the.channel.request(AllocateProducerIds()))
        with pytest.raises(ControllerNotAvailableError, match="gone at") as raised:
            await the.create("t")
        assert raised.value.appended is Appended.NO
        with pytest.raises(ControllerNotAvailableError, match="gone at"):
            await the.channel.request_for_client(AllocateProducerIds(), CALLER)
        assert not own.done()
        the.store.take_lease(NOBODY)
        assert await own


async def test_a_request_that_comes_while_a_controller_is_elected_waits_for_it() -> None:
    async with running() as the:
        the.store.take_lease("gone")
        await until(lambda: not the.channel._is_up.is_set())
        creation = asyncio.create_task(the.create("t"))
        await asyncio.sleep(0.5)
        assert not creation.done()
        the.store.take_lease(NOBODY)
        assert (await creation).topic.name == "t"


async def test_what_is_no_message_is_refused_with_the_reason() -> None:
    async with running() as the:
        call = Call()
        call.requests.put_nowait(b"\xff")
        await serve(the, call)
        assert call.status is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_that_nests_too_deep_for_the_controller_does_not_reach_it() -> None:
    """Protobuf decodes a hundred levels of messages, also of fields that it does not know."""
    begin, end = b"\x7b", b"\x7c"  # Of a group with the number 15.
    async with running() as the:
        depths = []
        for depth in range(90, 105):
            request = begin * depth + end * depth
            with contextlib.suppress(DecodeError):
                CREATE_TOPICS.FromString(request)
                response = await the.channel.forward(CREATE_TOPICS, request, CALLER)
                assert not response.create_topics.results
                depths.append(depth)
        assert 90 < len(depths) + 90 < 100


async def test_no_message_that_the_controller_cannot_decode_ends_a_running_broker() -> None:
    async with running() as the:
        the.channel._outgoing.append(b"\xff")
        the.channel._has_outgoing.set()
        await until(lambda: not the.channel._is_up.is_set())
        await the.channel.ready()
        assert (await the.create("t")).topic.name == "t"


async def test_of_a_refused_request_nothing_stays() -> None:
    """Without the collector: it looks at the oldest objects seldom."""

    async def fail(the: Running) -> "weakref.ref[MillraceError]":
        the.store.gate.clear()
        creation = asyncio.create_task(the.create("t"))
        await until(lambda: bool(the.channel._waiting))
        the.sessions.on_resigned()
        try:
            await creation
        except NotControllerError as error:
            return weakref.ref(error)
        finally:
            the.store.gate.set()
            del creation  # It holds the error, whose trace refers to this frame.
        pytest.fail("it was not refused")

    async with running() as the:
        gc.disable()
        try:
            refused = await fail(the)
            await until(lambda: refused() is None)
        finally:
            gc.enable()


async def opened(the: Running, seen: StoreVersions) -> "Call":
    """Open a session as a broker that has seen this; return what came of it."""
    call = Call()
    opening = pb.SessionOpening(
        controller_epoch=seen.controller_epoch, versions=seen.versions, features=[BROKER_PROTOCOL]
    )
    call.requests.put_nowait(pb.SessionRequest(opening=opening).SerializeToString())
    await serve(the, call)
    return call


async def test_a_controller_that_was_replaced_resigns_when_a_broker_has_seen_the_later_one() -> (
    None
):
    """And takes over again: the store has what the broker has seen."""
    async with running() as the:
        successor = ControllerDriver(the.store.objects).take_over()
        seen = StoreVersions.of(the.store.objects)
        assert (await opened(the, seen)).status is grpc.StatusCode.UNAVAILABLE
        epoch = successor.image.cluster.controller_epoch + 1
        await until(lambda: the.channel.metadata.cluster.controller_epoch == epoch)
        assert (await the.create("t")).topic.name == "t"
        assert the.shell.problem == ""


async def test_what_a_controller_answered_is_forgotten_when_it_answers_no_more() -> None:
    async with running() as the:
        election = NamedHolder(*the.shell.holder)
        async with the.another_channel(election, lease_ms=SHORT_LEASE_MS) as channel:
            await channel.ready()
            await opened(
                the,
                StoreVersions(ControllerEpoch(99), StoreVersions.of(the.store.objects).versions),
            )
            await until(lambda: "is 1, and 99 has begun" in channel.problem)
            election.name(("a", "127.0.0.1:1"))  # Nobody listens there.
            absent = "there is no controller: a at 127.0.0.1:1"
            await until(lambda: channel.problem.startswith(absent))


async def test_a_controller_whose_store_was_set_back_never_overtakes_what_a_broker_has_seen() -> (
    None
):
    async with running() as the:
        versions = StoreVersions.of(the.store.objects).versions
        seen = StoreVersions(ControllerEpoch(99), versions)
        assert (await opened(the, seen)).status is grpc.StatusCode.UNAVAILABLE
        before = dict(the.store.objects)
        await until(lambda: bool(the.shell.problem))
        assert the.kept[-1] == seen
        the.shell._looks_again_at = MonotonicMs(0)  # It looks again, and writes nothing.
        call = await opened(the, NOTHING_SEEN)
        assert "was set back to an older state" in call.details
        await until(lambda: the.channel.problem == the.shell.problem)
        assert "is 1, and 99 has begun" in the.channel.problem
        assert the.store.objects == before
        assert not the.failures


async def test_a_broker_goes_on_once_the_store_is_restored() -> None:
    async with running() as the:
        await the.create("t")
        newest = dict(the.store.objects)
        ControllerDriver(the.store.objects).take_over()
        the.store.objects.pop(CLUSTER_KEY)
        the.store.take_lease(NOBODY)
        await opened(the, StoreVersions(ControllerEpoch(99)))
        await until(lambda: "lost or set back" in the.shell.problem)
        the.shell._seen, the.shell._memory = StoreVersions.of(newest), RememberedVersions()
        the.store.objects.clear()
        the.store.objects.update(newest)
        the.shell._looks_again_at = MonotonicMs(0)
        await until(lambda: the.shell.is_controller)
        assert the.shell.problem == ""
        assert (await the.create("u")).topic.name == "u"


class Call(CallContext):
    """A broker's side of a session, which takes what there is room for."""

    def __init__(self) -> None:
        super().__init__()
        self.room = asyncio.Semaphore(0)
        self.taken: list[pb.SessionResponse] = []

    async def write(self, message: bytes) -> None:
        await self.room.acquire()
        self.taken.append(pb.SessionResponse.FromString(message))


async def serve(the: Running, call: Call) -> None:
    """Have a session served until it ends."""
    await serve_call(the.service.methods(), "/millrace.proto.v1.Controller/Session", call)


async def test_a_broker_that_does_not_keep_up_gets_everything_anew() -> None:
    async with running() as the:
        call = Call()
        opening = pb.SessionOpening(features=[BROKER_PROTOCOL])
        call.requests.put_nowait(pb.SessionRequest(opening=opening).SerializeToString())
        call.room.release()  # It takes the first message, and no metadata.
        session = asyncio.create_task(serve(the, call))
        await asyncio.sleep(0)
        for number in range(60):
            topic = cluster_pb2.NewTopic(name=f"t{number}", partitions=30)
            request = cluster_pb2.CreateTopicsRequest(topics=[topic])
            await the.channel.forward(CREATE_TOPICS, request.SerializeToString(), CALLER)
        for _ in range(1000):
            call.room.release()
        newest = {key: stored.version for key, stored in the.shell.objects().items()}

        def known() -> dict[str, int]:
            return {
                each.key: each.version
                for message in call.taken
                for each in message.metadata.objects
            }

        await until(lambda: known() == newest)
        assert [message.metadata.is_full for message in call.taken].count(True) > 1
        assert len(call.taken) < 60
        call.requests.put_nowait(grpc.aio.EOF)
        await session


async def test_a_session_with_a_controller_that_is_none_any_more_ends_though_nobody_says_so() -> (
    None
):
    silent = make_server(LIMITS)
    port = silent.add_insecure_port("127.0.0.1:0")
    opened = asyncio.Event()

    async def say_nothing(stream: object, context: object) -> None:
        opened.set()
        await asyncio.Event().wait()

    handlers: dict[str, Any] = {"Session": grpc.stream_stream_rpc_method_handler(say_nothing)}
    name = pb.DESCRIPTOR.services_by_name["Controller"].full_name
    silent.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
    await silent.start()
    try:
        async with running() as the:
            election = NamedHolder("stopped", f"127.0.0.1:{port}")
            async with the.another_channel(election) as channel:
                await opened.wait()
                election.name(the.shell.holder)
                await channel.ready()
                assert channel.metadata.cluster.cluster_id == the.shell.cluster_id
    finally:
        await silent.stop(None)


async def test_a_controller_that_goes_on_refusing_is_asked_less_often_and_another_one_at_once() -> (
    None
):
    refusing = make_server(LIMITS)
    port = refusing.add_insecure_port("127.0.0.1:0")
    attempts = 0

    async def refuse(stream: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        nonlocal attempts
        attempts += 1
        await abort(context, no_controller("not yet"))

    handlers: dict[str, Any] = {"Session": grpc.stream_stream_rpc_method_handler(refuse)}
    name = pb.DESCRIPTOR.services_by_name["Controller"].full_name
    refusing.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
    await refusing.start()
    try:
        async with running() as the:
            election = NamedHolder("a", f"127.0.0.1:{port}")
            async with the.another_channel(election, lease_ms=SHORT_LEASE_MS) as channel:
                await until(lambda: channel._is_missed and attempts > 1)
                before = attempts
                await asyncio.sleep(2)
                assert attempts - before <= 4
                election.name(the.shell.holder)
                async with asyncio.timeout(0.9):
                    await channel.ready()
    finally:
        await refusing.stop(None)


async def test_metadata_is_sent_whole_however_large_it_is() -> None:
    limits = LimitsConfig(message_bytes_max=64 << 10)
    async with running(limits) as the:
        for number in range(20):
            topic = cluster_pb2.NewTopic(name=f"t{number}", partitions=200)
            request = cluster_pb2.CreateTopicsRequest(topics=[topic])
            await the.channel.forward(CREATE_TOPICS, request.SerializeToString(), CALLER)
        whole = sum(len(stored.value) for stored in the.shell.objects().values())
        assert whole > limits.message_bytes_max
        async with the.another_channel(the.shell, limits) as another:
            await another.ready()
            assert len(another.metadata.topics) == 20


async def test_a_controller_that_cannot_even_be_connected_to_is_not_waited_for() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # Connections are made, and then nothing happens.
        deaf.setblocking(False)
        async with running() as the:
            election = NamedHolder("gone", f"127.0.0.1:{deaf.getsockname()[1]}")
            # gRPC itself tries for 20 s.
            async with the.another_channel(election) as channel:
                connection, _ = await asyncio.get_running_loop().sock_accept(deaf)
                with connection:
                    election.name(the.shell.holder)
                    await channel.ready()


def levels(min_level: int, max_level: int) -> list[Feature]:
    return [Feature(name=BROKER_PROTOCOL.name, min_level=min_level, max_level=max_level)]


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([], ["speaks no level", "this broker levels 1 to 4", "upgrade the broker that calls"]),
        (
            levels(5, 6),
            ["speaks levels 5 to 6", "levels 1 to 4", "upgrade the cluster's brokers first"],
        ),
        ([Feature(name="something-else", min_level=1, max_level=1)], ["speaks no level"]),
    ],
)
async def test_a_broker_of_an_unknown_version_gets_no_session(
    features: list[Feature], words: list[str]
) -> None:
    async with running() as the:
        call = Call()
        opening = pb.SessionOpening(features=features, controller_epoch=99)
        call.requests.put_nowait(pb.SessionRequest(opening=opening).SerializeToString())
        await serve(the, call)
        assert call.status is grpc.StatusCode.FAILED_PRECONDITION
        assert all(word in call.details for word in words), call.details
        assert call.taken == []
        assert the.shell.is_controller


async def test_a_broker_that_speaks_a_level_more_gets_a_session() -> None:
    async with running() as the:
        call = Call()
        call.room.release()
        opening = pb.SessionOpening(features=levels(1, 4))
        call.requests.put_nowait(pb.SessionRequest(opening=opening).SerializeToString())
        call.requests.put_nowait(grpc.aio.EOF)
        session = asyncio.create_task(serve(the, call))
        await until(lambda: bool(call.taken))
        await session
        assert call.status is None


async def test_a_broker_that_starts_ends_when_it_is_refused_and_one_that_runs_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as the:
        with monkeypatch.context() as another_release:
            another_release.setattr("millrace.broker.rpc.controller.check_broker", refuse_everybody)
            async with the.another_channel(the.shell):
                await until(lambda: bool(the.failures))
            (failure,) = the.failures
            assert isinstance(failure, UnsupportedFeatureError)
            assert failure.message == "another release"
            the.failures.clear()
            the.sessions.on_resigned()  # The session of the one that runs ends, too.
            refused = "no session with the controller can begin"
            await until(lambda: refused in caplog.text)
            await asyncio.sleep(0.2)
            assert caplog.text.count(refused) == 1, "it was said with each attempt"
        assert (await the.create("t")).topic.name == "t"
        assert the.failures == []


def refuse_everybody(_: object) -> int:
    raise UnsupportedFeatureError("another release")


async def test_the_controllers_settings_count_and_a_broker_with_others_says_which(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as the:
        assert the.channel.differences == {}
        assert "differ" not in caplog.text
        own = ClusterConfig(unclean_leader_election_enable=True, broker_session_timeout_ms=9000)
        async with the.another_channel(the.shell, config=own) as channel:
            await channel.ready()
            assert channel.differences == {
                "unclean_leader_election_enable": ("true", "false"),
                "broker_session_timeout_ms": ("9000", "4000"),
            }
            assert channel.config == ClusterConfig()
        (said,) = [record for record in caplog.records if "differ" in record.message]
        named = said.__dict__["differences"]
        assert "cluster.unclean_leader_election_enable is true here and false there" in named
        assert "cluster.broker_session_timeout_ms is 9000 here and 4000 there" in named
