"""Controllers over one API server: takeover, zombies, lost answers, a stolen lease (F39-F43)."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
from tests.api_server.relay import ApiServerRelay, Drop, Fault, Hang, Refuse
from tests.api_server.running import NAMESPACE, RunningApiServer
from tests.fakes.observing import Observing
from tests.integration.kubernetes.conftest import OpenStore

from millrace.broker.controller.shell import ControllerShell
from millrace.broker.coordination.kubernetes.store import KubernetesStore
from millrace.core.controller.lease import LeaseTimes
from millrace.core.errors import MillraceError, NotControllerError, TopicAlreadyExistsError
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS, BrokerLife, Topic
from millrace.core.metadata.objects.encoding import decode_cluster, decode_shard
from millrace.core.metadata.objects.stored_object import CorruptMetadataError
from millrace.core.metadata.requests import CreateTopics, Heartbeat, NewTopic, RegisterBroker
from millrace.runtime.kubernetes.access import ApiAccess

HANGS_MS = 600
"""How long a request hangs; a busy machine must do any of 33 at a time in it."""
# A holder keeps the lease while a busy machine stands still: most of these tests count epochs.
TIMES = LeaseTimes(duration_ms=5000, renew_deadline_ms=4000, retry_ms=100, watch_ms=100)


@dataclass
class Broker:
    """A controller's shell, what it said, and a broker whose controller is never another's."""

    shell: ControllerShell
    name: str
    failures: list[BaseException] = field(default_factory=list)
    living: asyncio.Task[None] | None = None

    async def register(self) -> None:
        """Return once topics can be placed on this broker."""
        registered = await self.shell.request(
            RegisterBroker(
                name=self.name,
                rack="",
                host="h",
                port=1,
                incarnation_id=self.name,
                directory_ids=[self.name],
                broker_id=None,
            )
        )
        self.living = asyncio.create_task(self._live(registered.life))
        await self.until_usable()

    async def _live(self, life: BrokerLife) -> None:
        while True:
            with contextlib.suppress(NotControllerError):
                epoch = self.shell.metadata.epoch
                await self.shell.request(Heartbeat(life=life, metadata_epoch=epoch))
            await asyncio.sleep(0.01)

    async def until_usable(self) -> None:
        def is_usable() -> bool:
            cluster = self.shell.metadata.cluster
            return any(member.name == self.name and member.is_there for member in cluster.members())

        await until(is_usable, f"{self.name} is not fenced")

    async def create(self, name: str) -> object:
        (topic_id,) = self.shell.new_topic_ids(1)
        request = CreateTopics(topics=[NewTopic(name=name)], topic_ids=[topic_id])
        (result,) = await self.shell.request(request)
        return result

    async def stop(self) -> None:
        if self.living is not None:
            self.living.cancel()
            await asyncio.gather(self.living, return_exceptions=True)
        await self.shell.stop()


@contextlib.asynccontextmanager
async def broker(name: str, store: KubernetesStore) -> AsyncIterator[Broker]:
    """A broker's controller, which competes for the lease while the block runs."""
    failures: list[BaseException] = []
    shell = ControllerShell(
        ClusterConfig(),
        store,
        TIMES,
        name=name,
        address="h:2",
        observer=Observing(),
        on_failure=failures.append,
    )
    running = Broker(shell, name, failures)
    starting = asyncio.ensure_future(shell.start())
    try:
        yield running
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await running.stop()


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(30):
        # Nobody signals what a test looks at.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert condition(), what


@pytest.fixture
def relayed(relay: ApiServerRelay) -> ApiAccess:
    return ApiAccess(
        server=relay.url, namespace=NAMESPACE, tls=None, tls_server_name=None, token=lambda: None
    )


def topics_of(store: KubernetesStore) -> list[Topic]:
    """Every topic that is stored."""
    found: list[Topic] = []
    for number, stored in enumerate(store.read_all(SHARD_KEYS)):
        assert stored is not None
        found += decode_shard(number, stored).topics.values()
    return found


def lease_reads(relay: ApiServerRelay) -> int:
    return sum(method == "GET" and "/leases/" in path for method, path in relay.requests)


def controller_epoch(store: KubernetesStore) -> int:
    (stored,) = store.read_all([CLUSTER_KEY])
    assert stored is not None
    return decode_cluster(stored).controller_epoch


def test_answers_that_are_lost_lose_and_double_no_topic(
    relay: ApiServerRelay, relayed: ApiAccess, open_store: OpenStore
) -> None:
    topics = 40
    faults = random.Random(4)

    async def create(running: Broker, name: str) -> None:
        """As a client does: again until it is there."""
        while True:
            try:
                result = await running.create(name)
            except NotControllerError:
                await asyncio.sleep(0.02)
                continue
            assert isinstance(result, Topic | TopicAlreadyExistsError)
            return

    async def story() -> None:
        store = open_store(access=relayed, request_timeout_ms=HANGS_MS)
        async with broker("a", store) as running:
            await until(lambda: running.shell.is_controller, "a is the controller")
            await running.register()
            for _ in range(60):
                is_done = faults.random() < 0.5
                kinds: list[Fault] = [Refuse(500, is_done=is_done), Drop(is_done), Hang(is_done)]
                fault = faults.choice([*kinds, Refuse(409)])
                relay.inject(fault, method="PUT", path="stateshards")
            await asyncio.gather(*(create(running, f"t{number}") for number in range(topics)))
            assert not running.failures

    asyncio.run(story())
    names = [topic.name.name for topic in topics_of(open_store())]
    assert sorted(names) == sorted(f"t{number}" for number in range(topics))


@pytest.mark.nightly
def test_a_controller_that_is_cut_off_is_replaced_and_comes_back_as_a_candidate(
    relay: ApiServerRelay, relayed: ApiAccess, open_store: OpenStore
) -> None:
    async def story() -> None:
        store = open_store(access=relayed, request_timeout_ms=HANGS_MS)
        async with broker("a", store) as a:
            await until(lambda: a.shell.is_controller, "a is the controller")
            await a.register()
            assert isinstance(await a.create("before"), Topic)
            async with broker("b", open_store()) as b:
                with relay.outage(Hang(is_done=False)):
                    await until(lambda: not a.shell.is_controller, "a has resigned")
                    await until(lambda: b.shell.is_controller, "b has taken over")
                    await b.register()
                    assert isinstance(await b.create("meanwhile"), Topic)
                looks = lease_reads(relay) + 2 * TIMES.duration_ms // TIMES.retry_ms
                await until(lambda: lease_reads(relay) > looks, "a has looked for long enough")
                assert b.shell.is_controller
                assert not a.shell.is_controller
                with pytest.raises(NotControllerError):
                    await a.create("by a zombie")
            await until(lambda: a.shell.is_controller, "a is it again, once b has left")
            names = {str(topic.name) for topic in a.shell.metadata.topics.values()}
            assert names == {"before", "meanwhile"}
            assert not a.failures
            assert not b.failures

    asyncio.run(story())
    assert controller_epoch(open_store()) == 3


@pytest.mark.parametrize("deed", ["taken", "deleted"])
async def test_a_lease_that_is_stolen_costs_the_controller_and_no_epoch_goes_back(
    api_server: RunningApiServer, open_store: OpenStore, cluster_name: str, deed: str
) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{cluster_name}-controller"

    def steal() -> None:
        while True:
            _, document = api_server.request("GET", path)
            document["spec"]["holderIdentity"] = "thief"
            document["spec"]["renewTime"] = "2999-01-01T00:00:00.000000Z"
            if api_server.request("PUT", path, document)[0] == 200:
                return

    async with broker("a", open_store()) as a:
        await until(lambda: a.shell.is_controller, "a is the controller")
        await a.register()
        before = controller_epoch(open_store())
        if deed == "taken":
            await asyncio.to_thread(steal)
            await until(lambda: not a.shell.is_controller, "a has resigned")
            await until(lambda: a.shell.is_controller, "the thief's time is up")
            assert controller_epoch(open_store()) == before + 1
        else:
            assert api_server.request("DELETE", path)[0] == 200
            await until(lambda: api_server.request("GET", path)[0] == 200, "it is made again")
            assert a.shell.is_controller
            assert controller_epoch(open_store()) == before
        await a.until_usable()
        assert isinstance(await a.create("after"), Topic)
        assert not a.failures


@pytest.mark.parametrize("is_serving", [True, False])
async def test_a_deleted_object_stops_changes_until_it_is_restored_and_nothing_is_made_anew(
    api_server: RunningApiServer, open_store: OpenStore, cluster_name: str, is_serving: bool
) -> None:
    """Who serves nobody ends; who serves goes on, for what it has needs no controller (F41)."""
    collection = f"/apis/millrace.dev/v1/namespaces/{NAMESPACE}/clusterstates"
    path = f"{collection}/{cluster_name}"
    async with broker("a", open_store()) as a:
        await until(lambda: a.shell.is_controller, "a is the controller")
        if is_serving:
            a.shell.on_serving()
        _, backup = api_server.request("GET", path)
        assert api_server.request("DELETE", path)[0] == 200
        registering = asyncio.ensure_future(a.register())
        if is_serving:
            await until(lambda: "restore it" in a.shell.problem, "it says why")
            assert not a.failures
            with pytest.raises(NotControllerError):
                await registering
            assert api_server.request("GET", path)[0] == 404
            backup["metadata"] = {"name": cluster_name}
            assert api_server.request("POST", collection, backup)[0] == 201
            await until(lambda: a.shell.is_controller, "a is the controller again")
            await a.register()
            assert isinstance(await a.create("after"), Topic)
            assert not a.failures
        else:
            await until(lambda: bool(a.failures), "the process is told to end")
            (failure,) = a.failures
            assert isinstance(failure, CorruptMetadataError)
            assert "restore it" in failure.message
            registering.cancel()
            with contextlib.suppress(asyncio.CancelledError, MillraceError):
                await registering
            assert api_server.request("GET", path)[0] == 404
