"""Markers that are owed to deleted topics: written when a topic is back (T8).

Their transactions are complete without them. A topic of which nothing is known may be deleted for
good, or this broker has not heard of it yet; so what it is owed is kept for a week.
"""

from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from millrace.broker.coordinator.coordinators import CoordinatorRuntime
from millrace.broker.coordinator.marker_delivery import MarkerDelivery, Telling
from millrace.broker.replica.partitions import Partitions
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.participants import bitmaps, partitions_of
from millrace.core.coordinator.transactions.records import OwedRecord, TransactionRecord
from millrace.core.coordinator.transactions.transaction import Decision, Producer
from millrace.core.ids import LeaderEpoch, TopicId, TopicPartition, WallMs

TransactionsRuntime: TypeAlias = CoordinatorRuntime[TransactionCoordinator, TransactionRecord]
_OWED_MS: Final = 7 * 86_400_000
_Key: TypeAlias = tuple[TopicPartition, TopicId, int, Producer]


class OwedTopics:
    """What is owed by the partitions that this broker coordinates. It belongs to the event loop.

    Args:
        partitions: of this broker, with the metadata.
        delivery: tells it.
        runtime: returns what runs the coordinators.
        now: returns the time of a clock that does not jump.
    """

    def __init__(
        self,
        partitions: Partitions,
        delivery: MarkerDelivery,
        runtime: Callable[[], TransactionsRuntime],
        now: Callable[[], WallMs],
    ) -> None:
        self._partitions = partitions
        self._delivery = delivery
        self._runtime = runtime
        self._now = now
        self._telling: dict[_Key, Telling] = {}

    async def pay(
        self, place: TopicPartition, epoch: LeaderEpoch, machine: TransactionCoordinator
    ) -> None:
        """Tell topics that are back what they are owed; forget what is owed to those gone.

        Args:
            place: the coordinator's partition.
            epoch: with which this broker leads it.
            machine: of the partition.

        Raises:
            MillraceError: what is gone could not be forgotten.
        """
        image = self._partitions.image
        if image is None:
            return
        for topic_id in machine.owed_topics():
            owed = machine.owed_to(topic_id)
            if topic_id in image.topics_by_id:
                for owing in owed:
                    self._tell(place, epoch, owing)
            elif not image.may_return(topic_id):
                await self._forget(place, owed)

    def drop(self, place: TopicPartition) -> None:
        """Another broker coordinates a partition."""
        for key in [key for key in self._telling if key[0] == place]:
            self._telling.pop(key).is_dropped = True

    async def _forget(self, place: TopicPartition, owed: Collection[OwedRecord]) -> None:
        gone = [owing for owing in owed if self._now() - owing.timestamp > _OWED_MS]
        if gone:
            await self._runtime().ask(
                place, lambda machine, _: machine.handle_paid(gone, self._now())
            )

    def _tell(self, place: TopicPartition, epoch: LeaderEpoch, owing: OwedRecord) -> None:
        key = (place, owing.topic_id, owing.chunk, owing.producer)
        if key in self._telling:
            return

        async def note(telling: Telling) -> None:
            chunk = (owing.topic_id, owing.chunk)
            left = bitmaps(telling.unknown).get(chunk, 0)
            paid = owing._replace(bitmap=owing.bitmap & ~left)

            def pay(machine: TransactionCoordinator, _: WallMs) -> Result[TransactionRecord, None]:
                return machine.handle_paid([paid], self._now())

            await telling.note(self._runtime().ask, pay)
            if self._telling.get(key) is telling:
                del self._telling[key]

        decision = Decision(
            owing.transactional_id,
            owing.producer,
            owing.is_commit,
            owing.protocol,
            list(partitions_of((owing.topic_id, owing.chunk), owing.bitmap)),
            [],
        )
        told = self._telling[key] = Telling(place, epoch, decision, note)
        self._delivery.tell(told)
