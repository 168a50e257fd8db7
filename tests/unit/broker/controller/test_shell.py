"""The controller's shell over a store in memory, on a loop of its own for each test."""

import asyncio
import contextlib
import gc
import logging
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import pytest
from tests.fakes.controller_driver import ControllerDriver
from tests.fakes.coordination_store import MemoryStore
from tests.fakes.observing import Observing
from tests.fakes.until import until

from millrace.broker.controller.shell import ControllerShell
from millrace.broker.coordination.store import (
    CoordinationObjectTooLargeError,
    CoordinationStoreError,
    CoordinationUnavailableError,
)
from millrace.core.controller.effects import ElectedUncleanly
from millrace.core.controller.lease import NOBODY, LeaseRecord, LeaseTimes
from millrace.core.errors import (
    Appended,
    BrokerBusyError,
    ControllerNotAvailableError,
    InvalidConfigError,
    MalformedRequestError,
    MillraceError,
    NotControllerError,
    TopicAlreadyExistsError,
)
from millrace.core.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicPartition, WallMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import SHARD_KEYS, BrokerLife, Topic, shard_of
from millrace.core.metadata.objects.store_versions import NOTHING_SEEN, StoreVersions
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject
from millrace.core.metadata.requests import (
    AllocateProducerIds,
    AlterTopics,
    ConfirmDeletions,
    CreateTopics,
    DeleteTopics,
    Heartbeat,
    LogEnd,
    NewTopic,
    PurgeTopics,
    RegisterBroker,
    TopicChange,
    TopicRef,
)
from millrace.runtime.clock import monotonic_now

UNKNOWN = [TopicRef(name="no"), TopicRef(name="nor")]
TIMES = LeaseTimes(duration_ms=60_000, renew_deadline_ms=50_000, retry_ms=5, watch_ms=5)


def registration(name: str = "a") -> RegisterBroker:
    return RegisterBroker(
        name=name,
        rack="",
        host="h",
        port=1,
        incarnation_id="1",
        directory_ids=[f"d-{name}"],
        broker_id=None,
    )


@dataclass
class Running:
    """A started shell, and what it told."""

    shell: ControllerShell
    store: MemoryStore
    observing: Observing = field(default_factory=Observing)
    failures: list[BaseException] = field(default_factory=list)

    async def create_all(self, topics: list[NewTopic]) -> list[object]:
        ids = self.shell.new_topic_ids(len(topics))
        created: list[object] = await self.shell.request(CreateTopics(topics=topics, topic_ids=ids))
        return created

    async def create(self, name: str) -> object:
        (result,) = await self.create_all([NewTopic(name=name)])
        return result

    async def register(self) -> BrokerLife:
        """Register a broker. It tries again, as all do: a short lease may run out meanwhile."""
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(NotControllerError):
                    life: BrokerLife = (await self.shell.request(registration())).life
                    return life
                await asyncio.sleep(0.001)

    async def live(self, life: BrokerLife) -> None:
        """Send a broker's heartbeats."""
        while True:
            with contextlib.suppress(NotControllerError):
                epoch = self.shell.metadata.epoch
                await self.shell.request(Heartbeat(life=life, metadata_epoch=epoch))
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(
    store: MemoryStore | None = None,
    times: LeaseTimes = TIMES,
    known_cluster_id: str | None = None,
    config: ClusterConfig | None = None,
    seen_here: Callable[[], StoreVersions] = lambda: NOTHING_SEEN,
) -> AsyncIterator[Running]:
    failures: list[BaseException] = []
    observing = Observing()
    store = store or MemoryStore()
    shell = ControllerShell(
        config or ClusterConfig(),
        store,
        times,
        name="a",
        address="h:2",
        observer=observing,
        known_cluster_id=known_cluster_id,
        seen_here=seen_here,
        on_failure=failures.append,
    )
    living: asyncio.Task[None] | None = None
    try:
        await shell.start()
        the = Running(shell, store, observing, failures)
        living = asyncio.create_task(the.live(await the.register()))
        await until(lambda: any(member.is_there for member in shell.metadata.cluster.members()))
        yield the
    finally:
        if living is not None:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)
        await shell.stop()
        assert store.is_closed


@contextlib.asynccontextmanager
async def a_shell(store: MemoryStore, times: LeaseTimes = TIMES) -> AsyncIterator[ControllerShell]:
    """A shell that the block starts; nothing may fail."""
    failures: list[BaseException] = []
    shell = ControllerShell(
        ClusterConfig(),
        store,
        times,
        name="a",
        address="h:2",
        observer=Observing(),
        on_failure=failures.append,
    )
    try:
        yield shell
    finally:
        await shell.stop()
    assert not failures


async def test_a_broker_that_never_was_the_controller_knows_no_cluster_and_no_epoch() -> None:
    store = MemoryStore()
    store.take_lease("b")
    async with a_shell(store) as shell:
        await shell.start()
        assert not shell.is_controller
        assert shell.controller_epoch == 0
        assert shell.cluster_id == ""


async def test_topics_are_made_changed_and_deleted() -> None:
    async with running() as the:
        created = await the.create("t")
        assert isinstance(created, Topic)
        assert the.shell.metadata.topics == {created.name: created}
        change = TopicChange(topic=TopicRef(name="t"), partitions=3)
        (altered,) = await the.shell.request(AlterTopics(changes=[change]))
        assert isinstance(altered, Topic)
        assert len(altered.partitions) == 3
        topics = [TopicRef(name="t")]
        await the.shell.request(
            DeleteTopics(deleted_at=WallMs(1), topics=topics, validate_only=True)
        )
        assert the.shell.metadata.topics == {created.name: altered}
        await the.shell.request(DeleteTopics(deleted_at=WallMs(1), topics=topics))
        assert the.shell.metadata.topics == {}
        await the.shell.request(PurgeTopics(topics=topics))
        owner = the.shell.metadata.cluster.brokers[altered.partitions[0].leader].broker_id
        assert the.shell.metadata.deletions_of(owner) == [created.topic_id]
        await the.shell.request(ConfirmDeletions(broker_id=owner, topic_ids=[created.topic_id]))
        assert the.shell.metadata.deletions_of(owner) == []


async def test_a_smaller_number_of_first_brokers_reaches_a_running_controller() -> None:
    async with running(config=ClusterConfig(initial_brokers=3)) as the:
        assert isinstance(await the.create("t"), BrokerBusyError)
        the.shell.set_initial_brokers(1)
        assert isinstance(await the.create("t"), Topic)
        assert the.shell.config.initial_brokers == 1, "for the machines to come"


async def test_every_topic_has_its_own_random_id() -> None:
    async with running() as the:
        names = [NewTopic(name=f"t{number}") for number in range(50)]
        created = await the.create_all(names)
        ids = {topic.topic_id for topic in created if isinstance(topic, Topic)}
        assert len(ids) == 50
        assert {len(topic_id) for topic_id in ids} == {16}


async def test_the_next_process_finds_everything() -> None:
    store = MemoryStore()

    async with running(store) as the:
        await the.create("t")
        assert await the.shell.request(AllocateProducerIds()) == range(1000)
    assert store.lease is not None
    assert store.lease.holder == NOBODY
    async with running(MemoryStore(store.objects)) as the:
        assert [str(name) for name in the.shell.metadata.topics] == ["t"]
        assert await the.shell.request(AllocateProducerIds()) == range(1000, 2000)


async def test_the_observer_is_told_of_each_change_in_order() -> None:
    async with running() as the:
        observing = the.observing
        observing.published.clear()
        for name in ("a", "b"):
            created = await the.create(name)
            assert isinstance(created, Topic)
            assert observing.published[-1] == [SHARD_KEYS[shard_of(created.topic_id)]]
        assert len(observing.published) == 2
        the.store.take_lease("b")
        await until(lambda: observing.resigned == 1)
        assert the.shell.holder == ("b", the.shell.holder[1])


async def test_requests_that_come_together_share_writes() -> None:
    async with running() as the:
        the.store.gate.clear()
        before = the.store.writes
        requests = [asyncio.create_task(the.create(f"t{number}")) for number in range(200)]
        await asyncio.sleep(0)
        the.store.gate.set()
        results = await asyncio.gather(*requests)
        assert all(isinstance(result, Topic) for result in results)
        assert the.store.writes - before <= 3


async def test_a_refusal_comes_back_as_a_value_and_a_request_too_large_is_raised() -> None:
    async with running() as the:
        await the.create("t")
        assert isinstance(await the.create("t"), TopicAlreadyExistsError)
        with pytest.raises(MalformedRequestError):
            await the.create_all([NewTopic(name="x")] * 1001)
        stranger = replace(registration("b"), directory_ids=["d-b", "d-a"])
        with pytest.raises(InvalidConfigError, match="also one of broker 'a'"):
            await the.shell.request(stranger)


async def test_refusals_are_gone_with_their_answer_without_the_garbage_collector() -> None:
    """They would keep the request in memory, and a large one has thousands of them."""

    async with running() as the:
        gc.disable()
        try:
            outcomes = await the.shell.request(DeleteTopics(deleted_at=WallMs(1), topics=UNKNOWN))
            held = [weakref.ref(outcome) for outcome in outcomes]
            del outcomes
            try:
                await the.create_all([NewTopic(name="x")] * 1001)
            except MalformedRequestError as error:
                held.append(weakref.ref(error))
            await asyncio.sleep(0)  # The loop itself refers to what it ran last.
            assert len(held) == 3
            assert [each() for each in held] == [None] * 3
        finally:
            gc.enable()


async def test_a_store_that_is_away_for_a_while_delays_and_loses_nothing() -> None:
    async with running() as the:
        the.store.outage = CoordinationUnavailableError("disk full")
        request = asyncio.create_task(the.create("t"))
        await until(lambda: the.store.refusals >= 2)
        assert not request.done()
        the.store.outage = None
        assert isinstance(await request, Topic)
    assert the.failures == []


async def test_a_write_whose_answer_was_lost_is_found_to_be_done() -> None:
    async with running() as the:
        before = the.store.writes
        the.store.lost_answers = 1
        assert isinstance(await the.create("t"), Topic)
        assert the.store.writes == before + 1


async def test_a_caller_who_went_away_disturbs_nobody() -> None:
    async with running() as the:
        the.store.gate.clear()
        request = asyncio.create_task(the.create("t"))
        await asyncio.sleep(0)
        request.cancel()
        the.store.gate.set()
        assert isinstance(await the.create("u"), Topic)
        await until(lambda: len(the.shell.metadata.topics) == 2)


async def test_the_lease_is_renewed() -> None:
    async with running() as the:
        lease = the.store.lease
        assert lease is not None
        assert lease.holder == "a"
        await until(lambda: the.store.lease is not None and the.store.lease.version > 5)
        assert the.shell.is_controller


async def test_the_loss_of_the_lease_drops_the_machine_and_not_the_process() -> None:
    async with running() as the:
        await the.create("t")
        before = the.shell.metadata
        the.store.take_lease("b")
        await until(lambda: not the.shell.is_controller)
        with pytest.raises(NotControllerError) as raised:
            await the.create("late")
        assert raised.value.appended is Appended.NO
        assert the.shell.metadata is before  # Reads go on.
        the.store.take_lease(NOBODY)
        await until(lambda: the.shell.is_controller)
        await until(lambda: any(member.is_there for member in the.shell.metadata.cluster.members()))
        after = the.shell.metadata
        assert after.cluster.controller_epoch == before.cluster.controller_epoch + 1
        # The same life goes on: nobody had to look for a new leader.
        assert after.topics == before.topics
        assert isinstance(await the.create("after"), Topic)
    assert the.failures == []


async def test_a_request_in_flight_when_the_lease_is_lost_is_answered() -> None:
    async with running() as the:
        the.store.gate.clear()
        request = asyncio.create_task(the.create("t"))
        await asyncio.sleep(0)
        the.store.take_lease("b")
        await until(lambda: not the.shell.is_controller)
        with pytest.raises(NotControllerError) as raised:
            await request
        assert raised.value.appended is Appended.MAYBE
        the.store.gate.set()


async def test_another_controller_s_write_ends_the_machine_and_the_next_one_knows_it() -> None:
    async with running() as the:
        other = ControllerDriver(the.store.objects).take_over()
        with pytest.raises(NotControllerError):
            await the.create("t")
        await until(lambda: the.shell.is_controller)
        epoch = the.shell.metadata.cluster.controller_epoch
        assert epoch == other.image.cluster.controller_epoch + 1
        await until(lambda: any(member.is_there for member in the.shell.metadata.cluster.members()))
        assert isinstance(await the.create("t"), Topic)


async def test_what_is_seen_counts_again_once_it_is_more_than_another_broker_had_seen() -> None:
    """P39: a controller that was told of more goes by that, and not for ever."""
    here = [NOTHING_SEEN]

    async with running(seen_here=lambda: here[0]) as the:
        the.shell.on_serving()
        ControllerDriver(the.store.objects).take_over()  # A zombie did not notice.
        the.shell.on_seen_elsewhere(StoreVersions.of(the.store.objects))
        await until(lambda: the.shell.is_controller)
        the.store.take_lease("b")
        await until(lambda: not the.shell.is_controller)
        before = dict(the.store.objects)
        ControllerDriver(the.store.objects).take_over()
        here[0] = StoreVersions.of(the.store.objects)
        the.store.objects.update(before)
        the.store.take_lease(NOBODY)
        await until(lambda: bool(the.shell.problem) or the.shell.is_controller)
        assert "was set back to an older state" in the.shell.problem
        assert the.store.objects == before


async def test_no_write_is_done_after_the_lease_ran_out() -> None:
    """The renewal hangs, so nobody notices before the write asks (P38)."""
    times = LeaseTimes(duration_ms=1200, renew_deadline_ms=1000, retry_ms=20, watch_ms=20)
    store = MemoryStore()
    async with running(store, times) as the:
        hold = threading.Event()

        def hang() -> None:
            assert hold.wait(60)

        the.shell._lease._renew = hang  # type: ignore[method-assign]
        before = store.writes
        try:
            await until(lambda: not the.shell._election.is_held(monotonic_now()))
            with pytest.raises(NotControllerError):
                await the.create("t")
            assert store.writes == before
        finally:
            hold.set()


async def test_the_rest_of_a_batch_is_not_written_once_the_lease_has_run_out() -> None:
    """P38: each write is asked for, and one of them may have taken long."""
    times = LeaseTimes(duration_ms=1200, renew_deadline_ms=1000, retry_ms=20, watch_ms=20)
    store = MemoryStore()
    async with running(store, times) as the:
        hold = threading.Event()
        written: list[str] = []
        swap = store.objects.swap

        def hang() -> None:
            assert hold.wait(60)

        def swap_slowly(key: str, new: StoredObject) -> bool:
            hang_until = time.monotonic() + 60
            is_swapped = swap(key, new)
            written.append(key)
            while the.shell._election.is_held(monotonic_now()):
                assert time.monotonic() < hang_until
                time.sleep(0.005)
            return is_swapped

        the.shell._lease._renew = hang  # type: ignore[method-assign]
        store.objects.swap = swap_slowly  # type: ignore[method-assign]
        try:
            with pytest.raises(NotControllerError) as raised:
                await the.create_all([NewTopic(name=name) for name in "abcdefghij"])
            assert raised.value.appended is Appended.MAYBE
            assert len(written) == 1
        finally:
            store.objects.swap = swap  # type: ignore[method-assign]
            hold.set()


SHORT = LeaseTimes(duration_ms=300, renew_deadline_ms=200, retry_ms=20, watch_ms=20)


async def test_a_loop_that_is_busy_for_longer_than_the_lease_lasts_keeps_it() -> None:
    async with running(MemoryStore(), SHORT) as the:
        epoch = the.shell.controller_epoch
        time.sleep(1)  # noqa: ASYNC251 - as elections for thousands of partitions do.
        assert the.shell._election.is_held(monotonic_now())
        assert isinstance(await the.create("t"), Topic)
        assert the.shell.controller_epoch == epoch


async def test_a_loop_that_stands_still_for_as_long_as_a_session_gives_the_lease_up() -> None:
    config = ClusterConfig(broker_session_timeout_ms=500)
    async with running(MemoryStore(), SHORT, config=config) as the:
        time.sleep(2)  # noqa: ASYNC251 - as if it hung.
        assert not the.shell._election.is_held(monotonic_now())


async def test_a_renewal_under_way_when_the_loop_stands_still_is_not_written() -> None:
    session_ms = 500
    store = MemoryStore()
    config = ClusterConfig(broker_session_timeout_ms=session_ms)
    async with running(store, SHORT, config=config) as the:
        keeper, read = the.shell._lease, store.read_lease
        renew, begun, ended = keeper._renew, threading.Event(), threading.Event()

        def read_slowly() -> LeaseRecord | None:
            begun.set()
            # By then what was renewed in time has run out.
            while monotonic_now() < keeper._turned_at + session_ms + SHORT.duration_ms:
                time.sleep(0.005)
            return read()

        def renew_slowly() -> None:
            renew()
            if begun.is_set():
                ended.set()

        store.read_lease = read_slowly  # type: ignore[method-assign]
        keeper._renew = renew_slowly  # type: ignore[method-assign]
        try:
            assert ended.wait(60)  # The loop stands still.
            assert not the.shell._election.is_held(monotonic_now())
        finally:
            store.read_lease = read  # type: ignore[method-assign]
            begun.clear()


async def test_stopping_answers_who_waits() -> None:
    store = MemoryStore()
    async with running(store) as the:
        store.gate.clear()
        request = asyncio.create_task(the.create("t"))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.02, store.gate.set)
    with pytest.raises(NotControllerError):
        await request


async def test_a_damaged_object_stops_the_start() -> None:
    store = MemoryStore()
    async with running(store) as the:
        await the.create("t")
    whole = store.objects[SHARD_KEYS[0]]
    store.objects[SHARD_KEYS[0]] = StoredObject(b"{}", whole.version, whole.controller_epoch)

    with pytest.raises(CorruptMetadataError):
        async with running(MemoryStore(store.objects)):
            raise AssertionError("it started")


async def test_the_store_of_another_cluster_stops_the_start() -> None:
    store = MemoryStore()
    async with running(store) as the:
        await the.create("t")

    with pytest.raises(InvalidConfigError, match="belongs to the cluster"):
        async with running(MemoryStore(store.objects), known_cluster_id="mine"):
            raise AssertionError("it started")


async def test_a_store_that_fails_later_ends_the_process() -> None:
    store = MemoryStore()
    async with running(store) as the:
        store.outage = CoordinationStoreError("disk I/O error")
        request = asyncio.create_task(the.create("t"))
        await until(lambda: bool(the.failures))
        assert [type(failure) for failure in the.failures] == [CoordinationStoreError]
        assert not request.done()
    with pytest.raises(NotControllerError):  # Answered by the stop that follows.
        await request


@pytest.mark.parametrize(
    "error",
    [
        CorruptMetadataError("it is gone"),
        InvalidConfigError("no kind"),
        CoordinationObjectTooLargeError("a limit was lowered"),
    ],
)
async def test_a_broker_that_serves_goes_on_where_the_store_has_nothing_to_go_on_from(
    error: MillraceError,
) -> None:
    """And keeps the lease: else the next one took it, and ended likewise."""

    quickly = replace(ClusterConfig(), broker_session_timeout_ms=500)
    async with running(config=quickly) as the:
        the.shell.on_serving()
        the.store.outage = error
        async with asyncio.timeout(30):
            with pytest.raises(NotControllerError):
                await the.create("t")
        assert the.shell.problem == f"there is no controller: {error.message}"
        with pytest.raises(ControllerNotAvailableError, match=re.escape(error.message)):
            the.shell.objects()  # As a broker asks that opens a session.
        refusals = the.store.refusals
        await until(lambda: the.store.refusals > refusals)  # It looks again, and that fails, too.
        assert the.shell.problem == f"there is no controller: {error.message}"
        assert the.shell.holder[0] == "a"
        the.store.outage = None
        await until(lambda: the.shell.is_controller)
        assert not the.shell.problem
        assert not the.failures


async def test_a_new_lease_looks_at_the_store_at_once_whatever_an_earlier_one_found() -> None:
    async with running(config=replace(ClusterConfig(), broker_session_timeout_ms=60000)) as the:
        the.shell.on_serving()
        the.store.outage = CorruptMetadataError("it is gone")
        with pytest.raises(NotControllerError):
            await the.create("t")
        the.store.outage = None
        the.store.take_lease("b")  # It would repair the store, or find nothing wrong.
        await until(lambda: the.shell.holder[0] == "b")
        the.store.take_lease(NOBODY)
        await until(lambda: the.shell.is_controller)


async def test_people_are_told_from_where_on_records_are_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running() as the:
        topic, machine = await the.create("t"), the.shell._machine
        assert isinstance(topic, Topic)
        assert machine is not None
        key, life = TopicPartition(topic.topic_id, 0), BrokerLife(BrokerId(0), BrokerEpoch(1))
        log_end = LogEnd(key, LeaderEpoch(3), Offset(70), Offset(0))
        elected = ElectedUncleanly(topic.name, key, life, LeaderEpoch(4), log_end)
        the.shell._perform(machine, [elected])
    (warning,) = [record for record in caplog.records if "lack committed records" in record.message]
    assert warning.__dict__["log_end_offset"] == 70


async def test_one_that_was_too_slow_to_take_the_lease_knows_at_once_who_was_faster() -> None:
    """And not only when it looks again: it has to open a session with the new controller."""

    class Contended(MemoryStore):
        def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
            self.take_lease("b")
            return super().compare_and_swap_lease(new)

    seldom = LeaseTimes(
        duration_ms=60_000, renew_deadline_ms=50_000, retry_ms=40_000, watch_ms=40_000
    )
    async with a_shell(Contended(), seldom) as shell:
        async with asyncio.timeout(10):
            await shell.start()
        assert shell.holder[0] == "b"


async def test_a_lease_that_is_given_back_is_taken_up_at_once() -> None:
    """And not only when its time has come to look: the controller stopped, nobody waits for it."""
    seldom = LeaseTimes(
        duration_ms=60_000, renew_deadline_ms=50_000, retry_ms=40_000, watch_ms=40_000
    )
    store = MemoryStore()
    store.take_lease("b")
    async with a_shell(store, seldom) as shell:
        async with asyncio.timeout(10):
            await shell.start()
            store.take_lease("c")
            await until(lambda: shell.holder[0] == "c")
            store.take_lease(NOBODY)
            await until(lambda: shell.is_controller)


async def test_a_store_that_is_away_costs_the_lease_and_why_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    store = MemoryStore()
    async with running(store, SHORT) as the:
        assert the.shell.problem == ""
        store.lease_outage = CoordinationUnavailableError("the file is locked")
        await until(lambda: not the.shell.is_controller)
        assert the.shell.problem == "there is no controller: the file is locked"
        with pytest.raises(NotControllerError, match="the file is locked"):
            await the.create("t")
        # The same outage, in other words.
        store.lease_outage = CoordinationUnavailableError("the file is locked by another")
        await until(lambda: the.shell.problem.endswith("by another"))
        store.lease_outage = None
        await until(lambda: the.shell.is_controller)
        assert the.shell.problem == ""
    told = [
        (
            record.levelname,
            record.message,
            record.__dict__.get("error") or record.__dict__.get("reason"),
        )
        for record in caplog.records
        if record.name == "millrace.broker.controller.shell"
    ]
    assert told == [
        ("WARNING", AWAY, "the file is locked"),
        ("WARNING", "controller resigned", "the lease was lost"),
        ("INFO", "the coordination store answers again", None),
        ("INFO", "controller resigned", "the broker stops"),
    ]


AWAY = "the coordination store is away: the lease can be neither kept nor taken"


async def test_a_broker_that_starts_while_the_store_is_away_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    store.lease_outage = CoordinationUnavailableError("no route to the API server")
    async with a_shell(store, SHORT) as shell:
        start = asyncio.create_task(shell.start())
        await until(lambda: "no route" in shell.problem)
        assert not start.done()
        store.lease_outage = None
        await start
    (told,) = [record for record in caplog.records if record.message == AWAY]
    assert told.__dict__["error"] == "no route to the API server"
