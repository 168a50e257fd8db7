"""Cleaner threads: which log they take, how fast they go, and what a refusal means."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.storage.log.cleaner import CleaningStep
from millrace.broker.telemetry.compaction import CompactionMetrics
from millrace.broker.upkeep.cleaners import Cleaners
from millrace.core.broker_config import StorageConfig
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import Offset, TopicPartition, WallMs
from millrace.core.replica.compaction.cleanable import Cleanable, CleanerPoint
from millrace.core.replica.compaction.key_hashes import KeyHasher
from millrace.core.replica.replication.effects import Change
from millrace.core.replica.replication.events import Changed, Corrupt
from millrace.runtime.mailbox import Mailbox

STEP_BYTES = 1000
LOOKS_MAX = 4000


class Log:
    """A log that is dirty until it is cleaned, in some steps."""

    def __init__(self, ratio: float, *, steps: int = 1, error: StorageError | None = None) -> None:
        self.cleaner = self.writer = self
        self.ratio = ratio
        self.steps = steps
        self.error = error
        self.is_compacted = True
        self.is_closed = False
        self.is_old = False
        self.cleaned = 0
        self.left = 0
        self.failed_log_dir = "/data"
        self.tombstones_end = 0
        self.log_dir = "/data"
        self.size_bytes = 100
        self.state = SimpleNamespace(cleaner_point=CleanerPoint(Offset(0)))
        self.on_step: Callable[[], None] = lambda: None

    @property
    def config(self) -> SimpleNamespace:
        return SimpleNamespace(is_compacted=self.is_compacted)

    def has_old_segment(self, now: WallMs) -> bool:
        return self.is_old

    def roll(self, now: WallMs) -> None:
        self.is_old = False

    def cleanable(self, now: WallMs) -> Cleanable:
        dirty = int(100 * self.ratio)
        is_due = dirty > 0
        return Cleanable(Offset(0), Offset(9), 100 - dirty, dirty, is_overdue=False, is_due=is_due)

    def clean(self, hasher: KeyHasher, map_bytes: int, now: WallMs) -> Iterator[CleaningStep]:
        try:
            if self.error is not None:
                raise self.error
            for _ in range(self.steps):
                self.on_step()
                yield CleaningStep(STEP_BYTES, STEP_BYTES, 1)
        except GeneratorExit:
            self.left += 1
            raise
        self.cleaned += 1
        self.ratio = 0


class Appender:
    """Does what it is asked, at once."""

    def __init__(self) -> None:
        self.failures: list[LogDirFailedError] = []

    async def call(self, job: Callable[..., Any], *args: Any) -> Any:
        return job(*args)

    def fail(self, error: LogDirFailedError) -> None:
        self.failures.append(error)


class Held:
    """A partition with such a log."""

    def __init__(self, number: int, log: Log, appender: Appender) -> None:
        self.topic = "t"
        self.topic_partition = TopicPartition(TOPIC_PARTITION.topic_id, number)
        self.log = log
        self.replica = SimpleNamespace(role=SimpleNamespace(compacted_offset=9))
        self.appender = appender
        self.uncleanable: StorageError | None = None
        self.damage: list[CorruptLogError] = []
        self.changes = 0

    def changed(self, change: Change) -> Changed:
        self.changes += 1
        return Changed(change, Offset(0), Offset(0))


class Broker:
    """Partitions, as the cleaners see them."""

    def __init__(self, *logs: Log) -> None:
        self.appender = Appender()
        self.on_find: Callable[[], None] = lambda: None
        self.held = [Held(number, log, self.appender) for number, log in enumerate(logs)]
        self.directories = [
            SimpleNamespace(directory=SimpleNamespace(path="/data"), appender=self.appender)
        ]

    def all(self) -> list[Held]:
        return list(self.held)

    def on_disk(self, partition: Held, event: Changed | Corrupt) -> None:
        if isinstance(event, Corrupt):
            partition.damage.append(event.error)

    def find(self, topic_partition: TopicPartition) -> Held | None:
        self.on_find()
        return next(
            (partition for partition in self.held if partition.topic_partition == topic_partition),
            None,
        )


def run(
    broker: Broker,
    until: Callable[[], bool],
    registry: CollectorRegistry | None = None,
    **settings: Any,
) -> tuple[Cleaners, CollectorRegistry]:
    """Let cleaners run until something is true, such as a metric of the registry."""
    registry = registry or CollectorRegistry()
    metrics = CompactionMetrics(registry)
    config = StorageConfig(cleaner_backoff_ms=10, **settings)

    async def clean() -> Cleaners:
        loop = asyncio.get_running_loop()
        made = Cleaners(broker, Mailbox(loop), config, metrics)  # type: ignore[arg-type]
        running = loop.create_task(made.run())
        try:
            for _ in range(LOOKS_MAX):
                if until() or running.done():
                    break
                await asyncio.sleep(0.005)
            else:
                raise AssertionError("it did not come true in time")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.to_thread(made.close)
        return made

    return asyncio.run(clean()), registry


def test_the_dirtiest_log_is_cleaned_first_and_others_are_not_touched() -> None:
    order: list[str] = []
    little, much, clean, deleted = Log(0.3), Log(0.9), Log(0), Log(0.8)
    deleted.is_compacted = False
    for name, log in (("little", little), ("much", much), ("clean", clean), ("not", deleted)):
        log.on_step = lambda name=name: order.append(name)  # type: ignore[misc]
    registry = CollectorRegistry()
    run(
        Broker(little, much, clean, deleted),
        lambda: registry.get_sample_value("millrace_cleaner_cleanings_total") == 2,
        registry,
    )
    assert order == ["much", "little"]
    assert registry.get_sample_value("millrace_cleaner_read_bytes_total") == 2 * STEP_BYTES
    assert registry.get_sample_value("millrace_cleaner_removed_records_total") == 2


def test_tombstones_go_up_to_where_all_replicas_have_compacted_their_logs() -> None:
    broker = Broker(Log(0.3), Log(0.9))
    broker.held[1].replica.role.compacted_offset = 3
    ends: list[int] = []
    for partition in broker.held:
        partition.log.on_step = lambda log=partition.log: ends.append(log.tombstones_end)  # type: ignore[misc]
    run(broker, lambda: len(ends) == 2)
    assert ends == [3, 9]


def test_other_replicas_hear_that_a_log_is_compacted() -> None:
    broker = Broker(Log(0.9))
    run(broker, lambda: broker.held[0].changes == 1)
    assert broker.held[0].changes == 1


def test_an_old_active_segment_is_ended_so_that_it_can_be_cleaned() -> None:
    log = Log(0)
    log.is_old = True
    run(Broker(log), lambda: not log.is_old)
    assert not log.is_old


@pytest.mark.parametrize("threads", [1, 3])
def test_no_log_is_cleaned_by_two_threads_at_a_time(threads: int) -> None:
    logs = [Log(0.5 + number / 100, steps=20) for number in range(6)]
    run(
        Broker(*logs),
        lambda: all(log.cleaned for log in logs),
        cleaner_threads=threads,
    )
    assert [log.cleaned for log in logs] == [1] * 6


def test_cleanings_together_are_no_faster_than_they_may_be() -> None:
    log = Log(0.9, steps=60)

    async def took_s() -> float:
        return asyncio.get_running_loop().time()

    begun = asyncio.run(took_s())
    run(
        Broker(log),
        lambda: log.cleaned == 1,
        cleaner_io_max_bytes_per_second=120_000,
    )
    # 120 kB, of which a tenth of a second's may come at once.
    assert asyncio.run(took_s()) - begun > 0.85


def test_a_job_takes_many_steps_and_a_tenth_of_a_second_of_what_it_may() -> None:
    log = Log(0.9, steps=60)
    broker = Broker(log)
    steps_done: list[int] = []  # At each look at the partition, which comes before a job.
    log.on_step = lambda: steps_done.append(steps_done.pop() + 1)
    broker.on_find = lambda: steps_done.append(0)
    run(broker, lambda: log.cleaned == 1, cleaner_io_max_bytes_per_second=120_000)
    assert [each for each in steps_done if each] == [6] * 10
    steps_done.clear()
    log.cleaned, log.ratio = 0, 0.9
    run(broker, lambda: log.cleaned == 1)
    assert [each for each in steps_done if each] == [60]


def test_a_refused_log_is_left_alone_and_says_why_and_others_go_on() -> None:
    full = Log(0.9, error=StorageFullError("the disk is full"))
    other = Log(0.1)
    broker = Broker(full, other)
    _, registry = run(broker, lambda: other.cleaned == 1)
    name = "millrace_cleaner_uncleanable_partitions"
    assert isinstance(broker.held[0].uncleanable, StorageFullError)
    assert broker.held[1].uncleanable is None
    assert registry.get_sample_value(name, {"error": "STORAGE_FULL"}) == 1


def test_damage_takes_the_replica_offline_and_a_failed_disk_its_directory() -> None:
    damaged = Log(0.9, error=CorruptLogError("damaged"))
    failed = Log(0.5, error=LogDirFailedError("failed"))
    broker = Broker(damaged, failed)
    run(broker, lambda: bool(broker.appender.failures))
    assert len(broker.held[0].damage) == 1
    assert len(broker.appender.failures) == 1


def test_a_replica_that_moves_or_goes_is_left_in_the_middle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    moving, other = Log(0.9, steps=10_000), Log(0.1)
    broker = Broker(moving, other)
    moving.on_step = lambda: setattr(broker.held[0], "log", Log(0))
    run(broker, lambda: other.cleaned == 1)
    assert (moving.cleaned, moving.left) == (0, 1)
    assert caplog.messages == ["a log was compacted"], "of the other one"


def test_a_segment_that_was_to_end_when_its_log_was_exchanged_is_no_damage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, moved = Log(0), Log(0.5)
    old.is_old = True
    broker = Broker(old)
    (held,) = broker.held

    def roll(now: WallMs) -> None:
        held.log, old.is_closed, old.is_old = moved, True, False
        raise CorruptLogError("the log is closed")

    old.roll = roll  # type: ignore[method-assign]
    run(broker, lambda: moved.cleaned == 1)
    assert (held.damage, held.uncleanable) == ([], None)
    assert not caplog.messages


def test_a_broker_that_stops_does_not_wait_for_a_cleaning() -> None:
    log = Log(0.9, steps=10**9)
    begun: list[None] = []
    log.on_step = lambda: begun.append(None)
    run(Broker(log), lambda: len(begun) > 3)
    assert (log.cleaned, log.left) == (0, 1)


def test_without_threads_nothing_is_cleaned() -> None:
    log = Log(0.9)
    asked: list[None] = []
    log.on_step = lambda: asked.append(None)
    run(Broker(log), lambda: True, cleaner_threads=0)
    assert not asked
