"""Gives sent records their partitions, as soon as their topic is known.

Records of a topic that is not known are parked, in their order, until a look-up has ended. So are
those that name a partition that is not known: it may be new.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from millrace.client._cluster.cluster import Cluster
from millrace.client._producer.counters import ProducerCounters
from millrace.client._producer.flushes import Flushes
from millrace.client._producer.settings import ProducerConfig
from millrace.client._threads.tasks import Tasks
from millrace.core.client.producer.delivery import Waiter
from millrace.core.client.producer.distributor import Distributor, TopicLayout
from millrace.core.client.producer.intake import Intake
from millrace.core.errors import (
    Appended,
    ConnectionFailedError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import MonotonicMs
from millrace.runtime.clock import monotonic_now

_PARTITION_LOOK_UP_PAUSE_S: Final = 1.0
"""Pause after a look-up of a topic that lacks a partition that a record names. All records of the
topic wait for such a look-up, so a program with a wrong number must not cause one per record."""


@dataclass(eq=False, kw_only=True)
class Placing:
    """Intakes on their way to partitions."""

    cluster: Cluster
    config: ProducerConfig
    distributor: Distributor
    flushes: Flushes
    counters: ProducerCounters
    tasks: Tasks
    retry_ms: tuple[int, int]
    """The shortest and the longest pause before another look-up."""
    on_complete: Callable[[Intake], None]
    tell: Callable[[Waiter], None]
    tell_leaders: Callable[[], None]
    wake: Callable[[], None]
    waiting: deque[Intake] = field(default_factory=deque)
    """Closed intakes that are to be placed next, in this order."""
    _parked: dict[str, deque[Intake]] = field(default_factory=dict)
    """Intakes that wait until their topic is known."""
    _looked_up_lately: set[str] = field(default_factory=set)
    """Topics that lack a partition that records named, in the pause after their look-up."""

    def place_waiting(self, bytes_max: int) -> None:
        """Place those that wait, until they have so many bytes."""
        while self.waiting and bytes_max > 0:
            intake = self.waiting.popleft()
            bytes_max -= intake.size
            self.place(intake)

    def place(self, intake: Intake, *, is_looked_up: bool = False) -> None:
        """Distribute records, now or after a look-up."""
        if self._parked and (parked := self._parked.get(intake.topic)) is not None:
            parked.append(intake)
            return
        info = self.cluster.metadata.topics.get(intake.topic)
        if info is None:
            self._parked[intake.topic] = deque([intake])
            self.tasks.spawn(self._look_up, intake.topic, intake.opened_at)
            return
        partition_count = len(info.partitions)
        is_looked_up = is_looked_up or intake.topic in self._looked_up_lately
        if not is_looked_up and _last_named(intake) >= partition_count:
            self._parked[intake.topic] = deque([intake])  # Others wait until it is gone, in order.
            self.tasks.spawn(self._look_for_partition, intake.topic)
            return
        self.counters.records += intake.record_count
        self.counters.record_bytes += intake.size
        batch_bytes_max = min(info.batch_bytes_max, self.cluster.batch_bytes_max)
        self.distributor.distribute(
            intake, TopicLayout(info.topic_id, partition_count, batch_bytes_max)
        )
        if intake.failures:
            for error in intake.failures.values():
                self.flushes.on_failed((intake,), 1, error)
        if intake.waiters:
            for waiter in intake.pass_waiters_on():
                self.tell(waiter)
        if intake.is_complete:
            self.on_complete(intake)

    def drop(self, error: MillraceError) -> None:
        """Let records fail that wait for their topic."""
        for parked in self._parked.values():
            while parked:
                intake = parked.popleft()
                intake.fail(error)
                self.flushes.on_failed((intake,), intake.record_count, error)
                self.on_complete(intake)

    async def _look_up(self, topic: str, waits_since: MonotonicMs) -> None:
        """Look a topic up; records that wait for it fail when their time is over."""
        config = self.config
        for_delivery = (
            waits_since + config.delivery_timeout_ms - monotonic_now(),
            f"delivery_timeout_ms={config.delivery_timeout_ms}",
        )
        for_answer = min((config.max_block_ms, f"max_block_ms={config.max_block_ms}"), for_delivery)
        for_topic = min(
            (config.topic_wait_ms, f"topic_wait_ms={config.topic_wait_ms}"), for_delivery
        )
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        pause_ms, pause_ms_max = self.retry_ms
        problem: MillraceError = ConnectionFailedError("no broker was asked yet")
        left_ms, limit = for_answer
        while True:
            why = f"waited for {limit}"
            try:
                async with asyncio.timeout_at(began_at + left_ms / 1000):
                    await self.cluster.topic(topic)
                self.tell_leaders()
                why = ""
            except TimeoutError:
                pass
            except MillraceError as error:
                problem = error
                is_missing = isinstance(error, UnknownTopicOrPartitionError)
                left_ms, limit = for_topic if is_missing else for_answer
                why = f"waited for {limit}" if error.retriable else "were not sent"
                end = began_at + left_ms / 1000
                if error.retriable and loop.time() + pause_ms / 1000 < end:
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, pause_ms_max)
                    continue
            break
        for intake in self._parked.pop(topic):
            if not why:
                self.place(intake)
                continue
            message = f"{problem.message} (records for topic {topic!r} {why})"
            failure = type(problem)(message, appended=Appended.NO)
            intake.fail(failure)
            self.flushes.on_failed((intake,), intake.record_count, failure)
            self.on_complete(intake)
        self.wake()

    async def _look_for_partition(self, topic: str) -> None:
        """Look up a topic in which records name a partition that is not known: it may be new."""
        last = max(map(_last_named, self._parked[topic]), default=-1)
        with suppress(MillraceError, TimeoutError):  # Then the records fail.
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                info = await self.cluster.topic_with(topic, last)
            if last >= len(info.partitions):
                self._looked_up_lately.add(topic)
                asyncio.get_running_loop().call_later(
                    _PARTITION_LOOK_UP_PAUSE_S, self._looked_up_lately.discard, topic
                )
        self.tell_leaders()
        for intake in self._parked.pop(topic):
            self.place(intake, is_looked_up=True)
        self.wake()


def _last_named(intake: Intake) -> int:
    """Return the last partition that records name; -1: they name none."""
    partitions = intake.partitions
    if partitions is None:
        return -1
    if isinstance(partitions, list):
        return max(partitions, default=-1)
    return int(np.max(partitions, initial=-1))
