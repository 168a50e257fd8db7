"""A copier that speaks Kafka's protocol: exactly once, as librdkafka's clients do it (KIP-447).

It is a member of a classic group, and its transactions have the records and the group's positions.
Each new owner reads on when no open transaction has positions of its partitions. After an error it
aborts, and goes on from what the group has committed. It ends within a transaction, or dies there.

Some transactions do not take in the group first, as a broken client would: its positions must be
refused (T14). Copies are judged as those of Millrace's own members.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from tests.sim.clients.kafka.connections import KafkaBrokers
from tests.sim.clients.kafka.consumer import KafkaConsumer
from tests.sim.clients.kafka.members import Seat
from tests.sim.clients.kafka.producer import ProducerParts
from tests.sim.clients.kafka.transactions import KafkaTransactionalProducer
from tests.sim.clients.transactional import COPY_GROUP, Copier
from tests.sim.world import MILLISECOND, SECOND, Violation

from millrace.client import Record
from millrace.core.errors import (
    ConnectionFailedError,
    FencedError,
    InvalidTransactionStateError,
    LogTruncatedError,
    MillraceError,
    OffsetOutOfRangeError,
    RetriableError,
    TransactionInDoubtError,
)

_REQUEST_S: Final = 5.0
_DELIVERY_S: Final = 120.0
_TIMEOUT_MS: Final = 12_000
"""Of transactions: longer than a member's session."""
_WORKS_S: Final = (0.0, 0.0, 0.1, 0.5)
_ENDS_AFTER_S: Final = (0.0, 0.0, 1.0)
"""Pauses within a transaction, before its positions are taken and after that."""
_POLL_MS: Final = 200
_PAUSE_US: Final = 200 * MILLISECOND
_ATTEMPTS: Final = 3
"""To have positions taken, before the transaction is aborted."""
_DIES: Final = 0.3


class KafkaCopier(Copier):
    """A member of the group that copies a topic, with one consumer and producer after another."""

    _forgets = False

    async def _copy_for(self, seconds: float) -> None:
        brokers = self._brokers()
        seat = Seat(brokers, self._source, self._machine.clock, COPY_GROUP)
        consumer = KafkaConsumer(brokers, dice=self._dice)
        parts = ProducerParts(
            brokers=self._brokers(),
            delivery_timeout_s=_DELIVERY_S,
            dice=self._dice,
            on_untimed=self._site.on_untimed,
            untimed=0.0,  # An aborted attempt and the next one must not differ.
        )
        producer = KafkaTransactionalProducer(
            parts, transactional_id=self.name, timeout_ms=_TIMEOUT_MS
        )
        copying = asyncio.create_task(self._copy_on(seat, consumer, producer))
        until = self._world.now + int(seconds * SECOND)
        while not self._is_done and not copying.done() and self._world.now < until:
            await self._pause(_PAUSE_US)
        copying.cancel()
        await asyncio.wait([copying])
        if not copying.cancelled() and (error := copying.exception()) is not None:
            raise error
        if self._dice.random() < _DIES:
            await producer.die()
        else:
            await producer.close()
            await seat.leave()
        await consumer.close()

    def _brokers(self) -> KafkaBrokers:
        return KafkaBrokers(self._machine.kafka, self.name, self._dice, _REQUEST_S)

    async def _copy_on(
        self, seat: Seat, consumer: KafkaConsumer, producer: KafkaTransactionalProducer
    ) -> None:
        """Copy, from rebalance to rebalance, as long as the producer may."""
        self.doing = "beginning"
        while True:
            try:
                await producer.init_transactions()
            except MillraceError as error:
                self._judge(error)
                await self._pause(_PAUSE_US)
            else:
                break
        while not producer.is_fenced:
            self.doing = "joining"
            places = await seat.join()
            if places is None:
                continue
            leaving = asyncio.Event()
            beating = asyncio.create_task(seat.beat(leaving))
            try:
                numbers = [number for _, number in places]
                while not (leaving.is_set() or producer.is_fenced):
                    await self._read_on(seat, consumer, producer, numbers, leaving)
            finally:
                beating.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await beating

    async def _read_on(
        self,
        seat: Seat,
        consumer: KafkaConsumer,
        producer: KafkaTransactionalProducer,
        numbers: Sequence[int],
        leaving: asyncio.Event,
    ) -> None:
        """Copy from where the group is, until an error or a rebalance."""
        try:
            self.doing = f"looking where {COPY_GROUP} is"
            offsets = await seat.offsets(consumer, numbers, is_stable=True)
            consumer.begin(self._source, offsets)
            while not leaving.is_set():
                self.doing = "reading"
                try:
                    records = await consumer.poll(_POLL_MS)
                except (LogTruncatedError, OffsetOutOfRangeError) as error:
                    self._judge(error)  # Then it reads from the beginning.
                    consumer.begin(self._source, await consumer.starts(self._source, numbers))
                    continue
                if records:
                    await self._copy_records(records, seat, producer)
                await self._pause(self._every_us)
        except MillraceError as error:
            self._judge(error)
            await self._pause(_PAUSE_US)

    async def _copy_records(
        self, records: Sequence[Record], seat: Seat, producer: KafkaTransactionalProducer
    ) -> None:
        """Copy records in one transaction.

        Raises:
            MillraceError: it is aborted, or the producer can do nothing more.
        """
        self.doing = "copying"
        await producer.begin_transaction()
        self._forgets = producer.forgets
        has_keys = self._site.marks is not None
        try:
            for record in records:
                self.done += 1
                self.copied[record.partition] += 1
                key = record.key if has_keys else None
                producer.send(self._site.topic, record.value, key=key, partition=record.partition)
            ends = {record.partition: record.offset + 1 for record in records}
            await asyncio.sleep(self._dice.choice(_WORKS_S))
            await self._have_taken(ends, seat, producer)
            await asyncio.sleep(self._dice.choice(_ENDS_AFTER_S))
            await self._commit(producer)
        except MillraceError:
            self.doing = "aborting"
            with contextlib.suppress(InvalidTransactionStateError, TransactionInDoubtError):
                await producer.abort_transaction()
            raise

    async def _have_taken(
        self, ends: dict[int, int], seat: Seat, producer: KafkaTransactionalProducer
    ) -> None:
        """Have the transaction take positions; how often it is asked makes no difference."""
        self.doing = "having positions taken"
        if not producer.forgets:
            await producer.add_group(COPY_GROUP)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await seat.commit_with(producer, ends)
            except (RetriableError, ConnectionFailedError):
                if attempt == _ATTEMPTS:
                    raise
                await self._pause(_PAUSE_US)
            else:
                break
        if producer.forgets:
            raise Violation(f"{self.name} commits positions in a transaction without them (T14)")

    async def _commit(self, producer: KafkaTransactionalProducer) -> None:
        self.doing = "committing"
        while True:
            try:
                await producer.commit_transaction()
            except TransactionInDoubtError:
                await self._pause(_PAUSE_US)
            else:
                return

    def _judge(self, error: MillraceError) -> None:
        if isinstance(error, FencedError):
            return  # By time, or a person has ended its transaction.
        if isinstance(error, InvalidTransactionStateError) and self._forgets:
            return
        if isinstance(error, OffsetOutOfRangeError) and self._may_be_lost():
            return
        super()._judge(error)
