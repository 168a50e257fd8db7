"""The cluster as one client sees it: it calls brokers, and looks up what it does not know.

No background task: metadata is looked up when it is missing or was proved wrong, at most one
look-up at a time.

A broker that is cut off from the others names an earlier leader for ever. Therefore all brokers are
asked when its answers do not help: for a topic or a partition that it does not know, at once; for
topics whose metadata was proved wrong, after a second of look-ups without news.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from millrace.client._cluster.calls import Calls
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.inquiries import Inquiries, Question
from millrace.client._cluster.shared_tasks import SharedTasks
from millrace.client._cluster.wire import TopicInfo
from millrace.client._threads.tasks import cancellations, cancellations_so_far, parts_of_a_call
from millrace.core.errors import (
    Appended,
    ClosedError,
    ConnectionFailedError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import BrokerId, TopicId
from millrace.core.topics import parse_topic_name
from millrace.proto.v1 import cluster_pb2
from millrace.runtime.transport.credentials import TlsFiles
from millrace.runtime.transport.tokens import Token

METADATA_TIMEOUT_MS_DEFAULT: Final = 3_000
LEADER_SILENCE_MS_DEFAULT: Final = 2_000
"""Silence of a broker after which others are asked for the leader."""
_NEWS_PATIENCE_S: Final = 1.0
"""Time of look-ups without news after which all brokers are asked; an election takes less."""
_NEWS_WAIT_S: Final = 0.5
"""How long a look-up waits for news from all brokers. They are asked for longer, as one may be
silent; the next look-up uses what comes later."""
_CATCH_UP_PAUSES_S: Final = (0.05, 0.2)
"""Pauses in which a broker that lags may catch up before another one is asked."""
_ABOUT_BROKERS: Final = cluster_pb2.GetMetadataRequest(brokers_only=True)


class Cluster(Calls):
    """Connections and metadata of one client.

    Args:
        bootstrap, client_id, timeout_ms, uses_drpc, tls, token: as for `Calls`.
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
        uses_drpc: bool = True,
        tls: TlsFiles | None = None,
        token: Token | None = None,
    ) -> None:
        super().__init__(
            bootstrap,
            client_id=client_id,
            timeout_ms=timeout_ms,
            uses_drpc=uses_drpc,
            tls=tls,
            token=token,
        )
        self.metadata_timeout_s = metadata_timeout_ms / 1000
        self._look_ups: SharedTasks[frozenset[str] | None, cluster_pb2.GetMetadataResponse]
        self._look_ups = SharedTasks()
        """Those under way, by the topics that they look up."""
        self._inquiries = Inquiries(self.ask_all_brokers)

    async def topic(self, name: str) -> TopicInfo:
        """Return a topic, looked up unless it is known.

        Raises:
            InvalidTopicError: not a topic's name.
            UnknownTopicOrPartitionError: the cluster has no such topic.
            TopicAuthorizationFailedError: this client may not see it, if there is one.
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
            return name in self.metadata.topics and partition < len(
                self.metadata.topics[name].partitions
            )

        if not has_it():
            await self.refresh([name])
            await self._inquiries.ask(
                Question(frozenset([name]), partition),
                lambda: has_it() or name in self.metadata.denied,
            )
        info = self.metadata.topics.get(name)
        if info is None and name in self.metadata.denied:
            raise self.metadata.denied[name].again(Appended.NO)
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
        await self._look_ups.result(topics, partial(self.look_up, request))

    async def look_for_news(self, names: Iterable[str]) -> None:
        """Look up topics whose metadata was proved wrong, as by a refusal or a broken connection.

        If look-ups bring no news for a second, all brokers are asked.
        """
        topics = frozenset(names)
        before = [self.metadata.topics.get(name) for name in topics]

        def has_news() -> bool:
            return before != [self.metadata.topics.get(name) for name in topics]

        await self.refresh(topics)
        if topics:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NEWS_WAIT_S):
                    await self._inquiries.ask(
                        Question(topics), has_news, patience_s=_NEWS_PATIENCE_S
                    )

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
                if not self.metadata.is_behind(response):
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
        self.metadata.learn(response, is_full=not is_partial, wanted=chosen)
        return response

    async def ask_all_brokers(self, topics: Iterable[str], is_enough: Callable[[], bool]) -> None:
        """Ask all brokers about topics at the same time, until the answers suffice.

        The newest metadata counts. Takes `metadata_timeout_ms` at the most.
        """
        request = cluster_pb2.GetMetadataRequest(topics=sorted(topics))
        begun = await cancellations_so_far()
        asks = [asyncio.create_task(self._ask(address, request)) for address in self.addresses()]
        try:
            for answer in asyncio.as_completed(asks):
                try:
                    answered = await answer
                except asyncio.CancelledError:
                    if cancellations() > begun:
                        raise
                    continue  # Others have cancelled this question alone.
                if answered is not None:
                    self.metadata.learn(answered[1], is_full=False)
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
        while addresses := [at for at in self.addresses() if at not in asked]:
            asked.update(addresses)
            async with parts_of_a_call():
                answers = await asyncio.gather(
                    *(self._ask(address, _ABOUT_BROKERS) for address in addresses)
                )
            answered = [answer for answer in answers if answer is not None]
            for connection, response in sorted(answered, key=lambda answer: _knowledge(answer[1])):
                heard.add(BrokerId(connection.hello.broker_id))
                self.metadata.learn(response, is_full=False)
                self.order.first = connection.address
        if not heard:
            await self.look_up(_ABOUT_BROKERS)  # It raises the error.
        unfenced = {
            broker.broker_id for broker in self.metadata.brokers.values() if not broker.is_fenced
        }
        return tuple(sorted(unfenced - heard))

    async def _ask(
        self, address: str, request: cluster_pb2.GetMetadataRequest
    ) -> tuple[Connection, cluster_pb2.GetMetadataResponse] | None:
        """Ask one broker about the cluster; None: it does not answer."""
        try:
            async with asyncio.timeout(self.metadata_timeout_s):
                connection = await self.connection(address)
                return connection, await self.on(
                    connection, lambda connection: connection.cluster.GetMetadata(request)
                )
        except ClosedError:
            raise
        except (MillraceError, TimeoutError):
            return None

    async def close(self) -> None:
        """Close every connection."""
        look_ups = [*self._look_ups.cancel(), *self._inquiries.cancel()]
        await asyncio.gather(super().close(), *(asyncio.wait([task]) for task in look_ups))


def _names_in(response: cluster_pb2.GetMetadataResponse) -> list[str]:
    """Return the names of the topics in an answer."""
    return [str(parse_topic_name(topic.name)) for topic in response.topics if topic.name]


def _knowledge(response: cluster_pb2.GetMetadataResponse) -> tuple[int, int, bool]:
    """Return how new a broker's metadata is, as a sort key: the greatest is used.

    Of brokers with equal metadata, one may not know the controller yet, or the reason why there is
    none.
    """
    return response.metadata_epoch, response.controller_id, bool(response.controller_problem)
