"""Notes in the coordinators' logs that transactions are over: all participants have the decision.

The next transaction of an id notes the end of the one before, in the records with which it begins:
so an id that goes on at once costs no request of its own. What has not gone on after a moment is
noted, all transactions of a partition together.

A note that is not stored is repeated, until another broker leads the partition: that one tells all
decisions again, and hears that they are written.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from millrace.broker.coordinator.marker_delivery import Telling
from millrace.broker.coordinator.owed_topics import TransactionsRuntime
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.records import TransactionRecord
from millrace.core.coordinator.transactions.transaction import Over
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition, WallMs
from millrace.runtime.tasks import Tasks

_MOMENT_S: Final = 0.05
"""What a program may take to begin its next transaction."""
_AGAIN_S: Final = 0.5
_AT_ONCE: Final = 200
"""Transactions in one request."""


class Completions:
    """What is over and not noted, of the partitions that this broker leads. It belongs to the loop.

    Args:
        runtime: returns what runs the coordinators.
        now: returns the time of a clock that does not jump.
        tasks: of the caller.
        on_noted: called with what is noted, or is not ours any more.
    """

    def __init__(
        self,
        runtime: Callable[[], TransactionsRuntime],
        now: Callable[[], WallMs],
        tasks: Tasks,
        on_noted: Callable[[Telling], None],
    ) -> None:
        self._runtime = runtime
        self._now = now
        self._tasks = tasks
        self._on_noted = on_noted
        # By the coordinator's partition, and by id.
        self._over: dict[TopicPartition, dict[str, Telling]] = {}

    def add(self, telling: Telling) -> None:
        """Take a transaction that is over."""
        over = self._over.get(telling.place)
        if over is None:
            over = self._over[telling.place] = {}
            self._tasks.begin(self._note_later(telling.place, over))
        over[telling.decision.transactional_id] = telling

    def find(self, place: TopicPartition, transactional_id: str) -> Over | None:
        """Return what is over of an id and not noted; None: nothing is."""
        telling = self._over.get(place, {}).get(transactional_id)
        return None if telling is None else _over(telling)

    def on_noted(self, place: TopicPartition, transactional_id: str, over: Over) -> None:
        """It is noted that a transaction is over, as with the begin of the next one."""
        if self.find(place, transactional_id) == over:
            self._on_noted(self._over[place].pop(transactional_id))

    async def note(self, place: TopicPartition) -> None:
        """Note all that is over in a partition.

        Raises:
            MillraceError: it is not stored.
        """
        while over := dict(list(self._over.get(place, {}).items())[:_AT_ONCE]):
            wanted = {name: _over(telling) for name, telling in over.items()}
            await self._runtime().ask(place, partial(self._complete, wanted))
            for name, one in wanted.items():
                self.on_noted(place, name, one)

    def drop(self, place: TopicPartition) -> None:
        """Another broker coordinates a partition."""
        self._over.pop(place, None)

    def _complete(
        self, over: Mapping[str, Over], machine: TransactionCoordinator, _: WallMs
    ) -> Result[TransactionRecord, None]:
        return machine.handle_complete(over, self._now())

    async def _note_later(self, place: TopicPartition, noted: dict[str, Telling]) -> None:
        """Note what is over, until that is all, or another broker coordinates the partition."""
        pause_s = _MOMENT_S
        while self._over.get(place) is noted:
            await asyncio.sleep(pause_s)
            pause_s = _MOMENT_S
            if not noted and self._over.get(place) is noted:
                del self._over[place]
                return
            try:
                await self.note(place)
            except MillraceError:
                pause_s = _AGAIN_S


def _over(telling: Telling) -> Over:
    return Over(telling.decision.decided_at, telling.unknown)
