"""What a reader asks for by single requests, as Kafka's protocol has them (KIP-227).

A Kafka consumer asks again for each answer. Without a session, a request names all of its
partitions, and the answer tells of all. In a session, a request names what has changed since the
last one: partitions that are new, at another offset, or forgotten. The answer tells of those with
records, errors, or offsets that have moved.

`AskedPartitions` is either: the partitions, and a queue of those that may have news, each at most
once. So a request in a session costs no look at partitions where nothing happens. Who was served
goes to the end of the queue. An answer does not move a position: the next request does, as the
answer may be lost. So a partition that has more leaves the queue only when it is read to its end.

A connection has one session at a time (`ConnectionSession`). It ends with the connection, or when
the reader begins another one: Kafka's clients have one for each broker that they read from, on the
one connection by which they do. All sessions of a listener share a `SessionBudget`. A reader for
whose session there is no room has none, and names everything each time. As a session has a bound of
its own, one connection takes a small part of the budget.

Pure. Source: KIP-227; Kafka's `FetchSession`, `FetchSessionCache`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from millrace.core.errors import MalformedRequestError
from millrace.core.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.replica.fetch.session import FetchPosition

NO_SESSION: Final = 0
"""As a session's id: there is none."""
FIRST_EPOCH: Final = 0
"""As a session's epoch: the request names everything, and wants a session."""
LAST_EPOCH: Final = -1
"""As a session's epoch: the request names everything, and wants no session."""
_EPOCH_MAX: Final = 2**31 - 1
_PARTITIONS_MIN: Final = 100
"""What a session with fewer partitions counts as in the budget."""
_NO_TOPIC: Final = TopicId(bytes(16))

AskedTopic = str | TopicId
"""A topic as a request names it: by name or by id."""


class Wanted(NamedTuple):
    """A partition as a request names it.

    Attributes:
        current_leader_epoch: that the reader knows; -1: none.
        last_fetched_epoch: of the last batch before the offset; -1: it does not say.
        max_bytes: of batches, except for a larger first one; at least 1.
    """

    topic: AskedTopic
    partition: int
    current_leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    max_bytes: int


@dataclass(slots=True)
class Asked:
    """A partition that a reader asks for.

    Attributes:
        topic: as the reader names it.
        position: of the reader; its `topic_partition` counts once the topic is found.
        awaited_epoch: a leader epoch that this replica was given time to hear of.
    """

    topic: AskedTopic
    position: FetchPosition
    awaited_epoch: LeaderEpoch = NO_LEADER_EPOCH

    def find(self, topic_id: TopicId) -> TopicPartition:
        """Return the partition, of which topic has the name at present."""
        position = self.position
        if position.topic_partition.topic_id != topic_id:
            position.topic_partition = TopicPartition(topic_id, position.topic_partition.partition)
        return position.topic_partition


@dataclass(slots=True)
class AskedPartitions:
    """The partitions that a reader asks for, in the order in which they are served.

    Args:
        partitions_max: how many there may be.
    """

    partitions_max: int
    by_handle: dict[int, Asked] = field(default_factory=dict)
    _handles: dict[tuple[AskedTopic, int], int] = field(default_factory=dict)
    _news: dict[int, None] = field(default_factory=dict)  # A queue whose members are unique.
    _next_handle: int = 0

    def __len__(self) -> int:
        return len(self.by_handle)

    def want(self, wanted: Wanted, *, may_be_sent_on: bool = False) -> Asked:
        """Add a partition, or move the reader in it.

        Args:
            wanted: as the request names it.
            may_be_sent_on: whether the reader goes to another replica if it is told to (KIP-392).

        Raises:
            MalformedRequestError: there are as many as there may be.
        """
        key = wanted.topic, wanted.partition
        handle = self._handles.get(key)
        known = None if handle is None else self.by_handle[handle].position
        if handle is None:
            if len(self.by_handle) >= self.partitions_max:
                raise MalformedRequestError(
                    f"a reader asks for at most {self.partitions_max} partitions of a broker at a "
                    "time: use another consumer for more"
                )
            handle = self._handles[key] = self._next_handle
            self._next_handle += 1
        topic_id = _NO_TOPIC if isinstance(wanted.topic, str) else wanted.topic
        position = FetchPosition(
            handle,
            TopicPartition(topic_id, wanted.partition),
            wanted.fetch_offset,
            wanted.current_leader_epoch,
            wanted.last_fetched_epoch,
            wanted.max_bytes,
            may_be_sent_on=may_be_sent_on,
        )
        if known is not None:
            position.topic_partition = known.topic_partition
            if wanted.last_fetched_epoch == NO_LEADER_EPOCH:  # Else it is compared once more.
                position.told_high_watermark = known.told_high_watermark
                position.told_last_stable_offset = known.told_last_stable_offset
                position.told_log_start_offset = known.told_log_start_offset
        asked = self.by_handle[handle] = Asked(wanted.topic, position)
        self.on_advanced(handle)
        return asked

    def forget(self, topic: AskedTopic, partition: int) -> int | None:
        """Remove a partition; return its handle if it was there."""
        handle = self._handles.pop((topic, partition), None)
        if handle is not None:
            del self.by_handle[handle]
            self._news.pop(handle, None)
        return handle

    def on_advanced(self, handle: int) -> None:
        """Note that a partition may have news."""
        asked = self.by_handle.get(handle)
        if asked is not None:
            asked.position.has_advanced = True
            self._news[handle] = None

    def turn(self) -> list[Asked]:
        """Return the partitions that may have news, in the order of service."""
        return [self.by_handle[handle] for handle in self._news]

    def begin_with(self, number: int) -> None:
        """Serve the partition first that is at this place of the queue, counted round and round.

        Many readers name their partitions in the same order each time. An answer that is full
        before the last one would leave that out for ever.
        """
        if self._news:
            queue = list(self._news)
            begin = number % len(queue)
            self._news = dict.fromkeys(queue[begin:] + queue[:begin])

    def on_served(self, handle: int) -> None:
        """Note that a partition was told of, and may have more: the others come first."""
        if handle in self._news:
            del self._news[handle]
            self._news[handle] = None

    def on_nothing(self, handle: int) -> None:
        """Note that a partition has no news, unless it has advanced since it was looked at."""
        asked = self.by_handle.get(handle)
        if asked is not None and not asked.position.has_advanced:
            self._news.pop(handle, None)


class SessionProblem(Enum):
    """Why a request is of no session; Kafka's names."""

    ID_NOT_FOUND = "FETCH_SESSION_ID_NOT_FOUND"
    INVALID_EPOCH = "INVALID_FETCH_SESSION_EPOCH"
    TOPIC_ID_ERROR = "FETCH_SESSION_TOPIC_ID_ERROR"


@dataclass(slots=True, eq=False)
class Session:
    """A session of single requests.

    Attributes:
        session_id: names it; unlike any other one of the broker.
        epoch: of the next request.
        by_id: whether its requests name topics by id.
        is_busy: whether a request of it is being answered.
    """

    session_id: int
    asked: AskedPartitions
    by_id: bool
    epoch: int = 1
    is_busy: bool = False
    counted: int = 0

    def advance(self) -> None:
        """Take the next request."""
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1


class SessionBudget:
    """How much all sessions of a listener may hold together.

    Args:
        partitions_max: partitions of all sessions; a session counts as 100 at the least.
    """

    __slots__ = ("_ids", "partitions_max", "used")

    def __init__(self, partitions_max: int) -> None:
        self.partitions_max = partitions_max
        self.used = 0
        self._ids = _session_ids()

    def next_id(self) -> int:
        """Return an id that no living session has, unless two thousand million came after it."""
        return next(self._ids)

    def count(self, session: Session) -> bool:
        """Count what a session holds now; return whether there is room for it."""
        counted = max(len(session.asked), _PARTITIONS_MIN)
        if counted > session.counted and self.used + counted - session.counted > (
            self.partitions_max
        ):
            return False
        self.used += counted - session.counted
        session.counted = counted
        return True

    def release(self, session: Session) -> None:
        """A session is over."""
        self.used -= session.counted
        session.counted = 0


class ConnectionSession:
    """The session of one connection.

    Args:
        budget: of the listener.

    Attributes:
        current: the session; None: there is none.
    """

    __slots__ = ("_budget", "current")

    def __init__(self, budget: SessionBudget) -> None:
        self._budget = budget
        self.current: Session | None = None

    def open(self, asked: AskedPartitions, *, by_id: bool) -> Session | None:
        """Begin a session with what a request asks for; None: there is no room for it.

        An earlier one ends.
        """
        self.end()
        session = Session(self._budget.next_id(), asked, by_id)
        if not self._budget.count(session):
            return None
        self.current = session
        return session

    def next(self, session_id: int, epoch: int, *, by_id: bool) -> Session | SessionProblem:
        """Return the session of a request that names only changes, and take the request's epoch."""
        session = self.current
        if session is None or session.session_id != session_id:
            return SessionProblem.ID_NOT_FOUND
        if session.epoch != epoch or session.is_busy:
            return SessionProblem.INVALID_EPOCH
        if session.by_id != by_id:
            return SessionProblem.TOPIC_ID_ERROR
        session.advance()
        return session

    def count(self, session: Session) -> bool:
        """Count what a session holds by now; return whether there is room for it."""
        return self._budget.count(session)

    def end(self) -> None:
        """Forget the session, if there is one."""
        if self.current is not None:
            self._budget.release(self.current)
            self.current = None


def _session_ids() -> Iterator[int]:
    """Yield ids from 1 on, again and again."""
    while True:
        yield from range(1, 2**31)
