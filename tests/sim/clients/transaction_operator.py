"""A person who ends transactions by hand, and deletes records beside open ones.

Who aborts a transaction that its coordinator knows only hurries (P54). What hangs in a partition,
and is known to no coordinator, is ended there; while all is well, nothing hangs (P49).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from tests.sim.clients.readers_and_writers import Client, Job
from tests.sim.world import Violation

from millrace.client import Admin
from millrace.core.errors import (
    InvalidTransactionStateError,
    MillraceError,
    TransactionalIdNotFoundError,
)
from millrace.core.ids import Offset, TopicPartition
from millrace.core.isolation import READ_UNCOMMITTED

_HEARD_S: Final = 8
"""A leader that was replaced, and still shows what was open then, has heard of it by then."""


class TransactionOperator(Client):
    """A person at work.

    Args:
        on_trimmed: hears before which offset a partition's records are deleted; None: none are.
    """

    def __init__(
        self,
        job: Job,
        *,
        may_be_lost: Callable[[], bool],
        on_trimmed: Callable[[TopicPartition, Offset], None] | None,
    ) -> None:
        super().__init__(job)
        self._may_be_lost = may_be_lost
        self._on_trimmed = on_trimmed

    async def _work(self) -> None:
        acts = [self._abort_one, self._end_hanging]
        if self._on_trimmed is not None:
            acts.append(self._delete_records)
        async with Admin(self._site.bootstrap, request_timeout_ms=5_000) as admin:
            while not self._is_done:
                await self._pause(self._every_us)
                try:
                    await self._dice.choice(acts)(admin)
                except MillraceError as error:
                    self._judge(error)

    async def _abort_one(self, admin: Admin) -> None:
        """Abort a transaction whose coordinator knows of it."""
        found = await admin.list_transactions(["ongoing"])
        if found:
            chosen = self._dice.choice(found).transactional_id
            await admin.describe_transaction(chosen)
            self._site.ended_by_hand[chosen] += 1
            await admin.abort_transaction(chosen)

    async def _end_hanging(self, admin: Admin) -> None:
        """End the transactions of which no coordinator knows."""
        was_quiet = self._site.is_quiet()
        found = await self._hanging(admin)
        if found and was_quiet:
            await asyncio.sleep(_HEARD_S)
            found &= await self._hanging(admin)
            if found and self._site.is_quiet() and not self._may_be_lost():
                raise Violation(f"{found} hang in {self._site.topic} (P49)")
        for partition, producer_id, first_offset in sorted(found):
            place = self._site.topic, partition
            await admin.abort_open_transaction(place, producer_id, first_offset)

    async def _hanging(self, admin: Admin) -> set[tuple[int, int, int]]:
        """Return partition, producer and first offset of each hanging transaction."""
        return {
            (found.partition, found.transaction.producer_id, found.transaction.first_offset)
            for found in await admin.find_hanging_transactions([self._site.topic])
        }

    async def _delete_records(self, admin: Admin) -> None:
        """Delete records of a partition, up to any offset that is replicated."""
        number = self._dice.randrange(len(self._site.keys))
        place = (self._site.topic, number)
        start = (await admin.list_offsets([place], "beginning"))[place].offset
        end = (await admin.list_offsets([place], isolation=READ_UNCOMMITTED))[place].offset
        offset = self._dice.choice((end, self._dice.randint(start, max(start, end))))
        outcome = (await admin.delete_records({place: offset}))[place]
        if not isinstance(outcome, MillraceError) and self._on_trimmed is not None:
            self._on_trimmed(self._site.partitions[number], Offset(outcome))

    def _judge(self, error: MillraceError) -> None:
        # It has ended meanwhile.
        if not isinstance(error, TransactionalIdNotFoundError | InvalidTransactionStateError):
            super()._judge(error)
