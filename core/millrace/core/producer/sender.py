"""Numbers, sends and repeats batches so that each record lands once and in order.

The problem: an answer can be lost after its batch was appended, so whoever repeats may double, and
whoever does not may lose. The idea (KIP-98): every batch carries a producer id, an epoch and a
sequence; the leader appends only the next sequence and answers a repeated one with the original's
offset. A batch keeps its sequence over all attempts.

Invariants:
- From a partition's first batch without an outcome to the last that has a sequence there are at
  most `BATCHES_IN_FLIGHT_MAX` (P44), those between that are acknowledged already included: answers
  overtake each other, and a leader remembers so many. Batches are repeated in their order, and no
  new batch passes one that has to be repeated.
- A leader that knows nothing of a producer takes any sequence for its first (P43), so that a second
  batch could pass a refused first one. So each batch says whether it is the successor of one that
  has no outcome, and such a leader refuses it.
- A batch whose attempt ended without a clear answer (`maybe_appended`) keeps its sequence until it
  was not appended for certain. That is so when it is behind one that was not; and when a leader of
  a later epoch than all unanswered attempts misses the one before it: it refuses those, should they
  still come (P6), and says so only once no replica that may lead has what it lacks (P43).
- A hole in the sequences (a batch that failed for good) is never filled: once no batch of the old
  numbering is in the air, or might be in the log, the partition goes on under the next producer
  epoch from sequence 0, which also fences whatever of the old epoch is still under way (P43).

Without `acks=all` there are no sequences: one batch of a partition is in flight at a time, and an
attempt without a clear answer is final. So the order holds there too, and nothing is ever doubled.

Reactive machine: events in, effects out in the order in which they must be performed. The shell
encodes batches before it hands them in, connects, and passes the time.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final

from millrace.core.errors import (
    Appended,
    ConnectionFailedError,
    DeliveryTimedOutError,
    InvalidProducerEpochError,
    MessageTooLargeError,
    MillraceError,
    OutOfOrderSequenceError,
    RefreshMetadataError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BrokerId,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)
from millrace.core.pauses import pause_after
from millrace.core.producer.batch import BatchState, ProducerBatch
from millrace.core.producer.delivery import Acknowledged
from millrace.core.records.header import SEQUENCE_MAX

BATCHES_IN_FLIGHT_MAX: Final = 5
"""Batches of a partition, as the broker remembers that many (P42, P44)."""
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
ACKS_ALL: Final = -1
_NO_LEADER: Final = Leader(NO_BROKER, NO_LEADER_EPOCH)
_LONG_AGO: Final = MonotonicMs(0)
_PAUSE_FRACTION: Final = 10
_ANSWER_GRACE_MS: Final = 5_000
"""A broker that is this much later than it promised with an answer is given up."""
REQUEST_OVERHEAD_MAX: Final = 128
"""Bytes that a request with one batch takes beside the batch."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SenderConfig:
    """Bounds of the machine; the public settings' names and meanings."""

    acks: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_ms_max: int
    request_bytes_max: int
    """Batches of many partitions share a request up to this size; one larger batch goes alone."""
    requests_in_flight_max: int
    """Requests per broker without an answer. What is repeated goes beyond that: where a leadership
    moved, the requests that it would wait for may themselves wait for batches like these."""
    leader_silence_ms: int
    """A broker that has not answered for so long may be a leader no more without knowing it."""


@dataclass(slots=True)
class Transmit:
    """Effect: write a request with these batches to the broker's produce stream.

    The answer goes to `on_answer` with the correlation id. With `acks=0` that is said when the
    transport has taken the request: until then it counts among those in flight.
    """

    broker_id: BrokerId
    correlation_id: int
    batches: list[tuple[ProducerBatch, LeaderEpoch]]


@dataclass(slots=True)
class Complete:
    """Effect: the batch has its outcome; give its memory back and wake who waits for it."""

    batch: ProducerBatch


@dataclass(slots=True)
class Connect:
    """Effect: open a produce stream; `on_connected` or, after a pause, another attempt follows."""

    broker_id: BrokerId


@dataclass(slots=True)
class ConnectSoon:
    """Effect: pause no more before the next attempt: a broker that was elected is there."""

    broker_id: BrokerId


@dataclass(slots=True)
class Disconnect:
    """Effect: give the stream up; `on_disconnected` follows."""

    broker_id: BrokerId
    reason: str


@dataclass(slots=True)
class RefreshMetadata:
    """Effect: look up leaders; `on_topics`, `on_leaders` and `on_refreshed` follow."""

    topics: list[str]


@dataclass(slots=True)
class AllocateProducerId:
    """Effect: ask for a producer id until there is one; `on_producer_id` follows.

    Whatever comes instead of one goes to `on_no_producer_id`.
    """


Effect = (
    Transmit | Complete | Connect | ConnectSoon | Disconnect | RefreshMetadata | AllocateProducerId
)


@dataclass(slots=True, frozen=True)
class Refusal:
    """Why a broker did not append a batch."""

    error: MillraceError
    retriable: bool


Answer = Acknowledged | Refusal


@dataclass(slots=True)
class _Request:
    batches: list[ProducerBatch]
    sent_at: MonotonicMs
    deadline: MonotonicMs


@dataclass(slots=True)
class _Broker:
    broker_id: BrokerId
    connection: int = 0
    """Number of the current stream, never used again; 0: there is none."""
    is_connecting: bool = False
    failures: int = 0
    """Streams that broke or did not open since the last that did."""
    requests: dict[int, _Request] = field(default_factory=dict)
    message_bytes_max: int = 0
    """The largest request that it takes; 0: it did not say."""
    not_before: MonotonicMs = _LONG_AGO
    """The broker asked for a pause until then."""
    doubted_at: MonotonicMs = _LONG_AGO
    """When it was last looked up whether others lead by now, as it is silent."""


@dataclass(slots=True)
class _Partition:
    topic: str
    topic_partition: TopicPartition
    waiting: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    """In the order of their sequences."""
    taken: int = 0
    """Batches that have left `waiting` to be sent, ever."""
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    next_sequence: int = 0
    must_renew: bool = False
    """There is a hole: go on under a new epoch as soon as the old one's outcomes are known."""
    retry_at: MonotonicMs = _LONG_AGO
    failures: int = 0
    """Attempts that failed since the last success: the exponent of the pause."""
    deletion: str = ""
    """How to say that the topic is gone; empty while it is not."""


class Sender:
    """The machine for all partitions of one producer."""

    def __init__(self, config: SenderConfig) -> None:
        self._config = config
        self._is_idempotent = config.acks == ACKS_ALL
        self._in_flight_max = BATCHES_IN_FLIGHT_MAX if self._is_idempotent else 1
        self._producer_id = NO_PRODUCER_ID
        self._is_allocating = False
        self._allocation_problem = ""
        """What came last instead of a producer id."""
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._of_topic: dict[str, dict[TopicPartition, _Partition]] = {}
        """The same by the name of their topic, also of an earlier one of that name."""
        self._leaders: dict[TopicPartition, Leader] = {}
        self._brokers: dict[BrokerId, _Broker] = {}
        self._to_send: dict[TopicPartition, _Partition] = {}
        """Partitions that have a batch to send; served in turn."""
        self._by_age: list[tuple[MonotonicMs, int, ProducerBatch]] = []
        """A heap by the age of their oldest records, which may have waited for their topic; the
        number, of batches that were handed in, sets those of one age apart."""
        self._next_number = 0
        self._leaderless: dict[str, None] = {}
        """Topics to look up, in the order in which they were missed."""
        self._is_refreshing = False
        self._refreshed_at: MonotonicMs | None = None
        self._in_vain_since: MonotonicMs | None = None
        """The first look-up after which leaders were still missing, and nothing has happened."""
        self._missed_topics: dict[str, None] = {}
        """Topics with partitions here that the last look-up did not find."""
        self._effects: list[Effect] = []
        self._next_correlation = 1
        self._next_connection = 1
        self.waiting_count = 0
        """Batches that were handed in and have not been sent once."""
        self.unfinished_count = 0
        """Batches without an outcome."""

    # Events.

    def on_batches(self, batches: Iterable[ProducerBatch]) -> None:
        """Take encoded batches, in order per partition."""
        for batch in batches:
            partition = self._partitions.get(batch.topic_partition)
            if partition is None:
                partition = _Partition(batch.topic, batch.topic_partition)
                self._partitions[batch.topic_partition] = partition
                self._of_topic.setdefault(batch.topic, {})[batch.topic_partition] = partition
            partition.waiting.append(batch)
            self._to_send[batch.topic_partition] = partition
            heappush(self._by_age, (batch.opened_at, self._next_number, batch))
            self._next_number += 1
            self.waiting_count += 1
            self.unfinished_count += 1
            if partition.deletion:
                self._fail_what_is_not_in_the_air(partition)

    def on_unencodable(self, batch: ProducerBatch, error: MillraceError) -> None:
        """Take a batch that could not even be encoded: it fails."""
        self.unfinished_count += 1
        self._finish(batch, error)

    def on_leaders(self, leaders: Mapping[TopicPartition, Leader]) -> None:
        """Take what is known about leaders now; what is older than that is passed over.

        A partition in a newer epoch need not wait for the end of the pause that the old leader's
        refusal brought (KIP-951).
        """
        for topic_partition, leader in leaders.items():
            before = self._leaders.get(topic_partition, _NO_LEADER)
            if leader.leader_epoch < before.leader_epoch:
                continue
            self._leaders[topic_partition] = leader
            if leader.leader_epoch > before.leader_epoch:
                self._on_elected(leader.broker_id)
                partition = self._partitions.get(topic_partition)
                if partition is not None:
                    partition.retry_at = _LONG_AGO
                    self._in_vain_since = None

    def on_topics(self, topic_ids: Mapping[str, TopicId | None]) -> None:
        """Take which topics have these names now; None: no topic has the name.

        The batches of a topic that is gone fail; those in the air once they are refused. A broker
        that has not heard of a new topic yet does not find it either, so not being found counts
        from the second time in a row; but when another topic has the name, this one is gone.
        """
        gone: set[TopicId] = set()
        for topic, topic_id in topic_ids.items():
            partitions = list(self._of_topic.get(topic, {}).values())
            is_news = topic_id is None and topic not in self._missed_topics
            if topic_id is None and partitions:
                self._missed_topics[topic] = None
            else:
                self._missed_topics.pop(topic, None)
            again = "" if topic_id is None else " and made again"
            for partition in partitions:
                if partition.topic_partition.topic_id == topic_id:
                    partition.deletion = ""
                elif is_news:
                    self._doubt_leader(topic)
                else:
                    partition.deletion = f"the topic {topic!r} was deleted{again}"
                    gone.add(partition.topic_partition.topic_id)
                    self._fail_what_is_not_in_the_air(partition)
                    self._keep_sending(partition)
        if gone:
            self._leaders = {
                place: leader
                for place, leader in self._leaders.items()
                if place.topic_id not in gone
            }

    def on_refreshed(self, now: MonotonicMs) -> None:
        """The look-up is over, whether it found anything or not."""
        self._is_refreshing = False
        self._refreshed_at = now
        if self._in_vain_since is None:
            self._in_vain_since = now

    def on_producer_id(self, producer_id: ProducerId) -> None:
        """Take a fresh producer id, with epoch 0."""
        self._producer_id = producer_id
        self._is_allocating = False
        self._allocation_problem = ""

    def on_no_producer_id(self, problem: str) -> None:
        """Take why nobody gave a producer id; they are asked again."""
        self._allocation_problem = problem

    def on_connected(self, broker_id: BrokerId, message_bytes_max: int = 0) -> None:
        """The produce stream to a broker is open.

        Args:
            broker_id: to which.
            message_bytes_max: the largest request that it takes; 0: it did not say.
        """
        broker = self._broker(broker_id)
        broker.message_bytes_max = message_bytes_max
        broker.is_connecting = False
        broker.failures = 0
        broker.connection = self._next_connection
        self._next_connection += 1

    def on_disconnected(self, broker_id: BrokerId, reason: str, now: MonotonicMs) -> None:
        """The stream broke, or could not be opened: nothing in the air will be answered."""
        broker = self._broker(broker_id)
        broker.is_connecting = False
        broker.failures += 1
        broker.connection = 0
        requests, broker.requests = broker.requests, {}
        for request in requests.values():
            for batch in request.batches:
                error = ConnectionFailedError(
                    f"the connection to broker {broker_id} broke before it answered: {reason}",
                    appended=Appended.MAYBE,
                )
                refusal = Refusal(error, retriable=True)
                batch.abandoned_in = batch.leader_epoch
                self._on_refused(batch, refusal, now, refused_by=broker_id, pause=False)
                self._doubt_leader(batch.topic)

    def on_answer(
        self,
        broker_id: BrokerId,
        correlation_id: int,
        answers: Sequence[Answer],
        throttle_ms: int,
        now: MonotonicMs,
    ) -> None:
        """Take a request's answer: one per batch, in the order of the request."""
        broker = self._broker(broker_id)
        request = broker.requests.pop(correlation_id, None)
        if request is None:
            return
        if throttle_ms > 0:
            broker.not_before = MonotonicMs(now + throttle_ms)
        for batch, answer in zip(request.batches, answers, strict=True):
            if batch.state is not BatchState.IN_THE_AIR:
                continue  # It has timed out meanwhile.
            if isinstance(answer, Acknowledged):
                self._on_acknowledged(batch, answer)
            else:
                self._on_refused(batch, answer, now, refused_by=broker_id, pause=True)

    def on_late_refusal(self, broker_id: BrokerId) -> None:
        """A broker refused what had counted as done (`acks=0`): look up who leads instead of it.

        Only for errors that a look-up mends: another leader, or another bound of the topic's.
        """
        for topic_partition, leader in self._leaders.items():
            partition = self._partitions.get(topic_partition)
            if leader.broker_id == broker_id and partition is not None:
                self._doubt_leader(partition.topic)

    # The step that follows every event, and every moment that `next_wake` named.

    def poll(self, now: MonotonicMs) -> list[Effect]:
        """Return what is to be done now."""
        self._expire(now)
        self._send(now)
        if not self._is_refreshing:
            if not self._leaderless:
                self._in_vain_since = None
            elif now >= self._refresh_at():
                self._is_refreshing = True
                self._effects.append(RefreshMetadata(list(self._leaderless)))
                self._leaderless.clear()
        effects, self._effects = self._effects, []
        return effects

    def next_wake(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `poll` has something to do though nothing happened; None: never."""
        moments: list[int] = []
        while self._by_age and self._by_age[0][2].state is BatchState.DONE:
            heappop(self._by_age)
        if self._by_age:
            moments.append(self._by_age[0][0] + self._config.delivery_timeout_ms)
        moments += [p.retry_at for p in self._to_send.values() if p.retry_at > now]
        for broker in self._brokers.values():
            if broker.not_before > now:
                moments.append(broker.not_before)
            for request in broker.requests.values():  # In order of their deadlines.
                silent_since = max(request.sent_at, broker.doubted_at)
                doubt_at = silent_since + self._config.leader_silence_ms
                moments.append(min(request.deadline, doubt_at))
                break
        if self._leaderless and not self._is_refreshing:
            moments.append(self._refresh_at())
        return MonotonicMs(min(moments)) if moments else None

    def queue_length(self, topic_partition: TopicPartition) -> float:
        """Return how many batches of a partition have no outcome yet; infinite: nobody leads it."""
        leader = self._leaders.get(topic_partition)
        if leader is not None and leader.broker_id < 0:
            return inf
        partition = self._partitions.get(topic_partition)
        return 0 if partition is None else len(partition.waiting) + len(partition.in_flight)

    def awaited_brokers(self) -> list[BrokerId]:
        """Return who leads partitions whose batches have no outcome; -1 where nobody does."""
        leaders = {
            self._leaders.get(topic_partition, _NO_LEADER).broker_id: None
            for topic_partition, partition in self._partitions.items()
            if partition.waiting or partition.in_flight
        }
        return list(leaders)

    def producer_id_problem(self) -> str | None:
        """Return why there is no producer id yet; None: none is missed, empty: nobody has said."""
        return self._allocation_problem if self._is_allocating else None

    def is_saturated(self) -> bool:
        """Whether a further small batch could only wait: then batches had better fill."""
        return self.waiting_count > 0

    # Sending.

    def _send(self, now: MonotonicMs) -> None:
        parcels: dict[BrokerId, list[tuple[ProducerBatch, LeaderEpoch]]] = {}
        progress = True
        while progress and self._to_send:
            progress = False
            full: set[BrokerId] = set()
            sizes: dict[BrokerId, int] = {}
            for topic_partition, partition in list(self._to_send.items()):
                leader = self._leader_ready(partition, now)
                if leader is None or leader.broker_id in full:
                    continue
                broker = self._brokers[leader.broker_id]
                batch = self._next_batch(partition, broker)
                if batch is None:
                    continue
                is_full = len(broker.requests) >= self._config.requests_in_flight_max
                if is_full and batch.state is not BatchState.TO_REPEAT:
                    continue
                if 0 < broker.message_bytes_max < _length(batch) + REQUEST_OVERHEAD_MAX:
                    # Its stream would break, and with it the requests of all others.
                    self._fail(partition, batch, _too_large(batch, broker))
                    progress = True
                    continue
                size = sizes.get(leader.broker_id, 0) + _length(batch)
                if size > self._config.request_bytes_max and leader.broker_id in parcels:
                    full.add(leader.broker_id)  # It comes first in the next request.
                    continue
                self._take(partition, batch, broker, leader.leader_epoch)
                sizes[leader.broker_id] = size
                parcels.setdefault(leader.broker_id, []).append((batch, leader.leader_epoch))
                del self._to_send[topic_partition]  # Served: behind the others, if there is more.
                self._keep_sending(partition)
            for broker_id, batches in parcels.items():
                self._transmit(self._brokers[broker_id], batches, now)
                progress = True
            parcels = {}

    def _leader_ready(self, partition: _Partition, now: MonotonicMs) -> Leader | None:
        """Return the leader if it can be sent to now; else do what is needed for that."""
        if partition.retry_at > now:
            return None
        leader = self._leaders.get(partition.topic_partition)
        if leader is None or leader.broker_id < 0:
            self._miss_leader(partition.topic)
            return None
        broker = self._broker(leader.broker_id)
        if not broker.connection:
            if not broker.is_connecting:
                broker.is_connecting = True
                self._effects.append(Connect(leader.broker_id))
            if broker.failures:
                # Perhaps somebody else leads by now. The pauses between attempts to connect get
                # longer and longer; a new leader is to be found soon.
                self._miss_leader(partition.topic)
            return None
        return leader if now >= broker.not_before else None

    def _next_batch(self, partition: _Partition, broker: _Broker) -> ProducerBatch | None:
        for index, batch in enumerate(partition.in_flight):
            if batch.state is BatchState.TO_REPEAT:
                if partition.must_renew and not batch.maybe_appended:
                    break  # It waits for its new number, and so does what is behind it.
                if _is_awaited(partition.in_flight[:index], batch.request):
                    return None
                return batch
            if batch.connection != broker.connection:
                return None  # Its outcome decides what follows.
        if partition.must_renew:
            if not self._can_renew(partition) or not self._renew(partition):
                return None
            if partition.in_flight:
                return partition.in_flight[0]
        if not partition.waiting or self._is_window_full(partition):
            return None
        if self._is_idempotent and partition.producer_id == NO_PRODUCER_ID:
            if not self._has_producer_id():
                return None
            partition.producer_id, partition.producer_epoch = self._producer_id, ProducerEpoch(0)
        return partition.waiting[0]

    def _is_window_full(self, partition: _Partition) -> bool:
        """Whether a further batch could make a leader forget one that may have to be repeated."""
        if not partition.in_flight:
            return False
        return partition.taken - partition.in_flight[0].ordinal + 1 >= self._in_flight_max

    def _take(
        self,
        partition: _Partition,
        batch: ProducerBatch,
        broker: _Broker,
        leader_epoch: LeaderEpoch,
    ) -> None:
        if batch.state is BatchState.WAITING:
            partition.waiting.popleft()
            self.waiting_count -= 1
            partition.taken += 1
            batch.ordinal = partition.taken
            partition.in_flight.append(batch)
            if self._is_idempotent:
                self._number(partition, batch)
        batch.state = BatchState.IN_THE_AIR
        batch.is_successor = batch is not partition.in_flight[0]
        batch.connection = broker.connection
        batch.leader_epoch = leader_epoch
        batch.attempts += 1

    def _number(self, partition: _Partition, batch: ProducerBatch) -> None:
        batch.producer_id = partition.producer_id
        batch.producer_epoch = partition.producer_epoch
        batch.base_sequence = partition.next_sequence
        partition.next_sequence = (partition.next_sequence + batch.record_count) & SEQUENCE_MAX

    def _transmit(
        self,
        broker: _Broker,
        batches: list[tuple[ProducerBatch, LeaderEpoch]],
        now: MonotonicMs,
    ) -> None:
        correlation_id = self._next_correlation
        self._next_correlation += 1
        self._effects.append(Transmit(broker.broker_id, correlation_id, batches))
        deadline = MonotonicMs(now + self._config.request_timeout_ms + _ANSWER_GRACE_MS)
        for batch, _ in batches:
            batch.request = correlation_id
        broker.requests[correlation_id] = _Request([batch for batch, _ in batches], now, deadline)

    # Numbering anew.

    def _can_renew(self, partition: _Partition) -> bool:
        """Whether no batch of the old numbering can be in the log, or come there.

        None can behind one that was not appended for certain, whatever became of its own attempts.
        """
        if any(batch.state is BatchState.IN_THE_AIR for batch in partition.in_flight):
            return False
        return not partition.in_flight or not partition.in_flight[0].maybe_appended

    def _renew(self, partition: _Partition) -> bool:
        """Give the partition its next epoch, or the next id when there is no next epoch."""
        if partition.producer_id == NO_PRODUCER_ID or (
            partition.producer_epoch == PRODUCER_EPOCH_MAX
        ):
            if partition.producer_id == self._producer_id:
                self._producer_id = NO_PRODUCER_ID
            if not self._has_producer_id():
                return False
            partition.producer_id, partition.producer_epoch = self._producer_id, ProducerEpoch(0)
        else:
            partition.producer_epoch = ProducerEpoch(partition.producer_epoch + 1)
        partition.must_renew = False
        partition.next_sequence = 0
        for batch in partition.in_flight:
            batch.maybe_appended = False
            batch.abandoned_in = NO_LEADER_EPOCH
            self._number(partition, batch)
        return True

    def _has_producer_id(self) -> bool:
        if self._producer_id != NO_PRODUCER_ID:
            return True
        if not self._is_allocating:
            self._is_allocating = True
            self._effects.append(AllocateProducerId())
        return False

    # Outcomes.

    def _on_acknowledged(self, batch: ProducerBatch, answer: Acknowledged) -> None:
        partition = self._partitions[batch.topic_partition]
        partition.in_flight.remove(batch)
        partition.failures = 0
        self._keep_sending(partition)
        self._finish(batch, answer)

    def _on_refused(
        self,
        batch: ProducerBatch,
        refusal: Refusal,
        now: MonotonicMs,
        *,
        refused_by: BrokerId,
        pause: bool,
    ) -> None:
        if batch.state is not BatchState.IN_THE_AIR:
            return
        partition = self._partitions[batch.topic_partition]
        error = refusal.error
        batch.last_problem = error.message
        if isinstance(error, OutOfOrderSequenceError):
            self._on_gap(partition, batch, error)
            return
        if error.appended is Appended.MAYBE:
            batch.maybe_appended = True
        may_repeat = refusal.retriable and (self._is_idempotent or error.appended is Appended.NO)
        if not may_repeat:
            if isinstance(error, InvalidProducerEpochError):
                partition.producer_epoch = ProducerEpoch(PRODUCER_EPOCH_MAX)  # Take another id.
            if isinstance(error, MessageTooLargeError):
                self._doubt_leader(batch.topic)  # Its limit is another now: the next ones keep it.
            self._fail(partition, batch, error)
            return
        batch.state = BatchState.TO_REPEAT
        if partition.deletion:
            self._fail_what_is_not_in_the_air(partition)
            return
        if isinstance(error, RefreshMetadataError):
            if self._learn_leader(partition, error, refused_by):
                pause = False
            else:
                self._doubt_leader(batch.topic)
        if pause and batch is partition.in_flight[0]:
            wait = min(
                self._config.retry_backoff_ms << min(partition.failures, 16),
                self._config.retry_backoff_ms_max,
            )
            partition.failures += 1
            partition.retry_at = MonotonicMs(now + wait)
        self._keep_sending(partition)

    def _learn_leader(
        self, partition: _Partition, error: RefreshMetadataError, refused_by: BrokerId
    ) -> bool:
        """Take the leader that a refusal names; return whether it is worth asking at once."""
        if error.leader is None or error.leader.leader.broker_id < 0:
            return False
        named = error.leader.leader
        known = self._leaders.get(partition.topic_partition, _NO_LEADER)
        if named.leader_epoch > known.leader_epoch:
            self._leaders[partition.topic_partition] = named
            self._on_elected(named.broker_id)
            return True
        # An earlier refusal named it already; but nobody is asked twice without a pause.
        return named == known and named.broker_id != refused_by

    def _on_elected(self, broker_id: BrokerId) -> None:
        """A broker leads since a moment ago: however often it could not be reached before."""
        broker = self._brokers.get(broker_id)
        if broker is None or not broker.is_connecting:
            return
        soon = ConnectSoon(broker_id)
        if soon not in self._effects:
            self._effects.append(soon)

    def _on_gap(
        self, partition: _Partition, batch: ProducerBatch, error: OutOfOrderSequenceError
    ) -> None:
        """The leader waits for an earlier sequence: so it did not append this one."""
        if batch.leader_epoch > batch.abandoned_in:
            batch.maybe_appended = False
        if batch.is_successor:
            batch.state = BatchState.TO_REPEAT  # Its turn comes after its predecessors'.
            self._keep_sending(partition)
        elif batch.maybe_appended:
            # An earlier attempt may still be under way on a broken connection to this leader:
            # another number could double it.
            self._fail(partition, batch, error)
        else:
            batch.state = BatchState.TO_REPEAT
            partition.must_renew = True
            self._keep_sending(partition)

    def _fail(self, partition: _Partition, batch: ProducerBatch, error: MillraceError) -> None:
        if batch.state is BatchState.WAITING:
            partition.waiting.remove(batch)
            self.waiting_count -= 1
        else:
            partition.in_flight.remove(batch)
            partition.must_renew = self._is_idempotent
        self._keep_sending(partition)
        if batch.maybe_appended and error.appended is Appended.NO:
            # Refused this time; but an earlier attempt may have been appended.
            error = type(error)(error.message, appended=Appended.MAYBE)
        self._finish(batch, error)

    def _fail_what_is_not_in_the_air(self, partition: _Partition) -> None:
        for batch in [*partition.in_flight, *partition.waiting]:
            if batch.state is not BatchState.IN_THE_AIR:
                self._fail(partition, batch, UnknownTopicOrPartitionError(partition.deletion))

    def _finish(self, batch: ProducerBatch, outcome: Acknowledged | MillraceError) -> None:
        batch.state = BatchState.DONE
        batch.outcome = outcome
        self.unfinished_count -= 1
        self._effects.append(Complete(batch))

    def _expire(self, now: MonotonicMs) -> None:
        for broker in self._brokers.values():
            oldest = next(iter(broker.requests.values()), None)
            reason = "" if oldest is None else self._silence(broker, oldest, now)
            if reason:
                self._effects.append(Disconnect(broker.broker_id, reason))
                self.on_disconnected(broker.broker_id, reason, now)
        while self._by_age:
            _, _, batch = self._by_age[0]
            if batch.state is not BatchState.DONE:
                if batch.opened_at + self._config.delivery_timeout_ms > now:
                    break
                partition = self._partitions[batch.topic_partition]
                in_doubt = batch.maybe_appended or batch.state is BatchState.IN_THE_AIR
                why = batch.last_problem or self._why_not_sent(partition)
                error = DeliveryTimedOutError(
                    f"{batch.record_count} records for {batch.topic!r} partition "
                    f"{batch.topic_partition.partition} were not acknowledged within "
                    f"delivery_timeout_ms={self._config.delivery_timeout_ms}, in "
                    f"{batch.attempts} attempts: {why}",
                    appended=Appended.MAYBE if in_doubt else Appended.NO,
                )
                self._fail(partition, batch, error)
            heappop(self._by_age)

    def _why_not_sent(self, partition: _Partition) -> str:
        if self._is_allocating and (
            partition.producer_id == NO_PRODUCER_ID or partition.must_renew
        ):
            return f"no producer id: {self._allocation_problem or 'nobody has answered yet'}"
        return "is the partition's leader reachable?"

    def _silence(self, broker: _Broker, oldest: _Request, now: MonotonicMs) -> str:
        """Return why not to wait for a broker any longer; empty while there is no reason.

        One that is paused or cut off keeps its connections, but not its leaderships. So when it is
        silent it is looked up who leads; what it has is repeated elsewhere, under its sequences.
        """
        if oldest.deadline <= now:
            return (
                f"no answer within request_timeout_ms={self._config.request_timeout_ms} and "
                f"{_ANSWER_GRACE_MS} ms more"
            )
        if now - oldest.sent_at < self._config.leader_silence_ms:
            return ""
        leaders = [self._leaders.get(batch.topic_partition) for batch in oldest.batches]
        if any(leader and 0 <= leader.broker_id != broker.broker_id for leader in leaders):
            return "it is silent, and another broker leads by now"
        if now - broker.doubted_at >= self._config.leader_silence_ms:
            broker.doubted_at = now
            for batch in oldest.batches:
                self._doubt_leader(batch.topic)
        return ""

    # Bookkeeping.

    def _keep_sending(self, partition: _Partition) -> None:
        if partition.waiting or any(
            batch.state is BatchState.TO_REPEAT for batch in partition.in_flight
        ):
            self._to_send[partition.topic_partition] = partition
        else:
            self._to_send.pop(partition.topic_partition, None)
            if partition.deletion and not partition.in_flight:
                self._forget(partition)

    def _forget(self, partition: _Partition) -> None:
        """Let go of a partition of a topic that is gone, when no batch of it is left."""
        if self._partitions.pop(partition.topic_partition, None) is None:
            return
        others = self._of_topic[partition.topic]
        del others[partition.topic_partition]
        if not others:
            del self._of_topic[partition.topic]
            self._missed_topics.pop(partition.topic, None)
        if partition.producer_id == self._producer_id:
            # Should the topic be there after all, its leader remembers these sequences.
            self._producer_id = NO_PRODUCER_ID

    def _doubt_leader(self, topic: str) -> None:
        """Look up who leads, as something has happened that may be the end of a leadership."""
        self._in_vain_since = None
        self._miss_leader(topic)

    def _miss_leader(self, topic: str) -> None:
        """Look up who leads, as for as long as nobody does or he cannot be reached."""
        self._leaderless[topic] = None

    def _refresh_at(self) -> MonotonicMs:
        """Return when leaders may be looked up again."""
        if self._refreshed_at is None:
            return _LONG_AGO
        in_vain_ms = 0 if self._in_vain_since is None else self._refreshed_at - self._in_vain_since
        pause_ms = pause_after(
            in_vain_ms,
            self._config.retry_backoff_ms,
            self._config.retry_backoff_ms_max,
            fraction=_PAUSE_FRACTION,
        )
        return MonotonicMs(self._refreshed_at + pause_ms)

    def _broker(self, broker_id: BrokerId) -> _Broker:
        broker = self._brokers.get(broker_id)
        if broker is None:
            broker = self._brokers[broker_id] = _Broker(broker_id)
        return broker


def _is_awaited(predecessors: Sequence[ProducerBatch], request: int) -> bool:
    """Whether one that was sent before a refused request is not answered yet.

    Answers overtake one another. Whatever the predecessor's says decides over the refused batch,
    which would be refused again and again until it comes, as fast as the broker answers.
    """
    return any(
        batch.state is BatchState.IN_THE_AIR and batch.request < request for batch in predecessors
    )


def _too_large(batch: ProducerBatch, broker: _Broker) -> MessageTooLargeError:
    what = "the record" if batch.record_count == 1 else f"the batch of {batch.record_count} records"
    return MessageTooLargeError(
        f"{what} for {batch.topic!r} takes {_length(batch)} bytes, and broker {broker.broker_id} "
        f"takes no message above limits.message_bytes_max={broker.message_bytes_max}: send smaller "
        "records, or raise that and the topic's max.message.bytes"
    )


def _length(batch: ProducerBatch) -> int:
    return batch.size if batch.prepared is None else batch.prepared.length


__all__ = [
    "ACKS_ALL",
    "BATCHES_IN_FLIGHT_MAX",
    "REQUEST_OVERHEAD_MAX",
    "AllocateProducerId",
    "Answer",
    "Complete",
    "Connect",
    "ConnectSoon",
    "Disconnect",
    "Effect",
    "RefreshMetadata",
    "Refusal",
    "Sender",
    "SenderConfig",
    "Transmit",
]
