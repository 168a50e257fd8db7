"""Fetch sessions of a consumer, one per broker: waiting batches, and the credit that bounds them.

A session starts with `window` bytes of credit, and bytes are granted again as their batches are
taken or dropped. A broker never sends more, so that at most `window` bytes per broker wait.

Credit goes back in parts of the window, and not batch by batch: a message costs as much as an
answer. The broker meanwhile has most of the window, which a large batch may exceed. So when a
broker has been quiet for a moment, and nothing waits here, it gets the rest.

A partition is in a session under a handle. Batches wait, over all brokers in the order of their
arrival, until they are taken or their handle is dropped.

Some batches have no record for the reader (P10): markers, and those of aborted transactions that
the broker names. They are *passed*: one entry stands for a run of them, so that the position moves
over them in its turn, and their bytes go back as credit at once, but for those of one header: so
entries are bounded, too. An entry is never the first that waits: it is applied as soon as what came
before it is taken.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.core.client.consumer.aborted import AbortedTransactions
from millrace.core.errors import CorruptBatchError, MillraceError, UnsupportedFormatError
from millrace.core.ids import (
    UNKNOWN_OFFSET,
    VERIFY_NOTHING,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
)
from millrace.core.records.batch import walk
from millrace.core.records.header import HEADER_BYTES, Attributes, BatchHeader, Buffer
from millrace.core.records.markers import AbortedTransaction

_GRANT_FRACTION: Final = 4
QUIET_MS: Final = 20
"""A broker that has sent nothing for so long may wait for credit."""
_PERHAPS_PASSED: Final = Attributes.TRANSACTIONAL | Attributes.CONTROL
_PASSED: Final = memoryview(bytes(HEADER_BYTES))
"""The data of what is passed."""


@dataclass(slots=True)
class AddedPartition:
    """A partition that joins a session."""

    handle: int
    topic_partition: TopicPartition
    fetch_offset: Offset
    current_leader_epoch: LeaderEpoch
    last_fetched_epoch: LeaderEpoch
    from_leader: bool = False
    """The leader must serve it, and not redirect the reader."""
    end_offset: Offset | None = None
    """Nothing is wanted from here on."""
    verify_until: Offset = VERIFY_NOTHING
    """The broker verifies what it sends of the records below: a batch came damaged."""


@dataclass(slots=True)
class ChangeSession:
    """Effect: write a message to the broker's fetch stream."""

    broker_id: BrokerId
    added: list[AddedPartition]
    removed: list[int]
    credit_bytes: int


@dataclass(slots=True)
class FetchedPartition:
    """News of one partition, as the broker sent them."""

    handle: int
    batches: Buffer
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    fetch_offset: Offset
    error: MillraceError | None = None
    is_retriable: bool = False
    diverging_epoch: LeaderEpoch | None = None
    diverging_end_offset: Offset = UNKNOWN_OFFSET
    preferred_read_replica: BrokerId | None = None
    """Read there from now on."""
    aborted: Sequence[AbortedTransaction] = ()
    """Whose batches are not for this reader."""


@dataclass(slots=True)
class FetchedBatch:
    """A batch that waits to be taken. Records before `start_offset` are not wanted.

    Attributes:
        is_passed: it has no record for the reader, and stands for a run of such batches of one
            leader epoch: `header` is that of the last one.
    """

    topic: str
    topic_partition: TopicPartition
    handle: int
    header: BatchHeader
    data: memoryview
    start_offset: Offset
    is_passed: bool = False


@dataclass(slots=True, eq=False)
class _Session:
    broker_id: BrokerId
    is_open: bool = False
    buffered_bytes: int = 0
    """Bytes received and neither taken nor dropped."""
    ungranted_bytes: int = 0
    """Bytes that were taken or dropped and not granted again yet."""
    quiet_at: MonotonicMs | None = None
    """When it will have been quiet; None: it is."""
    added: list[AddedPartition] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


class Sessions:
    """All sessions of one consumer.

    Args:
        window: bytes that may be on their way or wait, per broker.

    Attributes:
        have_changes: a session has something to say to its broker.
        waiting: the batches that `take` returns, and between them what is passed.
        passed_count: how many of these are passed; `pass_on` may have something to do.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._grant_bytes = window // _GRANT_FRACTION
        self._sessions: dict[BrokerId, _Session] = {}
        self._of_handle: dict[int, _Session] = {}
        self.waiting: deque[FetchedBatch] = deque()
        self.passed_count = 0
        self._aborted: dict[int, AbortedTransactions] = {}
        """Of handles under which there is one."""
        self.have_changes = False

    def on_connected(self, broker_id: BrokerId) -> None:
        """A stream is open; its session begins empty."""
        session = self._session(broker_id)
        session.is_open = True
        session.quiet_at = None
        session.added, session.removed = [], []
        # Batches of an earlier stream that still wait count against the window.
        session.ungranted_bytes = self._window - session.buffered_bytes

    def on_disconnected(self, broker_id: BrokerId) -> None:
        """A stream broke: its partitions leave."""
        self._session(broker_id).is_open = False

    def _session(self, broker_id: BrokerId) -> _Session:
        session = self._sessions.get(broker_id)
        if session is None:
            session = self._sessions[broker_id] = _Session(broker_id)
        return session

    # Partitions by their handles.

    def add(self, broker_id: BrokerId, partition: AddedPartition) -> None:
        """Have a broker send a partition."""
        session = self._sessions[broker_id]
        session.added.append(partition)
        self._of_handle[partition.handle] = session

    def remove(self, handle: int) -> None:
        """Have the broker send nothing more under a handle; waiting batches stay."""
        session = self._of_handle[handle]
        if session.is_open:
            session.removed.append(handle)
            self.have_changes = True

    def drop(self, handle: int) -> None:
        """Forget a handle and its waiting batches; `pass_on` follows."""
        session = self._of_handle.pop(handle)
        self._aborted.pop(handle, None)
        kept: deque[FetchedBatch] = deque()
        for batch in self.waiting:
            if batch.handle == handle:
                self.passed_count -= batch.is_passed
                session.buffered_bytes -= len(batch.data)
                self._give_back(session, len(batch.data))
            else:
                kept.append(batch)
        self.waiting = kept

    def has(self, handle: int) -> bool:
        """Whether batches wait under a handle."""
        return any(batch.handle == handle for batch in self.waiting)

    # Batches.

    def on_received(self, broker_id: BrokerId, now: MonotonicMs) -> None:
        """A broker has sent batches: `keep` and `refuse` tell which."""
        self._session(broker_id).quiet_at = MonotonicMs(now + QUIET_MS)

    def keep(
        self, topic: str, topic_partition: TopicPartition, fetched: FetchedPartition
    ) -> tuple[MillraceError, Offset] | None:
        """Keep received batches; `pass_on` follows.

        Returns:
            The problem of the bytes after them, and their offset; None: there is none.
        """
        session = self._of_handle[fetched.handle]
        aborted = self._aborted_of(fetched)
        passed: FetchedBatch | None = None  # The run of batches that this one may continue.
        kept = 0
        damage: tuple[MillraceError, Offset] | None = None
        end_offset = fetched.fetch_offset
        try:
            for header, data in walk(fetched.batches):
                if header.next_offset > fetched.fetch_offset:
                    start = Offset(max(fetched.fetch_offset, header.base_offset))
                    end_offset = header.next_offset
                    if header.attributes & _PERHAPS_PASSED and _is_passed(header, aborted):
                        if passed is None or passed.header.leader_epoch != header.leader_epoch:
                            passed = FetchedBatch(
                                topic,
                                topic_partition,
                                fetched.handle,
                                header,
                                _PASSED,
                                start,
                                is_passed=True,
                            )
                            self.waiting.append(passed)
                            self.passed_count += 1
                            kept += HEADER_BYTES
                        passed.header = header
                        continue
                    passed = None
                    self.waiting.append(
                        FetchedBatch(topic, topic_partition, fetched.handle, header, data, start)
                    )
                    kept += len(data)
        except (CorruptBatchError, UnsupportedFormatError) as error:
            damage = error, end_offset
        if aborted is not None:
            aborted.forget(end_offset)
            if not aborted:
                del self._aborted[fetched.handle]
        session.buffered_bytes += kept
        if kept != len(fetched.batches):
            self._give_back(session, len(fetched.batches) - kept)
        return damage

    def _aborted_of(self, fetched: FetchedPartition) -> AbortedTransactions | None:
        """Return the aborted transactions that this response and those before it name."""
        aborted = self._aborted.get(fetched.handle) if self._aborted else None
        if fetched.aborted:
            if aborted is None:
                aborted = self._aborted[fetched.handle] = AbortedTransactions()
            aborted.learn(fetched.aborted)
        return aborted

    def pass_on(self) -> Iterator[FetchedBatch]:
        """Yield what is passed before the first batch that waits: positions move over it."""
        while self.waiting and self.waiting[0].is_passed:
            self.passed_count -= 1
            yield self._pop()

    def refuse(self, broker_id: BrokerId, size: int) -> None:
        """Give credit back for unwanted bytes."""
        self._give_back(self._session(broker_id), size)

    def take(self) -> FetchedBatch | None:
        """Return the next batch; None: none waits. `pass_on` follows."""
        return self._pop() if self.waiting else None

    def _pop(self) -> FetchedBatch:
        batch = self.waiting.popleft()
        session = self._of_handle[batch.handle]
        session.buffered_bytes -= len(batch.data)
        self._give_back(session, len(batch.data))
        return batch

    def _give_back(self, session: _Session, size: int) -> None:
        if session.is_open:
            session.ungranted_bytes += size
            if self._is_grant_due(session):
                self.have_changes = True

    def _is_grant_due(self, session: _Session) -> bool:
        is_awaited = session.quiet_at is None and session.buffered_bytes <= 0
        return is_awaited or session.ungranted_bytes >= self._grant_bytes

    # Messages to brokers.

    def next_wake(self) -> MonotonicMs | None:
        """Return when a broker will have been quiet; None: each is."""
        wake: MonotonicMs | None = None
        for session in self._sessions.values():
            quiet_at = session.quiet_at
            if quiet_at is not None and session.is_open and (wake is None or quiet_at < wake):
                wake = quiet_at
        return wake

    def changes(self, now: MonotonicMs) -> list[ChangeSession]:
        """Return the messages to brokers."""
        self.have_changes = False
        changes: list[ChangeSession] = []
        for session in self._sessions.values():
            if not session.is_open:
                continue
            if session.quiet_at is not None and now >= session.quiet_at:
                session.quiet_at = None
            credit = session.ungranted_bytes
            is_due = credit > 0 and self._is_grant_due(session)
            if session.added or session.removed or is_due:
                session.ungranted_bytes = 0
                added, session.added = session.added, []
                removed, session.removed = session.removed, []
                changes.append(ChangeSession(session.broker_id, added, removed, credit))
        return changes


def _is_passed(header: BatchHeader, aborted: AbortedTransactions | None) -> bool:
    """Return whether a transactional or a control batch has no record for the reader."""
    return header.is_control or (
        aborted is not None and aborted.has(header.producer_id, header.base_offset)
    )
