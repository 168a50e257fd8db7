"""The heartbeats of a group's member, and what the group answers.

They run on the loop, all the time, so a slow user does not lose its membership. Heartbeats and
polls meet in three fields alone: `told`, `is_lost` and `failure`. A poll that waits in the middle
of an assignment looks at them again, as the member may have lost it.

A member whose session has ended, or that is too slow, gives itself up before others may own its
partitions (P61): it goes on as another member.

Source: KIP-848.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from millrace.client import events
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.coordinators import ANSWER_S, Coordinators
from millrace.client._cluster.wire import error_of
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._threads.logs import Log
from millrace.core.errors import (
    FencedMemberEpochError,
    GroupFullError,
    InstanceIdInUseError,
    MillraceError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from millrace.proto.v1 import groups_pb2 as pb
from millrace.runtime import host

_log = Log(__name__)

_ID_BYTES: Final = 16
_PAUSE_S: Final = 0.1
_SESSION_S: Final = 10.0
"""The length of a session until the coordinator has told it."""
_SILENCE_SHARE: Final = 0.2
"""The share of a session after which a silent coordinator is given up: it may have lost its power.
The rest of the session is for the cluster to notice that, and for its successor to answer."""
_SILENCE_S_MIN: Final = 0.5
_OFTEN_S: Final = 0.05
"""A user that polls again within this time gives heartbeats enough turns of the loop."""
_HEARTBEATS_SHARE: Final = 0.02
"""The share of another user's time that is for heartbeats."""
_HEARTBEATS_S_MAX: Final = 0.02
"""The most of that at once."""


class Heartbeats:
    """A member as its group sees it.

    Attributes:
        told: the assignment that the next poll takes; None: there is none.
        is_lost: the next poll has to give everything up.
        failure: why it is no member, and will not be one; None: it is, or may be.
        confirmed: the epoch of the assignment that it has taken.
        deferred: an assignment that no poll takes yet; None: there is none.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        coordinators: Coordinators,
        *,
        topics: Sequence[str],
        pattern: str,
        on_lost: Callable[[], None],
        on_news: Callable[[], None],
    ) -> None:
        self._config = config
        self._coordinators = coordinators
        self._topics, self._pattern = topics, pattern
        self._on_lost, self._on_news = on_lost, on_news
        self.told: pb.GroupHeartbeatResponse | None = None
        self.is_lost = False
        self.deferred: pb.GroupHeartbeatResponse | None = None
        self.failure: MillraceError | None = None
        self.confirmed = 0
        self.member_id = _new_id()
        self._former = ""
        """The id of the member before it lost its place, as long as the group may not know that."""
        self._has_joined = self._has_been_member = False
        self.session_s = _SESSION_S
        self._wait_s = 1.0
        self.heard_at = self._polled_at = host.monotonic_s()
        self._has_confirmed = asyncio.Event()
        self._has_polled = asyncio.Event()
        self._is_polling = False
        self._has_warned = False  # Of a heartbeat that is refused again and again.

    async def beat(self) -> None:
        """Send heartbeats, all the time."""
        while True:
            silent_s = host.monotonic_s() - self._polled_at
            if not self._is_polling and silent_s > self._config.max_poll_interval_ms / 1000:
                await self._leave_as_it_is_slow()
                continue
            request = self._heartbeat()
            try:
                # As it was, it would keep its partitions for a session, from itself as well.
                await self._leave_former()
                heard_at, answer = await self._ask(request)
            except (UnknownMemberIdError, FencedMemberEpochError) as error:
                events.MEMBER_LOST.log(_log, group=self._config.group, error=error.message)
                if request.member_id == self.member_id:
                    self.lose()
                if isinstance(error, UnknownMemberIdError):
                    self._former = ""  # The group has removed it.
            except MillraceError as error:
                # Until the session of a member that lost its place has ended, the group counts the
                # lost one, too, so it may have no room for the new one.
                is_taken = isinstance(error, GroupFullError | InstanceIdInUseError)
                may_pass = is_taken and self._has_been_member
                if not error.retriable and not may_pass:
                    self.fail(error)
                    return
                self._warn(error)
                await asyncio.sleep(_PAUSE_S)
            else:
                if request.member_id != self.member_id:
                    continue  # The member gave itself up meanwhile.
                self._has_joined = self._has_been_member = True
                self._has_warned = False
                self.heard_at = heard_at
                self.session_s = answer.session_timeout_ms / 1000
                self._wait_s = answer.heartbeat_interval_ms / 1000
                if answer.epoch != self.confirmed:
                    await self._wait_until_taken(answer)

    def fail(self, failure: MillraceError) -> None:
        """Let the next poll raise an error."""
        self.failure = failure
        self._on_news()

    def _warn(self, error: MillraceError) -> None:
        """Log why the member does not get into the group; lost connections say so themselves."""
        is_refused = isinstance(
            error, UnreleasedInstanceIdError | InstanceIdInUseError | GroupFullError
        )
        if is_refused and not self._has_warned:
            self._has_warned = True
            events.MEMBER_WAITS.log(_log, group=self._config.group, error=error.message)

    def _heartbeat(self) -> pb.GroupHeartbeatRequest:
        # A member that was not heard for a while waits for less, as its session goes on meanwhile.
        wait_s = min(max(self.heard_at + self._wait_s - host.monotonic_s(), 0), self._wait_s)
        request = pb.GroupHeartbeatRequest(
            group=self._config.group,
            member_id=self.member_id,
            confirmed=self.confirmed,
            wait_ms=int(wait_s * 1000),
        )
        if not self._has_joined:
            request.member.CopyFrom(
                pb.GroupMember(
                    instance_id=self._config.group_instance_id,
                    zone=self._config.client_rack,
                    topics=self._topics,
                    pattern=self._pattern,
                    assignor=self._config.group_assignor,
                    rebalance_timeout_ms=self._config.max_poll_interval_ms,
                )
            )
        return request

    async def _ask(
        self, request: pb.GroupHeartbeatRequest
    ) -> tuple[float, pb.GroupHeartbeatResponse]:
        """Return the answer, and since when its session lasts, at the least."""
        asked_at = 0.0

        async def ask(connection: Connection) -> pb.GroupHeartbeatResponse:
            nonlocal asked_at
            if asked_at:  # Another coordinator: hear from it at once, as the session goes on.
                request.wait_ms = 0
            asked_at = host.monotonic_s()
            answer: pb.GroupHeartbeatResponse = await connection.groups.GroupHeartbeat(request)
            if (error := error_of(answer)) is not None:
                self._warn(error)  # At once: attempts go on for as long as a request may take.
            return answer

        def silence_s() -> float:
            answer_s = min(max(_SILENCE_SHARE * self.session_s, _SILENCE_S_MIN), ANSWER_S)
            return answer_s if asked_at else answer_s + request.wait_ms / 1000

        answer = await self._coordinators.ask(self._config.group, ask, silence_s=silence_s)
        return min(asked_at + answer.waited_ms / 1000, host.monotonic_s()), answer

    async def _wait_until_taken(self, answer: pb.GroupHeartbeatResponse) -> None:
        """Let the user's next poll take an assignment; go on with heartbeats soon."""
        # A poll that takes this one already goes on with it: its commits may last for heartbeats.
        if self.told is None or self.told.epoch != answer.epoch:
            self.told = answer
        self._has_confirmed.clear()
        self._on_news()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                await self._has_confirmed.wait()

    def lose(self) -> None:
        """Join again with another id: the group may have given the partitions to other members."""
        self._former = self._former or self.member_id
        self.is_lost, self.told, self.confirmed = True, None, 0
        self._has_joined = False
        self.member_id = _new_id()
        self._on_lost()
        self._on_news()

    async def _leave_as_it_is_slow(self) -> None:
        events.MEMBER_SLOW.log(
            _log,
            group=self._config.group,
            max_poll_interval_ms=self._config.max_poll_interval_ms,
        )
        self._has_polled.clear()
        self.lose()  # Before others may own its partitions.
        with suppress(MillraceError):
            await self._leave_former()
        await self._has_polled.wait()

    async def _leave_former(self) -> None:
        """Leave as the member that it was before it lost its place, if it still is one.

        Raises:
            MillraceError: as any request.
        """
        if former := self._former:
            await self.leave(former, for_now=False)
            self._former = ""

    async def leave(self, *member_ids: str, for_now: bool) -> None:
        """Leave the group as these members.

        Raises:
            MillraceError: as any request.
        """
        request = pb.LeaveGroupRequest(
            group=self._config.group, member_ids=member_ids, for_now=for_now
        )
        await self._coordinators.ask(
            self._config.group, lambda connection: connection.groups.LeaveGroup(request)
        )

    def ids(self) -> Iterator[str]:
        """Yield the member ids under which the group may know it."""
        yield from filter(None, (self._former, self.member_id))

    # Where the user polls.

    async def give_way(self) -> None:
        """Let heartbeats go on, as a user that always finds records may never wait itself.

        One turn of the loop is less than one heartbeat takes. That is enough for a user that polls
        often; another one waits for a small share of the time that it has kept the loop.
        """
        kept_s = host.monotonic_s() - self._polled_at
        share_s = min(kept_s * _HEARTBEATS_SHARE, _HEARTBEATS_S_MAX)
        await asyncio.sleep(share_s if kept_s > _OFTEN_S else 0)

    def on_polled(self, now: float) -> None:
        """Note that the user polls."""
        self._polled_at = now
        self._has_polled.set()

    @property
    def has_work(self) -> bool:
        """Whether a heartbeat has brought something for the next poll."""
        has_assignment = self.told is not None and self.told is not self.deferred
        return has_assignment or self.is_lost or self.failure is not None

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Note that the user waits in a poll, however long that takes."""
        self._is_polling = True
        try:
            yield
        finally:
            self._is_polling = False
            self._polled_at = host.monotonic_s()

    @property
    def silent_at(self) -> float:
        """When the session of the member may be over, if nothing is heard until then."""
        return self.heard_at + self.session_s

    def confirm(self, told: pb.GroupHeartbeatResponse) -> None:
        """Say that an assignment was taken."""
        self.confirmed, self.told = told.epoch, None

    def on_taken(self) -> None:
        """Let the next heartbeat go: the user knows what was assigned."""
        self._has_confirmed.set()


def _new_id() -> str:
    return host.current.random_bytes(_ID_BYTES).hex()
