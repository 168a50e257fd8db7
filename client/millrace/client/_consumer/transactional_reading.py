"""A consumer whose positions are committed by transactions of a producer (T18).

Invariants, between the moment at which a transaction knows the consumer and its end:

- The consumer takes no assignment by which it loses a partition of which it has handed out records
  that are not committed: its group waits for it. So what it has handed out, and what the
  transaction has made of it, count together. A program that polls within transactions alone gives
  partitions up in a first poll, when the transaction before has committed all that it had read.
- If its group gave partitions to others all the same, as its session had ended, the transaction
  cannot commit: the others have read the same records. Nor can it if a topic is gone: a group
  would read on there without its position, were the topic brought back.
- After an abort it hands out again what it had handed out: it goes back to where its group has
  committed, and in partitions without a committed position to the first record that it had taken.
  What was prefetched from later positions is dropped.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from millrace.client._cluster.positions import Within
from millrace.client._consumer.reading import ConsumerCore
from millrace.core.client.producer.transaction import ProducerIdentity
from millrace.core.errors import (
    ClosedError,
    ConcurrentUseError,
    InvalidRequestError,
    MillraceError,
    StaleMemberEpochError,
)
from millrace.core.ids import TopicPartition
from millrace.core.topics import PartitionName

_PUT_BACK_S: Final = 2.0
"""How long an abort waits for the group's positions; the next poll asks again."""


class TransactionalReading:
    """What a transaction needs of one consumer. Used on the loop of the consumer."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._holds = 0
        """Transactions that commit for the consumer, and have not ended."""

    def hold(self) -> None:
        """Give no partition up until `release`.

        Raises:
            InvalidRequestError: the consumer cannot be committed for in a transaction.
        """
        core = self._core
        if core.fetching.loop is not asyncio.get_running_loop():
            raise InvalidRequestError(
                "the consumer and the producer of a transaction need the same event loop: use two "
                "asynchronous ones, or two synchronous ones"
            )
        if core.config.enable_auto_commit:
            raise InvalidRequestError(
                "positions are committed by the transaction alone: make the consumer with "
                "enable_auto_commit=False"
            )
        self._holds += 1
        self._tell()

    def release(self) -> None:
        """Give partitions up again: the transaction has committed, or `put_back` was called."""
        self._holds -= 1
        self._core.handing_out.staged.clear()
        self._tell()
        self._core.assignment.wake()

    def _tell(self) -> None:
        if self._core.membership is not None:
            self._core.membership.hold(is_held=self._holds > 0)

    async def stage(
        self,
        positions: Mapping[PartitionName, int] | None,
        *,
        began_at: float,
        transactional_id: str,
        identity: ProducerIdentity,
        on_asked: Callable[[], None],
    ) -> None:
        """Commit positions as part of a transaction.

        Args:
            positions: see `Consumer.commit`.
            began_at: when the transaction began, in seconds of the monotonic clock.
            transactional_id: of its producer.
            identity: with which it is written.
            on_asked: called before positions are sent; there may be none.

        Raises:
            StaleMemberEpochError: the group gave partitions to others within the transaction, or
                their topic is gone: what was made of them would count without their positions.
            MillraceError: the positions are not part of it, or may not be.
        """
        membership = self._core.membership
        if membership is not None and (
            membership.gave_up_at >= began_at or membership.heartbeats.is_lost
        ):
            raise StaleMemberEpochError(
                f"the group {self._core.config.group!r} gave partitions of this member to others "
                "within the transaction: abort it. To hold them, name the consumer when it begins: "
                "producer.transaction(consumer)"
            )
        self._core.handing_out.stage(self._covered(positions))  # Before others may poll.
        within = Within(transactional_id, *identity, on_asked)
        for gone in await self._core.commit(positions, within):
            raise StaleMemberEpochError(
                f"the topic of partition {gone.partition} was deleted, and is read no more once "
                f"the group {self._core.config.group!r} says so: abort the transaction, as it may "
                "have records of that topic"
            )

    def _covered(self, positions: Mapping[PartitionName, int] | None) -> list[TopicPartition]:
        """Return the partitions of which all that was handed out is before these positions."""
        assignment = self._core.assignment
        if positions is None:
            return list(assignment.topics)
        reached = {assignment.named(place): offset for place, offset in positions.items()}
        known = {place: assignment.known_position(place) for place in reached}
        return [
            place
            for place, position in known.items()
            if position is not None and position.offset <= reached[place]
        ]

    def on_aborted(self) -> None:
        """Go back to where the group has committed, in the next poll."""
        if self._core.membership is not None:
            self._core.membership.must_put_back = True

    async def put_back(self) -> None:
        """Go back to where the group has committed, now or in the next poll."""
        core = self._core
        membership = core.membership
        if membership is None:
            return
        self.on_aborted()
        # Another task may poll right now; its next poll goes back.
        with suppress(ConcurrentUseError, ClosedError), core.exclusive():
            core.handing_out.drop()
            with suppress(MillraceError, TimeoutError):
                async with asyncio.timeout(_PUT_BACK_S):
                    await membership.put_back()
