"""Finds the coordinator of a name, and follows it.

Any broker may be asked; one that does not coordinate the name names the broker that does. One that
is cut off from the others may name an earlier coordinator for ever: so others are asked when that
leads nowhere.

The cluster takes seconds to notice that a broker has lost its power, and the others name it until
then. So a coordinator that was silent, and is named again, gets a short time only: the others are
asked again soon. A broker that was paused, and goes on, answers in that time. One that has lost its
power and is back does not know the connection: if it is silent again, another one is opened.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from millrace.client._cluster import wire
from millrace.client._cluster.calls import DOUBT_S, as_maybe
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.pauses import spread
from millrace.core.errors import (
    Appended,
    ConnectionFailedError,
    MillraceError,
    RefreshMetadataError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import KnownLeader
from millrace.runtime import host

_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 2.0
_PAUSE_SHARE: Final = 0.2
"""The pause before the next attempt is this share of the time spent failing. An election is over in
half a second; after a longer outage thousands of members must not hold up the coordinator."""
_KEEPERS_MAX: Final = 1000
ANSWER_S: Final = 5.0
"""Silence of a broker after which others are asked: it may be paused, or have lost its power."""
_AGAIN_SHARE: Final = 0.2
"""The share of that for a coordinator that was silent, and is named again; at least this share of
the time since then, so that a slow one is given enough in the end."""


AnswerT = TypeVar("AnswerT", bound=wire.Answer)


class Coordinators:
    """The coordinators of names, as far as brokers have named them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._keepers: dict[str | int, KnownLeader] = {}  # By name, or by part of all names.

    async def ask(
        self,
        key: str | int,
        method: Callable[[Connection], Awaitable[AnswerT]],
        look_up_topics: Callable[[], Awaitable[None]] | None = None,
        *,
        silence_s: Callable[[], float] = lambda: ANSWER_S,
    ) -> AnswerT:
        """Ask the coordinator of a name, for as long as the client's time-out allows.

        Args:
            key: the name, or the part of all names.
            method: what to call.
            look_up_topics: called when a broker does not know a topic, or knows it no more.
            silence_s: called before each attempt; returns how long to wait for a broker before
                others are asked.

        Raises:
            MillraceError: the last refusal when the time is over, or one that a retry cannot solve;
                with `appended` MAYBE, an attempt may have done it.
        """
        deadline = host.monotonic_s() + self._cluster.timeout_s
        failing_since: float | None = None
        in_doubt = False
        dead = ""
        given_up: set[str] = set()
        while True:
            keeper = self._keepers.get(key)
            try:
                response = await self._call(
                    keeper, method, silence_s, given_up, is_repeated=failing_since is not None
                )
                wire.raise_if_refused(response)
            except MillraceError as error:
                if not error.retriable:
                    raise
                in_doubt = in_doubt or error.appended is Appended.MAYBE
                now = host.monotonic_s()
                failing_since = now if failing_since is None else failing_since
                pause_s = _pause_s(now - failing_since)
                if now + pause_s >= deadline:
                    raise (as_maybe(error) if in_doubt else error) from error.__cause__
                if keeper is not None and isinstance(error, ConnectionFailedError):
                    dead = keeper.address
                if now - failing_since >= DOUBT_S:
                    self._cluster.order.ask_another(dead)
                if self._learn(key, error):
                    continue
                if isinstance(error, UnknownTopicOrPartitionError) and look_up_topics is not None:
                    await look_up_topics()
            else:
                return response
            await asyncio.sleep(pause_s)

    async def _call(
        self,
        keeper: KnownLeader | None,
        method: Callable[[Connection], Awaitable[AnswerT]],
        silence_s: Callable[[], float],
        given_up: set[str],
        *,
        is_repeated: bool,
    ) -> AnswerT:
        """Ask one broker, or any that answers; give a connection up once that is silent again.

        Raises:
            ConnectionFailedError: there is no answer, or not soon; with `appended` MAYBE where one
                was asked.
        """
        if keeper is None:
            return await self._cluster.call(method, attempt_s=silence_s)
        connection: Connection | None = None
        limit_s = silence_s()
        silent_s = self._cluster.order.silent_s(keeper.address) if is_repeated else None
        if silent_s is not None:
            limit_s = min(limit_s, _AGAIN_SHARE * max(limit_s, silent_s))
        try:
            async with asyncio.timeout(limit_s):
                connection = await self._cluster.connection(keeper.address)
                answer = await self._cluster.on(connection, method)
        except TimeoutError:
            self._cluster.order.on_silence(keeper.address)
            if connection is not None and silent_s is not None and keeper.address not in given_up:
                given_up.add(keeper.address)
                await self._cluster.drop(connection)
            problem = ConnectionFailedError(
                f"the broker at {keeper.address} did not answer in {limit_s:.3g} s"
            )
        except ConnectionFailedError as error:
            problem = error
        else:
            self._cluster.order.on_answer(keeper.address)
            return answer
        raise (problem if connection is None else as_maybe(problem)) from problem.__cause__

    def _learn(self, key: str | int, error: MillraceError) -> bool:
        """Take the keeper that a refusal names; return whether it is a new one."""
        if isinstance(error, UnknownTopicOrPartitionError):
            return False  # It is about a topic.
        before = self._keepers.pop(key, None)
        named = error.leader if isinstance(error, RefreshMetadataError) else None
        if named is None or not named.address or named == before:
            return False
        if len(self._keepers) >= _KEEPERS_MAX:
            self._keepers.clear()
        self._keepers[key] = named
        return True


def _pause_s(failing_s: float) -> float:
    """Return the pause before the next attempt, after so much time spent failing."""
    pause_s = min(max(_PAUSE_S, failing_s * _PAUSE_SHARE), _PAUSE_S_MAX)
    return spread(round(pause_s * 1000))[0] / 1000
