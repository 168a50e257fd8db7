"""The Positions service: readers' positions under a name, at the leader of the name's partition.

The members of a group commit as members. Any other commit to a group moves it, as
`millrace group reset` does, so it is in the audit log. Readers without a group commit for
themselves, which is no administrative act.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Final

from millrace.broker.coordinator.groups import Groups
from millrace.broker.coordinator.staged_commits import StagedCommit, StagedCommits
from millrace.broker.coordinator.transaction_joins import Writer
from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.guard.demands import each, whole
from millrace.broker.replica.partitions import Partitions
from millrace.broker.rpc.audit import AuditLine
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.broker.rpc.name_partitions import NamePartitions
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_id, checked_topic_partition
from millrace.broker.rpc.resources import TopicResources, reader, transaction
from millrace.core.callers import Caller
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.coordinator import (
    CoordinatorRecord,
    GroupCoordinator,
    NameKind,
    Summary,
)
from millrace.core.coordinator.positions.position import (
    REQUEST_POSITIONS_MAX,
    Kind,
    Position,
    check_name,
)
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import (
    MalformedRequestError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition, WallMs
from millrace.proto.v1 import common_pb2
from millrace.proto.v1 import positions_pb2 as pb
from millrace.runtime.turns import Turns

_CONSUME: Final = whole(Operation.CONSUME, ResourceKind.GROUPS, reader)
_DELETE: Final = whole(Operation.DELETE, ResourceKind.GROUPS, reader)
DEMANDS: Final = {
    "ResolveInitial": _CONSUME,
    "CommitPositions": _CONSUME
    & whole(
        Operation.TRANSACT,
        ResourceKind.TRANSACTIONS,
        transaction,
        "of a commit in a transaction",
    ),
    "FetchPositions": whole(Operation.DESCRIBE, ResourceKind.GROUPS, reader),
    "ListNames": each(Operation.DESCRIBE, ResourceKind.GROUPS),
    "ForgetTopics": _DELETE,
    "DeletePositions": _DELETE,
}
"""What each call demands."""
NAMES_AT_ONCE: Final = 1_000
"""Names in one answer: more of them would keep the loop for longer."""
_FORGOTTEN_MAX: Final = 1_000
"""Topics in one request."""
_KINDS: Final = {
    pb.POSITION_KIND_INITIAL: Kind.INITIAL,
    pb.POSITION_KIND_COMMITTED: Kind.COMMITTED,
}

_NAME_KINDS: Final = {
    NameKind.CONSUMER: pb.NAME_KIND_CONSUMER,
    NameKind.SPARK: pb.NAME_KIND_SPARK,
    NameKind.STANDALONE: pb.NAME_KIND_STANDALONE,
}


class PositionsService:
    """Serves `millrace.proto.v1.Positions`."""

    NAME = pb.DESCRIPTOR.services_by_name["Positions"].full_name

    def __init__(
        self,
        *,
        groups: Groups,
        staged: StagedCommits,
        names: NamePartitions,
        partitions: Partitions,
        turns: Turns,
        calls: Calls,
    ) -> None:
        self._topics = groups
        self._staged = staged
        self._positions = groups.runtime
        self._partitions = partitions
        self._names = names
        self._calls = calls
        self._listener = calls.listener
        self._resources = TopicResources(lambda: partitions.image)
        self._turns = turns

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        return self._calls.methods(
            self.NAME,
            unary={
                "ResolveInitial": (
                    self._resolve_initial,
                    pb.ResolveInitialRequest,
                    DEMANDS["ResolveInitial"],
                ),
                "CommitPositions": (
                    self._commit,
                    pb.CommitPositionsRequest,
                    DEMANDS["CommitPositions"],
                ),
                "FetchPositions": (
                    self._fetch,
                    pb.FetchPositionsRequest,
                    DEMANDS["FetchPositions"],
                ),
                "ListNames": (self._list_names, pb.ListNamesRequest, DEMANDS["ListNames"]),
                "ForgetTopics": (
                    self._forget_topics,
                    pb.ForgetTopicsRequest,
                    DEMANDS["ForgetTopics"],
                ),
                "DeletePositions": (
                    self._delete,
                    pb.DeletePositionsRequest,
                    DEMANDS["DeletePositions"],
                ),
            },
        )

    async def _resolve_initial(
        self, request: pb.ResolveInitialRequest, caller: GuardedCaller
    ) -> pb.ResolveInitialResponse:
        name = request.name
        try:
            place = await self._names.find_or_make(name, caller)
            proposals = await self._positions_of(request.proposals, caller)
            found = await self._positions.ask(
                place, lambda machine, now: machine.handle_resolve_initial(name, proposals, now)
            )
        except MillraceError as error:
            return pb.ResolveInitialResponse(error=self._names.error(name, error))
        return pb.ResolveInitialResponse(positions=_to_wire(found))

    async def _commit(
        self, request: pb.CommitPositionsRequest, caller: GuardedCaller
    ) -> pb.CommitPositionsResponse:
        name = request.name
        lines: list[AuditLine] = []
        try:
            if request.transactional_id:
                full_id(request.transactional_id)  # Refused also while the group is loaded.
            place = await self._names.find_or_make(name, caller)
            positions = await self._positions_of(request.positions, caller)
            if request.transactional_id:
                await self._stage(place, request, positions)
                return pb.CommitPositionsResponse()

            def handle(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, None]:
                if not request.member_id and machine.summary(name).kind is NameKind.CONSUMER:
                    line = AuditLine(self._calls.audit, caller, "commit_positions")
                    line.name(
                        f"{name}: {self._partitions.named(partition)} to {position.offset}"
                        for partition, position in positions.items()
                    )
                    lines.append(line)
                return machine.handle_commit(
                    name,
                    positions,
                    now,
                    member_id=request.member_id,
                    epoch=request.epoch,
                    number=request.number,
                )

            await self._positions.ask(place, handle)
        except MillraceError as error:
            for line in lines:
                line.on_answered([error] * len(request.positions))
            return pb.CommitPositionsResponse(error=self._names.error(name, error))
        for line in lines:
            line.on_answered([None] * len(request.positions))
        return pb.CommitPositionsResponse()

    async def _stage(
        self,
        place: TopicPartition,
        request: pb.CommitPositionsRequest,
        positions: Mapping[TopicPartition, Position],
    ) -> None:
        """Store positions that count with a transaction.

        Raises:
            MillraceError: it, or the group, does not take them.
        """
        writer = Writer(
            request.transactional_id,
            ProducerId(request.producer_id),
            ProducerEpoch(request.producer_epoch),
        )
        commit = StagedCommit(
            positions=positions,
            member_id=request.member_id,
            epoch=request.epoch,
            number=request.number,
        )
        await self._staged.commit(place, request.name, writer, commit)

    async def _fetch(
        self, request: pb.FetchPositionsRequest, _: object
    ) -> pb.FetchPositionsResponse:
        name = request.name
        try:
            kind = _KINDS.get(request.kind)
            if kind is None and request.kind != pb.POSITION_KIND_PENDING:
                raise MalformedRequestError(
                    "name a kind of positions: initial, committed or pending ones"
                )
            check_name(name)
            place = self._names.find(name)
            if place is None:
                return pb.FetchPositionsResponse()
            awaited = [
                checked_topic_partition(where.topic_id, where.partition)
                for where in request.stable_partitions
            ]

            def look(
                machine: GroupCoordinator, _: WallMs
            ) -> Result[CoordinatorRecord, dict[TopicPartition, Position]]:
                if request.require_stable:
                    machine.check_stable(name, awaited)
                if kind is None:
                    return Result([], machine.pending(name))
                return Result([], machine.positions(name, kind))

            found = await self._positions.ask(place, look)
        except MillraceError as error:
            return pb.FetchPositionsResponse(error=self._names.error(name, error))
        if request.HasField("after"):
            after = TopicPartition(TopicId(request.after.topic_id), request.after.partition)
            found = {
                partition: position for partition, position in found.items() if partition > after
            }
        page = dict(islice(found.items(), REQUEST_POSITIONS_MAX))
        return pb.FetchPositionsResponse(positions=_to_wire(page), has_more=len(page) < len(found))

    async def _list_names(
        self, request: pb.ListNamesRequest, caller: GuardedCaller
    ) -> pb.ListNamesResponse:
        topic = self._names.topic()
        if topic is None:
            return pb.ListNamesResponse()
        partitions = len(topic.partitions)
        place = TopicPartition(topic.topic_id, request.partition)
        try:
            if request.partition >= partitions:
                raise MalformedRequestError(
                    f"the names are in the parts 0 to {partitions - 1}, not in {request.partition}"
                )
            page, has_more = await self._page_for(caller, place, request.after)
        except MillraceError as error:
            wire = wire_error(self._partitions, error, place, self._listener)
            return pb.ListNamesResponse(error=wire, partitions=partitions)
        return pb.ListNamesResponse(
            names=page.keys(),
            has_more=has_more,
            partitions=partitions,
            kinds=[_NAME_KINDS[summary.kind] for summary in page.values()],
            members=[summary.members for summary in page.values()],
        )

    async def _forget_topics(
        self, request: pb.ForgetTopicsRequest, caller: Caller
    ) -> pb.ForgetTopicsResponse:
        name = request.name
        line = AuditLine(self._calls.audit, caller, "forget_topics")
        entries = len(request.topic_ids)
        try:
            check_name(name)
            if entries > _FORGOTTEN_MAX:
                raise MalformedRequestError(
                    f"{entries} topics in one request: at most {_FORGOTTEN_MAX} may be"
                )
            ids = {checked_topic_id(topic_id) for topic_id in request.topic_ids}
            line.name(
                f"{name}: {self._topics.topic_name(topic_id) or topic_id.hex()}" for topic_id in ids
            )
            entries = len(ids)
            place = self._names.find(name)
            if place is not None:
                await self._positions.ask(
                    place,
                    lambda machine, now: machine.handle_forget_topics(name, ids, self._topics, now),
                )
        except MillraceError as error:
            line.on_answered([error] * entries)
            return pb.ForgetTopicsResponse(error=self._names.error(name, error))
        line.on_answered([None] * entries)
        return pb.ForgetTopicsResponse()

    async def _delete(
        self, request: pb.DeletePositionsRequest, caller: Caller
    ) -> pb.DeletePositionsResponse:
        name = request.name
        line = AuditLine(self._calls.audit, caller, "delete_positions")
        line.name([name])
        try:
            check_name(name)
            place = self._names.find(name)
            if place is not None:
                await self._positions.ask(
                    place, lambda machine, now: machine.handle_delete(name, now)
                )
        except MillraceError as error:
            line.on_answered([error])
            return pb.DeletePositionsResponse(error=self._names.error(name, error))
        line.on_answered([None])
        return pb.DeletePositionsResponse()

    async def _page_for(
        self, caller: GuardedCaller, place: TopicPartition, after: str
    ) -> tuple[dict[str, Summary], bool]:
        """Return the next names that a caller may see, and whether there are more names.

        A page is empty only if nothing comes after it: clients go on behind its last name.
        """
        while True:
            page, has_more = await self._positions.ask(place, partial(_next_page, after))
            names = await caller.seen(Operation.DESCRIBE, page, partial(named, ResourceKind.GROUPS))
            seen = {name: page[name] for name in names}
            if seen or not has_more:
                return seen, has_more
            after = next(reversed(page))

    # --- Private -----------------------------------------------------------------------------

    async def _positions_of(
        self, named: Iterable[pb.Position], caller: GuardedCaller
    ) -> Mapping[TopicPartition, Position]:
        """Return the positions of a request; errors name the topics that the caller may see.

        Raises:
            MalformedRequestError: no topic id, or a partition twice.
            UnknownTopicOrPartitionError: of a topic that is not there.
        """
        image = self._partitions.image
        work = self._turns.work()
        positions: dict[TopicPartition, Position] = {}
        for asked in named:
            await work.give_way()
            where = asked.topic_partition
            topic_partition = checked_topic_partition(where.topic_id, where.partition)
            if topic_partition in positions:
                raise MalformedRequestError(
                    "a partition is named twice in one request",
                    topic_partition=self._told(topic_partition, caller),
                )
            if image is None or image.partition(topic_partition) is None:
                raise UnknownTopicOrPartitionError(
                    "there is no such partition: refresh the metadata",
                    topic_partition=self._told(topic_partition, caller),
                )
            positions[topic_partition] = Position(asked.offset, asked.leader_epoch, asked.metadata)
        return positions

    def _told(self, place: TopicPartition, caller: GuardedCaller) -> TopicPartition | None:
        """Return a partition that an error may name; None: its caller, who has the id, may not."""
        topic = self._resources.of(place.topic_id)
        is_hidden = topic is not None and caller.refusal(Operation.DESCRIBE, topic) is not None
        return None if is_hidden else place


def _next_page(
    after: str, machine: GroupCoordinator, _: WallMs
) -> Result[CoordinatorRecord, tuple[dict[str, Summary], bool]]:
    return Result([], _page(machine, after))


def _page(machine: GroupCoordinator, after: str) -> tuple[dict[str, Summary], bool]:
    """Return the next names, and whether there are more."""
    names = machine.names_after(after, NAMES_AT_ONCE + 1)
    page = {name: machine.summary(name) for name in names[:NAMES_AT_ONCE]}
    return page, len(names) > NAMES_AT_ONCE


def _to_wire(positions: Mapping[TopicPartition, Position]) -> list[pb.Position]:
    return [
        pb.Position(
            topic_partition=common_pb2.TopicPartition(
                topic_id=where.topic_id, partition=where.partition
            ),
            offset=position.offset,
            leader_epoch=position.leader_epoch,
            metadata=position.metadata,
        )
        for where, position in positions.items()
    ]
