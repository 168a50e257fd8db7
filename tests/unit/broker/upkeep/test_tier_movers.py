"""Moves between an SSD and HDDs: which log is next, how fast, and what a refusal means."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.storage.tier import Tier
from millrace.broker.telemetry.tiers import TierMetrics
from millrace.broker.upkeep.tier_movers import TierMovers
from millrace.core.broker_config import StorageConfig
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import BrokerEpoch, BrokerId, Offset, TopicPartition, WallMs
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.model import BrokerLife
from millrace.core.replica.replication.events import Corrupt
from millrace.core.replica.replication.placement import ReplicaDirectory, ReplicaPlacement
from millrace.core.replica.tiers import Movable
from millrace.runtime.mailbox import Mailbox

LOOKS_MAX = 4000
SIZE = 1000
FREE_MIN = 10_000


class Log:
    """A log of closed segments, of which the first lie on an HDD, and one that grows."""

    def __init__(self, closed: int = 3, *, is_due: bool = True, closed_at: int = 0) -> None:
        self.closed = closed
        self.moved = 0
        self.is_due = is_due
        self.closed_at = WallMs(closed_at)
        self.tiering = self.writer = self
        self.error: StorageError | None = None
        self.failure: StorageError | None = None
        self.failed_log_dir = ""
        self.tier: Tier | None = None
        self.is_closed = False
        self.has_leftovers = False
        self.is_old = False
        self.on_look: Callable[[], None] = lambda: None
        self.on_copied: Callable[[], None] = lambda: None
        self.on_moved: Callable[[], None] = lambda: None

    @property
    def segments(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(base_offset=Offset(number), size=SIZE)
            for number in range(self.closed + 1)
        ]

    @property
    def tier_bytes(self) -> int:
        return SIZE * self.moved

    def movable(self, now: WallMs) -> Movable | None:
        is_there = self.moved < self.closed
        found = Movable(Offset(self.moved), SIZE, self.closed_at, self.is_due) if is_there else None
        self.on_look()
        return found

    def lie_in_tier(self) -> None:
        self.moved, self.tier = self.closed, Tier("/hdd-0", "id of /hdd-0", Offset(self.closed))

    def has_old_segment(self, now: WallMs) -> bool:
        return self.is_old

    def roll(self, now: WallMs) -> None:
        self.is_old = False
        self.closed += 1

    def move_out(self, log_dir: str, directory_id: str) -> Iterator[int]:
        assert self.tier is None or self.tier.directory_id == directory_id
        yield SIZE
        self.on_copied()
        yield SIZE
        if self.error is not None:
            raise self.error
        self.moved += 1
        self.tier = Tier(log_dir, directory_id, Offset(self.moved))
        self.on_moved()

    def bring_back(self) -> Iterator[int]:
        assert self.tier is not None
        if not self.moved:
            self.tier = None
            return
        yield SIZE
        self.moved -= 1
        self.tier = self.tier._replace(end_offset=Offset(self.moved)) if self.moved else None

    def remove_leftovers(self) -> None:
        self.has_leftovers = False


class Appender:
    """Does what it is asked, at once."""

    async def call(self, job: Callable[..., Any], *args: Any) -> Any:
        return job(*args)


class Held:
    """A partition with such a log."""

    def __init__(self, number: int, log: Log, media: TopicMedia) -> None:
        self.topic_partition = TopicPartition(TOPIC_PARTITION.topic_id, number)
        self.log = log
        self.config = SimpleNamespace(media=media)
        self.appender = Appender()
        self.unmovable: StorageError | None = None
        self.damage: list[CorruptLogError] = []


@dataclass(slots=True, eq=False, kw_only=True)
class Directory(ReplicaDirectory):
    """A log directory that says what it has free."""

    path: str
    free: int = 1 << 40
    failures: list[LogDirFailedError] = field(default_factory=list)

    @property
    def directory(self) -> SimpleNamespace:
        return SimpleNamespace(
            path=self.path,
            identity=SimpleNamespace(directory_id=f"id of {self.path}"),
            free_space=lambda: self.free,
            check_there=lambda: None,
        )

    @property
    def appender(self) -> SimpleNamespace:
        return SimpleNamespace(fail=self._fail)

    def _fail(self, error: LogDirFailedError) -> None:
        self.failures.append(error)
        self.failure = error


class Broker:
    """Partitions on one SSD, as the movers see them, and HDDs beside it."""

    def __init__(self, *logs: Log, media: TopicMedia = TopicMedia.TIERED, hdds: int = 1) -> None:
        self.held = [Held(number, log, media) for number, log in enumerate(logs)]
        replicas = {partition.topic_partition for partition in self.held}
        self.ssd = Directory(media=Media.SSD, replicas=replicas, path="/ssd")
        self.hdds = [
            Directory(media=Media.HDD, replicas=set(), path=f"/hdd-{number}")
            for number in range(hdds)
        ]
        self.directories = [self.ssd, *self.hdds]
        self.unreadable: list[Directory] = []
        self.placement = ReplicaPlacement(
            BrokerLife(BrokerId(0), BrokerEpoch(1)),
            self.directories,
            moves_max=1,
            misses_a_directory=False,
        )

    def all(self) -> list[Held]:
        return list(self.held)

    def on_disk(self, partition: Held, event: Corrupt) -> None:
        partition.damage.append(event.error)

    def find(self, topic_partition: TopicPartition) -> Held | None:
        return next(
            (partition for partition in self.held if partition.topic_partition == topic_partition),
            None,
        )

    def on_unreadable(self, opened: Directory, error: LogDirFailedError) -> None:
        self.unreadable.append(opened)

    def named(self, topic_partition: TopicPartition) -> str:
        return str(topic_partition)


def run(broker: Broker, until: Callable[[], bool], **settings: Any) -> CollectorRegistry:
    """Let movers run until something is true."""
    registry = CollectorRegistry()
    config = StorageConfig(tier_check_interval_ms=10, tier_free_bytes_min=FREE_MIN, **settings)

    async def move() -> None:
        loop = asyncio.get_running_loop()
        made = TierMovers(broker, Mailbox(loop), config, TierMetrics(registry))  # type: ignore[arg-type]
        running = loop.create_task(made.run())
        try:
            for _ in range(LOOKS_MAX):
                if running.done():
                    running.result()
                if until():
                    break
                await asyncio.sleep(0.005)
            else:
                raise AssertionError("it did not come true in time")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.to_thread(made.close)

    asyncio.run(move())
    return registry


def test_segments_that_are_due_move_and_are_counted() -> None:
    log = Log()
    log.has_leftovers = True
    broker = Broker(log)
    registry = run(broker, lambda: log.moved == 3 and not log.has_leftovers)
    shown = [
        registry.get_sample_value(f"millrace_tier_moved_{what}_total", {"way": "to"}) or 0
        for what in ("segments", "bytes")
    ]
    assert shown == [3, 6 * SIZE]
    assert broker.hdds[0].tiers == {broker.held[0].topic_partition}


def test_the_active_segment_of_a_quiet_log_ends_by_its_age_and_moves() -> None:
    log = Log(0)
    log.is_old = True
    run(Broker(log), lambda: log.moved == 1)
    assert log.closed == 1


def test_a_disk_that_fills_sends_its_oldest_segments_away_whatever_their_age() -> None:
    old, young = Log(1, is_due=False, closed_at=1), Log(1, is_due=False, closed_at=2)
    broker = Broker(young, old)
    broker.ssd.free = FREE_MIN - 1

    def has_room() -> None:
        broker.ssd.free = FREE_MIN

    old.on_moved = has_room
    run(broker, lambda: old.moved == 1)
    assert (old.moved, young.moved) == (1, 0)


def test_logs_are_spread_over_hdds_and_stay_with_theirs() -> None:
    logs = [Log(2) for _ in range(4)]
    broker = Broker(*logs, hdds=2)
    run(broker, lambda: all(log.moved == 2 for log in logs))
    assert sorted(len(hdd.tiers) for hdd in broker.hdds) == [2, 2]


def test_an_hdd_does_not_take_a_log_that_another_one_took_while_it_looked() -> None:
    log, other = Log(closed_at=1), Log(is_due=False, closed_at=2)
    broker = Broker(log, other, hdds=2)
    looks, has_moved = [1], threading.Event()

    def take_long() -> None:
        if looks:
            looks.clear()  # Both are the first HDD's; once it has one, the other is the second's.
            broker.placement.on_tier(broker.held[1].topic_partition, broker.hdds[0])
            assert has_moved.wait(20)
            other.is_due = True

    log.on_look, log.on_moved = take_long, has_moved.set
    run(broker, lambda: log.moved == other.moved == 3)
    assert log.tier == Tier("/hdd-1", "id of /hdd-1", Offset(3))
    assert other.tier == Tier("/hdd-0", "id of /hdd-0", Offset(3))
    assert [hdd.tiers for hdd in broker.hdds] == [
        {partition.topic_partition} for partition in reversed(broker.held)
    ]


def test_segments_come_back_while_the_ssd_has_room() -> None:
    log = Log()
    log.lie_in_tier()
    broker = Broker(log, media=TopicMedia.SSD)
    broker.placement.on_tier(broker.held[0].topic_partition, broker.hdds[0])
    broker.ssd.free = FREE_MIN + SIZE
    run(broker, lambda: log.moved == 0)
    assert log.tier is None
    full = Log()
    full.lie_in_tier()
    broker = Broker(full, Log(1), media=TopicMedia.SSD)
    broker.held[1].config.media = TopicMedia.TIERED
    broker.placement.on_tier(broker.held[0].topic_partition, broker.hdds[0])
    broker.ssd.free = FREE_MIN + SIZE - 1
    run(broker, lambda: broker.held[1].log.moved == 1)
    assert full.moved == 3


@pytest.mark.parametrize("media", [TopicMedia.SSD, TopicMedia.TIERED, TopicMedia.ANY])
def test_a_tier_that_retention_has_emptied_ends_and_nothing_is_said_to_have_moved(
    media: TopicMedia,
) -> None:
    log = Log(0)
    log.lie_in_tier()
    broker = Broker(log, media=media)
    broker.placement.on_tier(broker.held[0].topic_partition, broker.hdds[0])
    registry = run(broker, lambda: not broker.hdds[0].tiers)
    assert log.tier is None
    moved = registry.get_sample_value("millrace_tier_moved_segments_total", {"way": "from"})
    assert not moved


def test_what_a_log_that_started_over_has_left_is_removed_whatever_its_topic_asks_for() -> None:
    log = Log(0)
    log.has_leftovers = True
    broker = Broker(log, media=TopicMedia.ANY, hdds=2)
    broker.placement.on_tier(broker.held[0].topic_partition, broker.hdds[1])
    run(broker, lambda: not log.has_leftovers)


def test_a_full_hdd_is_said_and_the_log_left_alone() -> None:
    log, other = Log(), Log(1, closed_at=9)
    log.error = StorageFullError("it is full")
    broker = Broker(log, other)
    registry = run(broker, lambda: other.moved == 1 and broker.held[0].unmovable is not None)
    assert log.moved == 0
    assert (broker.ssd.failures, broker.hdds[0].failures) == ([], [])
    refused = {"log_dir": "/hdd-0", "error": "STORAGE_FULL"}
    assert registry.get_sample_value("millrace_tier_refused_partitions", refused) == 1


def test_an_hdd_that_fails_is_the_one_that_is_given_up() -> None:
    log = Log()
    log.error = LogDirFailedError("it is gone")
    broker = Broker(log, hdds=2)
    run(broker, lambda: any(hdd.failures for hdd in broker.hdds))
    assert broker.ssd.failures == []
    ours = Log()
    ours.error = ours.failure = LogDirFailedError("the note cannot be written")
    ours.failed_log_dir = "/ssd"
    broker = Broker(ours)
    run(broker, lambda: bool(broker.ssd.failures))
    assert broker.hdds[0].failures == []


def test_a_log_whose_first_move_is_given_up_has_nothing_on_the_hdd_and_may_take_another() -> None:
    log = Log()
    broker = Broker(log, hdds=2)
    first, second = broker.hdds

    def fail() -> None:
        first.failure = LogDirFailedError("it is gone")

    log.on_copied = fail
    run(broker, lambda: log.moved == 3)
    assert log.tier == Tier(second.path, f"id of {second.path}", Offset(3))
    assert first.tiers == set()


def test_an_hdd_that_fails_just_as_the_first_segment_moved_there_is_told_of() -> None:
    log = Log(1)
    broker = Broker(log)
    (hdd,) = broker.hdds

    def fail() -> None:
        hdd.failure = LogDirFailedError("it is gone")

    log.on_moved = fail
    run(broker, lambda: broker.unreadable == [hdd])
    assert log.moved == 1


def test_a_damaged_segment_is_reported_to_its_partition() -> None:
    log = Log()
    log.error = CorruptLogError("a bit has flipped")
    broker = Broker(log)
    run(broker, lambda: bool(broker.held[0].damage))
    assert log.moved == 0
