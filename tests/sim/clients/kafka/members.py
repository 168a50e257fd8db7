"""Members of the simulator's consumer group that speak Kafka's classic protocol.

Each joins, gets its partitions from the member that leads the group, reads, and commits what it has
handed out; at each rebalance it commits, gives up everything, and joins again (the eager protocol).
Some are static, and have their partitions again when they are back soon (KIP-345). A member reads
nothing after its session, by its own clock: so `ownership` judges both kinds of members by one
measure. It leaves, dies, or stands still, and another one comes.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.producer import TxnOffsetCommitRequest
from tests.sim.clients.kafka.connections import NO_ERROR, KafkaBrokers, error_of
from tests.sim.clients.kafka.consumer import KafkaConsumer
from tests.sim.clients.kafka.coordinators import ELSEWHERE, OF_GROUP, KafkaCoordinator
from tests.sim.clients.kafka.transactions import KafkaTransactionalProducer
from tests.sim.clients.members import GroupPlan
from tests.sim.clients.readers_and_writers import Client, Job
from tests.sim.judges.ownership import GROUP, Life, Ownership, Session
from tests.sim.machines.clocks import MachineClock
from tests.sim.world import SECOND, Violation

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.coordinator.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    assigned_partitions,
    assignment_of,
    subscribed_topics,
    subscription_of,
)
from millrace.core.errors import (
    LogTruncatedError,
    MillraceError,
    OffsetOutOfRangeError,
    UnknownMemberIdError,
)
from millrace.core.topics import PartitionName

_POLL_MS: Final = 400
_SESSION_MS: Final = 6_000
_REBALANCE_MS: Final = 20_000
_HEARTBEAT_S: Final = 1.0
_BACKOFF_S: Final = 0.1
_ANSWER_S: Final = 2.0
"""How long a coordinator may take to answer, when no one waits for other members."""
_STATIC: Final = 0.3
_ASSIGNOR: Final = "every-second"
_FIRST_WITH_STABLE: Final = 7
_FORGOTTEN: Final = frozenset(
    {Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID}
)


class Seat:
    """A place in the group: what a member knows of its session, and its requests.

    Args:
        brokers: that the client knows.
        topic: that it reads.
        clock: of its machine.
        group: its name.
        instance_id: of a static member (KIP-345); None: it is none.

    Attributes:
        member_id: that the coordinator has given it; empty: none.
        generation: of the group, when it joined last.
        commit_versions: of OffsetCommit, that say as what a member commits.
        forgotten: codes with which it is told that its place is gone.
    """

    commit_versions: ClassVar[Sequence[int]] = (2, 5, 7, 8, 9)
    forgotten: ClassVar[frozenset[Code]] = _FORGOTTEN

    def __init__(
        self,
        brokers: KafkaBrokers,
        topic: str,
        clock: MachineClock,
        group: str = GROUP,
        instance_id: str | None = None,
    ) -> None:
        self.member_id = ""
        self.generation = -1
        self._brokers = brokers
        self._topic = topic
        self._clock = clock
        self._dice = brokers.dice
        self._group = group
        self._instance_id = instance_id
        self._coordinator = KafkaCoordinator(brokers, group, OF_GROUP)
        self._heard_at = -1.0
        self._is_lost = True

    def session(self) -> Session | None:
        """Return its session; None: it has not joined."""
        if self._heard_at < 0:
            return None
        return Session(self._is_lost, self._heard_at, _SESSION_MS / 1000)

    def _now(self) -> float:
        return self._clock.monotonic() / SECOND

    def _drawn(self, versions: Sequence[int], first_with_instances: int) -> int:
        """Return a version of a request, which names the instance if there is one."""
        least = 0 if self._instance_id is None else first_with_instances
        return self._dice.choice([version for version in versions if version >= least])

    async def _ask(self, key: int, version: int, message: Any, patience_s: float) -> Any:
        """Return an answer without an error of the coordinator's place; None: there is none."""
        try:
            answer = await self._coordinator.ask(key, version, message, patience_s)
        except MillraceError:
            await asyncio.sleep(_BACKOFF_S)
            return None
        if getattr(answer, "error_code", NO_ERROR) in ELSEWHERE:
            self._coordinator.forget()
            await asyncio.sleep(_BACKOFF_S)
            return None
        return answer

    # --- To join -----------------------------------------------------------------------------

    async def join(self) -> list[PartitionName] | None:
        """Join the group; return what it is assigned; None: try again."""
        version = self._drawn((1, 4, 5, 7, 9), 5)
        asked = JoinGroupRequest(
            version=version,
            group_id=self._group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(
                    name=_ASSIGNOR, metadata=subscription_of([self._topic])
                )
            ],
            reason=None,
        )
        patience_s = (_REBALANCE_MS + _SESSION_MS) / 1000
        answer = await self._ask(ApiKey.JOIN_GROUP, version, asked, patience_s)
        if answer is None:
            return None
        code = answer.error_code
        if code == Code.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return None
        if code != NO_ERROR:
            await self._on_not_joined(code)
            return None
        self.member_id, self.generation = answer.member_id, answer.generation_id
        is_leader = answer.leader == answer.member_id and not answer.skip_assignment
        return await self._sync(answer.members if is_leader else ())

    async def _on_not_joined(self, code: int) -> None:
        if code in _FORGOTTEN:
            self.member_id = ""
        elif code not in (Code.REBALANCE_IN_PROGRESS, Code.INCONSISTENT_GROUP_PROTOCOL):
            raise Violation(f"a member may not join: {Code(code).name}")
        await asyncio.sleep(_BACKOFF_S)

    async def _sync(self, members: Iterable[Any]) -> list[PartitionName] | None:
        version = self._drawn((0, 1, 3, 5), 3)
        shares = await self._shares({one.member_id: bytes(one.metadata) for one in members})
        if shares is None:
            return None
        asked = SyncGroupRequest(
            version=version,
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=_ASSIGNOR,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=assignment_of(share)
                )
                for member_id, share in shares.items()
            ],
        )
        asked_at = self._now()
        patience_s = (_REBALANCE_MS + _SESSION_MS) / 1000
        answer = await self._ask(ApiKey.SYNC_GROUP, version, asked, patience_s)
        if answer is None:
            return None
        if answer.error_code != NO_ERROR:
            await self._on_not_joined(answer.error_code)
            return None
        found = assigned_partitions(bytes(answer.assignment))
        if found is None:
            raise Violation(f"{self.member_id} is assigned {answer.assignment!r}")
        self._heard_at, self._is_lost = asked_at, False
        return sorted(found)

    async def _shares(self, members: Mapping[str, bytes]) -> dict[str, list[PartitionName]] | None:
        """Return what each member gets, as the leader of the group; None: look again."""
        readers: dict[str, list[str]] = {}
        for member_id, metadata in sorted(members.items()):
            for topic in sorted(subscribed_topics(metadata) or ()):
                readers.setdefault(topic, []).append(member_id)
        shares: dict[str, list[PartitionName]] = {member_id: [] for member_id in members}
        for topic, some in readers.items():
            try:
                known = await self._brokers.look_up(topic)
            except MillraceError:
                await asyncio.sleep(_BACKOFF_S)
                return None
            first = self._dice.randrange(len(some))
            for number in sorted(known.leaders):
                shares[some[(first + number) % len(some)]].append((topic, number))
        return shares

    # --- To stay -----------------------------------------------------------------------------

    async def heartbeat(self) -> bool:
        """Say that it is there; return whether it has to join again."""
        version = self._drawn((0, 1, 3, 4), 3)
        asked = HeartbeatRequest(
            version=version,
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
        )
        asked_at = self._now()
        answer = await self._ask(ApiKey.HEARTBEAT, version, asked, _ANSWER_S)
        if answer is None:
            return False
        code = answer.error_code
        if code in (NO_ERROR, Code.REBALANCE_IN_PROGRESS):
            self._heard_at = asked_at
            return bool(code)
        if code not in _FORGOTTEN:
            raise Violation(f"{self.member_id} is told {Code(code).name} at a heartbeat")
        self.lose()
        return True

    async def beat(self, leaving: asyncio.Event) -> None:
        """Say so again and again, until it has to join again, or it is to leave."""
        while not leaving.is_set():
            await asyncio.sleep(_HEARTBEAT_S)
            if await self.heartbeat():
                leaving.set()

    def lose(self) -> None:
        """Its place is gone: it joins as a new member."""
        self._is_lost, self.member_id = True, ""

    async def leave(self) -> None:
        """Leave, without a second attempt; a static member says nothing, as it comes back."""
        if self._instance_id is not None:
            self._is_lost = True
            return
        version = self._dice.choice((1, 3, 5))
        asked = LeaveGroupRequest(
            version=version,
            group_id=self._group,
            member_id=self.member_id,
            members=[
                LeaveGroupRequest.MemberIdentity(
                    member_id=self.member_id, group_instance_id=None, reason=None
                )
            ],
        )
        self._is_lost = True
        if self.member_id:
            await self._ask(ApiKey.LEAVE_GROUP, version, asked, _ANSWER_S)

    # --- Positions ---------------------------------------------------------------------------

    async def offsets(
        self, consumer: KafkaConsumer, numbers: Sequence[int], *, is_stable: bool = False
    ) -> dict[int, int]:
        """Return where to read on: where the group is, or where a partition begins.

        Args:
            consumer: that will read.
            numbers: of the partitions.
            is_stable: whether no open transaction may have the group's positions (KIP-447).

        Raises:
            MillraceError: nobody says so.
        """
        if not numbers:
            return {}
        await consumer.look_up(self._topic)
        found = await self._positions(numbers, is_stable=is_stable)
        starts = [number for number, at in found.items() if at < 0]
        return found | await consumer.starts(self._topic, starts)

    async def _positions(self, numbers: Iterable[int], *, is_stable: bool) -> dict[int, int]:
        """Return where the group is in partitions; -1: nowhere yet."""
        version = _FIRST_WITH_STABLE if is_stable else self._dice.choice((1, 5, 7))
        asked = OffsetFetchRequest(
            version=version,
            group_id=self._group,
            topics=[
                OffsetFetchRequest.OffsetFetchRequestTopic(
                    name=self._topic, partition_indexes=list(numbers)
                )
            ],
            require_stable=True,
        )
        answer = await self._coordinator.ask(ApiKey.OFFSET_FETCH, version, asked, _ANSWER_S)
        self._check(answer.error_code or NO_ERROR)
        [topic] = answer.topics
        for told in topic.partitions:
            self._check(told.error_code)
        return {told.partition_index: told.committed_offset for told in topic.partitions}

    async def commit(self, positions: Mapping[PartitionName, int]) -> None:
        """Commit positions.

        Raises:
            MillraceError: they are not committed, or may not be.
        """
        version = self._drawn(self.commit_versions, 7)
        asked = OffsetCommitRequest(
            version=version,
            group_id=self._group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=self._topic,
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                            partition_index=number, committed_offset=offset, committed_metadata=""
                        )
                        for (_, number), offset in positions.items()
                    ],
                )
            ],
        )
        answer = await self._coordinator.ask(ApiKey.OFFSET_COMMIT, version, asked, _ANSWER_S)
        for told in answer.topics[0].partitions:
            self._check(told.error_code)

    async def commit_with(
        self, producer: KafkaTransactionalProducer, positions: Mapping[int, int]
    ) -> None:
        """Have a producer's transaction commit positions, of which its coordinator knows (KIP-447).

        Raises:
            MillraceError: they are not taken, or may not be.
        """
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        version = self._dice.choice((3, 4))
        asked = TxnOffsetCommitRequest(
            version=version,
            transactional_id=producer.transactional_id,
            group_id=self._group,
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.epoch,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            topics=[
                kind(
                    name=self._topic,
                    partitions=[
                        kind.TxnOffsetCommitRequestPartition(
                            partition_index=number, committed_offset=offset, committed_metadata=""
                        )
                        for number, offset in positions.items()
                    ],
                )
            ],
        )
        answer = await self._coordinator.ask(ApiKey.TXN_OFFSET_COMMIT, version, asked, _ANSWER_S)
        for told in answer.topics[0].partitions:
            self._check(told.error_code)

    def _check(self, code: int) -> None:
        if code in ELSEWHERE:
            self._coordinator.forget()
        if code in self.forgotten or code == Code.REBALANCE_IN_PROGRESS:
            raise UnknownMemberIdError(f"{self.member_id}: {Code(code).name}")
        if code != NO_ERROR:
            raise error_of(code, f"the group's coordinator says to {self.member_id}")


class KafkaMember(Client):
    """A process with one member of the group after the other.

    Attributes:
        seat: the kind of their places.
    """

    seat: ClassVar[type[Seat]] = Seat

    def __init__(self, job: Job, *, number: int, plan: GroupPlan, ownership: Ownership) -> None:
        super().__init__(job)
        self._plan = plan
        self._ownership = ownership
        self._stays = number < plan.stays
        is_static = plan.returns and self._dice.random() < _STATIC
        self._instance_id = self.name if is_static else None

    async def _work(self) -> None:
        while not self._is_done:
            brokers = KafkaBrokers(self._machine.kafka, self.name, self._dice, _ANSWER_S)
            seat = self.seat(
                brokers, self._site.topic, self._machine.clock, instance_id=self._instance_id
            )
            life = Life(self.name, next(self._lives), seat.session, self._machine.clock)
            consumer = KafkaConsumer(brokers, dice=self._dice)
            polls = 1 + self._dice.randrange(2 * self._plan.polls)
            while not self._is_done and (polls or self._stays):
                polls = await self._take_part(seat, life, consumer, polls)
            if self._dice.random() >= self._plan.dies:
                await seat.leave()
            self._ownership.on_ended(life)
            await consumer.close()
            if not self._plan.returns:
                return
            await self._pause(self._plan.away_us)

    async def _take_part(self, seat: Seat, life: Life, consumer: KafkaConsumer, polls: int) -> int:
        """Join, and read until the next rebalance; return how many polls are left."""
        places = await seat.join()
        if places is None:
            return max(0, polls - 1)
        if life.is_silent:  # The answer came too late.
            return polls
        self._ownership.on_assigned(life, places)
        mine = [place for place in places if life.tenures.get(place)]
        leaving = asyncio.Event()
        beating = asyncio.create_task(seat.beat(leaving))
        try:
            offsets = await seat.offsets(consumer, [number for _, number in mine])
            consumer.begin(self._site.topic, offsets)
            while not (leaving.is_set() or life.is_silent or self._is_done or not polls):
                try:
                    await self._poll(seat, life, consumer)
                except (LogTruncatedError, OffsetOutOfRangeError) as error:
                    self._judge(error)
                    await self._begin_again(consumer, mine)
                polls = polls if self._stays else polls - 1
                await self._pause(self._every_us)
        except MillraceError as error:
            self._judge(error)
        finally:
            beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beating
        return self._give_up(life, mine, polls)

    def _give_up(self, life: Life, places: list[PartitionName], polls: int) -> int:
        if life.may_read:
            self._ownership.on_given_up(life, places)
        else:
            self._ownership.on_lost(life, places)
        return polls

    async def _begin_again(self, consumer: KafkaConsumer, mine: Collection[PartitionName]) -> None:
        """Read from the beginning, as records are gone: `auto.offset.reset` is `earliest`."""
        self._ownership.on_set_back(mine)
        await consumer.look_up(self._site.topic)
        offsets = await consumer.starts(self._site.topic, [number for _, number in mine])
        consumer.begin(self._site.topic, offsets)

    async def _poll(self, seat: Seat, life: Life, consumer: KafkaConsumer) -> None:
        records = await consumer.poll(_POLL_MS)
        if life.is_silent or not life.may_read:
            return
        for record in records:
            self._ownership.on_read(life, record)
        self._ownership.on_done(records)
        positions = {(record.topic, record.partition): record.offset + 1 for record in records}
        if positions and self._dice.random() < self._plan.commits:
            attempts = self._ownership.attempts(life, positions)
            await seat.commit(positions)
            self._ownership.on_committed(life, attempts)

    def _judge(self, error: MillraceError) -> None:
        may_be_gone = self._site.has_been_cut or self._site.has_given_up
        if isinstance(error, LogTruncatedError | OffsetOutOfRangeError) and may_be_gone:
            return
        if not isinstance(error, UnknownMemberIdError):
            super()._judge(error)
