"""50 members read 500 partitions: seconds until their group is stable after one joins, and after
one is killed, without its session. The median of the slower of both.

Three brokers. The members read a steady load in this process; the one that is killed with -9 is a
process of its own. The group is stable when each member has confirmed what it should have. After a
kill the time begins when the coordinator removes the member. A partition that stays with its member
has paused if the member was told of it, or if a record took more than a second from the producer to
the member. The producer's own pace does not count: this process has much to do when another starts.
"""

import asyncio
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.measure import Bench, Outcome, say
from bench.millrace_cluster import running_millrace_cluster
from bench.processes import LoadFailedError, start, stop
from bench.settings import MILLRACE_TOPIC

from millrace.client import Admin, Consumer, GroupDescription, Producer

MEMBERS = 50
PARTITIONS = 500
RECORDS_PER_SECOND = 2
"""To each partition."""
GROUP, TOPIC = "g", "t"
PAUSE_S = 1.0
TIMEOUT_S = 60.0


@dataclass(slots=True)
class Members:
    """The members in this process, and what they saw.

    Attributes:
        told: partitions that a member was told of, since the last `watch`.
        longest: the longest time that a record of each partition took, likewise.
        sent: when a record of each partition was sent first that has not come yet.
    """

    address: str
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    told: set[int] = field(default_factory=set)
    longest: dict[int, float] = field(default_factory=dict)
    sent: dict[int, float] = field(default_factory=dict)

    def watch(self) -> None:
        """Begin to look at pauses."""
        self.told.clear()
        self.longest.clear()

    def join(self) -> None:
        """Let another member join."""
        self.tasks.append(asyncio.create_task(self._read()))

    async def _read(self) -> None:
        def note(places: list[tuple[str, int]]) -> None:
            self.told.update(number for _, number in places)

        async with Consumer(self.address, group=GROUP) as consumer:
            await consumer.subscribe([TOPIC], on_assigned=note, on_revoked=note, on_lost=note)
            while True:
                for batch in await consumer.poll_batches(100):
                    self._on_records(batch.partition)

    def on_sent(self, partition: int) -> None:
        """A record was sent."""
        self.sent.setdefault(partition, time.monotonic())

    def _on_records(self, partition: int) -> None:
        now = time.monotonic()
        took = now - self.sent.pop(partition, now)
        self.longest[partition] = max(self.longest.get(partition, 0.0), took)

    def paused(self, kept: set[int]) -> int:
        """Return how many of the partitions that stayed with their member have paused."""
        now = time.monotonic()
        return sum(
            partition in self.told
            or max(self.longest.get(partition, 0.0), now - self.sent.get(partition, now)) > PAUSE_S
            for partition in kept
        )


def measure(bench: Bench) -> Outcome:
    """Let a member join and be killed, once a round."""
    with running_millrace_cluster(bench.directory / "millrace") as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, MILLRACE_TOPIC["replicated"])
        rounds = asyncio.run(_rounds(bench, cluster.address))
    return Outcome(
        values={
            "s until the group is stable, the slower of join and kill": median(
                max(measured["join_s"], measured["kill_s"]) for measured in rounds
            ),
            "share of the partitions that stayed with their member and paused": max(
                measured["paused"] for measured in rounds
            ),
        },
        detail={"rounds": rounds, "members": MEMBERS, "partitions": PARTITIONS},
    )


async def _rounds(bench: Bench, address: str) -> list[dict[str, float]]:
    members = Members(address)
    rounds: list[dict[str, float]] = []
    async with Admin(address) as admin, Producer(address) as producer:
        load = asyncio.create_task(_send(producer, members))
        try:
            for _ in range(MEMBERS):
                members.join()
            await _stable(admin, MEMBERS, members, load)
            for number in range(bench.rounds):
                rounds.append(await _round(bench, admin, members, load))
                say(f"round {number + 1}/{bench.rounds} {rounds[-1]}")
        finally:
            for task in (load, *members.tasks):
                task.cancel()
            await asyncio.gather(load, *members.tasks, return_exceptions=True)
    return rounds


async def _send(producer: Producer, members: Members) -> None:
    """Send a record to each partition, again and again."""
    while True:
        for number in range(PARTITIONS):
            producer.send(TOPIC, b"a record", partition=number)
            members.on_sent(number)
            if number % 50 == 49:
                await asyncio.sleep(1 / RECORDS_PER_SECOND / 10)


async def _round(
    bench: Bench, admin: Admin, members: Members, load: "asyncio.Task[None]"
) -> dict[str, float]:
    """Let one member join and be killed; return the times, and the share that paused."""
    await asyncio.sleep(2 * PAUSE_S)
    log = bench.directory / "member.log"
    before = await _described(admin)
    members.watch()
    joined_at = time.monotonic()
    member = start(
        [sys.executable, "-m", "bench.loads.group_member", members.address, GROUP, TOPIC], log
    )
    try:
        # Its process needs a second to start, which is not the group's time.
        joining_at = await _until(admin, lambda group: len(group.members) > MEMBERS, members, load)
        after = await _stable(admin, MEMBERS + 1, members, load)
        join_s = time.monotonic() - joining_at
        await asyncio.sleep(PAUSE_S)
        kept = _kept(before, after)
        paused = members.paused(kept) / len(kept)
        members.watch()
        killed_at = time.monotonic()
    finally:
        stop(member, 0)
    removed_at = await _until(admin, lambda group: len(group.members) <= MEMBERS, members, load)
    last = await _stable(admin, MEMBERS, members, load)
    kill_s = time.monotonic() - removed_at
    await asyncio.sleep(PAUSE_S)
    kept = _kept(after, last)
    return {
        "join_s": join_s,
        "kill_s": kill_s,
        "kill_to_removal_s": removed_at - killed_at,
        "process_to_join_s": joining_at - joined_at,
        "moved_by_join": PARTITIONS - len(_kept(before, after)),
        "paused": max(paused, members.paused(kept) / len(kept)),
    }


async def _described(admin: Admin) -> GroupDescription:
    group = await admin.describe_group(GROUP)
    if group is None:
        raise LoadFailedError("the group is not there")
    return group


async def _until(
    admin: Admin, condition: Any, members: Members, load: "asyncio.Task[None]"
) -> float:
    """Return when a condition of the group holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        for task in (load, *members.tasks):
            if task.done():
                task.result()
        with suppress(AttributeError):  # The group is not there yet.
            if condition(await admin.describe_group(GROUP)):
                return time.monotonic()
        if time.monotonic() > deadline:
            raise LoadFailedError(f"the group is not as expected within {TIMEOUT_S:g} s")
        await asyncio.sleep(0.01)


async def _stable(
    admin: Admin, count: int, members: Members, load: "asyncio.Task[None]"
) -> GroupDescription:
    """Return the group once it is stable with so many members."""
    await _until(
        admin,
        lambda group: len(group.members) == count and group.state == "stable",
        members,
        load,
    )
    return await _described(admin)


def _kept(before: GroupDescription, after: GroupDescription) -> set[int]:
    """Return the partitions that stayed with their member."""
    owners = {place: owner.member_id for place, owner in after.owners.items()}
    return {
        place[1] for place, owner in before.owners.items() if owners.get(place) == owner.member_id
    }
