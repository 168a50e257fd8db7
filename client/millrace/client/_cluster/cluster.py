"""The cluster as one client sees it: connections by address, metadata by name.

`bootstrap` addresses are tried in turn until one answers; from then on the brokers of the metadata
are known as well. The first call on every connection is `Hello`: a wrong cluster is detected there,
not in the middle of a stream. No background task: metadata is looked up when it is missing or was
proved wrong, at most one look-up at a time.

A broker that is cut off from the others names an earlier leader for ever. Therefore all brokers are
asked when its answers do not help: for a topic or a partition that it does not know, at once; for
topics whose metadata was proved wrong, after a second of look-ups without news. If no broker has
the answer, all of them are asked again only after a pause: a fraction of the time for which this
question is open. Each question has its own pause, because one that was just raised may well have an
answer.

A connection has many users, and the first that finds it broken closes it for all: `drop`. Closing
the channel cancels the calls and streams of the others. They must not treat that as a cancellation
of their own task: they would end silently, and their waiters would wait for ever.

Brokers that lag behind may answer, too. Every answer names the state of its metadata by a number
that is the same on all brokers (`metadata_epoch`), and older metadata never replaces newer: neither
a topic, nor its absence, nor the brokers. Answers older than this client's last change are ignored,
too. A leader that a refusal named may be newer than any answer: a partition's leader never goes
back to an earlier leader epoch, nor a broker to an earlier life.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import grpc
import grpc.aio

from millrace.client._cluster import wire
from millrace.client._cluster.latencies import Latencies
from millrace.client._cluster.wire import BrokerInfo, TopicInfo
from millrace.client._threads.tasks import (
    CANCELLED_BY_OTHERS,
    cancellations,
    cancellations_so_far,
    parts_of_a_call,
)
from millrace.core.addresses import parse_addresses
from millrace.core.callers import client_id_problem
from millrace.core.errors import (
    Appended,
    ClosedError,
    ConnectionFailedError,
    InvalidConfigError,
    MillraceError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    BrokerId,
    ControllerEpoch,
    KnownLeader,
    Leader,
    TopicId,
    TopicPartition,
)
from millrace.core.pauses import pause_after
from millrace.core.topics import parse_topic_name
from millrace.proto.features import CLIENT_PROTOCOL
from millrace.proto.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    common_pb2,
    fetch_pb2,
    fetch_pb2_grpc,
    groups_pb2_grpc,
    positions_pb2_grpc,
    produce_pb2_grpc,
)
from millrace.runtime import fork
from millrace.runtime.channel import Channel

_CONNECT_TIMEOUT_S: Final = 10.0
METADATA_TIMEOUT_MS_DEFAULT: Final = 3_000
LEADER_SILENCE_MS_DEFAULT: Final = 2_000
"""Silence of a broker after which others are asked for the leader."""
DOUBT_S: Final = 2.0
"""A call that has failed for this long asks other brokers before the one that answered last."""
_DOUBTED_MAX: Final = 4
_SILENT_MAX: Final = 100
"""Addresses of brokers whose silence is remembered."""
_NEWS_PATIENCE_S: Final = 1.0
"""Time of look-ups without news after which all brokers are asked; an election takes less."""
_NEWS_WAIT_S: Final = 0.5
"""How long a look-up waits for news from all brokers. They are asked for longer, as one may be
silent; the next look-up uses what comes later."""
_FORGOTTEN_S: Final = 5.0
"""A question that was not asked for this long counts as a new one."""
_OPEN_QUESTIONS_MAX: Final = 100
_INQUIRY_PAUSE_MS: Final = 500
_INQUIRY_PAUSE_MS_MAX: Final = 10_000
_INQUIRY_PAUSE_FRACTION: Final = 4
"""All brokers are asked again after this fraction of the time for which the question is open."""
_CATCH_UP_PAUSES_S: Final = (0.05, 0.2)
"""Pauses in which a broker that lags may catch up before another one is asked."""
_ABOUT_BROKERS: Final = cluster_pb2.GetMetadataRequest(brokers_only=True)

Result = TypeVar("Result")
Key = TypeVar("Key")


class _Question(NamedTuple):
    """What all brokers can be asked.

    Attributes:
        topics: names of the topics that it is about.
        partition: does the one topic have this partition? None: is there any news of the topics?
    """

    topics: frozenset[str]
    partition: int | None = None


@dataclass(slots=True)
class _OpenQuestion:
    """A question that no broker has answered yet; times of the loop.

    Attributes:
        since: when it was asked first.
        last_asked_at: when it was asked last.
        inquiry_at: when all brokers may be asked, or asked again.
        is_answered: whether the metadata has the answer by now, as compared with `since`.
    """

    since: float
    last_asked_at: float
    inquiry_at: float
    is_answered: Callable[[], bool]


class ChangeResponse(Protocol):
    """The response to a request that changes something."""

    @property
    def metadata_epoch(self) -> int: ...


ChangeResult = TypeVar("ChangeResult", bound=ChangeResponse)
Failure = TypeVar("Failure", bound=MillraceError)


@dataclass(slots=True)
class Connection:
    """A channel to one broker that has answered `Hello`."""

    address: str
    channel: Channel
    hello: common_pb2.HelloResponse = field(default_factory=common_pb2.HelloResponse)
    is_given_up: bool = False
    """One of its users found it broken: the calls of the others are cancelled."""

    def given_up(self) -> ConnectionFailedError:
        """Return what its other users are told."""
        return ConnectionFailedError(
            f"the connection to the broker at {self.address} was given up meanwhile"
        )

    @property
    def _open_channel(self) -> Channel:
        """For another call.

        Raises:
            ConnectionFailedError: another user gave the connection up, maybe between two calls.
        """
        if self.is_given_up:
            raise self.given_up()
        return self.channel

    @property
    def cluster(self) -> cluster_pb2_grpc.ClusterStub:
        """Metadata and administration."""
        return cluster_pb2_grpc.ClusterStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def produce(self) -> produce_pb2_grpc.ProduceStub:
        """Producer ids; the stream is opened by its own raw codec."""
        return produce_pb2_grpc.ProduceStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def positions(self) -> positions_pb2_grpc.PositionsStub:
        """Positions kept under names."""
        return positions_pb2_grpc.PositionsStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def groups(self) -> groups_pb2_grpc.GroupsStub:
        """Consumer groups."""
        return groups_pb2_grpc.GroupsStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def fetch(self) -> fetch_pb2_grpc.FetchStub:
        """Offsets; the stream is opened by its own raw codec."""
        return fetch_pb2_grpc.FetchStub(self._open_channel)  # type: ignore[no-untyped-call]


class Cluster:
    """Connections and metadata of one client.

    Args:
        bootstrap: `host:port`, several separated by commas, or a sequence of them.
        client_id: name of the client in the brokers' logs; see `client_id_problem`.
        timeout_ms: how long one call may take.
        metadata_timeout_ms: how long one broker may take for an answer that another one can give as
            well: the leaders, or a producer id.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str,
        timeout_ms: int = 30_000,
        metadata_timeout_ms: int = METADATA_TIMEOUT_MS_DEFAULT,
    ) -> None:
        fork.check()
        try:
            self._bootstrap = parse_addresses(bootstrap)
        except ValueError as error:
            raise InvalidConfigError(f"bootstrap: {error}") from error
        if problem := client_id_problem(client_id):
            raise InvalidConfigError(problem)
        self.client_id = client_id
        self.timeout_s = timeout_ms / 1000
        self.metadata_timeout_s = metadata_timeout_ms / 1000
        self._connections: dict[str, asyncio.Task[Connection]] = {}
        self._last_address = ""
        self._doubted: list[str] = []
        """Addresses to ask last: the answers from there have led nowhere."""
        self._silent_since: dict[str, float] = {}
        """Addresses from where the last call got no answer in its time, by the loop's time."""
        self._look_ups: dict[
            frozenset[str] | None, asyncio.Task[cluster_pb2.GetMetadataResponse]
        ] = {}
        """Tasks that look topics up, each for all callers that want the same ones."""
        self._open_questions: dict[_Question, _OpenQuestion] = {}
        """In the order in which they were asked last."""
        self._inquiries: dict[_Question, asyncio.Task[None]] = {}
        """Tasks that ask all brokers, each for all callers with the same question."""
        self._is_closed = False
        self.call_seconds: dict[str, Latencies] = {}
        """Of calls with one request and one response, by method."""
        self.call_failures: Counter[str] = Counter()
        """Calls without an answer, and those refused as a whole, by error."""
        self.cluster_id = ""
        self.batch_bytes_max = wire.MESSAGE_BYTES_MAX
        """Bytes of records that fit into a request to any broker that was greeted."""
        self.controller_id = NO_BROKER
        self.controller_epoch = ControllerEpoch(0)
        self.controller_problem = ""
        self.metadata_epoch = 0
        """`metadata_epoch` of the newest answer; 0: none named it."""
        self._all_known_at = 0  # Of the newest answer about all topics.
        # Of newer knowledge about single topics, or their absence, by name.
        self._known_at: dict[str, int] = {}
        self.brokers: dict[BrokerId, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.topic_names: dict[TopicId, str] = {}

    # Connections.

    async def connection(self, address: str) -> Connection:
        """Return the connection to a broker, opened and greeted.

        Raises:
            ConnectionFailedError: it cannot be reached.
            MillraceError: it refuses this client.
        """
        while True:
            if self._is_closed:
                raise ClosedError("the client is closed")
            task = self._connections.get(address)
            if task is None or task.cancelled():
                task = self._connections[address] = asyncio.create_task(self._connect(address))
                task.add_done_callback(partial(self._forget_failed, address))
            connection = await self._result_of(task)
            if connection is not None and not connection.is_given_up:
                return connection

    async def _result_of(self, task: asyncio.Task[Result]) -> Result | None:
        """Wait for a task that others may wait for, too; None: it was cancelled by others.

        Raises:
            ClosedError: the client was closed, which cancels it.
        """
        begun = await cancellations_so_far()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled() or cancellations() > begun:
                raise
            if self._is_closed:
                raise ClosedError("the client was closed meanwhile") from None
            return None

    def _forget_failed(self, address: str, task: asyncio.Task[Connection]) -> None:
        """Let the next use connect again, even if no caller waited for the failure."""
        is_failed = task.cancelled() or task.exception() is not None
        if is_failed and self._connections.get(address) is task:
            del self._connections[address]

    async def broker(self, broker_id: BrokerId) -> Connection:
        """Return the connection to a broker by its id."""
        info = self.brokers.get(broker_id)
        if info is None:
            raise ConnectionFailedError(f"broker {broker_id} is not in the cluster's metadata")
        if not info.address:
            raise ConnectionFailedError(
                f"broker {broker_id} has no address (yet) for clients of this listener: it has no "
                "outside listener, or does not know its outside address"
            )
        connection = await self.connection(info.address)
        if connection.hello.broker_id != broker_id:  # It has moved, and another replaced it.
            raise ConnectionFailedError(
                f"at {info.address} is broker {connection.hello.broker_id} now, not {broker_id}"
            )
        return connection

    async def call(
        self,
        method: Callable[[Connection], Awaitable[Result]],
        *,
        attempt_s: Callable[[], float] | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Call any broker that answers, the last good one first.

        Args:
            method: the call; its errors go to the caller, unless another broker could do better.
            attempt_s: called before each attempt; returns how long this broker may take before the
                next is asked; None: all the time.
            timeout_s: how long all of them may take; None: the client's time-out.

        Raises:
            RetriableError: those that answer refuse it for now, as without a controller.
            ConnectionFailedError: none answers; says why.

        Either says `appended` MAYBE where one of those that were asked may have done it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.timeout_s if timeout_s is None else timeout_s)
        waiting = deque(self._addresses())
        again: set[str] = set()
        problems = []
        last: ConnectionFailedError | None = None
        refusal: RetriableError | None = None
        in_doubt = False
        while waiting and (left_s := deadline - loop.time()) > 0:
            address = waiting.popleft()
            # The last one gets all the remaining time: there is no other to ask.
            limit_s = left_s if attempt_s is None or not waiting else min(attempt_s(), left_s)
            is_asked = False
            try:
                async with asyncio.timeout(limit_s):
                    try:
                        connection = await self.connection(address)
                    except ClosedError:
                        raise
                    except MillraceError as error:
                        problems.append(error.message)
                        continue
                    is_asked = True
                    result = await self.on(connection, method)
            except TimeoutError:
                problems.append(f"the broker at {address} did not answer in {limit_s:.3g} s")
                self.on_silence(address)
                in_doubt = in_doubt or is_asked
                continue
            except RetriableError as error:  # Another one may be better off.
                refusal = error
                in_doubt = in_doubt or error.appended is Appended.MAYBE
                continue
            except ConnectionFailedError as error:
                last = error
                in_doubt = True
                # A connection that was there broke. There may be a new one, the last of all.
                is_gone = address not in self._connections
                is_cancelled = isinstance(error.__cause__, asyncio.CancelledError)
                if (is_gone or is_cancelled) and address not in again:
                    again.add(address)
                    waiting.append(address)
                continue
            self._last_address = address
            self.on_answer(address)
            if address in self._doubted:
                self._doubted.remove(address)
            return result
        if refusal is not None:
            raise as_maybe(refusal) if in_doubt else refusal
        if last is None:
            why = "; ".join(problems)
            last = ConnectionFailedError(
                f"no broker answered: {why}"
                if in_doubt
                else f"no broker can be reached: {why}. Is one running there?"
            )
        raise as_maybe(last) if in_doubt else last

    async def change(
        self, method: Callable[[Connection], Awaitable[ChangeResult]], timeout_s: float
    ) -> ChangeResult:
        """Make a change through any broker that answers, as `call` does.

        Later answers about the cluster must include it.
        """
        response = await self.call(method, timeout_s=timeout_s)
        self.metadata_epoch = max(self.metadata_epoch, response.metadata_epoch)
        return response

    def ask_another(self, dead: str = "") -> None:
        """Begin with another broker from now on: what the last good one says leads nowhere.

        It may be cut off from the others, and answer all the same.

        Args:
            dead: the address to which its answers lead.
        """
        for address in filter(None, (self._last_address, dead)):
            self.doubt(address)
        self._last_address = ""

    def doubt(self, address: str) -> None:
        """Ask at an address last from now on, until there is an answer from there."""
        if address in self._doubted:
            self._doubted.remove(address)
        self._doubted.append(address)
        del self._doubted[:-_DOUBTED_MAX]

    def on_silence(self, address: str) -> None:
        """Ask at an address last from now on, as a call got no answer from there in its time."""
        self._silent_since.setdefault(address, asyncio.get_running_loop().time())
        if len(self._silent_since) > _SILENT_MAX:
            del self._silent_since[next(iter(self._silent_since))]
        self.doubt(address)

    def on_answer(self, address: str) -> None:
        """Note that a call got an answer from an address, be it a refusal."""
        self._silent_since.pop(address, None)

    def silent_s(self, address: str) -> float | None:
        """Return for how long calls have got no answer from an address; None: the last one did."""
        since = self._silent_since.get(address)
        return None if since is None else asyncio.get_running_loop().time() - since

    def _addresses(self) -> list[str]:
        """Return where to ask, in this order."""
        addresses = [self._last_address] if self._last_address else []
        addresses += self._bootstrap
        addresses += [broker.address for broker in self.brokers.values() if not broker.is_fenced]
        unique = list(dict.fromkeys(filter(None, addresses)))
        last = [each for each in self._doubted if each in unique]
        return [each for each in unique if each not in last] + last

    async def on(
        self, connection: Connection, method: Callable[[Connection], Awaitable[Result]]
    ) -> Result:
        """Call this broker, with the client's time-out.

        Raises:
            ConnectionFailedError: no answer.
            MillraceError: the broker refused the call as a whole.
        """
        try:
            return await self._on(connection, method)
        except MillraceError as error:
            self.call_failures[error.name()] += 1
            raise

    async def _on(
        self, connection: Connection, method: Callable[[Connection], Awaitable[Result]]
    ) -> Result:
        begun = await cancellations_so_far()
        try:
            async with asyncio.timeout(self.timeout_s):
                return await method(connection)
        except asyncio.CancelledError as cancellation:
            if cancellations() > begun:
                raise
            if connection.is_given_up:
                raise connection.given_up() from None
            raise ConnectionFailedError(
                f"the call to the broker at {connection.address} {CANCELLED_BY_OTHERS}"
            ) from cancellation
        except grpc.RpcError as error:
            refusal = wire.refusal_from_rpc(error)
            if refusal is not None:
                self.on_answer(connection.address)
                raise refusal from error
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                await self.drop(connection)
            raise wire.error_from_rpc(error, connection.address) from error
        except TimeoutError:
            raise ConnectionFailedError(
                f"the broker at {connection.address} did not answer in {self.timeout_s:g} s"
            ) from None

    async def list_offsets(
        self, broker_id: BrokerId, request: fetch_pb2.ListOffsetsRequest
    ) -> Sequence[fetch_pb2.ListedOffset]:
        """Ask a broker for offsets; return them, or errors, in the request's order.

        Raises:
            ConnectionFailedError: no answer.
        """
        response: fetch_pb2.ListOffsetsResponse = await self.on(
            await self.broker(broker_id), lambda connection: connection.fetch.ListOffsets(request)
        )
        return response.offsets

    async def find_epoch_ends(
        self, broker_id: BrokerId, request: fetch_pb2.OffsetsForLeaderEpochRequest
    ) -> Sequence[fetch_pb2.LeaderEpochResult]:
        """Ask a broker where leader epochs end; return the ends, or errors, in the request's order.

        Raises:
            ConnectionFailedError: no answer.
        """
        response: fetch_pb2.OffsetsForLeaderEpochResponse = await self.on(
            await self.broker(broker_id),
            lambda connection: connection.fetch.OffsetsForLeaderEpoch(request),
        )
        return response.results

    async def names_of(self, topic_ids: Collection[TopicId]) -> dict[TopicId, str]:
        """Return the names of those topics that are still there."""
        if not topic_ids:
            return {}
        response = await self.look_up(cluster_pb2.GetMetadataRequest(topic_ids=sorted(topic_ids)))
        return {
            TopicId(topic.topic_id): str(parse_topic_name(topic.name))
            for topic in response.topics
            if not topic.error.code
        }

    async def drop(self, connection: Connection) -> None:
        """Forget a connection that failed; the next use opens another."""
        task = self._connections.get(connection.address)
        if task is None or not task.done() or task.cancelled() or task.exception():
            return
        if task.result() is connection:
            del self._connections[connection.address]
            connection.is_given_up = True
            await connection.channel.close()

    async def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        tasks: list[asyncio.Task[Any]] = [
            *self._connections.values(),
            *self._look_ups.values(),
            *self._inquiries.values(),
        ]
        self._connections.clear()
        for task in tasks:
            task.cancel()
        # At the same time: one that does not end must not leave the connections of others open.
        await asyncio.gather(*map(_end, tasks))

    async def _connect(self, address: str) -> Connection:
        fork.on_connect()
        channel = Channel(
            address,
            wire.channel_options(),
            client_id=self.client_id,
            on_called=self._on_called,
        )
        connection = Connection(address, channel)
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                connection.hello = await connection.cluster.Hello(
                    common_pb2.HelloRequest(cluster_id=self.cluster_id, features=[CLIENT_PROTOCOL])
                )
            wire.raise_if_refused(connection.hello)
        except BaseException as error:
            await connection.channel.close()
            if isinstance(error, grpc.RpcError):
                raise wire.error_from_rpc(error, address) from error
            if isinstance(error, TimeoutError):
                raise ConnectionFailedError(
                    f"the broker at {address} did not answer in {_CONNECT_TIMEOUT_S:g} s"
                ) from None
            raise
        self.cluster_id = self.cluster_id or connection.hello.cluster_id
        if limit := connection.hello.message_bytes_max:
            self.batch_bytes_max = min(self.batch_bytes_max, wire.batch_bytes_within(limit))
        return connection

    def _on_called(self, method: str, seconds: float) -> None:
        latencies = self.call_seconds.get(method)
        if latencies is None:
            latencies = self.call_seconds[method] = Latencies()
        latencies.observe(seconds)

    # Metadata.

    async def topic(self, name: str) -> TopicInfo:
        """Return a topic, looked up unless it is known.

        Raises:
            InvalidTopicError: not a topic's name.
            UnknownTopicOrPartitionError: the cluster has no such topic.
            ConnectionFailedError: no broker answers.
        """
        return await self.topic_with(name, 0)

    async def topic_with(self, name: str, partition: int) -> TopicInfo:
        """Return a topic, looked up unless it is known to have a partition of this number.

        The topic may have grown since, and the broker that is asked first may not have heard of
        that. If no broker knows the partition, the topic is returned without it.

        Raises:
            As `topic`.
        """
        name = str(parse_topic_name(name))

        def has_it() -> bool:
            return name in self.topics and partition < len(self.topics[name].partitions)

        if not has_it():
            await self.refresh([name])
            await self._inquire(_Question(frozenset([name]), partition), has_it)
        info = self.topics.get(name)
        if info is None:
            raise UnknownTopicOrPartitionError(
                f"there is no topic {name!r}: create it first, or check the name"
            )
        return info

    async def refresh(self, names: Iterable[str] | None = None) -> None:
        """Look up brokers and topics; None: all topics. Concurrent equal look-ups are one."""
        topics = None if names is None else frozenset(names)
        request = cluster_pb2.GetMetadataRequest(
            topics=sorted(topics or ()), brokers_only=topics == frozenset()
        )
        answer = None
        while answer is None:
            task = self._look_ups.get(topics)
            if task is None or task.done():
                task = asyncio.create_task(self.look_up(request))
                self._look_ups[topics] = task
                task.add_done_callback(partial(_forget_done, self._look_ups, topics))
            answer = await self._result_of(task)

    async def look_for_news(self, names: Iterable[str]) -> None:
        """Look up topics whose metadata was proved wrong, as by a refusal or a broken connection.

        If look-ups bring no news for a second, all brokers are asked.
        """
        topics = frozenset(names)
        before = [self.topics.get(name) for name in topics]

        def has_news() -> bool:
            return before != [self.topics.get(name) for name in topics]

        await self.refresh(topics)
        if topics:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NEWS_WAIT_S):
                    await self._inquire(_Question(topics), has_news, patience_s=_NEWS_PATIENCE_S)

    async def _inquire(
        self, question: _Question, is_answered: Callable[[], bool], *, patience_s: float = 0.0
    ) -> None:
        """Ask all brokers, unless a look-up has answered the question or its pause lasts.

        Callers with the same question share one inquiry.

        Args:
            question: what the caller wants to know.
            is_answered: whether the metadata answers it by now.
            patience_s: how long look-ups alone are tried first.
        """
        if is_answered():
            self._open_questions.pop(question, None)
            return
        now = asyncio.get_running_loop().time()
        asked = self._open_questions.pop(question, None)
        is_forgotten = asked is None or now - asked.last_asked_at > _FORGOTTEN_S
        if asked is None or is_forgotten or asked.is_answered():
            asked = _OpenQuestion(now, now, now + patience_s, is_answered)
        asked.last_asked_at = now
        self._open_questions[question] = asked
        if len(self._open_questions) > _OPEN_QUESTIONS_MAX:
            del self._open_questions[next(iter(self._open_questions))]
        task = self._inquiries.get(question)
        if task is None:
            if now < asked.inquiry_at:
                return
            task = asyncio.create_task(self._run_inquiry(question, asked))
            self._inquiries[question] = task
            task.add_done_callback(partial(_forget_done, self._inquiries, question))
        await self._result_of(task)

    async def _run_inquiry(self, question: _Question, asked: _OpenQuestion) -> None:
        """Ask all brokers; begin the pause of the question if none has the answer."""
        await self.ask_all_brokers(question.topics, asked.is_answered)
        if asked.is_answered():
            self._open_questions.pop(question, None)
            return
        now = asyncio.get_running_loop().time()
        pause_ms = pause_after(
            int((now - asked.since) * 1000),
            _INQUIRY_PAUSE_MS,
            _INQUIRY_PAUSE_MS_MAX,
            fraction=_INQUIRY_PAUSE_FRACTION,
        )
        asked.last_asked_at = now
        asked.inquiry_at = now + pause_ms / 1000

    async def look_up(
        self,
        request: cluster_pb2.GetMetadataRequest,
        *,
        wanted: Callable[[Sequence[str]], Collection[str]] | None = None,
    ) -> cluster_pb2.GetMetadataResponse:
        """Ask about brokers and topics; store the answer, and return it.

        An answer with an older state than the known one is not used. Then the broker is asked
        again, and then others; if all lag, the newest answer is returned.

        Args:
            request: what to ask.
            wanted: takes the names of the topics in the answer, and returns those to store beside
                the known ones; None: all. A cluster may have many topics of which a client reads
                few.
        """
        newest: cluster_pb2.GetMetadataResponse | None = None

        async def ask(connection: Connection) -> cluster_pb2.GetMetadataResponse:
            nonlocal newest
            for pause_s in (*_CATCH_UP_PAUSES_S, None):
                response: cluster_pb2.GetMetadataResponse = await connection.cluster.GetMetadata(
                    request
                )
                if newest is None or response.metadata_epoch >= newest.metadata_epoch:
                    newest = response
                if not self._is_behind(response):
                    return response
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
            raise ConnectionFailedError(
                f"the broker at {connection.address} lags behind what is known already"
            )

        try:
            response = await self.call(ask, attempt_s=lambda: self.metadata_timeout_s)
        except ConnectionFailedError as error:
            if newest is None:
                error.appended = Appended.NO  # A look-up changes nothing.
                raise
            response = newest
        is_partial = request.topics or request.topic_ids or request.brokers_only
        chosen = None if wanted is None else wanted(_names_in(response))
        self.learn(response, is_full=not is_partial, wanted=chosen)
        return response

    async def ask_all_brokers(self, topics: Iterable[str], is_enough: Callable[[], bool]) -> None:
        """Ask all brokers about topics at the same time, until the answers suffice.

        The newest metadata counts. Takes `metadata_timeout_ms` at the most.
        """
        request = cluster_pb2.GetMetadataRequest(topics=sorted(topics))
        begun = await cancellations_so_far()
        asks = [asyncio.create_task(self._ask(each, request)) for each in self._addresses()]
        try:
            for answer in asyncio.as_completed(asks):
                try:
                    answered = await answer
                except asyncio.CancelledError:
                    if cancellations() > begun:
                        raise
                    continue  # Others have cancelled this question alone.
                if answered is not None:
                    self.learn(answered[1], is_full=False)
                if is_enough():
                    return
        finally:
            for ask in asks:
                ask.cancel()
            await asyncio.gather(*asks, return_exceptions=True)

    async def survey(self) -> tuple[BrokerId, ...]:
        """Ask every broker about the cluster; return the unfenced brokers that do not answer.

        The first answer may not be the newest; later look-ups are not older than the newest of
        these answers. Takes little longer than `metadata_timeout_ms`, twice that if unknown brokers
        are found.

        Raises:
            ConnectionFailedError: none answers; says why.
        """
        asked: set[str] = set()
        heard: set[BrokerId] = set()
        while addresses := [each for each in self._addresses() if each not in asked]:
            asked.update(addresses)
            async with parts_of_a_call():
                answers = await asyncio.gather(
                    *(self._ask(address, _ABOUT_BROKERS) for address in addresses)
                )
            answered = [each for each in answers if each is not None]
            for connection, response in sorted(answered, key=lambda each: _knowledge(each[1])):
                heard.add(BrokerId(connection.hello.broker_id))
                self.learn(response, is_full=False)
                self._last_address = connection.address
        if not heard:
            await self.look_up(_ABOUT_BROKERS)  # It raises the error.
        expected = (each.broker_id for each in self.brokers.values() if not each.is_fenced)
        return tuple(sorted(broker_id for broker_id in expected if broker_id not in heard))

    async def _ask(
        self, address: str, request: cluster_pb2.GetMetadataRequest
    ) -> tuple[Connection, cluster_pb2.GetMetadataResponse] | None:
        """Ask one broker about the cluster; None: it does not answer."""

        async def ask(connection: Connection) -> cluster_pb2.GetMetadataResponse:
            response: cluster_pb2.GetMetadataResponse = await connection.cluster.GetMetadata(
                request
            )
            return response

        try:
            async with asyncio.timeout(self.metadata_timeout_s):
                connection = await self.connection(address)
                return connection, await self.on(connection, ask)
        except ClosedError:
            raise
        except (MillraceError, TimeoutError):
            return None

    def _is_behind(self, response: cluster_pb2.GetMetadataResponse) -> bool:
        return 0 < response.metadata_epoch < self.metadata_epoch

    def learn(
        self,
        response: cluster_pb2.GetMetadataResponse,
        *,
        is_full: bool,
        wanted: Collection[str] | None = None,
    ) -> None:
        """Store a broker's answer about the cluster, unless newer metadata is known.

        Args:
            response: the broker's answer.
            is_full: it has all topics: others do not exist.
            wanted: the topics that are stored beside the known ones; None: all of the answer.
        """
        if response.controller_epoch >= self.controller_epoch:
            self.controller_id = BrokerId(response.controller_id)
            self.controller_epoch = ControllerEpoch(response.controller_epoch)
            self.controller_problem = response.controller_problem
        if not self._is_behind(response):
            self._learn_brokers(response)
        epoch = response.metadata_epoch
        self.metadata_epoch = max(self.metadata_epoch, epoch)
        seen = set()
        for topic in response.topics:
            if not topic.name:
                continue  # There is none with the id that was asked for.
            name = str(parse_topic_name(topic.name))
            seen.add(name)
            if self._is_older(epoch, name):
                continue
            if wanted is not None and name not in wanted and name not in self.topics:
                continue
            self._known_at[name] = max(epoch, self._known_at.get(name, 0))
            if wire.error_of(topic) is not None:
                self._forget(name)
            else:
                self._learn_topic(wire.topic_from_wire(topic))
        if is_full:
            for name in [each for each in self.topics if each not in seen]:
                if not self._is_older(epoch, name):
                    self._known_at[name] = epoch
                    self._forget(name)
        if is_full and wanted is None:
            self._all_known_at = max(self._all_known_at, epoch)
            self._known_at = {
                name: at for name, at in self._known_at.items() if at > self._all_known_at
            }

    def _is_older(self, epoch: int, name: str) -> bool:
        """Whether an answer of this state is older than what is known of a topic."""
        return 0 < epoch < max(self._known_at.get(name, 0), self._all_known_at)

    def _learn_brokers(self, response: cluster_pb2.GetMetadataResponse) -> None:
        found = {}
        for described in response.brokers:
            broker = wire.broker_from_wire(described)
            known = self.brokers.get(broker.broker_id)
            is_past = known is not None and known.broker_epoch > broker.broker_epoch
            found[broker.broker_id] = known if known is not None and is_past else broker
        for broker_id, known in self.brokers.items():
            # A broker without a name is known only from a refusal, which may be newer than this.
            if broker_id not in found and (not response.metadata_epoch or not known.name):
                found[broker_id] = known
        self.brokers = found

    def _learn_topic(self, info: TopicInfo) -> None:
        known = self.topics.get(info.name)
        if known is not None and known.topic_id == info.topic_id:
            info = _not_behind(info, known)
        self.topics[info.name] = info
        self.topic_names[info.topic_id] = info.name

    def learn_address(self, named: KnownLeader) -> None:
        """Take where a leader is."""
        broker_id = named.leader.broker_id
        if broker_id < 0:
            return
        broker = self.brokers.get(broker_id)
        if broker is None:
            self.brokers[broker_id] = BrokerInfo(broker_id, "", named.address, "", False)
        elif broker.address != named.address:
            self.brokers[broker_id] = replace(broker, address=named.address)

    def learn_leader(self, place: TopicPartition, named: KnownLeader) -> bool:
        """Take the leader that a broker's refusal names; return whether that is news."""
        self.learn_address(named)
        info = self.topics.get(self.topic_names.get(place.topic_id, ""))
        if info is None or place.partition >= len(info.partitions):
            return False
        partition = info.partitions[place.partition]
        if named.leader.leader_epoch <= partition.leader.leader_epoch:
            return False
        led = replace(partition, leader=named.leader, leader_address=named.address)
        rest = info.partitions[place.partition + 1 :]
        partitions = (*info.partitions[: place.partition], led, *rest)
        self.topics[info.name] = replace(info, partitions=partitions)
        return named.leader.broker_id >= 0

    def leader_of(self, place: TopicPartition) -> Leader | None:
        """Return the known leader of a partition; None: there is no such partition."""
        info = self.topics.get(self.topic_names.get(place.topic_id, ""))
        if info is None or place.partition >= len(info.partitions):
            return None
        return info.partitions[place.partition].leader

    def leaders(self) -> dict[TopicPartition, Leader]:
        """Return the leader of each partition of the known topics."""
        return {
            TopicPartition(info.topic_id, partition.partition): partition.leader
            for info in self.topics.values()
            for partition in info.partitions
        }

    def topic_ids(self, names: Iterable[str]) -> dict[str, TopicId | None]:
        """Return which topics have these names, as of the last look-up; None: there is none."""
        found = {name: self.topics.get(name) for name in names}
        return {name: None if info is None else info.topic_id for name, info in found.items()}

    def _forget(self, name: str) -> None:
        info = self.topics.pop(name, None)
        if info is not None:
            self.topic_names.pop(info.topic_id, None)


def _names_in(response: cluster_pb2.GetMetadataResponse) -> list[str]:
    """Return the names of the topics in an answer."""
    return [str(parse_topic_name(topic.name)) for topic in response.topics if topic.name]


def _forget_done(tasks: dict[Key, asyncio.Task[Any]], key: Key, task: asyncio.Task[Any]) -> None:
    """Forget a task of several callers when it is done."""
    if tasks.get(key) is task:
        del tasks[key]
    if not task.cancelled():
        task.exception()  # Its waiters have it. If they were cancelled, asyncio must not log it.


async def _end(task: asyncio.Task[Any]) -> None:
    """Wait until a cancelled task has ended; if it had opened a connection, close that.

    A connection that is open is closed in the first step: there may be no time for another.
    """
    if not task.done():
        await asyncio.wait([task])  # Not `gather`, as in `Tasks.end`.
    result = None if task.cancelled() or task.exception() else task.result()
    if isinstance(result, Connection):
        result.is_given_up = True
        await result.channel.close()


def _knowledge(response: cluster_pb2.GetMetadataResponse) -> tuple[int, int, bool]:
    """Return how new a broker's metadata is, as a sort key: the greatest is used.

    Of brokers with equal metadata, one may not know the controller yet, or the reason why there is
    none.
    """
    return response.metadata_epoch, response.controller_id, bool(response.controller_problem)


def as_maybe(error: Failure) -> Failure:
    """Return an error with `appended` MAYBE: this or another attempt may have succeeded."""
    again = error.again(Appended.MAYBE)
    again.__cause__ = error.__cause__
    return again


def _not_behind(new: TopicInfo, known: TopicInfo) -> TopicInfo:
    """Return a described topic, with newer leaders where they are known."""
    if len(new.partitions) < len(known.partitions):
        return known
    merged = [
        before if before.leader.leader_epoch > after.leader.leader_epoch else after
        for before, after in zip(known.partitions, new.partitions, strict=False)
    ]
    return replace(new, partitions=(*merged, *new.partitions[len(merged) :]))
