"""Tells decided transactions to the leaders of their partitions and to the coordinators of groups.

Only committed decisions come here (T9). Each is told again and again, until every partition and
group has its marker (P50, T7); then it is *over*, and its coordinator is told so. What is done
lives in memory only: after a failover the next coordinator tells all of it again, and leaders know
what they have (T1).

The ends that one broker has to write go together in one call, however many transactions they are
of. A call is answered when all of it is committed. So what has failed before, and all else for the
same partition, goes in calls of its own, after a pause: a partition that cannot commit holds up
nobody else's markers. The same holds for a transaction with many participants: a broker flushes
each of its partitions, so its ends go a few at a time, and others' records are flushed between.

A topic that this broker does not know is deleted, or this broker has not heard of it yet. Its
markers are left to the coordinator's record, and delay nobody (T8).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from millrace.broker.coordinator.places import place_of
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.peers import PeerMethod, Peers
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.records import TransactionRecord
from millrace.core.coordinator.transactions.transaction import Decision, Producer
from millrace.core.errors import MillraceError
from millrace.core.ids import NO_BROKER, BrokerId, LeaderEpoch, TopicPartition, WallMs
from millrace.core.pauses import doubled_pause
from millrace.core.topics import POSITIONS_TOPIC
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import transactions_pb2 as pb
from millrace.proto.v1.common_pb2 import TopicPartition as WirePartition
from millrace.runtime.tasks import Tasks
from millrace.runtime.transport.calls import CallError

METHOD: Final = PeerMethod("WriteMarkers", pb.WriteMarkersRequest, pb.WriteMarkersResponse)
_ENDS_MAX: Final = 1000
"""Partitions and groups in one call."""
_CALLS_MAX: Final = 4
"""Calls under way to one broker with what has not failed before; one more is for what has, and one
for each of both of large transactions."""
_LARGE: Final = 100
"""A transaction with more participants is large: so many of its ends are in one call."""
_PAUSE_MS: Final = 50
_PAUSE_MS_MAX: Final = 2_000
_ANSWER_SECONDS: Final = 15.0

_NOTE_AGAIN_SECONDS: Final = 0.5

Handle: TypeAlias = Callable[[TransactionCoordinator, WallMs], Result[TransactionRecord, None]]
Ask: TypeAlias = Callable[[TopicPartition, Handle], Awaitable[None]]
Participant: TypeAlias = TopicPartition | str
"""A partition, or the name of a group."""


@dataclass(slots=True, eq=False)
class Telling:
    """A decision that is being told.

    Attributes:
        place: the coordinator's partition.
        coordinator_epoch: with which this broker leads it.
        decision: what is told.
        on_over: called when all participants have it, or are unknown.
        owed: who must still have it, with the reason why the last attempt failed.
        unknown: partitions of topics that this broker does not know (T8).
        is_dropped: another broker tells it.
    """

    place: TopicPartition
    coordinator_epoch: LeaderEpoch
    decision: Decision
    on_over: Callable[["Telling"], Awaitable[None]]
    owed: dict[Participant, str] = field(default_factory=dict)
    unknown: list[TopicPartition] = field(default_factory=list)
    is_dropped: bool = False

    @property
    def is_large(self) -> bool:
        """Whether so many take part in the transaction that its ends go apart."""
        return len(self.decision.partitions) + len(self.decision.groups) > _LARGE

    async def note(self, ask: Ask, handle: Handle) -> None:
        """Let the coordinator's machine note what was told, unless another broker tells it by now.

        Args:
            ask: asks the machine of a partition; see `CoordinatorRuntime.ask`.
            handle: calls a `handle_*` method of the machine.
        """
        while not self.is_dropped:
            try:
                await ask(self.place, handle)
            except MillraceError:
                await asyncio.sleep(_NOTE_AGAIN_SECONDS)
            else:
                return


class _End(NamedTuple):
    """One marker for one participant."""

    telling: Telling
    participant: Participant
    failures: int = 0


class _Lane(NamedTuple):
    """Calls to one broker: with what has not failed before, or with what has.

    Attributes:
        is_large: with ends of large transactions.
    """

    broker_id: BrokerId
    has_failed: bool
    is_large: bool


class MarkerDelivery:
    """Tells the decisions of all partitions that this broker coordinates. It belongs to the loop.

    Args:
        partitions: of this broker, with the metadata.
        peers: the brokers that write markers.
        on_failure: called with an unexpected error.
    """

    def __init__(
        self,
        partitions: Partitions,
        peers: Peers,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._partitions = partitions
        self._peers = peers
        self._tasks = Tasks(on_failure)
        self._waiting: dict[_Lane, list[_End]] = {}
        self._under_way: dict[_Lane, int] = {}
        # The participants whose last marker was not written.
        self._troubled: set[Participant] = set()

    def tell(self, telling: Telling) -> None:
        """Begin to tell a decision."""
        decision = telling.decision
        participants: list[Participant] = [*decision.partitions, *decision.groups]
        telling.owed = dict.fromkeys(participants, "")
        self._offer([_End(telling, participant) for participant in participants])
        if not participants:
            self._tasks.begin(_over(telling))

    async def close(self) -> None:
        """Tell nothing more."""
        await self._tasks.cancel()

    # --- Which broker is told ----------------------------------------------------------------

    def _offer(self, ends: Iterable[_End]) -> None:
        """Let each end wait for its broker, or for a pause."""
        lanes: dict[_Lane, None] = {}
        leaderless: list[_End] = []
        for end in ends:
            telling, participant, failures = end
            if telling.is_dropped:
                self._troubled.discard(participant)
                continue
            leader = self._leader(participant)
            if leader is None:
                assert isinstance(participant, TopicPartition)
                telling.unknown.append(participant)
                self._done(end)
            elif leader == NO_BROKER:
                telling.owed[participant] = "it has no leader"
                leaderless.append(end)
            else:
                has_failed = failures > 0 or participant in self._troubled
                lane = _Lane(leader, has_failed, telling.is_large)
                self._waiting.setdefault(lane, []).append(end)
                lanes[lane] = None
        for lane in lanes:
            self._send(lane)
        self._retry(leaderless)

    def _leader(self, participant: Participant) -> BrokerId | None:
        """Return the broker that writes the marker; None: this broker does not know the topic."""
        image = self._partitions.image
        if image is None:
            return NO_BROKER
        if isinstance(participant, TopicPartition):
            state = image.partition(participant)
            return None if state is None else state.leader
        place = place_of(image, POSITIONS_TOPIC, participant)
        coordinating = None if place is None else image.partition(place)
        return NO_BROKER if coordinating is None else coordinating.leader

    # --- Calls -------------------------------------------------------------------------------

    def _send(self, lane: _Lane) -> None:
        """Call a broker with what waits for it, unless enough calls are under way."""
        most = 1 if lane.has_failed or lane.is_large else _CALLS_MAX
        ends_max = _LARGE if lane.is_large else _ENDS_MAX
        while lane in self._waiting and self._under_way.get(lane, 0) < most:
            waiting = self._waiting.pop(lane)
            if len(waiting) > ends_max:
                self._waiting[lane] = waiting[ends_max:]
            ends = [end for end in waiting[:ends_max] if not end.telling.is_dropped]
            if ends:
                self._under_way[lane] = self._under_way.get(lane, 0) + 1
                self._tasks.begin(self._call(lane, ends))

    async def _call(self, lane: _Lane, ends: Sequence[_End]) -> None:
        request, ordered = _request(ends)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                response = await self._peers.ask(lane.broker_id, METHOD, request)
            problems = _problems(response, len(ordered))
        except TimeoutError:
            problems = [f"broker {lane.broker_id} does not answer"] * len(ordered)
        except (CallError, MillraceError) as error:
            problems = [f"broker {lane.broker_id}: {error}"] * len(ordered)
        finally:
            self._under_way[lane] -= 1
        failed: list[_End] = []
        for end, problem in zip(ordered, problems, strict=True):
            if problem:
                end.telling.owed[end.participant] = problem
                failed.append(end)
            else:
                self._done(end)
        self._retry(failed)
        self._send(lane)

    def _retry(self, failed: Sequence[_End]) -> None:
        """Try again after a pause, for ever (T7)."""
        if not failed:
            return
        self._troubled.update(end.participant for end in failed)
        again = [end._replace(failures=end.failures + 1) for end in failed]
        failures = min(end.failures for end in again)
        pause_ms = doubled_pause(failures, _PAUSE_MS, _PAUSE_MS_MAX)
        asyncio.get_running_loop().call_later(pause_ms / 1000, self._offer, again)

    def _done(self, end: _End) -> None:
        telling = end.telling
        self._troubled.discard(end.participant)
        telling.owed.pop(end.participant, None)
        if not telling.owed and not telling.is_dropped:
            self._tasks.begin(_over(telling))


async def _over(telling: Telling) -> None:
    await telling.on_over(telling)


def _request(ends: Sequence[_End]) -> tuple[pb.WriteMarkersRequest, list[_End]]:
    """Return a request, and its ends in the order of the results."""
    by_telling: dict[Telling, list[_End]] = {}
    for end in ends:
        by_telling.setdefault(end.telling, []).append(end)
    request = pb.WriteMarkersRequest()
    ordered: list[_End] = []
    for telling, some in by_telling.items():
        some.sort(key=lambda end: isinstance(end.participant, str))  # Groups come last.
        participants = [end.participant for end in some]
        request.markers.append(
            marker_to_wire(
                telling.decision.producer,
                telling.coordinator_epoch,
                [place for place in participants if isinstance(place, TopicPartition)],
                [group for group in participants if isinstance(group, str)],
                is_commit=telling.decision.is_commit,
                protocol=telling.decision.protocol,
            )
        )
        ordered += some
    return request, ordered


def marker_to_wire(
    producer: Producer,
    coordinator_epoch: LeaderEpoch,
    partitions: Iterable[TopicPartition],
    groups: Iterable[str],
    *,
    is_commit: bool,
    protocol: int,
) -> pb.Marker:
    """Return the message for a marker of some participants."""
    return pb.Marker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=is_commit,
        coordinator_epoch=coordinator_epoch,
        version=protocol,
        partitions=[
            WirePartition(topic_id=topic_id, partition=number) for topic_id, number in partitions
        ],
        groups=groups,
    )


def _problems(response: pb.WriteMarkersResponse, count: int) -> list[str]:
    """Return why each marker is not written; empty: it is."""
    problems = [
        error_from_wire(result.error).message if result.HasField("error") else ""
        for result in response.results
    ]
    missing = max(count - len(problems), 0)
    return [*problems[:count], *["the broker's answer has no result for it"] * missing]
