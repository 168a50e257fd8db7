"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete: Millrace's positions, by topic id.

A commit is one of a member of a classic group, or of a reader without a group as long as the group
of its name has no members. The positions are the same that Millrace's own readers store: `millrace
group describe` shows them, and a group may go on where another client has stopped.

Source: KIP-211, KIP-447, KIP-496, KIP-709, KIP-848 for topics by id; KAFKA-17267 for the errors of
OffsetFetch.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from kafka.protocol.consumer import (
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)
from kafka.protocol.producer import TxnOffsetCommitResponse

from millrace.broker.coordinator.staged_commits import ClassicStagedCommit
from millrace.broker.coordinator.transaction_joins import Writer
from millrace.broker.kafka.coordinators.coordination import (
    GroupNames,
    code_of_refused,
    coordinator_code,
)
from millrace.broker.kafka.coordinators.transactions import writable_id
from millrace.broker.kafka.known_topics import has_partition
from millrace.broker.kafka.names import uuid_of
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code
from millrace.broker.rpc.audit import AuditLine
from millrace.broker.rpc.resources import topic_resource
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.classic_events import Committer
from millrace.core.coordinator.groups.coordinator import (
    CoordinatorRecord,
    GroupCoordinator,
    NameKind,
)
from millrace.core.coordinator.positions.position import REQUEST_POSITIONS_MAX, Kind, Position
from millrace.core.errors import GroupSubscribedToTopicError, MillraceError
from millrace.core.guard.access import Operation
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition, WallMs
from millrace.core.records.markers import NOT_BUMPING

_FIRST_WITH_IDS: Final = 10
"""From here on topics are called by their ids (KIP-848)."""
_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_ERROR: Final = 2
"""From here on an answer has an error of the whole request."""
_OF_STAGED: Final[dict[int, int]] = {
    Code.PRODUCER_FENCED: Code.INVALID_PRODUCER_EPOCH,
    # It comes of members of KIP-848 alone. Java's producer ends with it; with this one it aborts.
    Code.STALE_MEMBER_EPOCH: Code.ILLEGAL_GENERATION,
    # It ended while it was asked: the coordinator knows how, at the next attempt.
    Code.CONCURRENT_TRANSACTIONS: Code.COORDINATOR_LOAD_IN_PROGRESS,
}
"""What clients know of TxnOffsetCommit."""
_OF_FETCH: Final[dict[int, int]] = {
    Code.COORDINATOR_NOT_AVAILABLE: Code.COORDINATOR_LOAD_IN_PROGRESS,
}
"""What clients know of OffsetFetch: at the first one, Java's consumers before 3.9 end.

Kafka answers NOT_COORDINATOR instead, after which librdkafka never asks again (its issue 5586). At
COORDINATOR_LOAD_IN_PROGRESS all clients try again.
"""
_UNDECIDED: Final = Code.COORDINATOR_LOAD_IN_PROGRESS
"""Where nobody knows now what a caller may do with a topic."""
_TOLD_MAX: Final = 100_000
"""Positions in an answer, not counting its last group. A client asks again for the rest."""
_NOT_THERE: Final = -1
"""The offset where no position is stored."""


_Partition: TypeAlias = tuple[str | TopicId, int]
_Told: TypeAlias = "dict[str | TopicId, dict[int, tuple[Position | None, int]]]"
"""By topic and number of a partition the position and its error."""


class PositionRequests:
    """Answers the requests about positions.

    Args:
        parts: of the listener.
    """

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._names = GroupNames(parts)
        self._groups = parts.broker.groups
        self._metadata_max = parts.broker.config.positions.metadata_bytes_max

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.OFFSET_COMMIT: Served(range(2, 11), self._commit),
            ApiKey.OFFSET_FETCH: Served(range(1, 11), self._fetch),
            ApiKey.OFFSET_DELETE: Served(range(1), self._delete),
            ApiKey.TXN_OFFSET_COMMIT: Served(range(5), self._commit_with_transaction),
        }

    # --- Commits -----------------------------------------------------------------------------

    async def _commit(self, request: Request) -> Any:
        message = request.message
        try:
            group = await self._names.full(message.group_id, Operation.CONSUME, request)
            place = await self._names.place(group, request)
            codes, positions = await self._positions(request)
            code = await self._store(place, group, positions, request)
        except MillraceError as error:
            code, codes = coordinator_code(error), {}
        return OffsetCommitResponse(
            version=request.version,
            topics=[
                OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        _committed(
                            partition.partition_index,
                            codes.get((_called(topic, request), partition.partition_index), code),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in message.topics
            ],
        )

    async def _positions(
        self, request: Request
    ) -> tuple[dict[_Partition, int], dict[TopicPartition, Position]]:
        """Return what is wrong with partitions of a commit, and the other positions."""
        asked = request.message.topics
        called = [_called(topic, request) for topic in asked]
        topics = await self._parts.topics.found(
            called, Operation.CONSUME, request.caller, undecided=_UNDECIDED
        )
        codes: dict[_Partition, int] = {}
        positions: dict[TopicPartition, Position] = {}
        for each, topic in zip(called, asked, strict=True):
            found = topics[each]
            for partition in topic.partitions:
                number = partition.partition_index
                metadata = partition.committed_metadata or ""
                if isinstance(found, int):
                    codes[each, number] = found
                elif not has_partition(found, number):
                    codes[each, number] = Code.UNKNOWN_TOPIC_OR_PARTITION
                elif len(metadata.encode()) > self._metadata_max:
                    codes[each, number] = Code.OFFSET_METADATA_TOO_LARGE
                else:
                    positions[TopicPartition(found.topic_id, number)] = Position(
                        partition.committed_offset, partition.committed_leader_epoch, metadata
                    )
        return codes, positions

    async def _store(
        self,
        place: TopicPartition,
        group: str,
        positions: Mapping[TopicPartition, Position],
        request: Request,
    ) -> int:
        """Store positions; return how that went."""
        message = request.message
        is_member = bool(message.member_id) or message.generation_id_or_member_epoch >= 0
        line: AuditLine | None = None
        if not is_member and self._is_group(place, group):
            # It moves a group, as `millrace group reset` does.
            line = AuditLine(self._parts.calls.audit, request.caller, "commit_positions")
            line.name(
                f"{group}: {self._parts.broker.partitions.named(where)} to {position.offset}"
                for where, position in positions.items()
            )
        try:
            refused = await self._groups.classic.commit(
                place,
                group,
                positions,
                Committer(
                    message.member_id or "",
                    message.group_instance_id or "",
                    message.generation_id_or_member_epoch,
                ),
            )
        except MillraceError as error:
            if line is not None:
                line.on_answered([error] * len(positions))
            raise
        if line is not None:
            line.on_answered([None] * len(positions))
        return code_of_refused(refused)

    def _is_group(self, place: TopicPartition, name: str) -> bool:
        """Whether members have joined a name."""
        machine = self._groups.runtime.machine(place)
        return machine is not None and machine.summary(name).kind is NameKind.CONSUMER

    async def _commit_with_transaction(self, request: Request) -> Any:
        message = request.message
        try:
            name = await writable_id(self._parts, message.transactional_id, request)
            group = await self._names.full(message.group_id, Operation.CONSUME, request)
            place = await self._names.place(group, request)
            codes, positions = await self._positions(request)
            writer = Writer(
                name,
                ProducerId(message.producer_id),
                ProducerEpoch(message.producer_epoch),
                NOT_BUMPING,
            )
            code = await self._stage(place, group, positions, writer, message)
        except MillraceError as error:
            code, codes = coordinator_code(error), {}
            code = _OF_STAGED.get(code, code)
        kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        return TxnOffsetCommitResponse(
            version=request.version,
            topics=[
                kind(
                    name=topic.name,
                    partitions=[
                        kind.TxnOffsetCommitResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=codes.get((topic.name, partition.partition_index), code),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in message.topics
            ],
        )

    async def _stage(
        self,
        place: TopicPartition,
        group: str,
        positions: Mapping[TopicPartition, Position],
        writer: Writer,
        message: Any,
    ) -> int:
        """Store positions that a transaction commits; return how that went."""
        items = iter(positions.items())
        while some := dict(islice(items, REQUEST_POSITIONS_MAX)):
            committer = Committer(
                message.member_id or "", message.group_instance_id or "", message.generation_id
            )
            commit = ClassicStagedCommit(positions=some, committer=committer)
            refused = await self._parts.broker.staged.commit(place, group, writer, commit)
            if refused is not None:
                return code_of_refused(refused)
        return NO_ERROR

    # --- What is stored ------------------------------------------------------------------------

    async def _fetch(self, request: Request) -> Any:
        message, version = request.message, request.version
        if version >= _FIRST_WITH_GROUPS:
            return OffsetFetchResponse(version=version, groups=await self._all_groups(request))
        code, topics = await self._found(message.group_id, message.topics, request)
        kind = OffsetFetchResponse.OffsetFetchResponseTopic
        if code != NO_ERROR and version < _FIRST_WITH_ERROR:
            topics = {
                topic.name: dict.fromkeys(topic.partition_indexes, (None, code))
                for topic in message.topics or ()
            }
        return OffsetFetchResponse(
            version=version,
            error_code=code,
            topics=[
                kind(
                    **_named(called),
                    partitions=[
                        _fetched(kind.OffsetFetchResponsePartition, number, *found)
                        for number, found in partitions.items()
                    ],
                )
                for called, partitions in topics.items()
            ],
        )

    async def _all_groups(self, request: Request) -> list[Any]:
        """Return what is told of each group, once however often it is named."""
        kind = OffsetFetchResponse.OffsetFetchResponseGroup
        named = {asked.group_id: asked for asked in request.message.groups}
        groups: list[Any] = []
        told = 0
        for asked in named.values():
            if told > _TOLD_MAX:
                code = Code.INVALID_REQUEST
                groups.append(kind(group_id=asked.group_id, error_code=code, topics=[]))
                continue
            group = await self._group(asked, request)
            told += sum(len(topic.partitions) for topic in group.topics)
            groups.append(group)
        return groups

    async def _group(self, asked: Any, request: Request) -> Any:
        code, topics = await self._found(asked.group_id, asked.topics, request)
        kind = OffsetFetchResponse.OffsetFetchResponseGroup
        topic_kind = kind.OffsetFetchResponseTopics
        return kind(
            group_id=asked.group_id,
            error_code=code,
            topics=[
                topic_kind(
                    **_named(called),
                    partitions=[
                        _fetched(topic_kind.OffsetFetchResponsePartitions, number, *found)
                        for number, found in partitions.items()
                    ],
                )
                for called, partitions in topics.items()
            ],
        )

    async def _found(
        self, name: str, asked: Sequence[Any] | None, request: Request
    ) -> tuple[int, _Told]:
        """Return the error of a group, and what is told of each partition."""
        try:
            group = await self._names.full(name, Operation.DESCRIBE, request)
            place = await self._names.place(group, request)

            def look(
                machine: GroupCoordinator, _: WallMs
            ) -> Result[CoordinatorRecord, tuple[dict[TopicPartition, Position], set[object]]]:
                found = machine.positions(group, Kind.COMMITTED)
                unstable: set[object] = set()
                if request.message.require_stable:
                    unstable = {*machine.unstable(group)}
                return Result([], (found, unstable))

            positions, unstable = await self._groups.runtime.ask(place, look)
            if asked is None:
                return NO_ERROR, await self._all(positions, unstable, request)
            called = [_called(topic, request) for topic in asked]
            topics = await self._parts.topics.found(
                called, Operation.DESCRIBE, request.caller, undecided=_UNDECIDED
            )
        except MillraceError as error:
            code = coordinator_code(error)
            return _OF_FETCH.get(code, code), {}
        if _UNDECIDED in topics.values():  # Java's consumers end at it in a partition.
            return _UNDECIDED, {}
        told: _Told = {}
        for each, topic in zip(called, asked, strict=True):
            found = topics[each]
            partitions = told.setdefault(each, {})
            for number in topic.partition_indexes:
                if not isinstance(found, int):
                    where = TopicPartition(found.topic_id, number)
                    partitions[number] = _told(where, positions, unstable)
                elif found == Code.UNKNOWN_TOPIC_OR_PARTITION:
                    partitions[number] = None, NO_ERROR  # As in Kafka: nothing is stored for it.
                else:
                    partitions[number] = None, found
        return NO_ERROR, told

    async def _all(
        self,
        positions: Mapping[TopicPartition, Position],
        unstable: set[object],
        request: Request,
    ) -> _Told:
        """Return all positions in topics that the caller knows and may see."""
        names = {}
        for topic_id in sorted({where.topic_id for where in positions}):
            topic = self._parts.topics.find(topic_id)
            if topic is not None:
                names[topic_id] = topic.name.name, topic_resource(topic.name)
        seen = await request.caller.seen(
            Operation.DESCRIBE, list(names), lambda topic_id: names[topic_id][1]
        )
        by_id = request.version >= _FIRST_WITH_IDS
        told: _Told = {}
        for where in sorted(positions):
            if where.topic_id in seen:
                called = where.topic_id if by_id else names[where.topic_id][0]
                partitions = told.setdefault(called, {})
                partitions[where.partition] = _told(where, positions, unstable)
        return told

    # --- Forgetting ----------------------------------------------------------------------------

    async def _delete(self, request: Request) -> Any:
        message = request.message
        codes: dict[tuple[str, int], int] = {}
        try:
            group = await self._names.full(message.group_id, Operation.DELETE, request)
            place = self._names.known_place(group)
            topics = await self._parts.topics.found(
                (topic.name for topic in message.topics), Operation.CONSUME, request.caller
            )
            code = NO_ERROR
            for topic in message.topics:
                numbers = [partition.partition_index for partition in topic.partitions]
                outcome = topics[topic.name]
                if not isinstance(outcome, int):
                    outcome = await self._forget(place, group, outcome.topic_id, numbers, request)
                if outcome == Code.GROUP_ID_NOT_FOUND:
                    code = outcome
                    break
                codes.update({(topic.name, number): outcome for number in numbers})
        except MillraceError as error:
            code = coordinator_code(error)
        kind = OffsetDeleteResponse.OffsetDeleteResponseTopic
        return OffsetDeleteResponse(
            version=request.version,
            error_code=code,
            topics=[
                kind(
                    name=topic.name,
                    partitions=[
                        kind.OffsetDeleteResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=codes[topic.name, partition.partition_index],
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
            if code == NO_ERROR
            else [],
        )

    async def _forget(
        self,
        place: TopicPartition,
        group: str,
        topic_id: TopicId,
        numbers: Sequence[int],
        request: Request,
    ) -> int:
        """Forget positions of a group in a topic; return how that went.

        Raises:
            MillraceError: it concerns the whole group. Clients try again, or look for the
                coordinator, by the code of the whole answer alone.
        """
        line = AuditLine(self._parts.calls.audit, request.caller, "forget_topics")
        line.name([f"{group}: {self._groups.topic_name(topic_id)}"])

        def forget(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, bool]:
            if not machine.has(group):
                return Result([], False)
            records = machine.handle_forget_partitions(
                group, [TopicPartition(topic_id, number) for number in numbers], self._groups, now
            ).records
            return Result(records, True)

        try:
            was_there = await self._groups.runtime.ask(place, forget)
        except MillraceError as error:
            line.on_answered([error])
            if isinstance(error, GroupSubscribedToTopicError):
                return coordinator_code(error)
            raise
        line.on_answered([None])
        return NO_ERROR if was_there else Code.GROUP_ID_NOT_FOUND


def _called(topic: Any, request: Request) -> str | TopicId:
    """Return what a request calls a topic, by which its answer calls it, too."""
    if request.key != ApiKey.TXN_OFFSET_COMMIT and request.version >= _FIRST_WITH_IDS:
        return TopicId(topic.topic_id.bytes)
    name: str = topic.name
    return name


def _named(called: str | TopicId) -> dict[str, Any]:
    return {"name": called} if isinstance(called, str) else {"topic_id": uuid_of(called)}


def _committed(number: int, code: int) -> Any:
    return OffsetCommitResponse.OffsetCommitResponseTopic.OffsetCommitResponsePartition(
        partition_index=number, error_code=code
    )


def _told(
    where: TopicPartition, positions: Mapping[TopicPartition, Position], unstable: set[object]
) -> tuple[Position | None, int]:
    if where in unstable:
        return None, Code.UNSTABLE_OFFSET_COMMIT
    return positions.get(where), NO_ERROR


def _fetched(kind: Any, number: int, position: Position | None, code: int) -> Any:
    return kind(
        partition_index=number,
        committed_offset=_NOT_THERE if position is None else position.offset,
        committed_leader_epoch=-1 if position is None else position.leader_epoch,
        metadata="" if position is None else position.metadata,
        error_code=code,
    )
