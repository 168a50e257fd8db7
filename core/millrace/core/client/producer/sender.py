"""Sends and repeats a producer's batches until each has its outcome, once and in order.

The problem: an answer can be lost after its batch was appended. Repeating the batch may then
duplicate records, and not repeating it may lose them. So batches carry sequences, and `sequences`
says which batch of a partition may be sent next. This machine sends them to the leader that
`routing` finds, batches of many partitions in one request, within the bounds of requests in flight.
It takes the answers, repeats batches if that is allowed, and gives every batch its outcome within
`delivery_timeout_ms`.

Without `acks=all` there are no sequences: an attempt without a clear answer is final. So the order
holds there, too, and no record is duplicated.

A broker that is silent for `leader_silence_ms` may have lost its leaderships without knowing it. So
leaders are looked up; once another one leads, the batches are repeated there.

The batches of a transaction live and fail together: once one has failed for good, the transaction
can only be aborted, and the others fail, too. No batch is left when the next one begins (T17).

Reactive machine: events in, effects out in the order in which they must be performed. The shell
encodes batches before it hands them in, connects, and passes the time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Final

from millrace.core.client.producer import failures
from millrace.core.client.producer.batch import BatchState, ProducerBatch
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.producer.effects import (
    AllocateProducerId,
    Answer,
    Complete,
    Disconnect,
    Effect,
    Refusal,
    Transmit,
)
from millrace.core.client.producer.sequences import (
    PartitionBatches,
    ProducerIds,
    TransactionIds,
)
from millrace.core.client.producer.transaction import ProducerIdentity
from millrace.core.client.routing.route import Route
from millrace.core.client.routing.router import NO_LEADER, Router
from millrace.core.errors import (
    AccessDeniedError,
    Appended,
    InvalidProducerEpochError,
    MessageTooLargeError,
    MillraceError,
    OutOfOrderSequenceError,
    RefreshMetadataError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    BrokerId,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    ProducerId,
    TopicId,
    TopicPartition,
)

ACKS_ALL: Final = -1
_LONG_AGO: Final = MonotonicMs(0)
_NEVER: Final = 2**62
_ANSWER_GRACE_MS: Final = 5_000
"""A broker whose answer is this much later than promised is given up."""
REQUEST_OVERHEAD_MAX: Final = 128
"""Bytes that a request with one batch takes beside the batch."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SenderConfig:
    """Bounds of the machine; the public settings' names and meanings."""

    acks: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    request_bytes_max: int
    """Batches of many partitions share a request up to this size; one larger batch goes alone."""
    requests_in_flight_max: int
    """Requests per broker without an answer. Repeated batches may exceed it: after a move of a
    leadership, the requests that they would wait for may themselves wait for these batches."""
    leader_silence_ms: int
    """A broker silent for this time may have lost its leaderships without knowing it."""
    is_transactional: bool = False
    """Batches belong to transactions."""


@dataclass(slots=True)
class _Request:
    batches: list[tuple[ProducerBatch, LeaderEpoch]]
    sent_at: MonotonicMs
    deadline: MonotonicMs
    is_unsent: bool = False
    """It never left this process."""


@dataclass(slots=True)
class _Broker:
    broker_id: BrokerId
    connection: int = 0
    """Number of the latest stream, never used again."""
    requests: dict[int, _Request] = field(default_factory=dict)
    message_bytes_max: int = 0
    """The largest request that it takes; 0: it did not say."""
    not_before: MonotonicMs = _LONG_AGO
    """End of the pause that the broker asked for."""
    doubted_at: MonotonicMs = _LONG_AGO
    """Time of the last look-up of leaders because of its silence."""


class Sender:
    """The machine for all partitions of one producer."""

    def __init__(self, config: SenderConfig, router: Router) -> None:
        self._config = config
        self._router = router
        self._is_idempotent = config.acks == ACKS_ALL
        self._transaction = TransactionIds() if config.is_transactional else None
        self._ids = self._transaction or ProducerIds()
        self._partitions: dict[TopicPartition, PartitionBatches] = {}
        self._brokers: dict[BrokerId, _Broker] = {}
        self._to_send: dict[TopicPartition, PartitionBatches] = {}
        """Partitions that have a batch to send; served in turn."""
        self._by_age: list[tuple[MonotonicMs, int, ProducerBatch]] = []
        """A heap by the age of their oldest records, which may have waited for their topic. The
        number of the batch orders batches of the same age."""
        self._next_number = 0
        self._effects: list[Effect] = []
        self._dropped: MillraceError | None = None
        """Why the batches of the transaction fail that have no outcome."""
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
                route = self._router.add(batch.topic, batch.topic_partition)
                partition = PartitionBatches(route, self._ids if self._is_idempotent else None)
                self._partitions[batch.topic_partition] = partition
            partition.waiting.append(batch)
            self._to_send[batch.topic_partition] = partition
            heappush(self._by_age, (batch.opened_at, self._next_number, batch))
            self._next_number += 1
            self.waiting_count += 1
            self.unfinished_count += 1
            if partition.route.deletion:
                self._fail_what_is_not_in_the_air(partition)

    def begin_transaction(self, identity: ProducerIdentity) -> None:
        """Write the batches that come with this id and epoch; those before have their outcomes."""
        assert self._transaction is not None, "only a transactional producer has transactions"
        assert not self.unfinished_count, "a batch never goes out under a later transaction"
        self._transaction.begin(*identity)
        self._dropped = None

    def drop_transaction(self, error: MillraceError) -> None:
        """Let all batches fail that have no outcome, and those that still come."""
        self._dropped = self._dropped or error

    @property
    def may_have_joined(self) -> bool:
        """Whether a batch of the transaction may have reached a broker."""
        return self._transaction is not None and bool(self._transaction.partitions)

    def on_unencodable(self, batch: ProducerBatch, error: MillraceError) -> None:
        """Take a batch that could not even be encoded: it fails."""
        self.unfinished_count += 1
        self._finish(batch, error)

    def on_leaders(self, leaders: Mapping[TopicPartition, Leader]) -> None:
        """Take what is known about leaders now."""
        self._router.on_leaders(leaders)

    def on_topics(self, topic_ids: Mapping[str, TopicId | None]) -> None:
        """Take which topics have these names now; None: no topic has the name.

        The batches of a topic that is gone fail; those in flight fail once they are refused.
        """
        for route in self._router.on_topics(topic_ids):
            partition = self._partitions[route.topic_partition]
            self._fail_what_is_not_in_the_air(partition)
            self._keep_sending(partition)

    def on_refreshed(self, now: MonotonicMs) -> None:
        """The look-up is over, whether it found anything or not."""
        self._router.on_refreshed(now)

    def on_producer_id(self, producer_id: ProducerId) -> None:
        """Take a fresh producer id, with epoch 0."""
        self._ids.on_allocated(producer_id)

    def on_no_producer_id(self, problem: str) -> None:
        """Take the reason why there is no producer id; brokers are asked again."""
        self._ids.problem = problem

    def on_connected(self, broker_id: BrokerId, message_bytes_max: int = 0) -> None:
        """The produce stream to a broker is open.

        Args:
            broker_id: to which.
            message_bytes_max: the largest request that it takes; 0: it did not say.
        """
        self._router.on_connected(broker_id)
        broker = self._brokers.get(broker_id)
        if broker is None:
            broker = self._brokers[broker_id] = _Broker(broker_id)
        broker.message_bytes_max = message_bytes_max
        broker.not_before = _LONG_AGO  # The broker says it again if it still counts.
        broker.connection = self._next_connection
        self._next_connection += 1

    def on_unsent(self, broker_id: BrokerId, correlation_ids: Iterable[int]) -> None:
        """A stream ended that had not sent these requests yet; `on_disconnected` follows."""
        requests = self._brokers[broker_id].requests
        for correlation_id in requests.keys() & correlation_ids:
            requests[correlation_id].is_unsent = True

    def on_disconnected(self, broker_id: BrokerId, reason: str, now: MonotonicMs) -> None:
        """The stream broke, or could not be opened: requests in flight get no answer."""
        self._router.on_disconnected(broker_id, now)
        broker = self._brokers.get(broker_id)
        if broker is None:
            return
        requests, broker.requests = broker.requests, {}
        for request in requests.values():
            for batch, _ in request.batches:
                error = failures.broken_off(broker_id, reason, is_unsent=request.is_unsent)
                refusal = Refusal(error, retriable=True)
                if not request.is_unsent:
                    batch.abandoned_in = batch.leader_epoch
                self._on_refused(batch, refusal, now, refused_by=broker_id, pause=False)
                self._router.look_up(batch.topic)

    def on_denied(self, broker_id: BrokerId, error: AccessDeniedError, now: MonotonicMs) -> None:
        """A broker does not let this client in, and no other one will: what waits fails."""
        self.on_disconnected(broker_id, error.message, now)
        for partition in list(self._partitions.values()):
            self._fail_what_is_not_in_the_air(partition, error.again(Appended.NO))

    def on_answer(
        self,
        broker_id: BrokerId,
        correlation_id: int,
        answers: Sequence[Answer],
        now: MonotonicMs,
    ) -> None:
        """Take a request's answer: one per batch, in the order of the request."""
        broker = self._brokers[broker_id]
        request = broker.requests.pop(correlation_id, None)
        if request is None:
            return
        if self._config.acks:
            self._router.on_answered(broker_id)
        for (batch, _), answer in zip(request.batches, answers, strict=True):
            if batch.state is not BatchState.IN_THE_AIR:
                continue  # It has timed out meanwhile.
            if isinstance(answer, Acknowledged):
                self._on_acknowledged(batch, answer)
            else:
                self._on_refused(batch, answer, now, refused_by=broker_id, pause=True)

    def on_throttled(self, broker_id: BrokerId, throttle_ms: int, now: MonotonicMs) -> int:
        """A broker delays this client by its quota: send nothing meanwhile. The last word counts.

        The broker does not read what is under way either: its answers may take so much longer.

        Returns:
            The time in ms by which sending is delayed further than it was; negative: less far.
        """
        broker = self._brokers[broker_id]
        before = max(now, broker.not_before)
        broker.not_before = MonotonicMs(now + throttle_ms)
        for request in broker.requests.values():
            request.deadline = self._deadline(max(request.sent_at, broker.not_before))
        return broker.not_before - before

    def on_late_refusal(self, broker_id: BrokerId) -> None:
        """A broker refused a batch that had counted as done (`acks=0`): look up the leader.

        Only for errors that a look-up can solve: another leader, or another bound of the topic.
        """
        self._router.on_answered(broker_id)
        for topic_partition, partition in self._partitions.items():
            leader = self._router.leader(topic_partition)
            if leader is not None and leader.broker_id == broker_id:
                self._router.look_up(partition.route.topic)

    # The step that follows every event, and every moment that `next_wake` named.

    def poll(self, now: MonotonicMs) -> list[Effect]:
        """Return what is to be done now."""
        self._expire(now)
        if self._to_send and self._dropped is None:
            self._send(now)
        if self._dropped is not None and self.unfinished_count:
            self._drop(self._dropped)
        if self._ids.is_wanted and not self._ids.is_allocating:
            self._ids.is_allocating = True
            self._effects.append(AllocateProducerId())
        effects, self._effects = self._effects, []
        effects += self._router.poll(now)
        return effects

    def next_wake(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `poll` has something to do though nothing happened; None: never."""
        earliest: int = self._router.next_wake(now) or _NEVER
        while self._by_age and self._by_age[0][2].state is BatchState.DONE:
            heappop(self._by_age)
        if self._by_age:
            earliest = min(earliest, self._by_age[0][0] + self._config.delivery_timeout_ms)
        for partition in self._to_send.values():
            if partition.route.retry_at > now:
                earliest = min(earliest, partition.route.retry_at)
        for broker in self._brokers.values():
            if broker.not_before > now:
                earliest = min(earliest, broker.not_before)
            for request in broker.requests.values():  # In order of their deadlines.
                silent_since = max(request.sent_at, broker.doubted_at)
                doubt_at = silent_since + self._config.leader_silence_ms
                earliest = min(earliest, request.deadline, doubt_at)
                break
        return None if earliest == _NEVER else MonotonicMs(earliest)

    def queue_length(self, topic_partition: TopicPartition) -> float:
        """Return how many batches of a partition have no outcome yet; infinite: it has no
        leader."""
        leader = self._router.leader(topic_partition)
        if leader is not None and leader.broker_id < 0:
            return inf
        partition = self._partitions.get(topic_partition)
        return 0 if partition is None else len(partition)

    def awaited_brokers(self) -> list[BrokerId]:
        """Return the leaders of partitions whose batches have no outcome; -1: no leader."""
        leaders = {
            (self._router.leader(topic_partition) or NO_LEADER).broker_id: None
            for topic_partition, partition in self._partitions.items()
            if len(partition)
        }
        return list(leaders)

    def producer_id_problem(self) -> str | None:
        """Return why there is no producer id yet; None: none is needed, empty: no answer yet."""
        return self._ids.problem if self._ids.is_allocating else None

    def is_saturated(self) -> bool:
        """Whether a further small batch could only wait: then it is better to fill batches."""
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
                route = partition.route
                leader = self._router.reach(route) if route.retry_at <= now else None
                if leader is None or leader.broker_id in full:
                    continue
                broker = self._brokers[leader.broker_id]
                if broker.not_before > now:
                    continue
                batch = partition.next(broker.connection)
                if batch is None:
                    continue
                is_full = len(broker.requests) >= self._config.requests_in_flight_max
                if is_full and batch.state is not BatchState.TO_REPEAT:
                    continue
                length = batch.length
                if 0 < broker.message_bytes_max < length + REQUEST_OVERHEAD_MAX:
                    # Its stream would break, and with it the requests of all others.
                    bytes_max = broker.message_bytes_max
                    error = failures.too_large(batch, broker.broker_id, bytes_max)
                    self._fail(partition, batch, error)
                    progress = True
                    continue
                size = sizes.get(leader.broker_id, 0) + length
                parcel = parcels.get(leader.broker_id)
                if parcel is None:
                    parcel = parcels[leader.broker_id] = []
                elif size > self._config.request_bytes_max:
                    full.add(leader.broker_id)  # It comes first in the next request.
                    continue
                self.waiting_count -= batch.state is BatchState.WAITING
                partition.take(batch, broker.connection, leader.leader_epoch)
                sizes[leader.broker_id] = size
                parcel.append((batch, leader.leader_epoch))
                del self._to_send[topic_partition]
                if partition.waiting or len(partition.in_flight) > 1:
                    self._keep_sending(partition)  # It is served after the others.
            for broker_id, batches in parcels.items():
                self._transmit(self._brokers[broker_id], batches, now)
                progress = True
            parcels = {}

    def _transmit(
        self,
        broker: _Broker,
        batches: list[tuple[ProducerBatch, LeaderEpoch]],
        now: MonotonicMs,
    ) -> None:
        correlation_id = self._next_correlation
        self._next_correlation += 1
        self._effects.append(Transmit(broker.broker_id, correlation_id, batches))
        for batch, _ in batches:
            batch.request = correlation_id
        broker.requests[correlation_id] = _Request(batches, now, self._deadline(now))

    def _deadline(self, read_at: MonotonicMs) -> MonotonicMs:
        return MonotonicMs(read_at + self._config.request_timeout_ms + _ANSWER_GRACE_MS)

    # Outcomes.

    def _on_acknowledged(self, batch: ProducerBatch, answer: Acknowledged) -> None:
        partition = self._partitions[batch.topic_partition]
        partition.in_flight.remove(batch)
        partition.route.failures = 0
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
        if isinstance(error, OutOfOrderSequenceError) and error.appended is Appended.NO:
            if partition.on_gap(batch):
                self._keep_sending(partition)
            else:
                self._fail(partition, batch, error)
            return
        if error.appended is Appended.MAYBE:
            batch.maybe_appended = True
        may_repeat = refusal.retriable and (self._is_idempotent or error.appended is Appended.NO)
        if not may_repeat:
            if isinstance(error, InvalidProducerEpochError):
                partition.on_fenced()
            if isinstance(error, MessageTooLargeError):  # The topic's limit has changed.
                self._router.look_up(batch.topic)
            self._fail(partition, batch, error)
            return
        batch.state = BatchState.TO_REPEAT
        if partition.route.deletion:
            self._fail_what_is_not_in_the_air(partition)
            return
        if isinstance(error, RefreshMetadataError):
            if self._is_worth_asking(partition.route, error, refused_by):
                pause = False
            else:
                self._router.look_up(batch.topic)
        if pause and batch is partition.in_flight[0]:
            self._router.on_refused(partition.route, now)
        self._keep_sending(partition)

    def _is_worth_asking(
        self, route: Route, error: RefreshMetadataError, refused_by: BrokerId
    ) -> bool:
        """Take the leader that a refusal names; return whether to ask it at once."""
        if self._router.on_hint(route, error):
            return True
        # An earlier refusal named it already; but no broker is asked twice without a pause.
        return (
            error.leader is not None
            and error.leader.leader.broker_id not in (NO_BROKER, refused_by)
            and error.leader.leader == self._router.leader(route.topic_partition)
        )

    def _fail(
        self, partition: PartitionBatches, batch: ProducerBatch, error: MillraceError
    ) -> None:
        self.waiting_count -= batch.state is BatchState.WAITING
        partition.remove(batch)
        self._keep_sending(partition)
        if batch.maybe_appended and error.appended is Appended.NO:
            # Refused this time; but an earlier attempt may have been appended.
            error = error.again(Appended.MAYBE)
        self._finish(batch, error)

    def _fail_what_is_not_in_the_air(
        self, partition: PartitionBatches, error: MillraceError | None = None
    ) -> None:
        """Let batches fail; without an error, as their topic is deleted."""
        error = error or UnknownTopicOrPartitionError(partition.route.deletion)
        for batch in [*partition.in_flight, *partition.waiting]:
            if batch.state is not BatchState.IN_THE_AIR:
                # Each its own: handles note in it which of the batch's records have told of it.
                self._fail(partition, batch, error.again(error.appended))

    def _drop(self, error: MillraceError) -> None:
        """Let all batches of the transaction fail. What is in the air is fenced by its epoch."""
        never_sent, maybe_sent = error.again(Appended.NO), error.again(Appended.MAYBE)
        for partition in list(self._partitions.values()):
            for batch in [*partition.in_flight, *partition.waiting]:
                is_sent = batch.maybe_appended or batch.state is BatchState.IN_THE_AIR
                self._fail(partition, batch, maybe_sent if is_sent else never_sent)

    def _finish(self, batch: ProducerBatch, outcome: Acknowledged | MillraceError) -> None:
        if self._transaction and self._dropped is None and isinstance(outcome, MillraceError):
            self._dropped = failures.aborted_by(outcome)
        batch.state = BatchState.DONE
        batch.outcome = outcome
        self.unfinished_count -= 1
        self._effects.append(Complete(batch))

    def _expire(self, now: MonotonicMs) -> None:
        for broker in self._brokers.values():
            for oldest in broker.requests.values():
                if reason := _silence(broker, oldest, now, self._config, self._router):
                    self._effects.append(Disconnect(broker.broker_id, reason))
                    self.on_disconnected(broker.broker_id, reason, now)
                break
        while self._by_age:
            _, _, batch = self._by_age[0]
            if batch.state is not BatchState.DONE:
                if batch.opened_at + self._config.delivery_timeout_ms > now:
                    break
                partition = self._partitions[batch.topic_partition]
                why = batch.last_problem or failures.why_not_sent(self._ids, partition)
                error = failures.timed_out(batch, self._config.delivery_timeout_ms, why)
                self._fail(partition, batch, error)
            heappop(self._by_age)

    # Bookkeeping.

    def _keep_sending(self, partition: PartitionBatches) -> None:
        if partition.waiting or (partition.in_flight and partition.must_repeat):
            self._to_send[partition.route.topic_partition] = partition
        else:
            self._to_send.pop(partition.route.topic_partition, None)
            if partition.route.deletion and not partition.in_flight:
                self._forget(partition)

    def _forget(self, partition: PartitionBatches) -> None:
        """Forget a partition of a deleted topic when none of its batches is left."""
        if self._partitions.pop(partition.route.topic_partition, None) is None:
            return
        self._router.remove(partition.route)
        # If the topic exists after all, its leader remembers these sequences.
        self._ids.retire(partition.producer_id)


def _silence(
    broker: _Broker, oldest: _Request, now: MonotonicMs, config: SenderConfig, router: Router
) -> str:
    """Return why not to wait for a broker any longer; empty while there is no reason.

    A broker that is paused or cut off keeps its connections, but not its leaderships. So its
    silence causes a look-up of leaders; its batches are repeated elsewhere, with their
    sequences.
    """
    if oldest.deadline <= now:
        return (
            f"no answer within request_timeout_ms={config.request_timeout_ms} and "
            f"{_ANSWER_GRACE_MS} ms more"
        )
    if now - oldest.sent_at < config.leader_silence_ms:
        return ""
    leaders = [router.leader(batch.topic_partition) for batch, _ in oldest.batches]
    if any(leader and 0 <= leader.broker_id != broker.broker_id for leader in leaders):
        return "it is silent, and another broker leads by now"
    if now - broker.doubted_at >= config.leader_silence_ms:
        broker.doubted_at = now
        for batch, _ in oldest.batches:
            router.look_up(batch.topic)
    return ""
