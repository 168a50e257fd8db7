"""A simulated consumer of Kafka: fetches in sessions or without, from leaders or followers.

It looks like Millrace's `Consumer` where the simulator's readers use it, so one reader drives both.
The version of its fetches is drawn: without sessions, with them, and by the ids of topics; before
zstd was known, and after that. What comes is verified batch by batch; records of aborted
transactions are left out by the list that comes with them, as Kafka's consumers do it.
"""

import asyncio
import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from tests.sim.clients.kafka.connections import (
    NO_ERROR,
    KafkaBrokers,
    KafkaConnection,
    KnownTopic,
    error_of,
)
from tests.sim.clients.kafka.records import BrokenBatchError, KafkaBatch, batches_in
from tests.sim.machines.process import raise_failure

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.client import Record
from millrace.core.errors import (
    ConnectionFailedError,
    CorruptBatchError,
    LogTruncatedError,
    MillraceError,
    OffsetOutOfRangeError,
)
from millrace.core.ids import Offset, WallMs
from millrace.core.isolation import READ_COMMITTED, Isolation
from millrace.core.topics import PartitionName

VERSIONS: Final = (4, 8, 9, 10, 11, 12, 13, 16)
_SESSIONS_SINCE: Final = 7
_ZSTD_SINCE: Final = 10
"""A reader of an earlier version that meets zstd goes on with this one, as one that is upgraded."""
_WITHOUT_SESSIONS: Final = 0.3
_RACKS_SINCE: Final = 11
_TOPIC_IDS_SINCE: Final = 13
_BACKOFF_S: Final = 0.1
_WAIT_MS: Final = 500
_METADATA_S: Final = 5.0
_PREFERRED_S: Final = 5.0
_PARTITION_BYTES: Final = (16 << 10, 64 << 10)
_EARLIEST: Final = -2
_FULL: Final = 0
_NO_SESSION: Final = -1
_LATER: Final = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.REQUEST_TIMED_OUT,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)
_LOST_SESSION: Final = (Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH)


@dataclass(slots=True, eq=False)
class _Position:
    """Where a partition is read.

    Attributes:
        number: of it.
        offset: of the next record; -1: not known yet.
        epoch: of the last batch before it; -1: none.
        preferred: the broker to read from instead of the leader, and until when.
        due_s: when it may be asked for.
        records: that came and were not handed out.
        error: to raise instead.
    """

    number: int
    offset: int = -1
    epoch: int = -1
    preferred: tuple[int, float] = (-1, 0.0)
    due_s: float = 0.0
    records: list[Record] = field(default_factory=list)
    error: MillraceError | None = None


@dataclass(slots=True)
class _Session:
    """A fetch session with one broker.

    Attributes:
        session_id: 0: there is none.
        epoch: of the next request.
        told: what the broker knows of each partition.
    """

    session_id: int = 0
    epoch: int = _FULL
    told: dict[int, tuple[int, int, int]] = field(default_factory=dict)


class KafkaConsumer:
    """Reads one topic, all or some of its partitions.

    Args:
        brokers: that it speaks to.
        isolation: what of transactions it reads.
        zone: where it is; empty: it reads from leaders.
        dice: of its client.
    """

    def __init__(
        self,
        brokers: KafkaBrokers,
        *,
        isolation: Isolation = READ_COMMITTED,
        zone: str = "",
        dice: random.Random,
    ) -> None:
        self._brokers = brokers
        self._isolation = isolation
        self._zone = zone
        self._dice = dice
        self._version = dice.choice(VERSIONS)
        if zone:
            self._version = max(self._version, _RACKS_SINCE)
        wants_sessions = dice.random() >= _WITHOUT_SESSIONS
        self._has_sessions = wants_sessions and self._version >= _SESSIONS_SINCE
        self._partition_bytes = dice.choice(_PARTITION_BYTES)
        self._topic = ""
        self._known = KnownTopic()
        self._known_since = 0.0
        self._wants_metadata = False
        self._looked_s = 0.0
        self._positions: dict[int, _Position] = {}
        self._sessions: dict[int, _Session] = {}
        self._fetching: set[int] = set()
        self._is_looking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    async def __aenter__(self) -> "KafkaConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it."""
        for task in list(self._tasks):
            task.cancel()
        self._brokers.close()

    # --- What readers call -------------------------------------------------------------------

    async def assign(self, topics: Sequence[str], start: str = "beginning") -> None:
        """Read all partitions of a topic from its beginning.

        Raises:
            MillraceError: it cannot be looked up.
        """
        assert start == "beginning"
        [topic] = topics
        await self.look_up(topic)
        offsets = await self.starts(topic, list(self._known.leaders))
        self.begin(topic, offsets)

    def begin(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets, and nothing else."""
        self._topic = topic
        self._positions = {number: _Position(number, at) for number, at in offsets.items()}

    async def position(self, place: PartitionName) -> Offset:
        """Return the offset of the next record."""
        where = self._positions[place[1]]
        return Offset(where.records[0].offset if where.records else where.offset)

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return records, or none when there are none for so long.

        Raises:
            MillraceError: a partition cannot be read on.
        """
        now = asyncio.get_running_loop().time
        end_s = now() + timeout_ms / 1000
        while True:
            self._news.clear()
            found: list[Record] = []
            for where in self._positions.values():
                if where.error is not None:
                    error, where.error = where.error, None
                    raise error
                found += where.records
                where.records = []
            due_s = self._fetch_what_can_be_fetched()
            if found or now() >= end_s:
                return found
            try:
                async with asyncio.timeout(min(due_s, end_s) - now()):
                    await self._news.wait()
            except TimeoutError:
                pass

    # --- Where partitions are ----------------------------------------------------------------

    async def look_up(self, topic: str) -> None:
        """Find out who leads the partitions of a topic.

        Raises:
            MillraceError: nobody says so.
        """
        known = await self._brokers.look_up(topic)
        self._known = known
        self._known_since, self._wants_metadata = asyncio.get_running_loop().time(), False

    async def _look_up_again(self) -> None:
        self._is_looking = True
        self._looked_s = asyncio.get_running_loop().time()
        try:
            await self.look_up(self._topic)
        except MillraceError:
            self._wants_metadata = True
        finally:
            self._is_looking = False
            self._news.set()

    async def starts(self, topic: str, numbers: Sequence[int]) -> dict[int, int]:
        """Return where partitions begin.

        Raises:
            MillraceError: one cannot be asked.
        """
        found: dict[int, int] = {}
        version = self._dice.choice((1, 5, 7))
        for number in numbers:
            leader = self._known.leaders[number]
            partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=number, current_leader_epoch=leader.epoch, timestamp=_EARLIEST
            )
            asked = ListOffsetsRequest(
                version=version,
                replica_id=-1,
                isolation_level=int(self._isolation is READ_COMMITTED),
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])],
            )
            answer = await self._brokers.ask(leader.broker_id, ApiKey.LIST_OFFSETS, version, asked)
            [told] = answer.topics[0].partitions
            if told.error_code != NO_ERROR:
                raise error_of(told.error_code, f"the start of {topic}-{number}")
            found[number] = told.offset
        return found

    def _source_of(self, where: _Position, now: float) -> int:
        """Return the broker to read a partition from; -1: nobody knows."""
        broker_id, until_s = where.preferred
        if broker_id >= 0 and now < until_s:
            return broker_id
        where.preferred = (-1, 0.0)
        leader = self._known.leaders.get(where.number)
        return -1 if leader is None else leader.broker_id

    # --- Fetches -----------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(raise_failure)

    def _fetch_what_can_be_fetched(self) -> float:
        """Ask brokers that are not asked yet; return when to look again."""
        now = asyncio.get_running_loop().time()
        next_s = now + 1.0
        is_old = now - self._known_since > _METADATA_S
        if (self._wants_metadata or is_old) and not self._is_looking:
            if now >= self._looked_s + _BACKOFF_S:
                self._start(self._look_up_again())
            else:
                next_s = min(next_s, self._looked_s + _BACKOFF_S)
        wanted: dict[int, list[_Position]] = {}
        for where in self._positions.values():
            if where.records or where.error is not None:
                continue
            source = self._source_of(where, now)
            if source < 0:
                self._wants_metadata = True
                next_s = min(next_s, now + _BACKOFF_S)
            elif where.due_s > now:
                next_s = min(next_s, where.due_s)
            elif source not in self._fetching:
                wanted.setdefault(source, []).append(where)
        for source, some in wanted.items():
            self._fetching.add(source)
            self._start(self._fetch(source, some))
        return next_s

    async def _fetch(self, broker_id: int, wanted: Sequence[_Position]) -> None:
        try:
            connection = await self._brokers.connection(broker_id, "fetch")
            await self._fetch_by(connection, broker_id, wanted)
        except ConnectionFailedError:
            self._wants_metadata = True
            self._put_off(wanted)
            for where in wanted:
                where.preferred = (-1, 0.0)
        finally:
            self._fetching.discard(broker_id)
            self._news.set()

    def _put_off(self, wanted: Sequence[_Position]) -> None:
        due_s = asyncio.get_running_loop().time() + _BACKOFF_S
        for where in wanted:
            where.due_s = due_s

    async def _fetch_by(
        self, connection: KafkaConnection, broker_id: int, wanted: Sequence[_Position]
    ) -> None:
        session = self._sessions.setdefault(broker_id, _Session())
        asked = {where.number: self._asked(where) for where in wanted}
        offsets = {where.number: where.offset for where in wanted}
        request = self._request(session, asked)
        topic = self._known
        patience_s = self._brokers.patience_s + _WAIT_MS / 1000
        answer = await connection.ask(ApiKey.FETCH, request.version, request, patience_s)
        if answer.error_code != NO_ERROR:
            self._sessions[broker_id] = _Session()
            if answer.error_code not in _LOST_SESSION:
                self._wants_metadata = True
                self._put_off(wanted)
            return
        if self._has_sessions:
            self._go_on(session, answer.session_id, asked)
        there = {where.number: where for where in wanted}
        for told_topic in answer.responses:
            for told in told_topic.partitions:
                where = there.get(told.partition_index)
                is_mine = where is not None and self._positions.get(where.number) is where
                if where is None or not is_mine or where.offset != offsets[where.number]:
                    continue
                no_zstd = told.error_code == Code.UNSUPPORTED_COMPRESSION_TYPE
                if no_zstd and request.version < _ZSTD_SINCE:
                    self._version = _ZSTD_SINCE
                    self._sessions.clear()
                else:
                    self._on_told(where, told, broker_id, topic)

    def _asked(self, where: _Position) -> tuple[int, int, int]:
        """Return what is asked of a partition: offset, the leader's epoch, the last one's."""
        leader = self._known.leaders.get(where.number)
        epoch = -1 if leader is None or where.preferred[0] >= 0 else leader.epoch
        return where.offset, epoch, where.epoch

    def _request(self, session: _Session, asked: Mapping[int, tuple[int, int, int]]) -> Any:
        version = self._version
        is_first = not self._has_sessions or session.epoch == _FULL
        named = {
            number: said
            for number, said in asked.items()
            if is_first or session.told.get(number) != said
        }
        forgotten = [] if is_first else [n for n in session.told if n not in asked]
        names: dict[str, Any] = {}
        if version >= _TOPIC_IDS_SINCE:
            names["topic_id"] = self._known.topic_id
        else:
            names["topic"] = self._topic
        partition = FetchRequest.FetchTopic.FetchPartition
        partitions = [
            partition(
                partition=number,
                fetch_offset=offset,
                current_leader_epoch=leader_epoch,
                last_fetched_epoch=last_epoch,
                partition_max_bytes=self._partition_bytes,
            )
            for number, (offset, leader_epoch, last_epoch) in named.items()
        ]
        topics = [FetchRequest.FetchTopic(**names, partitions=partitions)]
        left = [FetchRequest.ForgottenTopic(**names, partitions=forgotten)]
        return FetchRequest(
            version=version,
            replica_id=-1,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=int(self._isolation is READ_COMMITTED),
            session_id=session.session_id if self._has_sessions else 0,
            session_epoch=session.epoch if self._has_sessions else _NO_SESSION,
            topics=topics if partitions else [],
            forgotten_topics_data=left if forgotten else [],
            rack_id=self._zone,
        )

    def _go_on(
        self, session: _Session, session_id: int, asked: Mapping[int, tuple[int, int, int]]
    ) -> None:
        if not session_id:
            session.session_id, session.epoch, session.told = 0, _FULL, {}
            return
        session.session_id = session_id
        session.epoch += 1
        session.told = dict(asked)

    # --- What comes --------------------------------------------------------------------------

    def _on_told(self, where: _Position, told: Any, broker_id: int, topic: KnownTopic) -> None:
        code = told.error_code
        name = f"{self._topic}-{where.number}"
        if code == Code.OFFSET_OUT_OF_RANGE:
            if where.preferred[0] == broker_id:
                where.preferred = (-1, 0.0)  # A follower may be behind, or ahead.
                self._put_off([where])
            else:
                where.error = OffsetOutOfRangeError(f"{name} has no offset {where.offset}")
            return
        if code in _LATER:
            self._wants_metadata = True
            where.preferred = (-1, 0.0)
            self._put_off([where])
            return
        if code != NO_ERROR:
            where.error = error_of(code, name)
            return
        diverging = told.diverging_epoch
        if diverging is not None and diverging.epoch >= 0:
            where.error = LogTruncatedError(f"{name} parts at {diverging.end_offset}")
            return
        if self._version >= _RACKS_SINCE and told.preferred_read_replica >= 0:
            until_s = asyncio.get_running_loop().time() + _PREFERRED_S
            where.preferred = (told.preferred_read_replica, until_s)
        try:
            self._take(where, bytes(told.records or b""), told.aborted_transactions)
        except BrokenBatchError as error:  # A disk may have damaged it: readers know.
            where.error = CorruptBatchError(f"{name}: {error}")

    def _take(self, where: _Position, data: bytes, aborted: Any) -> None:
        begins = [(each.first_offset, each.producer_id) for each in aborted or ()]
        heapq.heapify(begins)
        left_out: set[int] = set()
        for batch in batches_in(data):
            if batch.last_offset < where.offset:
                continue
            while begins and begins[0][0] <= batch.last_offset:
                left_out.add(heapq.heappop(begins)[1])
            if batch.is_control:
                if not batch.is_commit:
                    left_out.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in left_out):
                where.records += self._records(where, batch)
            where.offset = batch.last_offset + 1
            where.epoch = batch.leader_epoch

    def _records(self, where: _Position, batch: KafkaBatch) -> list[Record]:
        return [
            Record(
                self._topic,
                where.number,
                Offset(record.offset),
                WallMs(record.timestamp),
                record.key,
                record.value,
                (),
            )
            for record in batch.records
            if record.offset >= where.offset
        ]
