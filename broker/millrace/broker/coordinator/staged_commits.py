"""Positions that groups commit with a transaction (P56): they join it, wait, and are resolved.

The coordinator of the group asks that of the transaction to take the group in, and stores the
positions only after its yes. By then the transaction may be over, and its marker may have passed
here while there was nothing to resolve: positions that are stored after it would wait for ever. So
each commit has a guard from before it asks, as a partition's leader has (P49). A marker of the
producer makes the guard void, and so does another leader epoch.

Source: KIP-447, KIP-890.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.broker.coordinator.groups import Groups
from millrace.broker.coordinator.places import place_of
from millrace.broker.coordinator.transaction_joins import TransactionJoins, Writer
from millrace.broker.replica.partitions import Partitions
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.classic_events import Committer, Refused
from millrace.core.coordinator.groups.coordinator import (
    CoordinatorRecord,
    GroupCoordinator,
    refusal_of_kafka,
)
from millrace.core.coordinator.positions.position import Position, check_name
from millrace.core.errors import ConcurrentTransactionsError, CoordinatorLoadInProgressError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.markers import BUMPING, Marker
from millrace.core.topics import POSITIONS_TOPIC


@dataclass(slots=True, eq=False)
class _Guard:
    """A commit that asks whether its group may join a transaction."""

    producer_epoch: ProducerEpoch
    leader_epoch: LeaderEpoch
    is_void: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCommit:
    """What a member, or a reader without a group, commits with a transaction.

    Attributes:
        positions: by partition.
        member_id: see `GroupCoordinator.handle_commit`, as for the next two.
        epoch: of the member's assignment.
        number: of its commit.
    """

    positions: Mapping[TopicPartition, Position]
    member_id: str
    epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicStagedCommit:
    """What a member of a classic group commits with a transaction, or who does not say who it is.

    Attributes:
        positions: by partition.
        committer: who it is.
    """

    positions: Mapping[TopicPartition, Position]
    committer: Committer


class StagedCommits:
    """Takes such commits where this broker coordinates the group. It belongs to the event loop.

    Args:
        groups: that this broker coordinates.
        joins: ask the coordinators of transactions.
        partitions: of this broker, with the metadata.
    """

    def __init__(self, groups: Groups, joins: TransactionJoins, partitions: Partitions) -> None:
        self._runtime = groups.runtime
        self._joins = joins
        self._partitions = partitions
        self._guards: dict[tuple[TopicPartition, ProducerId], set[_Guard]] = {}

    async def commit(
        self,
        place: TopicPartition,
        name: str,
        writer: Writer,
        commit: StagedCommit | ClassicStagedCommit,
    ) -> Refused | None:
        """Store positions that count when the transaction is committed.

        Args:
            place: the partition of the name.
            name: of the group.
            writer: the producer of the transaction.
            commit: the positions, and who commits them.

        Returns:
            Why a classic group does not take them; None: they are stored.

        Raises:
            MillraceError: the transaction does not take them, or the group does not.
        """
        check_name(name)
        producer = writer.producer_id, writer.producer_epoch
        guard = _Guard(writer.producer_epoch, self._leader_epoch(place))
        guards = self._guards.setdefault((place, writer.producer_id), set())
        guards.add(guard)
        coordinator_epoch = NO_LEADER_EPOCH

        def check(
            machine: GroupCoordinator, _: WallMs
        ) -> Result[CoordinatorRecord, Refused | None]:
            # What the group refuses shall not join.
            return Result([], _refusal(machine, name, commit))

        def stage(
            machine: GroupCoordinator, now: WallMs
        ) -> Result[CoordinatorRecord, Refused | None]:
            # The next attempt asks the transaction's coordinator again, which knows how it ended.
            if guard.is_void:
                raise ConcurrentTransactionsError(
                    f"a transaction of {writer.transactional_id!r} has ended before the positions "
                    f"of {name!r} were part of it: ask again"
                )
            if self._leader_epoch(place) != guard.leader_epoch:
                raise CoordinatorLoadInProgressError(
                    f"another broker coordinated {name!r} while its positions joined the "
                    f"transaction of {writer.transactional_id!r}: ask again"
                )
            if isinstance(commit, ClassicStagedCommit):
                return machine.handle_classic_stage(
                    name,
                    commit.positions,
                    producer,
                    coordinator_epoch,
                    now,
                    committer=commit.committer,
                )
            staged = machine.handle_stage(
                name,
                commit.positions,
                producer,
                coordinator_epoch,
                now,
                member_id=commit.member_id,
                epoch=commit.epoch,
                number=commit.number,
            )
            return Result([*staged.records], None)

        try:
            refused = await self._runtime.ask(place, check)
            if refused is not None:
                return refused
            coordinator_epoch = await self._joins.ask_for_group(writer, name)
            return await self._runtime.ask(place, stage)
        finally:
            guards.discard(guard)
            if not guards:
                self._guards.pop((place, writer.producer_id), None)

    async def end(self, group: str, marker: Marker) -> None:
        """Resolve what waits in a group for the end of a transaction; return once committed.

        Raises:
            MillraceError: this broker does not coordinate the group, or it could not be stored.
        """
        place = self._place(group)
        # Without bumps (T14) the marker has the epoch of what it ends.
        before = ProducerEpoch(marker.producer_epoch + (marker.protocol != BUMPING))

        def end(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, None]:
            for guard in self._guards.get((place, marker.producer_id), ()):
                if guard.producer_epoch < before:
                    guard.is_void = True
            return machine.handle_end(
                group,
                marker.producer_id,
                before,
                marker.coordinator_epoch,
                now,
                is_commit=marker.is_commit,
            )

        await self._runtime.ask(place, end)

    def _place(self, group: str) -> TopicPartition:
        place = place_of(self._partitions.image, POSITIONS_TOPIC, group)
        if place is None:
            raise CoordinatorLoadInProgressError(
                "this broker does not know where groups are kept yet: try again shortly"
            )
        return place

    def _leader_epoch(self, place: TopicPartition) -> LeaderEpoch:
        return self._partitions.get(place).leader.leader_epoch


def _refusal(
    machine: GroupCoordinator, name: str, commit: StagedCommit | ClassicStagedCommit
) -> Refused | None:
    """Return why a classic group does not take a commit.

    Raises:
        MillraceError: why a group does not.
    """
    if isinstance(commit, ClassicStagedCommit):
        return refusal_of_kafka(machine, name, commit.positions, commit.committer, staged=True)
    machine.membership.check_commit(name, commit.member_id, commit.epoch, commit.positions)
    return None
