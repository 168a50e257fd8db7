"""Kafka's Fetch: consumers ask again and again, in a session or without one (KIP-227).

Each request waits for records (`fetch_turn`). What the requests of a connection share is here: its
session, which ends with it, what its client may read, and what it owes. A client that exceeds a
quota gets its answer, which says for how long the next one will be delayed (KIP-219).

Source: Kafka's `KafkaApis.handleFetchRequest`; KIP-74, 227, 320, 392, 516.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from itertools import cycle
from time import thread_time_ns
from typing import Any, Final

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.records.fetch_turn import (
    Client,
    FetchParts,
    FetchTurn,
    Following,
    code_in_fetch,
)
from millrace.broker.kafka.records.large_answers import LargeAnswer, LargeAnswers
from millrace.broker.kafka.records.stored_batches import StoredBatches
from millrace.broker.kafka.requests import ApiKey, Encoded, Request, Served
from millrace.broker.kafka.wire.errors import Code
from millrace.broker.kafka.wire.fetch_codec import (
    SESSIONS_SINCE,
    TOPIC_IDS_SINCE,
    VERSIONS,
    Endpoint,
    FetchAnswer,
    FetchRequest,
    PartitionAnswer,
    decode,
    encode,
)
from millrace.broker.quotas import Quotas
from millrace.broker.rpc.resources import TopicResources
from millrace.core.errors import MalformedRequestError, MillraceError
from millrace.core.guard.access import Demand, Operation
from millrace.core.ids import BrokerId
from millrace.core.quotas.quota import QuotaKind
from millrace.core.replica.fetch.asked import (
    FIRST_EPOCH,
    AskedPartitions,
    ConnectionSession,
    Session,
    SessionBudget,
    SessionProblem,
    Wanted,
)
from millrace.runtime.loop_time import LoopTime

_DELAY_MS_MAX: Final = 1000
"""Longest delay of an answer by a quota: its client waits for it, and not for long. After it, an
answer without records says how much longer it would have been."""
_LARGE_BYTES: Final = 16 << 10
"""A larger request is read on a thread: it names more than 300 partitions."""
_LARGE_PARTITIONS: Final = 300
"""An answer about more is written on a thread. Either takes some 10 us for each."""


def fetch_requests(parts: KafkaParts) -> "FetchRequests":
    """Return what serves the fetches of a listener."""
    broker = parts.broker
    kafka = broker.config.kafka
    return FetchRequests(
        FetchParts(
            topics=parts.topics,
            partitions=broker.partitions,
            reader=broker.reader,
            stored=StoredBatches(broker.checkers, kafka.converted_bytes_max),
            early=broker.early,
            workers=cycle(broker.checkers),
            turns=broker.turns,
            limits=broker.config.limits,
            response_bytes_max=kafka.fetch_response_bytes_max,
            large_answers=LargeAnswers(kafka.large_answers_bytes_max),
            metrics=broker.metrics,
        ),
        SessionBudget(kafka.fetch_session_partitions_max),
        broker.quotas,
        parts.addresses.of,
    )


class FetchRequests:
    """Serves the requests of all connections of a listener.

    Args:
        parts: that they are answered from.
        budget: of the broker's sessions.
        quotas: of its clients.
        address_of: returns host and port of a broker; None: its clients do not reach it.
    """

    def __init__(
        self,
        parts: FetchParts,
        budget: SessionBudget,
        quotas: Quotas,
        address_of: Callable[[BrokerId], tuple[str, int] | None],
    ) -> None:
        self.parts = parts
        self.budget = budget
        self._quotas = quotas
        self._address_of = address_of
        self._ids = TopicResources(lambda: parts.partitions.image)

    def served(self) -> Mapping[int, Served]:
        """Return what it serves."""
        return {ApiKey.FETCH: Served(VERSIONS, self.fetch, is_raw=True)}

    async def fetch(self, request: Request) -> Encoded:
        """Answer a request.

        Raises:
            MalformedRequestError: it is none.
        """
        kept = request.connection.of(_Kept)
        if kept.fetches is None:
            kept.fetches = ConnectionFetches(self, request)
        answering = self._answer(request, kept.fetches)
        if not self._quotas.limits_requests:
            return await answering
        timed = LoopTime(answering)
        try:
            return await timed
        finally:  # The next one waits for what this one costs.
            kept.fetches.charge_time(timed.nanoseconds)

    async def _answer(self, request: Request, fetches: "ConnectionFetches") -> Encoded:
        version, entries_max = request.version, self.parts.limits.request_entries_max
        asked: FetchRequest
        if len(request.message) > _LARGE_BYTES:
            asked = await self._on_thread(fetches, decode, request.message, version, entries_max)
        else:
            asked = decode(request.message, version, entries_max)
        try:
            answer = await fetches.answer(asked, version, request.caller)
            if asked.unknown and not answer.error_code:
                unknown = _refused(asked.unknown, Code.UNKNOWN_TOPIC_OR_PARTITION)
                answer.partitions = [*answer.partitions, *unknown]
        except MillraceError as error:
            self.parts.metrics.refused(error, "Fetch")
            code = code_in_fetch(error)
            if version >= SESSIONS_SINCE:
                answer = FetchAnswer(error_code=code)
            else:
                answer = FetchAnswer(partitions=_refused([*asked.wanted, *asked.unknown], code))
        if len(answer.partitions) > _LARGE_PARTITIONS:
            encoded = await self._on_thread(fetches, encode, answer, version)
        else:
            encoded = encode(answer, version)
        return Encoded(encoded, fetches.on_sent)

    async def _on_thread(
        self, fetches: "ConnectionFetches", job: Callable[..., Any], *args: object
    ) -> Any:
        """Return what a job returns that would keep the loop from others for too long."""
        worker = next(self.parts.workers)
        result, nanoseconds = await worker.call(_timed, job, *args, owner=fetches.owner)
        fetches.charge_time(nanoseconds)
        return result

    def client(self, caller: GuardedCaller) -> Client:
        """Return what is known of a caller; its throttle is to be closed."""
        throttle = self._quotas.throttle(QuotaKind.FETCH, caller, lambda: None)
        throttle.begin()
        topics = caller.on_topics(Operation.CONSUME, self._ids.of)
        return Client(caller, topics, throttle, self.parts.reader.of(caller.owner))

    def endpoints(self, answers: Iterable[PartitionAnswer]) -> list[Endpoint]:
        """Return where the leaders are reached that answers name (KIP-951)."""
        leaders = {answer.leader.broker_id for answer in answers if answer.leader is not None}
        found = []
        image = self.parts.partitions.image
        for broker_id in sorted(leaders):
            place = self._address_of(broker_id)
            broker = None if image is None else image.broker(broker_id)
            if place is not None:
                found.append(Endpoint(broker_id, *place, "" if broker is None else broker.rack))
        return found


class _Kept:
    """What a connection keeps for this module."""

    def __init__(self) -> None:
        self.fetches: ConnectionFetches | None = None


class ConnectionFetches:
    """The fetches of one connection.

    Args:
        service: of all connections.
        request: its first one.
    """

    def __init__(self, service: FetchRequests, request: Request) -> None:
        self._service = service
        self._connection = request.connection
        self._client = service.client(request.caller)
        self._session = ConnectionSession(service.budget)
        self._followed: Following | None = None  # By the session.
        self._waiting: Following | None = None
        self._large = LargeAnswer(service.parts.large_answers)
        self._requests = 0
        self._is_closed = False
        self._end_of_waits = asyncio.get_running_loop().create_task(self._wake_at_end())
        self._connection.on_closed.append(self.close)

    def close(self) -> None:
        """The connection is closed."""
        self._is_closed = True
        self._end_of_waits.cancel()
        self._end()
        self._client.throttle.close()
        self.on_sent()

    def on_sent(self) -> None:
        """The last answer holds no memory any more."""
        self._large.keep(0)

    @property
    def owner(self) -> Hashable:
        """As whom it takes turns with others."""
        return self._client.caller.owner

    def charge_time(self, nanoseconds: int) -> None:
        """Charge time of the processor to the client."""
        self._client.throttle.charge_time(nanoseconds)

    async def _wake_at_end(self) -> None:
        """Have the request that waits answered when the connection is to end."""
        await self._connection.draining.wait()
        if self._waiting is not None:
            self._waiting.news.set()

    # --- Sessions ----------------------------------------------------------------------------

    async def answer(
        self, request: FetchRequest, version: int, caller: GuardedCaller
    ) -> FetchAnswer:
        """Answer a request.

        Raises:
            MillraceError: it is refused as a whole.
        """
        if request.replica_id >= 0:
            raise MalformedRequestError(
                "brokers fetch from each other on the listener for brokers, and not by Kafka's "
                "protocol"
            )
        if caller is not self._client.caller:  # It has proved who it is since.
            self._client.throttle.close()
            self._client = self._service.client(caller)
        by_id = version >= TOPIC_IDS_SINCE
        if request.session_epoch > FIRST_EPOCH:
            session = self._session.next(request.session_id, request.session_epoch, by_id=by_id)
            if isinstance(session, SessionProblem):
                return FetchAnswer(error_code=Code[session.value])
            session.is_busy = True
            try:
                return await self._answer_in(session, request, version)
            finally:
                session.is_busy = False
        current = self._session.current
        begins = request.session_epoch == FIRST_EPOCH
        if current is not None and (begins or current.session_id == request.session_id):
            self._end()
        following = Following(
            AskedPartitions(self._service.parts.limits.fetch_session_partitions_max)
        )
        opened: Session | None = None
        try:
            await self._take(following, request)
            following.asked.begin_with(self._requests)
            self._requests += 1
            answer = await self._serve(following, request, version, tells_all=True)
            if begins and answer.partitions and not self._is_closed:
                opened = self._session.open(following.asked, by_id=by_id)
            if opened is not None:
                self._followed = following
                answer.session_id = opened.session_id
            return answer
        finally:
            if opened is None:
                following.close()

    async def _answer_in(
        self, session: Session, request: FetchRequest, version: int
    ) -> FetchAnswer:
        """Answer a request of a session."""
        following = self._followed
        assert following is not None
        for topic, partition in request.forgotten:
            handle = following.asked.forget(topic, partition)
            if handle is not None:
                following.leave(handle)
        try:
            await self._take(following, request)
        except MillraceError:
            self._end()
            raise
        if not following.asked:
            self._end()
            return FetchAnswer()
        if not self._session.count(session):
            # There is no room for more: the reader names everything, and gets no other session.
            self._end()
            return FetchAnswer(error_code=Code.FETCH_SESSION_ID_NOT_FOUND)
        answer = await self._serve(following, request, version, tells_all=False)
        answer.session_id = session.session_id
        return answer

    def _end(self) -> None:
        """Forget the session, if there is one."""
        self._session.end()
        if self._followed is not None:
            self._followed.close()
            self._followed = None

    async def _take(self, following: Following, request: FetchRequest) -> None:
        """Take up what a request names; find out what its caller may read, where that takes time.

        Raises:
            MalformedRequestError: it names too many partitions.
        """
        parts, asked, caller = self._service.parts, following.asked, self._client.caller
        work = parts.turns.work()
        for wanted in request.wanted:
            await work.give_way()
            asked.want(wanted, may_be_sent_on=bool(request.rack))
        if caller.access is not None:
            named = {wanted.topic for wanted in request.wanted}
            resources = [parts.topics.resource(topic) for topic in named]
            await caller.access.learn(Demand(Operation.CONSUME, each) for each in resources if each)

    # --- One request -------------------------------------------------------------------------

    async def _serve(
        self, following: Following, request: FetchRequest, version: int, *, tells_all: bool
    ) -> FetchAnswer:
        """Answer a request whose partitions are known; without any, as its client owes too much."""
        throttle = self._client.throttle
        if throttle.delay_ms():
            with suppress(TimeoutError):
                async with asyncio.timeout(_DELAY_MS_MAX / 1000):
                    await throttle.wait()
            if delay_ms := throttle.delay_ms():
                return FetchAnswer(throttle_time_ms=delay_ms)
        turn = FetchTurn(
            self._service.parts,
            self._client,
            following,
            request,
            version,
            large=self._large,
            tells_all=tells_all,
        )
        self._waiting = following
        try:
            partitions = await turn.run(self._connection.draining.is_set)
        except BaseException:
            self.on_sent()
            raise
        finally:
            self._waiting = None
        if self._is_closed:
            self.on_sent()
        return FetchAnswer(
            throttle_time_ms=throttle.delay_ms(),
            partitions=partitions,
            endpoints=self._service.endpoints(partitions),
        )


def _timed(job: Callable[..., Any], *args: object) -> tuple[Any, int]:
    """Return what a job returns, and the nanoseconds of the processor that it takes."""
    begun = thread_time_ns()
    result = job(*args)
    return result, thread_time_ns() - begun


def _refused(partitions: Iterable[Wanted], error_code: int) -> list[PartitionAnswer]:
    """Return what to say of partitions that are refused alike."""
    return [PartitionAnswer(each.topic, each.partition, error_code) for each in partitions]
