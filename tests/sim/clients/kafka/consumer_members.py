"""Members of the simulator's consumer group that speak KIP-848's protocol, by Kafka's.

The coordinator assigns partitions, and members heartbeat: each says what it has, is told what it
may have, gives the rest up, and says so. Millrace's own members may be in the same group. A member
of these gives up everything at each change, commits nothing any more, and takes what it is told.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from tests.sim.clients.kafka.connections import NO_ERROR
from tests.sim.clients.kafka.members import KafkaMember, Seat
from tests.sim.judges.ownership import Session
from tests.sim.settings import GROUPS
from tests.sim.world import Violation

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.consumer_group_messages import ConsumerGroupHeartbeatRequest
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import MillraceError
from millrace.core.topics import PartitionName

_Heartbeat: Final[Any] = ConsumerGroupHeartbeatRequest
_JOINS: Final = 0
_LEAVES: Final = -1
_GOES_AWAY: Final = -2
_BEAT_S: Final = 1.0
_ANSWER_S: Final = 2.0
_FIRST_WITH_OWN_IDS: Final = 1
_REBALANCE_MS: Final = 20_000


class ConsumerSeat(Seat):
    """A place in a group of KIP-848's protocol."""

    commit_versions: ClassVar[Sequence[int]] = (9,)
    forgotten: ClassVar[frozenset[Code]] = frozenset(
        {
            Code.UNKNOWN_MEMBER_ID,
            Code.FENCED_MEMBER_EPOCH,
            Code.STALE_MEMBER_EPOCH,
            Code.FENCED_INSTANCE_ID,
        }
    )
    _places: tuple[PartitionName, ...] = ()
    _is_told = False

    def session(self) -> Session | None:
        """Return its session; None: it has not joined."""
        if self._heard_at < 0:
            return None
        return Session(self._is_lost, self._heard_at, GROUPS.session_timeout_ms / 1000)

    async def join(self) -> list[PartitionName] | None:
        """Join, or say that it has given everything up that it must; return what it is assigned."""
        is_new = self._is_lost
        if is_new:
            self.generation, self._places = _JOINS, ()
        self._is_told = False
        if await self._beat(is_full=True) or not self._is_told:
            return None
        return sorted(self._places)

    async def heartbeat(self) -> bool:
        """Say that it is there; return whether it has to give something up, or gets more."""
        before = self._places
        return await self._beat(is_full=self._dice.random() < 0.3) or self._places != before

    async def leave(self) -> None:
        """Leave, without a second attempt; a static member says that it comes back."""
        if self._is_lost:
            return
        self._is_lost = True
        self.generation = _LEAVES if self._instance_id is None else _GOES_AWAY
        await self._send(None)

    async def _beat(self, *, is_full: bool) -> bool:
        """Send a heartbeat; return whether the place is gone.

        Args:
            is_full: whether it says everything, as after an error.
        """
        joins = self.generation == _JOINS
        asked_at = self._now()
        answer = await self._send(self._places if is_full or joins else None)
        if answer is None:
            return False
        code = answer.error_code
        if code in self.forgotten:
            self.lose()
            return True
        if code == Code.UNRELEASED_INSTANCE_ID:
            await asyncio.sleep(_BEAT_S)
            return False
        if code != NO_ERROR:
            raise Violation(f"{self.member_id} is told {Code(code).name}: {answer.error_message}")
        if answer.member_epoch < self.generation:
            raise Violation(f"{self.member_id} is at {self.generation}, and told {answer}")
        if answer.assignment is not None:
            places = await self._named(answer.assignment.topic_partitions)
            if places is None:
                return False
            self._places = places
        self.member_id, self.generation = answer.member_id, answer.member_epoch
        self._heard_at, self._is_lost, self._is_told = asked_at, False, True
        return False

    async def _named(self, told: Sequence[Any]) -> tuple[PartitionName, ...] | None:
        """Return partitions by the name of their topic; None: it is not known which one it is."""
        if not told:
            return ()
        try:
            known = await self._brokers.look_up(self._topic)
        except MillraceError:
            return None
        if any(topic.topic_id != known.topic_id for topic in told):
            return None
        self._topic_id = known.topic_id
        return tuple((self._topic, number) for topic in told for number in topic.partitions)

    async def _send(self, owned: Sequence[PartitionName] | None) -> Any:
        """Return the answer to a heartbeat; None: there is none, or it is another coordinator's.

        Args:
            owned: what it has; None: it does not say, as nothing has changed.
        """
        joins = self.generation == _JOINS
        if joins and not self.member_id and self._dice.random() < 0.5:
            self.member_id = self._dice.randbytes(16).hex()
        version = _FIRST_WITH_OWN_IDS if joins and self.member_id else self._dice.choice((0, 1))
        if joins and not self.member_id:
            version = 0
        by_pattern = joins and version >= 1 and self._dice.random() < 0.3
        topics = [self._topic] if joins or owned is not None else None
        partitions = None
        if owned is not None:
            kind = _Heartbeat.TopicPartitions
            numbers = [number for _, number in owned]
            partitions = [kind(topic_id=self._topic_id, partitions=numbers)] if numbers else []
        message = _Heartbeat(
            version=version,
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=self.generation,
            instance_id=self._instance_id,
            rack_id=None,
            rebalance_timeout_ms=_REBALANCE_MS if joins else -1,
            subscribed_topic_names=None if by_pattern else topics,
            subscribed_topic_regex=self._topic if by_pattern else None,
            server_assignor=self._dice.choice((None, "range", "uniform")) if joins else None,
            topic_partitions=partitions,
        )
        return await self._ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, message, _ANSWER_S)


class KafkaConsumerMember(KafkaMember):
    """A process with one such member after the other."""

    seat: ClassVar[type[Seat]] = ConsumerSeat
