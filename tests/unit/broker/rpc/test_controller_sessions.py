"""Sessions of brokers with the controller: both ends over a connection of this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from tests.fakes.coordination_store import MemoryStore

from millrace.broker.config import LimitsConfig
from millrace.broker.controller import ControllerShell
from millrace.broker.rpc.controller import ControllerService
from millrace.broker.rpc.server import make_server
from millrace.broker.runtime.controller_channel import ControllerChannel
from millrace.core.errors import TopicAlreadyExistsError
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.lease import NOBODY, LeaseTimes
from millrace.core.metadata.requests import AllocateProducerIds, RegisterBroker
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import cluster_pb2
from millrace.proto.v1 import controller_pb2 as pb

LIMITS = LimitsConfig(controller_lag_bytes_max=64 << 10)


@dataclass
class Running:
    """A controller, and one broker's channel to it."""

    store: MemoryStore
    shell: ControllerShell
    service: ControllerService
    channel: ControllerChannel
    kept: list[ControllerEpoch]
    failures: list[BaseException]

    async def create(self, name: str) -> cluster_pb2.TopicResult:
        request = cluster_pb2.CreateTopicsRequest(topics=[cluster_pb2.NewTopic(name=name)])
        response = await self.channel.forward(pb.ControllerRequest(create_topics=request))
        return response.create_topics.results[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nobody signals what a test looks at.
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(limits: LimitsConfig = LIMITS) -> AsyncIterator[Running]:
    store = MemoryStore()
    kept: list[ControllerEpoch] = []
    failures: list[BaseException] = []
    server = make_server(limits, is_for_brokers=True)
    port = server.add_insecure_port("127.0.0.1:0")
    shell = ControllerShell(
        ClusterConfig(),
        store,
        LeaseTimes(duration_ms=60_000, renew_deadline_ms=50_000, retry_ms=5),
        name="a",
        address=f"127.0.0.1:{port}",
        on_failure=failures.append,
    )
    service = ControllerService(controller=shell, limits=limits)
    shell.observer = service

    async def keep(controller_epoch: ControllerEpoch) -> None:
        kept.append(controller_epoch)

    channel = ControllerChannel(
        ClusterConfig(),
        limits,
        find_controller=lambda: shell.holder,
        cluster_id=None,
        controller_epoch=ControllerEpoch(0),
        keep_controller_epoch=keep,
        on_failure=failures.append,
    )
    the = Running(store, shell, service, channel, kept, failures)
    server.add_generic_rpc_handlers([service.handlers()])
    await server.start()
    await shell.start()
    session = asyncio.create_task(channel.run())
    try:
        async with asyncio.timeout(30):
            await channel.ready()
            await channel.register(
                RegisterBroker(
                    name="a",
                    rack="",
                    host="h",
                    port=1,
                    incarnation_id="1",
                    directory_ids=["d"],
                    broker_id=None,
                )
            )
            while (await channel.heartbeat()).is_fenced:
                pass
            yield the
    finally:
        session.cancel()
        await asyncio.gather(session, return_exceptions=True)
        service.end_streams()
        await server.stop(None)
        await shell.stop()
    assert failures == []


def test_an_answer_comes_behind_the_metadata_that_it_rests_on() -> None:
    async def scenario() -> None:
        async with running() as the:
            images: list[MetadataImage] = []
            the.channel.on_image = images.append
            created = await the.create("t")
            assert created.topic.name == "t"
            assert [str(name) for name in the.channel.metadata.topics] == ["t"]
            assert images[-1] is the.channel.metadata
            refused = await the.create("t")
            assert isinstance(error_from_wire(refused.error), TopicAlreadyExistsError)
            assert await the.channel.request(AllocateProducerIds()) == range(1000)
            assert the.kept == [1]

    asyncio.run(scenario())


def test_the_same_life_goes_on_with_the_next_controller() -> None:
    async def scenario() -> None:
        async with running() as the:
            before = the.channel.metadata
            the.store.take_lease("b")
            await until(lambda: not the.shell.is_controller)
            the.store.take_lease(NOBODY)
            assert (await the.create("t")).topic.name == "t"
            await the.channel.heartbeat()
            after = the.channel.metadata
            assert after.cluster.controller_epoch == before.cluster.controller_epoch + 1
            assert after.cluster.brokers == before.cluster.brokers
            assert the.kept == [1, 2]

    asyncio.run(scenario())


def test_a_controller_resigns_when_a_broker_has_seen_a_later_one() -> None:
    async def scenario() -> None:
        async with running() as the:
            call: Any = Call()
            opening = pb.SessionOpening(controller_epoch=99)
            call.requests.put_nowait(pb.SessionRequest(opening=opening).SerializeToString())
            await the.service._session(None, call)
            assert call.status is grpc.StatusCode.UNAVAILABLE
            # It takes over again, with a higher epoch.
            await until(lambda: the.channel.metadata.cluster.controller_epoch == 2)
            assert (await the.create("t")).topic.name == "t"

    asyncio.run(scenario())


class Call:
    """A broker's side of a stream that takes a message only when the test wants it."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[bytes | object] = asyncio.Queue()
        self.room = asyncio.Semaphore(0)
        self.taken: list[pb.SessionResponse] = []
        self.status: grpc.StatusCode | None = None

    async def send_initial_metadata(self, _: object) -> None:
        pass

    async def read(self) -> bytes | object:
        return await self.requests.get()

    async def write(self, message: bytes) -> None:
        await self.room.acquire()
        self.taken.append(pb.SessionResponse.FromString(message))

    async def abort(self, status: grpc.StatusCode, details: str) -> None:
        del details
        self.status = status


def test_a_broker_that_does_not_keep_up_gets_everything_anew() -> None:
    async def scenario() -> None:
        async with running() as the:
            call: Any = Call()
            call.requests.put_nowait(
                pb.SessionRequest(opening=pb.SessionOpening()).SerializeToString()
            )
            session = asyncio.create_task(the.service._session(None, call))
            await asyncio.sleep(0)
            for number in range(60):
                topic = cluster_pb2.NewTopic(name=f"t{number}", partitions=30)
                request = cluster_pb2.CreateTopicsRequest(topics=[topic])
                await the.channel.forward(pb.ControllerRequest(create_topics=request))
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

    asyncio.run(scenario())


def test_a_session_with_a_controller_that_is_none_any_more_ends_though_nobody_says_so() -> None:
    async def scenario() -> None:
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
                holder = ("stopped", f"127.0.0.1:{port}")
                channel = ControllerChannel(
                    ClusterConfig(),
                    LIMITS,
                    find_controller=lambda: holder,
                    cluster_id=None,
                    controller_epoch=ControllerEpoch(0),
                    keep_controller_epoch=the.channel._keep_controller_epoch,
                    on_failure=the.failures.append,
                )
                session = asyncio.create_task(channel.run())
                try:
                    async with asyncio.timeout(10):
                        await opened.wait()
                        holder = the.shell.holder
                        await channel.ready()
                    assert channel.metadata.cluster.cluster_id == the.shell.cluster_id
                finally:
                    session.cancel()
                    await asyncio.gather(session, return_exceptions=True)
        finally:
            await silent.stop(None)

    asyncio.run(scenario())


def test_metadata_is_sent_whole_however_large_it_is() -> None:
    async def scenario() -> None:
        limits = LimitsConfig(message_bytes_max=64 << 10)
        async with running(limits) as the:
            for number in range(20):
                topic = cluster_pb2.NewTopic(name=f"t{number}", partitions=200)
                request = cluster_pb2.CreateTopicsRequest(topics=[topic])
                await the.channel.forward(pb.ControllerRequest(create_topics=request))
            whole = sum(len(stored.value) for stored in the.shell.objects().values())
            assert whole > limits.message_bytes_max
            another = ControllerChannel(
                ClusterConfig(),
                limits,
                find_controller=lambda: the.shell.holder,
                cluster_id=None,
                controller_epoch=ControllerEpoch(0),
                keep_controller_epoch=the.channel._keep_controller_epoch,
                on_failure=the.failures.append,
            )
            session = asyncio.create_task(another.run())
            try:
                async with asyncio.timeout(10):
                    await another.ready()
                assert len(another.metadata.topics) == 20
            finally:
                session.cancel()
                await asyncio.gather(session, return_exceptions=True)

    asyncio.run(scenario())
