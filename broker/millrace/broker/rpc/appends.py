"""The batches of checked produce requests, on their way into the logs, whatever protocol they came
by.

The loop gives the batches of a request their offsets, in the order in which requests are taken, and
hands them to the append threads. A batch for a leader that does not know of its election yet waits
for the metadata (`EarlyRequests`), and the first batch of a transaction in a partition waits for
its coordinator (`Joining`). A request is answered once: when all of its batches are acknowledged or
refused, or when its time is up. Its bytes are held until all are judged.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from millrace.broker.controller.producer_ids import ProducerIds
from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.quotas import Throttle
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.replica.partitions import Partitions
from millrace.broker.rpc.joining import Joining
from millrace.broker.rpc.produce_answers import given_up
from millrace.broker.rpc.produce_checks import CheckedBatch, without_trace
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.rpc.resources import TopicResources
from millrace.core.errors import (
    Appended,
    InvalidTopicError,
    MillraceError,
    RequestTimedOutError,
    UnknownProducerIdError,
)
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.guard.producer_owners import Owner
from millrace.core.ids import MonotonicMs, ProducerId, TopicId, TopicPartition
from millrace.core.metadata.broker_levels import check_kafka_batches
from millrace.core.records.header import KAFKA_FORMAT, BatchHeader
from millrace.core.records.markers import BUMPING
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.leader_transactions import JoinGuard
from millrace.runtime import host


@dataclass(frozen=True, slots=True)
class Terms:
    """What a request says for all of its batches.

    Attributes:
        acks: -1: all in-sync replicas have to have them, 1: the leader; 0: likewise, and nobody
            waits for that.
        timeout_ms: how long its client waits, at most.
        transactional_id: of the producer of transactional batches, in full; empty: none of them is.
        protocol: of its transaction.
    """

    acks: int
    timeout_ms: int
    transactional_id: str = ""
    protocol: int = BUMPING


@dataclass(slots=True, eq=False)
class AppendRequest:
    """A request between its appends and its answer: the owner of its waiters.

    Attributes:
        tag: the protocol's own.
        is_awaited: with `acks=0` no client waits for the answer.
        size: bytes that it holds.
        begun: when its batches were checked, in seconds.
        owner: of the producer's id; None: there is no guard, or it refuses nobody.
        topic_partitions: of its batches, in their order.
        outcomes: in the same order; None: not appended or refused yet.
        log_start_offsets: likewise.
        is_answered: whether its answer went out.
    """

    appends: "Appends"
    tag: object
    terms: Terms
    size: int
    deadline: MonotonicMs
    begun: float
    owner: Owner | None
    topic_partitions: list[TopicPartition] = field(default_factory=list)
    outcomes: list[Waiter | MillraceError | None] = field(default_factory=list)
    log_start_offsets: list[int] = field(default_factory=list)
    outstanding: int = 0
    is_answered: bool = False

    @property
    def is_awaited(self) -> bool:
        """Whether a client waits for the answer; with `acks=0` none does."""
        return self.terms.acks != 0

    def on_append_done(self, waiter: Waiter) -> None:
        """A batch is acknowledged, or has failed."""
        self.outstanding -= 1
        if not self.outstanding:
            self.appends.on_request_done(self)


Answer = Callable[[AppendRequest, Sequence[Waiter | MillraceError]], None]
"""Answers a request, with what became of each batch: appended if it is a waiter, and acknowledged.

It is called once. Errors are counted already."""


@dataclass(slots=True, kw_only=True)
class Appending:
    """What the appends of all clients of a listener share.

    Attributes:
        request_timeout_ms_max: the longest that a request may wait.
    """

    partitions: Partitions
    topics: TopicResources
    producer_ids: ProducerIds
    early: EarlyRequests
    joining: Joining
    refusals: Refusals
    request_timeout_ms_max: int
    _open: "dict[Appends, None]" = field(default_factory=dict)

    def of(
        self,
        caller: GuardedCaller,
        throttle: Throttle,
        *,
        answer: Answer,
        free: Callable[[AppendRequest], None],
    ) -> "Appends":
        """Return what appends for a client, until it is closed.

        Args:
            caller: the client.
            throttle: is charged for what is appended.
            answer: answers a request.
            free: called once all batches of a request are judged: it holds its bytes no longer.
        """
        appends = Appends(self, caller, throttle, answer=answer, free=free)
        self._open[appends] = None
        return appends

    def close(self, appends: "Appends") -> None:
        """Answer no more of these."""
        self._open.pop(appends, None)

    def expire(self, now: MonotonicMs) -> None:
        """Answer the requests whose time is up."""
        for appends in list(self._open):
            appends.expire(now)

    def check_producer_id(self, producer_id: ProducerId) -> None:
        """Refuse an id that the cluster has not given out: each costs memory for a day.

        A broker gives an id out once it has the metadata of that; another broker may get it a
        moment later, or, without a controller, much later. So the producer may try again.

        Raises:
            UnknownProducerIdError: see above.
        """
        image = self.partitions.image
        if image is not None and producer_id >= image.cluster.next_producer_id:
            raise UnknownProducerIdError(
                f"producer id {producer_id} was not given out as far as this broker knows, which "
                f"has heard of those below {image.cluster.next_producer_id}: try again shortly, "
                "with an id that InitProducerId gave",
                appended=Appended.NO,
            )

    def check_format(self, batch: BatchHeader) -> None:
        """Refuse a Kafka client's batch while some broker would take it for damage (K4).

        Raises:
            UnsupportedFeatureError: see above.
        """
        image = self.partitions.image
        if batch.format == KAFKA_FORMAT and image is not None:
            check_kafka_batches(image.cluster)


class Appends:
    """The requests of one client that are being appended. Made by `Appending.of`."""

    def __init__(
        self,
        shared: Appending,
        caller: GuardedCaller,
        throttle: Throttle,
        *,
        answer: Answer,
        free: Callable[[AppendRequest], None],
    ) -> None:
        self._shared = shared
        self._caller = caller
        self._throttle = throttle
        self._answer_with = answer
        self._free = free
        self._topics = caller.on_topics(Operation.PRODUCE, shared.topics.of)
        self._pending: dict[AppendRequest, None] = {}

    def go_on_as(self, caller: GuardedCaller, throttle: Throttle) -> None:
        """Take the next requests from the same client, which has logged in again."""
        self._caller = caller
        self._throttle = throttle
        self._topics = caller.on_topics(Operation.PRODUCE, self._shared.topics.of)

    async def learn(self, topic_ids: Iterable[TopicId]) -> None:
        """Find out whether the client may write to topics, where that takes time."""
        if self._topics is not None:
            await self._topics.learn(topic_ids)

    @property
    def count(self) -> int:
        """How many requests are not judged, or not acknowledged."""
        return len(self._pending)

    def append(
        self, terms: Terms, checked: Sequence[CheckedBatch], *, size: int, tag: object, now: float
    ) -> None:
        """Append what can be appended of a checked request; its answer comes, perhaps at once.

        Args:
            terms: of the request.
            checked: its batches.
            size: bytes that it holds.
            tag: of the request that the answer gets.
            now: the time, in seconds.

        Raises:
            MillraceError: nothing was appended, and there is no other answer.
        """
        shared = self._shared
        owner: Owner = self._caller.principal
        if terms.transactional_id:
            owner = named(ResourceKind.TRANSACTIONS, terms.transactional_id)
            if refused := self._caller.refusal(Operation.TRANSACT, owner):
                raise refused
        access = self._caller.access
        # Where nobody is refused, a client may be known by one stream, and by the next one not.
        is_owned = access is not None and access.guard.is_enforced
        timeout_ms = min(terms.timeout_ms, shared.request_timeout_ms_max)
        request = AppendRequest(
            self,
            tag,
            terms,
            size=size,
            deadline=MonotonicMs(int(now * 1000) + timeout_ms),
            begun=now,
            owner=owner if is_owned else None,
        )
        acks = Acks.ALL if terms.acks < 0 else Acks.LEADER
        self._pending[request] = None
        request.outstanding = 1  # Ours, until every batch has been seen.
        for number, batch in enumerate(checked):
            request.topic_partitions.append(batch.topic_partition)
            request.log_start_offsets.append(0)
            request.outcomes.append(None)
            if self._topics is not None and (
                refused := self._topics.refusal(batch.topic_partition.topic_id)
            ):
                self._refuse_batch(request, number, refused)
                continue
            partition = shared.partitions.find(batch.topic_partition)
            epoch = batch.expected_epoch
            if partition is not None and shared.early.is_early(partition, epoch):
                request.outstanding += 1
                judge = partial(self._judge_later, request, number, batch, acks)
                shared.early.add(partition, epoch, judge)
            else:
                self._judge(request, number, batch, acks)
        request.outstanding -= 1
        if not request.outstanding:
            self.on_request_done(request)

    def expire(self, now: MonotonicMs) -> None:
        """Answer the requests whose time is up; their bytes are held until they are judged."""
        for request in list(self._pending):
            if request.deadline <= now and not request.is_answered:
                self._answer(request)

    def on_refused(self, error: MillraceError) -> None:
        """Count an error."""
        self._shared.refusals.on_refused(error, self._caller, "Produce")

    def on_request_done(self, request: AppendRequest) -> None:
        """Answer a request all of whose batches are acknowledged or refused."""
        del self._pending[request]
        self._free(request)
        if not request.is_answered:
            self._answer(request)
        request.outcomes.clear()  # The waiters refer to the request: a cycle for each would stay.

    def _judge_later(
        self,
        request: AppendRequest,
        number: int,
        batch: CheckedBatch,
        acks: Acks,
        joined: JoinGuard | MillraceError | None = None,
    ) -> None:
        """Append or refuse a batch that has waited, unless its request was given up meanwhile."""
        if isinstance(joined, MillraceError):
            self._refuse_batch(request, number, joined)
        elif not request.is_answered:
            self._judge(request, number, batch, acks, joined)
        request.outstanding -= 1
        if not request.outstanding:
            self.on_request_done(request)

    def _judge(
        self,
        request: AppendRequest,
        number: int,
        batch: CheckedBatch,
        acks: Acks,
        joined: JoinGuard | None = None,
    ) -> None:
        """Append a batch, or refuse it, or let it wait until it may join its transaction."""
        shared = self._shared
        transactional_id = request.terms.transactional_id
        try:
            if isinstance(batch.checked, MillraceError):
                raise batch.checked
            partition = shared.partitions.get(batch.topic_partition)
            if partition.is_internal:
                raise InvalidTopicError(
                    f"topic {partition.topic!r} belongs to the cluster itself, which alone writes "
                    "to it"
                )
            partition.leader.check_epoch(batch.expected_epoch)
            shared.check_producer_id(batch.checked.producer_id)
            shared.check_format(batch.checked)
            if transactional_id and joined is None:
                later = partial(self._judge_later, request, number, batch, acks)
                protocol = request.terms.protocol
                if shared.joining.waits(
                    partition, batch.checked, transactional_id, later, protocol
                ):
                    request.outstanding += 1
                    return
            owner, owners = request.owner, shared.producer_ids.owners
            if owner is not None and joined is None:  # Else the coordinator has said so.
                owners.check(batch.checked.producer_id, owner)
            waiter = partition.append(
                batch.checked,
                batch.head,
                batch.body,
                acks,
                request,
                is_successor=batch.is_successor,
                joined=joined,
            )
        except MillraceError as error:
            self._refuse_batch(request, number, error)
            return
        request.outcomes[number] = waiter
        request.log_start_offsets[number] = partition.log.log_start_offset
        if not waiter.is_done:
            request.outstanding += 1
        if not waiter.is_duplicate:
            if owner is not None:
                owners.keep(batch.checked.producer_id, owner)
            length = len(batch.head) + len(batch.body)
            shared.refusals.metrics.appended(partition.topic, length, batch.checked.record_count)
            partition.appended_bytes += length
            self._throttle.charge_topic(partition.topic, length)

    def _refuse_batch(self, request: AppendRequest, number: int, error: MillraceError) -> None:
        self.on_refused(error)
        request.outcomes[number] = without_trace(error)

    def _answer(self, request: AppendRequest) -> None:
        request.is_answered = True
        seconds = host.monotonic_s() - request.begun
        self._shared.refusals.metrics.requests.produce_append.observe(seconds)
        results: list[Waiter | MillraceError] = []
        for topic_partition, outcome in zip(
            request.topic_partitions, request.outcomes, strict=True
        ):
            if isinstance(outcome, MillraceError):
                results.append(outcome)  # It is counted already.
                continue
            if outcome is None:  # And it will not be appended any more.
                error: MillraceError | None = given_up(
                    request.terms.transactional_id, topic_partition
                )
            elif outcome.error is None and not outcome.is_done:
                error = RequestTimedOutError(
                    "the batch was appended, but not acknowledged by all in-sync replicas within "
                    "the producer's request_timeout_ms: an idempotent retry is safe"
                )
            else:
                error = outcome.error
            if error is not None:
                self.on_refused(error)
                results.append(error)
            elif outcome is not None:
                results.append(outcome)
        self._answer_with(request, results)
