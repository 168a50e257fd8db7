"""The positions of one partition of `__positions`: a machine whose state is its log.

Readers keep two positions of a partition under their name. The *initial* one says where they began:
whoever proposes the first one decides, and everybody hears that one from then on. So a reader that
is started again before it has noted anything itself begins where it began. The *committed* one says
how far it has come, for people and tools; the last one counts.

Both are kept by topic id: a topic that is deleted and made again has no positions.

`handle_*` reads the state and changes nothing: it returns the records that the request comes to,
and the answer. `replay` alone changes the state, and is told of every record in order: at the
leader as soon as the record has its offset, and when the log is read again. What the shell owes:

- one record after another: it handles, appends and replays without looking at anything else;
- an answer is held back until everything that was replayed by then is committed: an answer may
  rest on records of others, too (P55, P60);
- a record that was replayed and is not in the log after all cannot be taken back: the machine is
  thrown away, and another one reads the log.

The log stays short without a snapshot of the whole: when most of it is overwritten, each request
brings along as many of the oldest positions as it stores itself, as they are, so that they stand at
the log's end again. What lies before the oldest one that counts is nothing but history, and may go:
`oldest_offset`. Then the log is never longer than some three times what is kept. Moving the log's
start has to wait until the records that overtook the old ones are committed.

Invariant: the records from `oldest_offset` on alone come to the same state.

Source: Kafka's CoordinatorShard and OffsetMetadataManager; the cleaning of log-structured file
systems.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from millrace.core.errors import InvalidPositionError, PositionsFullError
from millrace.core.ids import Offset, TopicId, TopicPartition, WallMs
from millrace.core.positions.position import (
    REQUEST_POSITIONS_MAX,
    Kind,
    Position,
    PositionKey,
    PositionsConfig,
    check_name,
    check_position,
)
from millrace.core.positions.records import PositionRecord

SLACK_RECORDS: Final = 1000
"""A log is not kept shorter than this."""
EXPIRED_AT_ONCE: Final = 1000
"""When so many positions are to be forgotten, the rest waits for the next time."""

Positions = Mapping[TopicPartition, Position]
_R = TypeVar("_R")


@dataclass(slots=True)
class Result(Generic[_R]):
    """What a request comes to: records to append and replay, in order, and the answer."""

    records: list[PositionRecord]
    response: _R


@dataclass(slots=True)
class _Kept:
    position: Position
    timestamp: WallMs
    offset: Offset


class PositionsMachine:
    """See the module.

    Args:
        config: the broker's settings.
        start_offset: where the log begins.
    """

    def __init__(self, config: PositionsConfig, start_offset: Offset) -> None:
        self._config = config
        self._next_offset = start_offset
        # By the offset of the record that says so, the oldest first.
        self._kept: OrderedDict[PositionKey, _Kept] = OrderedDict()
        self._names: dict[str, dict[PositionKey, None]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def next_offset(self) -> Offset:
        """Behind the last record that was replayed."""
        return self._next_offset

    @property
    def oldest_offset(self) -> Offset:
        """The first record that still counts; where none does, where the next one will be."""
        return next((kept.offset for kept in self._kept.values()), self._next_offset)

    # --- What is asked -----------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._names)

    def positions(self, name: str, kind: Kind) -> dict[TopicPartition, Position]:
        """Return what is kept under a name, in the order of topic ids and partitions.

        Raises:
            InvalidPositionError: that is no name.
        """
        check_name(name)
        keys = sorted(key for key in self._names.get(name, ()) if key.kind is kind)
        return {key.topic_partition: self._kept[key].position for key in keys}

    # --- What changes it ---------------------------------------------------------------------

    def handle_resolve_initial(
        self, name: str, proposals: Positions, now: WallMs
    ) -> Result[dict[TopicPartition, Position]]:
        """Store the proposals for which nothing is stored; the answer is what is, for each.

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

    def handle_commit(self, name: str, positions: Positions, now: WallMs) -> Result[None]:
        """Store how far a reader is.

        Raises:
            InvalidPositionError, PositionsFullError: as in `handle_resolve_initial`.
        """
        self._check(name, positions)
        new = {
            PositionKey(Kind.COMMITTED, name, topic_partition): position
            for topic_partition, position in positions.items()
        }
        return Result(self._stored(name, new, now), None)

    def handle_delete(self, name: str, now: WallMs) -> Result[None]:
        """Forget a name.

        Raises:
            InvalidPositionError: that is no name.
        """
        check_name(name)
        return Result(_forgotten(self._names.get(name, ()), now), None)

    def handle_expire(
        self, names: Iterable[str], now: WallMs, exists: Callable[[TopicId], bool]
    ) -> Result[None]:
        """Forget what nobody has touched for long; a name whole, or not yet.

        Args:
            names: to look at; those that are gone meanwhile are passed over, and so are the last of
                them when much is to be forgotten.
            now: the time.
            exists: whether there is a topic of this id.
        """
        records: list[PositionRecord] = []
        for name in names:
            if len(records) < EXPIRED_AT_ONCE:
                records += _forgotten(self._expired(name, now, exists), now)
        return Result(records, None)

    def replay(self, record: PositionRecord, offset: Offset) -> None:
        """Take a record of the log."""
        assert offset >= self._next_offset
        self._next_offset = Offset(offset + 1)
        key = record.key
        if record.position is None:
            if self._kept.pop(key, None) is not None:
                keys = self._names[key.name]
                del keys[key]
                if not keys:
                    del self._names[key.name]
            return
        self._kept[key] = _Kept(record.position, record.timestamp, offset)
        self._kept.move_to_end(key)
        self._names.setdefault(key.name, {})[key] = None

    # --- How ---------------------------------------------------------------------------------

    def _check(self, name: str, positions: Positions) -> None:
        check_name(name)
        if len(positions) > REQUEST_POSITIONS_MAX:
            raise InvalidPositionError(
                f"{len(positions)} positions in one request: at most {REQUEST_POSITIONS_MAX} may be"
            )
        for position in positions.values():
            check_position(position, self._config)

    def _stored(
        self, name: str, new: Mapping[PositionKey, Position], now: WallMs
    ) -> list[PositionRecord]:
        """Return the records that store positions, behind old ones that have to move on."""
        self._check_room(name, sum(key not in self._kept for key in new))
        stored = [PositionRecord(key, position, now) for key, position in new.items()]
        length = self._next_offset - self.oldest_offset
        if length <= 2 * len(self._kept) + SLACK_RECORDS:
            return stored
        # Before the new ones, which may take their place.
        oldest = islice(self._kept.items(), len(stored))
        return [PositionRecord(k, kept.position, kept.timestamp) for k, kept in oldest] + stored

    def _check_room(self, name: str, more: int) -> None:
        there = len(self._names.get(name, ()))
        if there + more > self._config.name_positions_max:
            raise PositionsFullError(
                f"{there} positions are kept under the name {name!r}, and the setting "
                f"positions.name_positions_max allows {self._config.name_positions_max}"
            )
        if len(self._kept) + more > self._config.partition_positions_max:
            raise PositionsFullError(
                f"{len(self._kept)} positions are kept where this name falls to, and the setting "
                "positions.partition_positions_max allows "
                f"{self._config.partition_positions_max}: delete names that nobody uses "
                "(`millrace positions list`), or raise it"
            )

    def _expired(
        self, name: str, now: WallMs, exists: Callable[[TopicId], bool]
    ) -> Sequence[PositionKey]:
        """Return what is to be forgotten of a name.

        A reader goes by its initial position until it has noted the end of its first batch, and
        that is what it commits at the earliest.
        """
        keys = self._names.get(name)
        if not keys:
            return ()
        touched = max(self._kept[key].timestamp for key in keys)
        is_committed = any(key.kind is Kind.COMMITTED for key in keys)
        config = self._config
        retention_ms = config.retention_ms if is_committed else config.initial_retention_ms
        if retention_ms != -1 and now - touched > retention_ms:
            return list(keys)
        if config.retention_ms == -1:
            return ()
        return [
            key
            for key in keys
            if now - self._kept[key].timestamp > config.retention_ms
            and not exists(key.topic_partition.topic_id)
        ]


def _forgotten(keys: Iterable[PositionKey], now: WallMs) -> list[PositionRecord]:
    return [PositionRecord(key, None, now) for key in keys]
