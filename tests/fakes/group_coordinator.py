"""A coordinator of consumer groups in memory: the test says which member has which partitions.

Positions that are part of a transaction wait for its end.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.transaction_coordinator import FakeTransactions, Written

from millrace.core.errors import (
    MillraceError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnstablePositionsError,
)
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import common_pb2, groups_pb2, positions_pb2

_ANSWER_S = 0.02
"""How long a heartbeat without news waits."""


@dataclass
class FakeMember:
    """A member.

    Attributes:
        epoch: of its assignment.
        assigned: numbers of the partitions of the one topic.
        confirmed: the last epoch that it has confirmed.
    """

    epoch: int = 0
    assigned: list[int] = field(default_factory=list)
    confirmed: int = 0


@dataclass
class FakeGroups:
    """One group, which reads one topic.

    Attributes:
        topic: its name, and its id.
        partitions: how many there are; the first member to join gets all of them.
        members: by member id, in the order in which they joined.
        committed: offsets by partition, as plain commits have them.
        session_ms: of the members.
    """

    transactions: FakeTransactions
    topic: tuple[str, bytes] = ("", b"")
    partitions: int = 0
    members: dict[str, FakeMember] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    committed: dict[int, int] = field(default_factory=dict)
    _applied: set[tuple[Written, int]] = field(default_factory=set)

    def give(self, number: int, *assigned: int) -> None:
        """Give a member, by the order in which they joined, other partitions."""
        member = list(self.members.values())[number]
        member.epoch += 1
        member.assigned = list(assigned)

    def remove(self, number: int) -> None:
        """End the session of a member: it joins again as another one."""
        member_id = list(self.members)[number]
        del self.members[member_id]
        self.removed.add(member_id)

    def stable(self) -> dict[int, int]:
        """Return the committed positions, with those of committed transactions."""
        for written, staged in self.transactions.staged.items():
            if not self.transactions.outcomes.get(written):
                continue
            for number, (_, offsets) in enumerate(staged):
                if (written, number) not in self._applied:
                    self._applied.add((written, number))
                    self.committed.update(offsets)
        return self.committed

    @property
    def is_stable(self) -> bool:
        """Whether each transaction with positions has ended."""
        return self.transactions.staged.keys() <= self.transactions.outcomes.keys()

    async def heartbeat(
        self, request: groups_pb2.GroupHeartbeatRequest, _: object
    ) -> groups_pb2.GroupHeartbeatResponse:
        member = self.members.get(request.member_id)
        if member is None:
            if request.confirmed or request.member_id in self.removed:
                error = UnknownMemberIdError("the session has ended")
                return groups_pb2.GroupHeartbeatResponse(error=error_to_wire(error))
            member = FakeMember(1, [] if self.members else list(range(self.partitions)))
            self.members[request.member_id] = member
        member.confirmed = request.confirmed
        if member.confirmed == member.epoch:
            await asyncio.sleep(_ANSWER_S)
        assigned = groups_pb2.TopicPartitions(
            topic_id=self.topic[1], topic=self.topic[0], partitions=member.assigned
        )
        return groups_pb2.GroupHeartbeatResponse(
            epoch=member.epoch,
            assigned=[assigned] if member.assigned else [],
            session_timeout_ms=5_000,
            heartbeat_interval_ms=50,
        )

    async def leave(
        self, request: groups_pb2.LeaveGroupRequest, _: object
    ) -> groups_pb2.LeaveGroupResponse:
        for member_id in request.member_ids:
            self.members.pop(member_id, None)
        return groups_pb2.LeaveGroupResponse(member_ids=request.member_ids)

    async def fetch_positions(
        self, request: positions_pb2.FetchPositionsRequest, _: object
    ) -> positions_pb2.FetchPositionsResponse:
        if request.require_stable and not self.is_stable:
            error = UnstablePositionsError("a transaction commits some of them")
            return positions_pb2.FetchPositionsResponse(error=error_to_wire(error))
        return positions_pb2.FetchPositionsResponse(
            positions=[
                positions_pb2.Position(
                    topic_partition=common_pb2.TopicPartition(
                        topic_id=self.topic[1], partition=partition
                    ),
                    offset=offset,
                    leader_epoch=-1,
                )
                for partition, offset in sorted(self.stable().items())
            ]
        )

    async def commit_positions(
        self, request: positions_pb2.CommitPositionsRequest, _: object
    ) -> positions_pb2.CommitPositionsResponse:
        try:
            self._check(request)
        except MillraceError as error:
            return positions_pb2.CommitPositionsResponse(error=error_to_wire(error))
        if request.transactional_id:
            return self.transactions.commit_positions(request)
        self.committed.update(
            {place.topic_partition.partition: place.offset for place in request.positions}
        )
        return positions_pb2.CommitPositionsResponse()

    def _check(self, request: positions_pb2.CommitPositionsRequest) -> None:
        member = self.members.get(request.member_id)
        if member is None:
            raise UnknownMemberIdError("the session has ended")
        if not request.epoch or request.epoch != member.confirmed:
            raise StaleMemberEpochError("it has another assignment")

    def methods(self) -> dict[str, dict[str, tuple[Any, Any]]]:
        """Return the methods by service and name, each with the class of its request."""
        return {
            "Groups": {
                "GroupHeartbeat": (self.heartbeat, groups_pb2.GroupHeartbeatRequest),
                "LeaveGroup": (self.leave, groups_pb2.LeaveGroupRequest),
            },
            "Positions": {
                "FetchPositions": (self.fetch_positions, positions_pb2.FetchPositionsRequest),
                "CommitPositions": (self.commit_positions, positions_pb2.CommitPositionsRequest),
            },
        }
