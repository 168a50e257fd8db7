"""Measures how far the groups that this broker coordinates are behind, for its metrics.

The coordinator knows the positions, and the leaders of partitions know what follows them. A
round takes up the positions (`LagRound`), asks each leader, and shows the sums. So each group is
shown by one broker, and nothing outside the cluster has to ask for every partition.

It costs little: nothing without positions, one question about groups at the same offset, and a
pause after each round that is much longer than its work. A leader is not asked again before it has
answered, so a disk that hangs holds up one question. What a leader does not answer in time is
unknown.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from millrace.broker.coordinator.groups import Groups
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.peers import PeerMethod, Peers
from millrace.broker.telemetry.group_lags import GroupLagMetrics
from millrace.core.coordinator.groups.coordinator import GroupCoordinator
from millrace.core.coordinator.groups.lags import LagRound, Place, Unread, unread_records
from millrace.core.ids import BrokerId
from millrace.proto.lags import LagQuery, MeasuredLag, lags_from_wire, queries_to_wire
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.runtime.tasks import Tasks
from millrace.runtime.transport.calls import CallError
from millrace.runtime.turns import Turns

METHOD: Final = PeerMethod("DescribeLags", pb.DescribeLagsRequest, pb.DescribeLagsResponse)
_POSITION_SECONDS: Final = 4e-6
_QUERY_SECONDS: Final = 32e-6
"""Of the processor, about: to take up a position; to ask about one and measure it."""
_SHARE_MAX: Final = 0.05
"""The share of its time that all of it may take."""
_QUERIES_MAX: Final = 1000
"""In one request."""
_ANSWER_SECONDS: Final = 2.0


class GroupLags:
    """Runs one round of measurements after another. It belongs to the event loop.

    Args:
        groups: that this broker coordinates.
        partitions: of this broker, with the metadata.
        peers: the leaders.
        turns: of the loop.
        metrics: show the lags.
        on_failure: called with an unexpected error.
    """

    def __init__(
        self,
        groups: Groups,
        partitions: Partitions,
        peers: Peers,
        *,
        turns: Turns,
        metrics: GroupLagMetrics,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._groups = groups
        self._partitions = partitions
        self._peers = peers
        self._turns = turns
        self._metrics = metrics
        metrics.kept = groups.coordinated
        self._tasks = Tasks(on_failure)
        self._asking: set[BrokerId] = set()

    async def run(self) -> None:
        """Measure again and again, while the broker runs."""
        interval_ms = self._groups.config.lag_interval_ms
        if interval_ms < 0:
            return
        try:
            while True:
                pause_seconds = await self.measure()
                await asyncio.sleep(max(interval_ms / 1000, pause_seconds))
        finally:
            await self._tasks.cancel()

    async def measure(self) -> float:
        """Measure and show all lags once; return how long to pause at least."""
        lags = await self._taken_up()
        work_seconds = _POSITION_SECONDS * lags.positions + _QUERY_SECONDS * len(lags.places)
        pause_seconds = work_seconds / _SHARE_MAX
        found: dict[Place, Unread] = {}
        if lags.places:
            # With much to ask, a leader that is busy may take as long.
            found = await self._answers(lags.places, _ANSWER_SECONDS + pause_seconds)
        shown = []
        work = self._turns.work()
        for lag in lags.lags(found):
            shown.append(lag)
            await work.give_way()
        self._metrics.show(shown, lags.left_out)
        return pause_seconds

    async def _taken_up(self) -> LagRound:
        lags = LagRound(self._groups.config.lag_series_max, self._groups.topic_name)
        machines = [machine for _, machine in self._groups.runtime.machines()]
        work = self._turns.work()
        for names_of in (GroupCoordinator.group_names, GroupCoordinator.other_names):
            for machine in machines:
                names = names_of(machine)
                for number, name in enumerate(names):
                    if lags.is_full:
                        lags.left_out += len(names) - number
                        break
                    positions = machine.reading(name, self._groups.partitions_of)
                    lags.take(name, positions)
                    await work.give_way(1 + len(positions))
        return lags

    async def _answers(self, places: Iterable[Place], seconds: float) -> dict[Place, Unread]:
        """Return what all leaders answer in so many seconds."""
        image = self._partitions.image
        by_leader: dict[BrokerId, list[LagQuery]] = {}
        work = self._turns.work()
        for topic_partition, offset in places:
            await work.give_way()
            state = None if image is None else image.partition(topic_partition)
            if state is not None:
                queries = by_leader.setdefault(state.leader, [])
                queries.append(LagQuery(topic_partition, state.leader_epoch, offset))
        found: dict[Place, Unread] = {}
        asked = []
        for leader, queries in by_leader.items():
            if leader not in self._asking:
                asked.append(self._tasks.begin(self._ask(leader, queries, found)))
        if asked:
            await asyncio.wait(asked, timeout=seconds)
        return found

    async def _ask(
        self, leader: BrokerId, queries: Sequence[LagQuery], found: dict[Place, Unread]
    ) -> None:
        """Ask one leader; what it does not know is not found."""
        self._asking.add(leader)
        try:
            for start in range(0, len(queries), _QUERIES_MAX):
                some = queries[start : start + _QUERIES_MAX]
                response = await self._peers.ask(leader, METHOD, queries_to_wire(some))
                for query, lag in zip(some, lags_from_wire(response), strict=False):
                    if isinstance(lag, MeasuredLag):
                        found[query.topic_partition, query.offset] = _unread(query.offset, lag)
        except CallError:
            pass  # It is gone, or of a release that cannot be asked: the next round tries again.
        finally:
            self._asking.discard(leader)


def _unread(offset: int, lag: MeasuredLag) -> Unread:
    return Unread(
        unread_records(offset, lag.log_start_offset, lag.end_offset, lag.unread_bytes),
        lag.unread_bytes,
        lag.unread_ms,
    )
