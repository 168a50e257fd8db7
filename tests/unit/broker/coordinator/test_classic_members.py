"""Members of classic groups at a broker: answers after commits, clocks, and the end of service."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.positions_stage import Stage, is_waiting, stage
from tests.fakes.stamped_batches import TOPIC_PARTITION
from tests.fakes.two_replicas import THERE
from tests.fakes.until import until

from millrace.broker.coordinator.classic_members import ClassicMembers
from millrace.core.coordinator.groups.classic_events import (
    Committer,
    Joined,
    JoinRequest,
    Leaving,
    Refusal,
    Refused,
    Reply,
    Synced,
    SyncRequest,
)
from millrace.core.coordinator.groups.classic_group import Protocol
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.group import JOINING, Member
from millrace.core.coordinator.groups.membership import Heartbeat
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import InvalidGroupError, NotLeaderError
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition
from millrace.runtime.clock import monotonic_now

CONFIG = GroupsConfig(classic_rebalance_delay_ms=0, classic_session_timeout_ms_min=100)


def joining(new_id: str, member_id: str = "", session_ms: int = 60_000) -> JoinRequest:
    return JoinRequest(
        group="g",
        member_id=member_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=(Protocol("range", b""),),
        new_id=new_id,
        needs_id=False,
    )


def classic(the: Stage) -> ClassicMembers:
    return the.positions.classic


async def join(the: Stage, new_id: str, **said: Any) -> Reply:
    return await classic(the).join(TOPIC_PARTITION, joining(new_id, **said))


def sync(the: Stage, member_id: str, **assignments: bytes) -> "asyncio.Task[Reply]":
    request = SyncRequest(group="g", member_id=member_id, generation=1, assignments=assignments)
    return asyncio.create_task(classic(the).sync(TOPIC_PARTITION, request))


async def stable(the: Stage, **said: Any) -> None:
    """Form a group of one member, `a`."""
    assert isinstance(await join(the, "a", **said), Joined)
    end = the.log.log_end_offset
    told = sync(the, "a", a=b"1")
    await the.written(end + 1)
    the.replicate()
    assert await told == Synced("consumer", "range", b"1")


async def test_an_assignment_is_told_when_it_is_committed() -> None:
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        await join(the, "a")
        told = sync(the, "a", a=b"1")
        await the.written(1)
        assert await is_waiting(told)
        the.replicate()
        assert await told == Synced("consumer", "range", b"1")


async def test_a_broker_that_stops_to_lead_refuses_what_waits() -> None:
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        await join(the, "a")
        waiting = asyncio.create_task(join(the, "b"))
        assert await is_waiting(waiting)
        the.lead(THERE)
        assert await waiting == Refusal(Refused.NOT_COORDINATOR)
        with pytest.raises(NotLeaderError):
            await join(the, "b")


async def test_the_members_of_the_last_stored_generation_go_on_at_the_next_coordinator() -> None:
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        await stable(the)
        the.lead(THERE)
        the.lead()
        await the.loaded()
        the.replicate()
        assert await classic(the).heartbeat(TOPIC_PARTITION, "g", "a", "", 1) is None
        assert await sync(the, "a") == Synced("consumer", "range", b"1")


async def test_a_silent_member_is_removed_and_the_empty_generation_stored() -> None:
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        await stable(the, session_ms=200)
        machine = the.positions.runtime.machine(TOPIC_PARTITION)
        assert machine is not None

        def look() -> bool:
            classic(the).look()
            return machine.classic.stored["g"].number == 2

        await until(look)
        assert not machine.classic.stored["g"].members
        await the.written(2)
        the.replicate()


async def test_a_commit_that_waits_holds_up_the_end_of_no_other_session() -> None:
    """Of two groups in one partition: a slow disk keeps no member alive."""
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        for group, session_ms in (("g", 100), ("h", 300)):
            said = replace(joining("a", session_ms=session_ms), group=group)
            assert isinstance(await classic(the).join(TOPIC_PARTITION, said), Joined)
            end = the.log.log_end_offset
            request = SyncRequest(group=group, member_id="a", generation=1, assignments={})
            told = asyncio.create_task(classic(the).sync(TOPIC_PARTITION, request))
            await the.written(end + 1)
            the.replicate()
            await told
        machine = the.positions.runtime.machine(TOPIC_PARTITION)
        assert machine is not None
        for group in ("g", "h"):

            def is_empty(group: str = group) -> bool:
                classic(the).look()
                return not machine.classic.members(group)

            await until(is_empty)
        await the.written(4)
        assert the.partition.replica.high_watermark == 2, "nothing of that is committed"
        the.replicate()


async def test_who_leaves_is_told_so_when_it_is_committed() -> None:
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        await stable(the)
        left = asyncio.create_task(
            classic(the).leave(TOPIC_PARTITION, "g", [Leaving("a"), Leaving("x")])
        )
        assert await is_waiting(left)
        the.replicate()
        assert await left == [None, Refused.UNKNOWN_MEMBER]


async def test_a_caller_that_goes_away_takes_nothing_along() -> None:
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        await join(the, "a")
        gone = sync(the, "a", a=b"1")
        await asyncio.sleep(0)
        gone.cancel()
        await the.written(1)
        the.replicate()
        assert await sync(the, "a") == Synced("consumer", "range", b"1")


async def test_a_member_of_millrace_is_refused_while_one_of_kafka_joins() -> None:
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        await join(the, "a")
        heartbeat = Heartbeat("m", JOINING, Member())
        with pytest.raises(InvalidGroupError, match="speak Kafka's protocol"):
            await the.positions.heartbeat(TOPIC_PARTITION, "g", heartbeat, 0)


async def test_more_positions_than_one_record_batch_takes_are_committed() -> None:
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        topic_id = TopicId(b"t" * 16)
        positions = {TopicPartition(topic_id, number): Position(5) for number in range(1500)}
        committed = asyncio.create_task(classic(the).commit(TOPIC_PARTITION, "r", positions))
        await the.written(1000)
        the.replicate()
        await the.written(1500)
        the.replicate()
        assert await committed is None
        assert the.positions.kept() == 1500


async def test_a_member_that_commits_is_heard() -> None:
    """As by Kafka's coordinator: who commits lives, also where a heartbeat is late."""
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        await stable(the)
        machine = the.positions.runtime.machine(TOPIC_PARTITION)
        assert machine is not None
        group = machine.classic.group("g")
        assert group is not None
        positions = {TopicPartition(TopicId(b"t" * 16), 0): Position(5)}

        async def commit(generation: int) -> Refused | None:
            group.members["a"].ends_at = MonotonicMs(0)
            end = the.log.log_end_offset
            committed = asyncio.create_task(
                classic(the).commit(TOPIC_PARTITION, "g", positions, Committer("a", "", generation))
            )
            await until(lambda: committed.done() or the.log.log_end_offset > end)
            the.replicate()
            return await committed

        assert await commit(generation=0) is Refused.ILLEGAL_GENERATION
        assert group.members["a"].ends_at == 0
        assert await commit(generation=1) is None
        assert group.members["a"].ends_at > monotonic_now()


async def test_the_time_that_each_request_takes_is_told_when_it_has_happened() -> None:
    """Also that of one whose answer comes later."""
    async with stage(groups=CONFIG) as the:
        the.lead()
        await the.loaded()
        spent: list[int] = []
        members = classic(the)
        await members.join(TOPIC_PARTITION, joining("a"), spent.append)
        assert len(spent) == 1
        assignments = {"a": b"1"}
        request = SyncRequest(group="g", member_id="a", generation=1, assignments=assignments)
        synced = asyncio.create_task(members.sync(TOPIC_PARTITION, request, spent.append))
        await the.written(1)
        the.replicate()
        await synced
        joins = members.join(TOPIC_PARTITION, joining("b"), spent.append)
        waiting = asyncio.create_task(joins)
        assert await is_waiting(waiting)
        assert len(spent) == 3
        left = members.leave(TOPIC_PARTITION, "g", [Leaving("a")], spent.append)
        assert await left == [None]
        assert len(spent) == 4
        assert min(spent) > 0
        assert isinstance(await waiting, Joined)
