"""The positions of one partition of `__positions`, a part of its coordinator.

Readers keep two positions of a partition under their name. The *initial* one says where they began:
the first proposal is stored, and all later requests get that one. So a reader that restarts before
its first commit begins where it began before. The *committed* one says how far it has read, for
people and tools; the last one counts.

A client repeats a commit whose answer is late, and an attempt may arrive after the next commit of
the same member. So a member of a group numbers its commits. Each position keeps the number of its
commit, and an earlier commit of the same member does not replace it (P62).

Positions that a transaction commits are *pending* until it has ended (`pending`, P56).

Both are kept by topic id: a topic that is deleted and created again has no positions.

`coordinator/groups/coordinator.py` is the coordinator, and `coordinator/kept_records.py` keeps the
positions.

Source: Kafka's OffsetMetadataManager.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.kept_records import KeptRecords
from millrace.core.coordinator.positions.pending import PendingPositions
from millrace.core.coordinator.positions.position import (
    REQUEST_POSITIONS_MAX,
    CommitNumber,
    Kind,
    Position,
    PositionKey,
    PositionsConfig,
    check_name,
    check_position,
)
from millrace.core.coordinator.positions.records import (
    Pending,
    PendingKey,
    PendingRecord,
    PositionRecord,
)
from millrace.core.errors import (
    InvalidPositionError,
    PositionsFullError,
    TransactionCoordinatorFencedError,
)
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.words import count

EXPIRED_AT_ONCE: Final = 1000
"""Positions to expire at a time; the rest waits for the next time."""

Positions = Mapping[TopicPartition, Position]


class PositionsMachine:
    """Keeps positions by name and partition.

    Args:
        config: the broker's settings.
        kept: the records of the partition.
        expired_at_once: records after which one request forgets no more names.
    """

    def __init__(
        self,
        config: PositionsConfig,
        kept: KeptRecords[Any],
        *,
        expired_at_once: int = EXPIRED_AT_ONCE,
    ) -> None:
        self._config = config
        self._kept = kept
        self._expired_at_once = expired_at_once
        self._count = 0
        self._names: dict[str, dict[PositionKey, None]] = {}
        self._pending = PendingPositions()

    def __len__(self) -> int:
        return self._count

    # --- Queries -----------------------------------------------------------------------------

    def names(self) -> Collection[str]:
        """Return all names, the oldest first."""
        pending = self._pending.names()
        return (
            [*self._names, *(name for name in pending if name not in self._names)]
            if (pending)
            else self._names.keys()
        )

    def positions(self, name: str, kind: Kind) -> dict[TopicPartition, Position]:
        """Return the positions under a name, in the order of topic ids and partitions.

        Raises:
            InvalidPositionError: that is no name.
        """
        check_name(name)
        keys = sorted(key for key in self._names.get(name, ()) if key.kind is kind)
        records = map(self._record, keys)
        return {
            record.key.topic_partition: record.position for record in records if record.position
        }

    def offsets(self, name: str) -> dict[TopicPartition, Offset]:
        """Return the offset that is read next: the committed one, or else the initial one."""
        found: dict[TopicPartition, Offset] = {}
        for key in self._names.get(name, ()):
            if key.kind is Kind.COMMITTED or key.topic_partition not in found:
                position = self._record(key).position
                assert position is not None, "a deletion has no key in `_names`"
                found[key.topic_partition] = Offset(position.offset)
        return found

    def partition_counts(self, name: str) -> dict[TopicId, int]:
        """Return the number of partitions up to the last position under a name, by topic."""
        counts: dict[TopicId, int] = {}
        for key in self._names.get(name, ()):
            topic_id, partition = key.topic_partition
            counts[topic_id] = max(counts.get(topic_id, 0), partition + 1)
        return counts

    def has_initial(self, name: str) -> bool:
        """Whether a reader stored where it began under this name."""
        return any(key.kind is Kind.INITIAL for key in self._names.get(name, ()))

    def has(self, name: str) -> bool:
        """Whether there are positions under this name."""
        return name in self._names or self._pending.has(name)

    def pending(self, name: str) -> dict[TopicPartition, Position]:
        """Return what open transactions commit under a name, the latest of each partition.

        Raises:
            InvalidPositionError: that is no name.
        """
        check_name(name)
        return self._pending.positions(name)

    def unstable(self, name: str) -> set[TopicPartition]:
        """Return the partitions whose committed position waits for the end of a transaction."""
        return self._pending.partitions(name)

    # --- Changes -----------------------------------------------------------------------------

    def handle_resolve_initial(
        self, name: str, proposals: Positions, now: WallMs
    ) -> Result[PositionRecord, dict[TopicPartition, Position]]:
        """Store proposals for partitions without a position; answer the stored position of each.

        Raises:
            InvalidPositionError: the name, a proposal or their number breaks a bound.
            PositionsFullError: there is no room for more.
        """
        self._check(name, proposals)
        response: dict[TopicPartition, Position] = {}
        new: dict[PositionKey, Position] = {}
        for topic_partition, proposal in proposals.items():
            key = PositionKey(Kind.INITIAL, name, topic_partition)
            kept = self._kept.get(key)
            if kept is None:
                new[key] = proposal
            response[topic_partition] = proposal if kept is None else kept.position
        return Result(self._stored(name, new, now), response)

    def handle_commit(
        self, name: str, positions: Positions, now: WallMs, commit: CommitNumber | None = None
    ) -> Result[PositionRecord | PendingRecord, None]:
        """Store how far a reader has read, where no later commit of the same member has.

        Raises:
            InvalidPositionError, PositionsFullError: as in `handle_resolve_initial`.
        """
        self._check(name, positions)
        new = {
            PositionKey(Kind.COMMITTED, name, topic_partition): position
            for topic_partition, position in positions.items()
        }
        if commit is not None:
            new = {key: new[key] for key in new if not commit.precedes(self._commit_of(key))}
        records: list[PositionRecord | PendingRecord] = [*self._stored(name, new, now, commit)]
        # A pending position that is older than this one never replaces it.
        partitions = (key.topic_partition for key in new)
        records += self._pending.dropped(name, partitions, now, by=commit)
        return Result(records, None)

    def handle_stage(
        self,
        name: str,
        positions: Positions,
        producer: tuple[ProducerId, ProducerEpoch],
        coordinator_epoch: LeaderEpoch,
        now: WallMs,
        *,
        commit: CommitNumber | None = None,
    ) -> Result[PendingRecord, None]:
        """Store positions that a transaction commits; they count when it is committed.

        Args:
            name: of the positions.
            positions: by partition.
            producer: of the transaction.
            coordinator_epoch: of the coordinator that has let the name join.
            now: the time.
            commit: if the member counts them.

        Raises:
            InvalidPositionError, PositionsFullError: as in `handle_resolve_initial`.
        """
        self._check(name, positions)
        producer_id, epoch = producer
        keys = {
            PendingKey(name, topic_partition, producer_id): position
            for topic_partition, position in positions.items()
        }
        keys = {
            key: keys[key]
            for key in keys
            if not self._pending.is_late(key, commit) and not self._is_late(key, commit)
        }
        self._check_room(name, sum(self._pending.get(key) is None for key in keys))
        return Result(
            [
                PendingRecord(
                    key,
                    Pending(
                        epoch,
                        coordinator_epoch,
                        self._pending.next_order(name, key.topic_partition),
                        position,
                        commit,
                    ),
                    now,
                )
                for key, position in keys.items()
            ],
            None,
        )

    def handle_end(
        self,
        name: str,
        producer_id: ProducerId,
        before: ProducerEpoch,
        coordinator_epoch: LeaderEpoch,
        now: WallMs,
        *,
        is_commit: bool,
    ) -> Result[PositionRecord | PendingRecord, None]:
        """Commit or drop the pending positions of a producer, whose transaction has ended.

        Args:
            name: of the positions.
            producer_id: of the transaction.
            before: its epoch is below this one.
            coordinator_epoch: of the coordinator that says so.
            now: the time.
            is_commit: what was decided.

        Raises:
            TransactionCoordinatorFencedError: another one has let them join since (P46). Without
                bumps (T14) their epoch is also that of the transaction before.
        """
        records: list[PositionRecord | PendingRecord] = []
        ended = self._pending.of_producer(name, producer_id, before)
        joined = max((pending.coordinator_epoch for _, pending in ended), default=coordinator_epoch)
        if coordinator_epoch < joined:
            raise TransactionCoordinatorFencedError(
                f"the end of the transaction of producer {producer_id} is of coordinator epoch "
                f"{coordinator_epoch}, and positions of {name!r} joined one of {joined}: another "
                "coordinator took over"
            )
        for key, pending in ended:
            if is_commit and not self._is_late(key, pending.commit):
                position_key = PositionKey(Kind.COMMITTED, name, key.topic_partition)
                records.append(PositionRecord(position_key, pending.position, now, pending.commit))
                records += self._pending.older(key, pending.order, now)
            records.append(PendingRecord(key, None, now))
        return Result(records, None)

    def handle_delete(self, name: str, now: WallMs) -> Result[PositionRecord | PendingRecord, None]:
        """Forget a name.

        Raises:
            InvalidPositionError: that is no name.
        """
        check_name(name)
        records: list[PositionRecord | PendingRecord] = [
            *_forgotten(self._names.get(name, ()), now)
        ]
        records += self._pending.dropped(name, self._pending.partitions(name), now)
        return Result(records, None)

    def handle_forget_topics(
        self, name: str, topic_ids: Collection[TopicId], now: WallMs
    ) -> Result[PositionRecord | PendingRecord, None]:
        """Forget the positions of a name in some topics.

        Raises:
            InvalidPositionError: that is no name.
        """
        check_name(name)
        keys = self._names.get(name, ())
        pending = self._pending.partitions(name)
        partitions = {
            where
            for where in (*(key.topic_partition for key in keys), *pending)
            if where.topic_id in topic_ids
        }
        return self.handle_forget_partitions(name, partitions, now)

    def handle_forget_partitions(
        self, name: str, partitions: Collection[TopicPartition], now: WallMs
    ) -> Result[PositionRecord | PendingRecord, None]:
        """Forget the positions of a name in some partitions.

        Raises:
            InvalidPositionError: that is no name.
        """
        check_name(name)
        forgotten = {*partitions}
        keys = self._names.get(name, ())
        gone = [key for key in keys if key.topic_partition in forgotten]
        records: list[PositionRecord | PendingRecord] = [*_forgotten(gone, now)]
        pending = [where for where in self._pending.partitions(name) if where in forgotten]
        records += self._pending.dropped(name, pending, now)
        return Result(records, None)

    def handle_expire(
        self,
        names: Iterable[str],
        now: WallMs,
        exists: Callable[[TopicId], bool],
        is_used: Callable[[str], bool] = lambda _: False,
        left_topics: Callable[[str], Collection[TopicId]] = lambda _: (),
    ) -> Result[PositionRecord, None]:
        """Forget names that were unused for long, each with all its positions.

        Args:
            names: to check; names that are gone are skipped, and so are the last ones when there is
                much to forget.
            now: the time.
            exists: whether there is a topic of this id.
            is_used: whether a name is used, whatever its positions say: then only those of topics
                that are deleted, or that it reads no more, are forgotten.
            left_topics: returns the topics that the members of a group left long ago.
        """
        records: list[PositionRecord] = []
        for name in names:
            if len(records) < self._expired_at_once:
                expired = self._expired(name, now, exists, is_used=is_used(name))
                expired = expired or self._left(name, now, exists, left_topics)
                records += _forgotten(expired, now)
        return Result(records, None)

    def replay(self, record: PositionRecord | PendingRecord) -> None:
        """Apply a record of the log; the kept records have it already."""
        if isinstance(record, PendingRecord):
            self._pending.replay(record)
            return
        key = record.key
        keys = self._names.setdefault(key.name, {})
        self._count -= len(keys)
        if record.is_deletion:
            keys.pop(key, None)
        else:
            keys[key] = None
        self._count += len(keys)
        if not keys:
            del self._names[key.name]

    # --- Private -----------------------------------------------------------------------------

    def _record(self, key: PositionKey) -> PositionRecord:
        record: PositionRecord | None = self._kept.get(key)
        assert record is not None
        return record

    def _commit_of(self, key: PositionKey) -> CommitNumber | None:
        record: PositionRecord | None = self._kept.get(key)
        return None if record is None else record.commit

    def _is_late(self, key: PendingKey, commit: CommitNumber | None) -> bool:
        """Whether the member has committed a later position of the partition (P62)."""
        position_key = PositionKey(Kind.COMMITTED, key.name, key.topic_partition)
        return commit is not None and commit.precedes(self._commit_of(position_key))

    def _check(self, name: str, positions: Positions) -> None:
        check_name(name)
        if len(positions) > REQUEST_POSITIONS_MAX:
            raise InvalidPositionError(
                f"{len(positions)} positions in one request: at most {REQUEST_POSITIONS_MAX} may be"
            )
        for position in positions.values():
            check_position(position, self._config)

    def _stored(
        self,
        name: str,
        new: Mapping[PositionKey, Position],
        now: WallMs,
        commit: CommitNumber | None = None,
    ) -> list[PositionRecord]:
        """Return records that store positions."""
        there = self._names.get(name, {})
        self._check_room(name, sum(key not in there for key in new))
        return [PositionRecord(key, position, now, commit) for key, position in new.items()]

    def _check_room(self, name: str, more: int) -> None:
        there = len(self._names.get(name, ())) + self._pending.count(name)
        if there + more > self._config.name_positions_max:
            raise PositionsFullError(
                f"the name {name!r} has {count(there, 'position')}, and the setting "
                f"positions.name_positions_max allows {self._config.name_positions_max}"
            )
        if self._count + len(self._pending) + more > self._config.partition_positions_max:
            raise PositionsFullError(
                f"the partition of this name has {count(self._count, 'position')}, and the setting "
                "positions.partition_positions_max allows "
                f"{self._config.partition_positions_max}: delete unused names (`millrace group "
                "list`), or raise it"
            )

    def _expired(
        self, name: str, now: WallMs, exists: Callable[[TopicId], bool], *, is_used: bool
    ) -> Sequence[PositionKey]:
        """Return the positions of a name to forget.

        A reader needs its initial position until it has stored the end of its first batch, which is
        also its first commit.
        """
        keys = self._names.get(name)
        if not keys or self._pending.has(name):
            return ()
        touched = max(self._record(key).timestamp for key in keys)
        is_committed = any(key.kind is Kind.COMMITTED for key in keys)
        config = self._config
        retention_ms = config.retention_ms if is_committed else config.initial_retention_ms
        if not is_used and retention_ms != -1 and now - touched > retention_ms:
            return list(keys)
        if config.retention_ms == -1:
            return ()
        return [
            key
            for key in keys
            if now - self._record(key).timestamp > config.retention_ms
            and not exists(key.topic_partition.topic_id)
        ]

    def _left(
        self,
        name: str,
        now: WallMs,
        exists: Callable[[TopicId], bool],
        left_topics: Callable[[str], Collection[TopicId]],
    ) -> Sequence[PositionKey]:
        """Return the positions in topics that a group left long ago: all of a topic, or none.

        A topic keeps them if a position was stored there recently, or if it is deleted, as it may
        come back.
        """
        keys = self._names.get(name, {})
        retention_ms = self._config.left_topic_retention_ms
        recent = {
            key.topic_partition.topic_id
            for key in keys
            if now - self._record(key).timestamp <= retention_ms
        }
        if all(key.topic_partition.topic_id in recent for key in keys):
            return ()  # To look up what members read takes time.
        left = {topic_id for topic_id in left_topics(name) if exists(topic_id)} - recent
        return [key for key in keys if key.topic_partition.topic_id in left]


def _forgotten(keys: Iterable[PositionKey], now: WallMs) -> list[PositionRecord]:
    return [PositionRecord(key, None, now) for key in keys]
