"""How each part of `Admin` asks the cluster.

When the answer to a change is lost it is unknown whether the change was made, and the request is
repeated. So each request is idempotent: the client chooses the id of a new topic, a topic to delete
is named by its id, and a deletion counts as done if the topic was there before and is gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from millrace.client._cluster import wire
from millrace.client._cluster.arguments import checked_place
from millrace.client._cluster.calls import DOUBT_S, ChangeResponse, ChangeResult, as_maybe
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.wire import BrokerInfo
from millrace.client._threads.tasks import let_go, parts_of_a_call
from millrace.client._with_blocks import AsyncClient
from millrace.core.errors import (
    AccessDeniedError,
    Appended,
    ClosedError,
    ConnectionFailedError,
    MillraceError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import BrokerId, TopicPartition
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.runtime import host

_PAUSE_S: Final = 0.1
_DESCRIBE_S: Final = 10.0
"""How long a broker may take to describe something before it is left out."""

Response = TypeVar("Response")
Result = TypeVar("Result")


class _Results(ChangeResponse, Protocol):
    @property
    def results(self) -> Sequence[Any]: ...


def only_result(response: _Results) -> Any:
    """Return the result of a change of one thing.

    Raises:
        MillraceError: it was refused.
    """
    result = wire.only(response.results)
    wire.raise_if_refused(result)
    return result


class Administration(AsyncClient):
    """The cluster, and the ways to ask it."""

    _cluster: Cluster
    _close_timeout_ms: int

    async def close(self) -> None:
        """Close the connections. Takes `close_timeout_ms` at the most."""
        await let_go(host.monotonic_s() + self._close_timeout_ms / 1000, self._cluster.close)

    async def _change(
        self,
        method: Callable[[Connection], Awaitable[ChangeResult]],
        outcome: Callable[[ChangeResult], Result],
    ) -> Result:
        """Let the controller change something, as soon as there is one.

        The client's time-out limits that. A broker that is cut off knows no controller: others are
        asked after a while.

        Args:
            method: makes the request.
            outcome: returns what the caller wants of the response, or raises why it was refused.
        """
        began_at = host.monotonic_s()
        deadline = began_at + self._cluster.timeout_s
        refusal: RetriableError | None = None
        in_doubt = False
        while True:
            try:
                left_s = max(deadline - host.monotonic_s(), _PAUSE_S)
                return outcome(await self._cluster.change(method, left_s))
            except UnknownTopicOrPartitionError:
                raise
            except RetriableError as error:
                refusal = error
                in_doubt = in_doubt or error.appended is Appended.MAYBE
                if host.monotonic_s() + _PAUSE_S >= deadline:
                    raise (as_maybe(error) if in_doubt else error) from error.__cause__
                if host.monotonic_s() - began_at >= DOUBT_S:
                    self._cluster.order.ask_another()
            except ConnectionFailedError as error:
                in_doubt = in_doubt or error.appended is Appended.MAYBE
                told: MillraceError = error
                # The last attempt had no time for an answer, perhaps.
                if refusal is not None and host.monotonic_s() + _PAUSE_S >= deadline:
                    told = refusal
                raise (as_maybe(told) if in_doubt else told) from told.__cause__
            await asyncio.sleep(_PAUSE_S)

    async def _newest(
        self, method: Callable[[Connection], Awaitable[ChangeResult]]
    ) -> ChangeResult:
        """Ask any broker; an answer that is older than what is known does not count."""

        async def ask(connection: Connection) -> ChangeResult:
            response = await method(connection)
            if response.metadata_epoch < self._cluster.metadata.epoch:
                raise ConnectionFailedError(
                    f"the broker at {connection.address} lags behind what is known already"
                )
            return response

        return await self._cluster.call(ask)

    async def _ask_brokers(
        self,
        method: Callable[[Connection], Awaitable[Response]],
        unreachable: Collection[BrokerId] = (),
    ) -> dict[BrokerId, Response | None]:
        """Ask all known brokers that are neither fenced nor unreachable; None: no answer."""
        asked = [
            broker
            for broker in self._cluster.metadata.brokers.values()
            if not broker.is_fenced and broker.broker_id not in unreachable
        ]
        async with parts_of_a_call():
            answers = await asyncio.gather(*(self._ask(broker, method) for broker in asked))
        return {broker.broker_id: answer for broker, answer in zip(asked, answers, strict=True)}

    async def _ask(
        self, broker: BrokerInfo, method: Callable[[Connection], Awaitable[Response]]
    ) -> Response | None:
        """Return what a broker says; None: it did not answer.

        Raises:
            AccessDeniedError: it refuses the caller: that is no silence.
        """
        try:
            async with asyncio.timeout(_DESCRIBE_S):
                connection = await self._cluster.broker(broker.broker_id)
                return await self._cluster.on(connection, method)
        except (AccessDeniedError, ClosedError):
            raise
        except (MillraceError, TimeoutError):
            return None

    async def _places(self, named: Iterable[PartitionName]) -> dict[PartitionName, TopicPartition]:
        named = [checked_place(place) for place in named]
        topics = {topic for topic, _ in named}
        if topics:
            await self._cluster.refresh(sorted({str(parse_topic_name(topic)) for topic in topics}))
        return {place: await self._place(*place) for place in named}

    async def _place(self, topic: str, number: int) -> TopicPartition:
        return (await self._cluster.topic_with(topic, number)).place(number)
