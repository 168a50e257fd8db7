"""The runtime of positions: it loads, delays answers until the commit, and recovers."""

import asyncio
from dataclasses import replace

import pytest
from tests.fakes.positions_stage import LIMITS, PLACE, Stage, is_waiting, stage
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch
from tests.fakes.two_replicas import HERE, THERE, replica_of
from tests.fakes.until import until

from millrace.broker.coordinator.groups import Assignment, _Look
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import Member, MemberRecord
from millrace.core.coordinator.groups.membership import Heartbeat
from millrace.core.coordinator.positions.position import Position, PositionsConfig
from millrace.core.errors import (
    Appended,
    CoordinatorLoadInProgressError,
    InstanceIdInUseError,
    MillraceError,
    NotLeaderError,
    RequestTimedOutError,
    StorageFullError,
    UnreleasedInstanceIdError,
    UnsupportedFormatError,
)
from millrace.core.ids import (
    NO_BROKER,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import (
    ClusterState,
    DeletedTopic,
    PartitionState,
    StateShard,
    Topic,
    shard_of,
)
from millrace.core.topics import TopicName
from millrace.runtime.clock import monotonic_now, wall_now

ANYONE = Member()


async def test_an_answer_waits_until_it_is_committed_and_so_does_one_that_only_read() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        first, second, third = the.resolve(5), the.resolve(9), the.look()
        await the.written(1)
        assert await is_waiting(first, second, third)
        assert the.log.log_end_offset == 1, "the second one stored nothing"
        the.replicate()
        assert [await first, await second, await third] == [5, 5, [5]]
        assert (the.positions.kept(), the.positions.runtime.unready()) == (1, 0)
        assert await the.look() == [5], "with nothing under way it is answered at once"


async def test_while_the_log_is_read_everybody_is_told_to_come_again() -> None:
    async with stage() as the:
        with pytest.raises(NotLeaderError) as refused:
            await the.look()
        assert refused.value.appended is Appended.NO
        assert the.positions.runtime.unready() == 0
        the.lead()
        assert the.positions.runtime.unready() == 1
        with pytest.raises(CoordinatorLoadInProgressError):
            await the.look()
        await the.loaded()
        assert await the.look() == []


async def test_a_new_leader_reads_what_the_last_one_left_and_answers_when_it_is_committed() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        waiting = the.resolve(5)
        await the.written(1)
        the.lead(THERE)
        with pytest.raises(NotLeaderError) as failed:
            await waiting
        assert failed.value.appended is Appended.MAYBE
        with pytest.raises(NotLeaderError):
            await the.look()
        the.lead()
        await the.loaded()
        found = the.resolve(9)
        assert await is_waiting(found)
        the.replicate()
        assert await found == 5, "it was in the log, and is committed by now"


async def test_a_broker_that_goes_on_leading_reads_nothing_again() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        await the.keep(5)
        for again in (HERE, None, HERE):  # Another epoch, and one without a leader between.
            the.lead(again)
        await the.loaded()
        the.replicate()
        assert await the.look() == [5]
        await the.keep(6, "p")
        assert the.reader.starts == []


async def test_what_another_broker_leads_is_let_go_of_and_read_from_the_start() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        await the.keep(5)
        the.lead(THERE)
        (shard,) = the.positions.runtime._shards.values()
        assert shard._replayed is None
        the.lead()
        await the.loaded()
        the.replicate()
        assert await the.look() == [5]
        assert the.reader.starts == [0]


async def test_what_was_cut_off_meanwhile_is_not_remembered() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        await the.keep(5)
        await the.keep(6, "cut off")
        the.lead(None)
        the.log.truncation.truncate_to(Offset(1), wall_now())
        the.log.writer.append([stamped_batch(1, epoch=2)], wall_now())
        (shard,) = the.positions.runtime._shards.values()
        assert shard._replayed is not None
        the.lead()
        await until(lambda: the.reader.starts[:1] == [0])


async def test_an_epoch_that_begins_while_the_log_is_read_begins_nothing_again() -> None:
    async with stage(limits=replace(LIMITS, read_bytes=1)) as the:
        the.lead()
        await the.loaded()
        for number in range(20):
            await the.keep(number, f"name {number}")
        the.positions.runtime.stop()
        the.open()
        async with asyncio.timeout(10):
            while len(the.reader.starts) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0)
        the.lead()
        await the.loaded()
        the.replicate()
        assert await the.look("name 19") == [19]
        assert the.reader.starts.count(Offset(0)) == 1
        assert the.reader.starts == sorted(the.reader.starts)


async def test_one_log_of_a_directory_is_read_at_a_time() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        await the.keep(5)
        the.positions.runtime.stop()
        the.open()
        (loading,) = [the.positions.runtime.loading[the.log.log_dir]]
        async with loading:  # As by another partition.
            await asyncio.sleep(0.02)
            assert the.reader.starts == []
        await the.loaded()
        assert the.reader.starts == [0]


async def test_a_failed_append_is_undone_by_reading_the_log_again() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        kept = the.resolve(1, "kept")
        await the.written(1)
        the.replicate()
        await kept
        the.disk.capacity = 0
        failing = [the.resolve(5), the.resolve(6, "p"), the.look()]
        for each in failing:
            with pytest.raises(StorageFullError) as failed:
                await each
            assert failed.value.appended is Appended.MAYBE
        the.disk.capacity = None
        await the.loaded()
        assert await the.look() == []
        assert await the.look("kept") == [1]
        again = the.resolve(7)
        await the.written(2)
        the.replicate()
        assert await again == 7


async def test_whoever_waits_too_long_is_told_that_nobody_knows() -> None:
    async with stage(limits=replace(LIMITS, commit_seconds=0.05)) as the:
        the.lead()
        await the.loaded()
        with pytest.raises(RequestTimedOutError) as failed:
            await the.resolve(5)
        assert failed.value.appended is Appended.MAYBE
        the.replicate()
        assert await the.look() == [5]


async def test_a_log_that_a_later_release_wrote_is_not_served() -> None:
    async with stage() as the:
        the.log.writer.append([stamped_batch(0)], wall_now())
        the.log.flusher.flush()
        the.partition.replica = replica_of(the.log, TOPIC_PARTITION)
        the.lead()
        async with asyncio.timeout(10):
            while True:
                with pytest.raises(CoordinatorLoadInProgressError) as refused:
                    await the.look()
                if "later release" in refused.value.message:
                    break
                await asyncio.sleep(0.001)
        assert issubclass(UnsupportedFormatError, MillraceError)


async def test_the_log_start_moves_once_what_overtook_the_old_records_is_committed() -> None:
    async with stage(limits=replace(LIMITS, log_start_step=3)) as the:
        the.lead()
        await the.loaded()

        async def commit(offset: int) -> None:
            task = asyncio.create_task(
                the.positions.runtime.ask(
                    TOPIC_PARTITION,
                    lambda machine, now: machine.handle_commit("q", {PLACE: Position(offset)}, now),
                )
            )
            await the.written(offset)
            assert all(start < offset for start in the.log_starts)
            the.replicate()
            await task

        for offset in range(1, 12):
            await commit(offset)
        assert the.log_starts
        assert the.log_starts == sorted(set(the.log_starts))
        assert all(
            later - earlier >= 3
            for earlier, later in zip([0, *the.log_starts], the.log_starts, strict=False)
        )


async def test_what_nobody_touched_for_long_is_forgotten() -> None:
    async with stage(PositionsConfig(initial_retention_ms=1000)) as the:
        the.lead()
        await the.loaded()
        stored = the.resolve(5)
        await the.written(1)
        the.replicate()
        await stored
        await the.positions.expire_now()
        assert await the.look() == [5]
        await asyncio.sleep(1.1)
        expiring = asyncio.create_task(the.positions.expire_now())
        await the.written(2)
        the.replicate()
        await expiring
        assert await the.look() == []


async def test_a_look_at_many_sessions_gives_the_loop_back() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        machine = the.positions.runtime.machine(TOPIC_PARTITION)
        assert machine is not None
        for name in (f"g{number}" for number in range(500)):
            for member_id in map(str, range(100)):
                machine.membership.replay(MemberRecord(name, member_id, Member(), WallMs(0)))
        looking = asyncio.create_task(the.positions.end_sessions())
        turns = 0
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 1
        assert len(the.positions._sessions[TOPIC_PARTITION]) == 50_000


async def join(
    the: Stage, wait_seconds: float, member: Member = ANYONE
) -> "asyncio.Task[Assignment]":
    """Let the member `m` join, and wait with its next heartbeat."""
    joining = asyncio.create_task(
        the.positions.heartbeat(TOPIC_PARTITION, "g", Heartbeat("m", 0, member), 0)
    )
    await the.written(1)
    the.replicate()
    epoch = (await joining).current.epoch
    return asyncio.create_task(
        the.positions.heartbeat(TOPIC_PARTITION, "g", Heartbeat("m", epoch), wait_seconds)
    )


async def test_a_coordinator_that_resigns_and_comes_back_knows_nothing_of_sessions() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        await (await join(the, 0))
        assert the.positions.is_confirmed(TOPIC_PARTITION, "g", "m")
        assert len(the.positions._sessions[TOPIC_PARTITION]) == 1
        the.lead(THERE)
        the.lead()  # Before any look at sessions.
        await the.loaded()
        assert TOPIC_PARTITION not in the.positions._sessions


@pytest.mark.parametrize("wait_seconds", [0.0, 0.2])
async def test_a_member_is_told_for_how_long_its_heartbeat_has_waited(wait_seconds: float) -> None:
    """Its session begins once more when that wait is over."""
    async with stage() as the:
        the.lead()
        await the.loaded()
        began = monotonic_now()
        told = await (await join(the, wait_seconds))
        session = the.positions._sessions[TOPIC_PARTITION]._sessions["g", "m"]
        session_ms = the.groups.session_timeout_ms
        assert wait_seconds <= told.waited_seconds
        assert began + 1000 * told.waited_seconds <= session.ends_at - session_ms


async def test_heartbeats_that_wait_are_refused_at_once_when_another_broker_leads() -> None:
    async with stage() as the:
        the.lead()
        await the.loaded()
        waiting = await join(the, 3600)
        assert await is_waiting(waiting)
        the.lead(THERE)
        with pytest.raises(NotLeaderError):
            async with asyncio.timeout(10):
                await waiting


@pytest.mark.parametrize("lives", [True, False])
async def test_a_second_member_with_an_instance_id_is_told_whether_the_first_one_lives(
    lives: bool,
) -> None:
    static = Member(instance_id="one", address="10.0.0.7:99")
    async with stage() as the:
        the.lead()
        await the.loaded()
        waiting = await join(the, 3600, static)
        assert await is_waiting(waiting)

        async def live() -> None:
            epoch = (await waiting).current.epoch  # It is answered before its time is over.
            if lives:
                await the.positions.heartbeat(TOPIC_PARTITION, "g", Heartbeat("m", epoch), 0)

        living = asyncio.create_task(live())
        second = Heartbeat("n", 0, static)
        with pytest.raises(InstanceIdInUseError if lives else UnreleasedInstanceIdError) as told:
            await the.positions.heartbeat(TOPIC_PARTITION, "g", second, 0)
        assert told.value.retriable is not lives
        assert "'m'" in told.value.message
        await living


async def test_a_member_that_is_heard_while_others_are_removed_stays() -> None:
    """The commit of a removal takes time."""
    async with stage(groups=GroupsConfig(session_timeout_ms=1000)) as the:
        the.lead()
        await the.loaded()
        await (await join(the, 0))
        end = the.log.log_end_offset
        await the.positions._end(TOPIC_PARTITION, [_Look("g", ["m"], [])])
        machine = the.positions.runtime.machine(TOPIC_PARTITION)
        assert machine is not None
        assert list(machine.membership.groups["g"].members) == ["m"]
        assert the.log.log_end_offset == end


async def test_positions_of_a_deleted_topic_are_kept_for_as_long_as_it_may_come_back() -> None:
    """P75; else a topic that is back would be read again from its beginning."""
    topic = Topic(
        topic_id=PLACE.topic_id,
        name=TopicName("default", "t"),
        partitions=(
            PartitionState(
                replicas=(HERE.broker_id,),
                leader=NO_BROKER,
                leader_epoch=LeaderEpoch(1),
                partition_epoch=PartitionEpoch(1),
                isr=(),
                elr=(HERE,),
            ),
        ),
    )
    gone = MetadataImage.empty(ClusterState(cluster_id="c"))
    deleted = {topic.topic_id: DeletedTopic(topic=topic, deleted_at=WallMs(1))}
    number = shard_of(topic.topic_id)
    kept = gone.with_shard(StateShard(number=number, version=1, deleted=deleted))
    async with stage(PositionsConfig(retention_ms=300)) as the:
        the.lead()
        await the.loaded()
        await the.keep(5)
        await asyncio.sleep(0.4)
        await the.keep(7, place=TopicPartition(TopicId(b"u" * 16), 0))  # The name is used.
        the.image = kept
        await the.positions.expire_now()
        assert await the.look() == [5, 7]
        the.image = gone
        expiring = asyncio.create_task(the.positions.expire_now())
        await the.written(3)
        the.replicate()
        await expiring
        assert 5 not in await the.look()  # type: ignore[operator]
