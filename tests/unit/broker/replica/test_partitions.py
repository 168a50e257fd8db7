"""The shell around a broker's replicas, on disks in memory: which logs it opens, and where."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.cluster import Cluster
from tests.fakes.disk import Disk, Entry
from tests.fakes.open_partition import send
from tests.fakes.stamped_batches import stamped_batch
from tests.fakes.until import until

from millrace.broker.replica.appender import HeldAppends
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import (
    DirectoryConfig,
    LogDirectory,
    connect,
    settle_moves,
)
from millrace.broker.storage.tier import Tier, write_tier
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.broker.telemetry.tiers import TierMetrics
from millrace.broker.upkeep.housekeeping import Housekeeping
from millrace.broker.upkeep.tier_movers import TierMovers
from millrace.core.broker_config import StorageConfig
from millrace.core.errors import (
    LogDirFailedError,
    MillraceError,
    StorageBusyError,
    StorageFullError,
)
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.media import DEFAULT_MEDIA, Media
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    ConfirmDeletions,
    DeleteTopics,
    PurgeTopics,
    Reassignment,
    ReassignPartitions,
    TopicChange,
    TopicRef,
    UndeleteTopics,
)
from millrace.core.replica.replication.effects import Change, ChangeLog
from millrace.core.replica.replication.file_jobs import Outcome
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.runtime.clock import wall_now
from millrace.runtime.mailbox import Mailbox

HERE = BrokerId(0)


class CrowdedDisk(Disk):
    """May have no room for another directory, or refuse to move one."""

    is_full = False
    is_busy = False
    refused = 0
    going_on: threading.Event | None = None
    """What flushes of a directory wait for."""

    def fsync_directory(self, path: str) -> None:
        if self.going_on is not None:
            assert self.going_on.wait(20)
        super().fsync_directory(path)

    def rename(self, source: str, target: str) -> None:
        if self.is_busy and target.endswith(".deleted"):
            self.refused += 1
            raise OSError(errno.EMFILE, "too many open files", source)
        super().rename(source, target)

    def make_directory(self, path: str) -> None:
        if self.is_full and not self.exists(path):
            raise OSError(errno.ENOSPC, "no space left", path)
        super().make_directory(path)


def open_directory(disk: Disk, root: str, media: Media = DEFAULT_MEDIA) -> LogDirectory:
    return LogDirectory.open(
        disk,
        root,
        DirectoryConfig(ballast_bytes=0, media=media),
        cluster_id="cluster",
        broker_id=HERE,
        new_directory_id=root,
    )


class HangingHdd(CrowdedDisk):
    """Two disks: an SSD that is about full, and an HDD that answers only while it may."""

    def __init__(self) -> None:
        super().__init__(0)
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.hanging = 0

    def _entry(self, path: str) -> Entry:
        if path.startswith("/1/") and not self.may_answer.is_set():
            self.hanging += 1
            assert self.may_answer.wait(20)
        return super()._entry(path)

    def free_space(self, path: str) -> int:
        return 1 << 40 if path.startswith("/1") else 1 << 20


class World:
    """One broker of a cluster, on one disk for each of its log directories."""

    def __init__(self, directories: int = 1, brokers: int = 1, media: Sequence[Media] = ()) -> None:
        self.cluster = Cluster(brokers)
        self.media = media or [DEFAULT_MEDIA] * directories
        self.disks = [CrowdedDisk(number) for number in range(len(self.media))]
        self.failures: list[BaseException] = []
        self.confirmed: list[TopicId] = []
        self.ended = 0
        """How many records a story left."""
        self.partitions: Partitions
        self.mailbox: Mailbox
        self.reader: LogReader
        self.opened: list[LogDirectory] = []

    @property
    def image(self) -> MetadataImage:
        return self.cluster.driver.image

    def create(
        self, name: str = "t", partitions: int = 1, replicas: int = 1, **config: str
    ) -> TopicId:
        return self.cluster.create(
            name, partitions=partitions, replication_factor=replicas, config=config
        )

    def move(self, topic_partition: TopicPartition, *target: int) -> None:
        """Reassign a partition, and let that come to its end."""
        reassignment = Reassignment(
            topic_id=topic_partition.topic_id,
            partition=topic_partition.partition,
            replicas=tuple(map(BrokerId, target)),
        )
        self.cluster.ask_each(ReassignPartitions(reassignments=[reassignment]))
        state = self.cluster.state(*topic_partition)
        self.cluster.change_isr(
            topic_partition.topic_id,
            *state.replicas,
            partition=topic_partition.partition,
        )
        self.cluster.driver.pass_time(1000)
        assert self.cluster.state(*topic_partition).replicas == target

    def alter_media(self, topic_id: TopicId, media: str) -> None:
        """Let a topic ask for another media, and the broker know."""
        change = TopicChange(topic=TopicRef(topic_id=topic_id), set_config={"media": media})
        (answer,) = self.cluster.ask_each(AlterTopics(changes=[change]))
        assert isinstance(answer, Topic), answer
        self.partitions.on_image(self.image)

    @asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Let time pass for the partitions."""
        ticking = asyncio.create_task(self.partitions.tick())
        try:
            yield
        finally:
            ticking.cancel()

    def write(self, topic_partition: TopicPartition, at: int = 0) -> None:
        """Leave a log with one batch, as an earlier process that was killed."""
        directory = open_directory(self.disks[at], f"/{at}")
        log = directory.open_partition(topic_partition, LogConfig(), WallMs(0))
        log.writer.append([stamped_batch(0, topic_partition=topic_partition)], WallMs(0))
        log.flusher.flush()
        directory.close(clean=False)

    @asynccontextmanager
    async def running(self, *, misses_a_directory: bool = False) -> AsyncIterator[None]:
        """Open the partitions for the block; close the directories in order then."""
        mailbox = Mailbox(asyncio.get_running_loop())
        reader = self.reader = LogReader(mailbox, threads=2, buffer_bytes=1 << 16)
        self.mailbox = mailbox
        self.opened = [
            open_directory(disk, f"/{number}", self.media[number])
            for number, disk in enumerate(self.disks)
        ]
        connect([directory.moves for directory in self.opened])
        self.partitions = Partitions(
            broker=self.cluster.life(HERE),
            config=ReplicationConfig(),
            directories=self.opened,
            ask_controller=self._ask,
            mailbox=mailbox,
            log_config=lambda _: LogConfig(),
            inflated_bytes_max=1 << 20,
            on_changes=lambda _: None,
            on_lost=lambda *_: None,
            on_replicated=lambda _: None,
            on_all_failed=self.failures.append,
            on_failure=self.failures.append,
            reader=reader,
            misses_a_directory=misses_a_directory,
            retry_ms=10,
        )
        try:
            yield
        finally:
            await self.partitions.stop()
            for directory in self.partitions.directories:
                await asyncio.to_thread(directory.appender.close)
                directory.directory.close(
                    clean=directory.failure is None,
                    broker_epoch=BrokerEpoch(7),
                    others=self.partitions.not_ours(),
                )
            reader.close()

    async def _ask(self, request: object) -> list[MillraceError | None]:
        assert isinstance(request, ConfirmDeletions)
        self.confirmed += request.topic_ids
        return []

    async def learn(self) -> None:
        self.partitions.on_image(self.image)
        await self.partitions.settled()

    def names(self, at: int = 0) -> list[str]:
        """Names of what lies in a log directory and concerns partitions."""
        return [name for name in self.disks[at].list(f"/{at}") if "." in name or len(name) > 30]


# What lies on disk, and belongs to others by now.


async def test_a_replica_that_was_moved_away_while_its_broker_was_down_goes_to_the_trash() -> None:
    world = World(brokers=4)
    topic_id = world.create(replicas=3)
    moved = TopicPartition(topic_id, 0)
    world.write(moved)
    world.move(moved, 1, 2, 3)

    async with world.running():
        await world.learn()
        await until(lambda: str(moved) not in world.names())
    assert moved not in world.opened[0].found
    (name,) = world.names()
    assert name.startswith(f"{moved}.")
    assert name.endswith(".deleted")
    assert open_directory(world.disks[0], "/0").closed_by == 7


async def test_what_no_image_names_stays_and_its_broker_stops_in_order_all_the_same() -> None:
    """Else it counted as one that crashed, with each start (P27)."""
    world = World()
    orphan = TopicPartition(TopicId(b"o" * 16), 0)
    world.write(orphan)
    (segment,) = [path for path in world.disks[0].files() if path.endswith(".log")]
    world.disks[0].write(segment, world.disks[0].contents(segment) + b"torn")
    ours = TopicPartition(world.create(), 0)

    async with world.running():
        await world.learn()
    assert sorted(world.names()) == sorted([str(orphan), str(ours)])
    directory = open_directory(world.disks[0], "/0")
    assert directory.closed_by == 7
    log = directory.open_partition(orphan, LogConfig(), WallMs(0))
    assert log.log_end_offset == 1  # The tail is cut: nobody said that this log was in order.


async def test_nothing_is_kept_of_a_replica_that_was_moved_away() -> None:
    world = World(brokers=4)
    moved = TopicPartition(world.create(replicas=3), 0)

    async with world.running():
        await world.learn()
        assert world.partitions.find(moved) is not None
        world.move(moved, 1, 2, 3)
        world.partitions.on_image(world.image)
        await until(lambda: moved not in world.opened[0].logs)


# Deleted topics that may be brought back.


def ask(world: World, request: object) -> None:
    (answer,) = world.cluster.ask_each(request)  # type: ignore[arg-type]
    assert isinstance(answer, Topic), answer


async def test_the_log_of_a_deleted_topic_is_closed_and_opened_again_with_everything() -> None:
    world = World()
    here = TopicPartition(world.create(), 0)
    topics = [TopicRef(topic_id=here.topic_id)]

    async with world.running():
        await world.learn()
        partition = world.partitions.get(here)
        sent = [send(partition, b"%d" % number) for number in range(20)]
        ask(world, DeleteTopics(deleted_at=WallMs(1), topics=topics))
        await world.learn()
        await asyncio.gather(*sent)  # Each is told an outcome.
        await until(lambda: here not in world.opened[0].logs)
        assert world.partitions.find(here) is None
        assert world.names() == [str(here)]
        ask(world, UndeleteTopics(topics=topics))
        await world.learn()
        assert world.partitions.get(here).replica.leads
        assert world.partitions.get(here).log.log_end_offset == 20
        assert not world.failures
    assert open_directory(world.disks[0], "/0").closed_by == 7


async def test_a_topic_that_is_back_before_its_log_is_closed_is_opened_after_that() -> None:
    world = World()
    here = TopicPartition(world.create(), 0)
    topics = [TopicRef(topic_id=here.topic_id)]

    async with world.running():
        await world.learn()
        for _ in range(5):
            send(world.partitions.get(here), b"before")
            ask(world, DeleteTopics(deleted_at=WallMs(1), topics=topics))
            world.partitions.on_image(world.image)
            ask(world, UndeleteTopics(topics=topics))
            await world.learn()
            partition = world.partitions.get(here)
            assert partition.log is world.opened[0].logs[here]
        assert partition.log.log_end_offset == 5
        assert not world.failures


async def test_a_broker_that_never_opened_it_stops_in_order_and_recovers_it_later() -> None:
    """It crashed, and the topic was deleted until after another stop in order."""
    world = World()
    here = TopicPartition(world.create(), 0)
    world.write(here)
    (segment,) = [path for path in world.disks[0].files() if path.endswith(".log")]
    world.disks[0].write(segment, world.disks[0].contents(segment) + b"torn")
    topics = [TopicRef(topic_id=here.topic_id)]
    ask(world, DeleteTopics(deleted_at=WallMs(1), topics=topics))
    for _ in range(2):
        async with world.running():
            await world.learn()
        directory = open_directory(world.disks[0], "/0")
        assert directory.closed_by == 7
        directory.close(clean=True, broker_epoch=BrokerEpoch(7), others=[here])
    ask(world, UndeleteTopics(topics=topics))

    async with world.running():
        await world.learn()
        assert world.partitions.get(here).log.log_end_offset == 1


async def test_files_of_a_topic_that_is_gone_for_good_count_from_its_deletion() -> None:
    world = World()
    here = TopicPartition(world.create(), 0)
    topics = [TopicRef(topic_id=here.topic_id)]

    async with world.running():
        world.partitions.configure(ClusterConfig(deleted_topic_retention_ms=60_000))
        await world.learn()
        ask(world, DeleteTopics(deleted_at=WallMs(1), topics=topics))
        world.partitions.on_image(world.image)
        ask(world, PurgeTopics(topics=topics))
        await world.learn()  # Its log may not be closed yet.
        await until(lambda: world.confirmed == [here.topic_id])
        assert not world.failures
    (name,) = world.names()
    assert 60_000 <= wall_now() - int(name.split(".")[1]) < 120_000


# Logs that cannot be opened.


@pytest.mark.parametrize("what", ["room", "descriptors"])
async def test_a_log_that_cannot_be_opened_yet_is_offline_until_it_can(what: str) -> None:
    world = World()
    partition = TopicPartition(world.create(), 0)
    disk = world.disks[0]

    def lack(it: bool) -> None:
        if what == "room":
            disk.is_full = it
        else:
            disk.lack = errno.EMFILE if it else None

    async with world.running():
        lack(True)
        await world.learn()  # Nobody waits for what may take for ever.
        await asyncio.sleep(0.2)
        assert list(world.partitions.replicas.unopened.errors) == [partition]
        with pytest.raises(StorageFullError if what == "room" else StorageBusyError):
            world.partitions.get(partition)
        lack(False)
        async with world.ticking():
            await until(lambda: world.partitions.find(partition) is not None)
        assert world.partitions.get(partition).replica.leads
        assert list(world.partitions.replicas.unopened.errors) == []
        assert not world.failures
    assert open_directory(disk, "/0").closed_by == 7


async def test_a_full_disk_that_refuses_a_change_again_and_again_is_told_once_until_it_obeys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    partition = TopicPartition(world.create(), 0)
    job = ChangeLog(partition, Change.ADVANCE_START, Offset(0))

    def told() -> int:
        return sum(record.message == "a log cannot be changed yet" for record in caplog.records)

    def refuse(why: str) -> None:
        world.partitions._on_job_refused(job, Outcome.AGAIN, StorageFullError(why))

    async with world.running():
        await world.learn()
        for _ in range(3):
            refuse("the disk is full")
        assert told() == 1
        refuse("too many open files")
        assert told() == 2
        world.partitions.perform([ChangeLog(partition, Change.FLUSH)])
        await until(lambda: world.partitions.get(partition).unchanged is None)
        refuse("too many open files")
        assert told() == 3


async def test_a_log_that_cannot_be_opened_yet_and_is_given_up_is_not_tried_again() -> None:
    world = World()
    topic_id = world.create()
    partition = TopicPartition(topic_id, 0)

    async with world.running():
        world.disks[0].lack = errno.EMFILE
        await world.learn()
        world.cluster.ask_each(
            DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(topic_id=topic_id)])
        )
        world.partitions.on_image(world.image)
        world.disks[0].lack = None
        async with world.ticking():
            await asyncio.sleep(0.3)
        assert world.partitions.find(partition) is None
        assert list(world.partitions.replicas.unopened.errors) == []


async def test_a_deletion_that_is_refused_is_tried_again_though_no_metadata_changes() -> None:
    world = World()
    topic_id = world.create()

    async with world.running():
        await world.learn()
        disk = world.disks[0]
        disk.is_busy = True
        ref = TopicRef(topic_id=topic_id)
        world.cluster.ask_each(DeleteTopics(deleted_at=WallMs(1), topics=[ref]))
        world.cluster.ask_each(PurgeTopics(topics=[ref]))
        await world.learn()
        assert world.names() == [f"{topic_id.hex()}-0"]
        disk.is_busy = False
        ticking = asyncio.create_task(world.partitions.tick())
        await until(lambda: bool(world.confirmed))
        ticking.cancel()
        assert world.names()[0].endswith(".deleted")
        assert world.confirmed == [topic_id]


async def test_a_deletion_is_confirmed_only_when_no_failed_directory_has_files_of_the_topic() -> (
    None
):
    """Else they were unknown, and stayed for ever, when the disk comes back."""
    world = World(directories=2)
    kept, gone = (TopicPartition(world.create(name), 0) for name in "tu")
    world.write(gone, at=0)
    world.write(kept, at=1)
    topics = [TopicRef(topic_id=each.topic_id) for each in (kept, gone)]

    async with world.running():
        await world.learn()
        failing = world.partitions.directories[1]
        failing.appender.fail(LogDirFailedError("it is gone"))
        await until(lambda: failing.failure is not None)
        world.cluster.ask_each(DeleteTopics(deleted_at=WallMs(1), topics=topics))
        world.cluster.ask_each(PurgeTopics(topics=topics))
        await world.learn()
        async with world.ticking():
            await until(lambda: world.confirmed == [gone.topic_id])
        assert world.names(1) == [str(kept)]
    for disk in world.disks:
        disk.restart()
    async with world.running():
        await world.learn()
        await until(lambda: kept.topic_id in world.confirmed)
        assert not world.failures
    (trash,) = world.names(1)
    assert trash.endswith(".deleted")


def tiered_world() -> tuple[World, TopicPartition]:
    """Return a broker with an SSD and an HDD, and a partition that may lie on both."""
    world = World(media=[Media.SSD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    return world, TopicPartition(world.create(media="tiered"), 0)


async def test_a_deletion_is_not_confirmed_while_a_failed_hdd_has_segments_of_the_topic() -> None:
    world, there = tiered_world()
    topics = [TopicRef(topic_id=there.topic_id)]

    async with world.running():
        await world.learn()
        _, hdd = world.partitions.directories
        partition = world.partitions.get(there)
        await send(partition, b"x")
        await partition.appender.call(partition.log.writer.roll, wall_now())
        partition.log.high_watermark = partition.log.log_end_offset
        world.disks[0].mount("/1")  # Segments move by way of the SSD's double.
        assert [*partition.log.tiering.move_out("/1", hdd.directory.identity.directory_id)]
        world.partitions.placement.on_tier(there, hdd)
        hdd.appender.fail(LogDirFailedError("it is gone"))
        await until(lambda: hdd.failure is not None)
        world.cluster.ask_each(DeleteTopics(deleted_at=WallMs(1), topics=topics))
        world.cluster.ask_each(PurgeTopics(topics=topics))
        await world.learn()
        async with world.ticking():
            await until(lambda: world.names(0) != [str(there)])
            await asyncio.sleep(0.1)
        await world.learn()
        assert world.confirmed == []


async def test_files_of_a_replica_that_was_moved_away_go_as_soon_as_the_disk_lets_them() -> None:
    world = World(brokers=4)
    moved = TopicPartition(world.create(replicas=3), 0)

    async with world.running():
        await world.learn()
        disk = world.disks[0]
        disk.is_busy = True
        world.move(moved, 1, 2, 3)
        world.partitions.on_image(world.image)
        async with world.ticking():
            await until(lambda: disk.refused > 2)
            disk.is_busy = False
            await until(lambda: world.names()[0].endswith(".deleted"))


async def test_a_log_that_opens_after_its_directory_failed_is_not_served() -> None:
    """It would lead, refuse every write, and tell nobody (P63)."""
    world = World(directories=2)
    topic_id = world.create(partitions=2)
    first, second = TopicPartition(topic_id, 0), TopicPartition(topic_id, 1)
    world.write(first, at=0)
    world.write(second, at=1)

    async with world.running():
        disk, going_on = world.disks[1], threading.Event()
        reading = disk.list

        def slowly(path: str) -> list[str]:
            assert going_on.wait(20)
            return reading(path)

        disk.list = slowly  # type: ignore[method-assign]
        world.partitions.on_image(world.image)
        await asyncio.sleep(0.05)
        world.partitions.directories[1].appender.fail(LogDirFailedError("it is gone"))
        await until(lambda: world.partitions.directories[1].failure is not None)
        going_on.set()
        await world.partitions.settled()
        assert world.partitions.find(second) is None
        with pytest.raises(LogDirFailedError, match="it is gone"):
            world.partitions.get(second)
        assert world.partitions.get(first).replica.leads
        assert not world.failures


async def test_what_lies_on_a_directory_that_has_failed_is_not_begun_anew_on_another() -> None:
    world = World(directories=2, brokers=4)
    ours, moved = (TopicPartition(world.create(name, replicas=3), 0) for name in "tu")
    world.write(moved, at=1)

    async with world.running():
        world.partitions.directories[1].appender.fail(LogDirFailedError("it is gone"))
        await until(lambda: world.partitions.directories[1].failure is not None)
        calls = world.disks[1].calls
        await world.learn()
        assert list(world.partitions.replicas.unopened.errors) == [moved]
        assert world.partitions.find(ours) is not None
        assert world.disks[1].calls == calls  # Nobody asks a disk that has failed.
    assert world.names(0) == [str(ours)]


async def test_a_disk_that_cannot_be_read_when_a_tiered_log_is_opened_is_the_one_that_fails() -> (
    None
):
    world, there = tiered_world()
    world.write(there, at=0)

    async with world.running():
        ssd, hdd = world.partitions.directories
        tier = Tier("/1", hdd.directory.identity.directory_id, Offset(1))
        write_tier(world.disks[0], f"/0/{there}", there, tier)
        reading = world.disks[0].list

        def of_two_disks(path: str) -> list[str]:
            if path.startswith("/1/"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return reading(path)

        world.disks[0].list = of_two_disks  # type: ignore[method-assign]
        await world.learn()
        await until(lambda: hdd.failure is not None)
        assert ssd.failure is None
        assert list(world.partitions.replicas.unopened.errors) == [there]


async def give_segments_to_hdd(world: World, topic_partition: TopicPartition) -> None:
    """Write a record to a replica on the SSD, and move its segment to the HDD."""
    _, hdd = world.partitions.directories
    partition = world.partitions.get(topic_partition)
    await send(partition, b"x")
    await partition.appender.call(partition.log.writer.roll, wall_now())
    partition.log.high_watermark = partition.log.log_end_offset
    world.disks[0].mount("/1")  # Segments move by way of the SSD's double.
    assert [*partition.log.tiering.move_out("/1", hdd.directory.identity.directory_id)]
    world.partitions.placement.on_tier(topic_partition, hdd)


async def test_an_hdd_that_fails_takes_the_replicas_offline_with_segments_there_and_no_others() -> (
    None
):
    world = World(media=[Media.SSD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    topic_id = world.create(partitions=2, media="tiered")
    with_segments, chosen = (TopicPartition(topic_id, number) for number in range(2))

    async with world.running():
        await world.learn()
        _, hdd = world.partitions.directories
        await give_segments_to_hdd(world, with_segments)
        world.partitions.placement.on_tier(chosen, hdd)
        hdd.appender.fail(LogDirFailedError("it is gone"))
        await until(lambda: hdd.failure is not None)
        assert list(world.partitions.replicas.unopened.errors) == [with_segments]
        assert (await send(world.partitions.get(chosen), b"goes on")).error is None


async def test_an_ssd_that_fails_a_log_with_segments_on_the_hdd_takes_no_hdd_along() -> None:
    world, tiered = tiered_world()
    large = TopicPartition(world.create("large", media="hdd"), 0)

    async with world.running():
        await world.learn()
        ssd, hdd = world.partitions.directories
        await give_segments_to_hdd(world, tiered)
        world.disks[0].fail_flush_at = world.disks[0].flushes + 1
        await send(world.partitions.get(tiered), b"not durable")
        await until(lambda: ssd.failure is not None)
        duties = Housekeeping(
            world.partitions,
            world.reader,
            StorageConfig(),
            BrokerMetrics(),
            is_controller=lambda: False,
            hanging_ms=1000,
        )
        await duties.scrub(hdd)
        await send(world.partitions.get(large), b"goes on")
        assert hdd.failure is None
        assert list(world.partitions.replicas.unopened.errors) == [tiered]
        assert world.failures == []


async def test_an_append_to_a_log_that_the_hdd_has_failed_takes_no_ssd_along() -> None:
    world, tiered = tiered_world()
    small = TopicPartition(world.create("small", media="ssd"), 0)

    async with world.running():
        await world.learn()
        ssd, hdd = world.partitions.directories
        await give_segments_to_hdd(world, tiered)
        partition = world.partitions.get(tiered)
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        partition.log.state.health.fail(error, "cleaning", f"/1/{tiered}.tier")
        assert isinstance((await send(partition, b"too late")).error, LogDirFailedError)
        await until(lambda: hdd.failure is not None)
        assert (await send(world.partitions.get(small), b"goes on")).error is None
        assert ssd.failure is None
        assert list(world.partitions.replicas.unopened.errors) == [tiered]


async def test_a_log_that_the_hdd_has_failed_goes_offline_also_with_no_segment_left_there() -> None:
    world, ours = mixed()
    async with world.running():
        await world.learn()
        ssd, hdd = world.partitions.directories
        partition = world.partitions.get(ours)
        assert partition.log.tier is None
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        partition.log.state.health.fail(error, "cleaning", f"/1/{ours}.tier")
        await send(partition, b"too late")
        await until(lambda: hdd.failure is not None)
        assert ssd.failure is None
        assert list(world.partitions.replicas.unopened.errors) == [ours]


# What directories lie on.


async def test_new_replicas_go_to_the_directory_of_their_topics_media_with_the_fewest() -> None:
    world = World(media=[Media.SSD, Media.HDD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    large = world.create("large", partitions=4, media="hdd")
    fast = world.create("fast", partitions=3, media="ssd")

    async with world.running():
        await world.learn()
        assert [len(world.names(at)) for at in (0, 1, 2)] == [3, 2, 2]
        for topic_id, media in ((large, Media.HDD), (fast, Media.SSD)):
            found = [partition for partition in world.partitions if partition.topic_id == topic_id]
            assert {world.partitions.placement.media_of(each) for each in found} == {media}
        world.create("any", partitions=2)
        await world.learn()
        assert [len(world.names(at)) for at in (0, 1, 2)] == [3, 3, 3]


async def test_an_hdd_that_hangs_holds_up_nothing_on_the_ssd_nor_the_loop() -> None:
    world = World(media=[Media.SSD, Media.HDD])
    disk = HangingHdd()
    world.disks = [disk, disk]
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    topic_id = world.create("tiered", media="tiered")
    ref = TopicRef(topic_id=topic_id)
    there = TopicPartition(topic_id, 0)
    beside = TopicPartition(world.create("fast", media="ssd"), 0)

    async with world.running():
        await world.learn()
        tiered, fast = world.partitions.get(there), world.partitions.get(beside)
        log = tiered.log
        metrics = TierMetrics(CollectorRegistry())
        config = StorageConfig(tier_check_interval_ms=10)
        movers = TierMovers(world.partitions, world.mailbox, config, metrics)
        running = asyncio.create_task(movers.run())

        async def in_time(asked: Awaitable[object]) -> None:
            await asyncio.wait_for(asked, 5)

        async def goes_on() -> None:
            await in_time(send(fast, b"goes on"))
            (ssd, _) = world.partitions.directories
            await in_time(ssd.appender.call_beside(ssd.directory.checkpoint, MonotonicMs(0)))
            await in_time(world.reader.call("/0", world.opened[0].scrub, 1 << 20))

        try:
            for partition in (fast, tiered):
                await send(partition, b"early")
                await partition.appender.call(partition.log.writer.roll, wall_now())
            await until(lambda: log.tier is not None)
            disk.may_answer.clear()
            await send(tiered, b"later")
            await tiered.appender.call(log.writer.roll, wall_now())
            await until(lambda: bool(disk.hanging))  # The mover waits for the HDD.
            scrub = world.reader.call("/1", world.opened[1].scrub, 1 << 20)
            await in_time(send(tiered, b"goes on, too"))
            await goes_on()
            hanging = disk.hanging
            world.cluster.ask_each(DeleteTopics(deleted_at=WallMs(1), topics=[ref]))
            world.cluster.ask_each(PurgeTopics(topics=[ref]))
            world.partitions.on_image(world.image)
            await until(lambda: disk.hanging > hanging)  # And so does the deletion.
            await goes_on()
            assert not world.confirmed
            disk.may_answer.set()
            await scrub
            await until(lambda: bool(world.confirmed))
        finally:
            disk.may_answer.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.to_thread(movers.close)
    assert not world.failures
    (folder,) = world.names(1)
    assert folder.endswith(".deleted")
    assert not [path for path in disk.files() if path.endswith(".copy.new")]


async def test_what_lies_on_another_media_than_its_topic_asks_for_is_served_there() -> None:
    world = World(media=[Media.SSD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    there = TopicPartition(world.create(media="hdd"), 0)
    world.write(there, at=0)

    async with world.running():
        await world.learn()
        assert world.partitions.get(there).log.log_end_offset == 1
        assert world.partitions.placement.media_of(there) is Media.SSD
        assert world.names(1) == []


async def test_a_media_whose_directories_failed_is_said_no_more_and_others_take_its_part() -> None:
    world = World(media=[Media.SSD, Media.HDD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    wanted = TopicPartition(world.create(media="hdd"), 0)

    async with world.running():
        assert world.partitions.placement.working_media() == (Media.SSD, Media.HDD)
        _, first, second = world.partitions.directories
        first.appender.fail(LogDirFailedError("first"))
        await until(lambda: first.failure is not None)
        assert world.partitions.placement.working_media() == (Media.SSD, Media.HDD)
        second.appender.fail(LogDirFailedError("second"))
        await until(lambda: second.failure is not None)
        assert world.partitions.placement.working_media() == (Media.SSD,)
        await world.learn()
        assert world.partitions.placement.media_of(wanted) is Media.SSD


# Replicas that move to the media that their topic asks for.


def mixed() -> tuple[World, TopicPartition]:
    """A broker with an SSD and an HDD, and a partition that lies on the SSD, as it should."""
    world = World(media=[Media.SSD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    return world, TopicPartition(world.create(media="ssd"), 0)


async def test_a_replica_moves_to_the_media_that_its_topic_asks_for_while_it_leads() -> None:
    world, there = mixed()

    async with world.running():
        await world.learn()
        partition = world.partitions.get(there)
        leader = partition.leader
        sent = [send(partition, b"before")]
        world.alter_media(there.topic_id, "hdd")
        assert list(world.partitions.placement.moves) == [there]
        async with world.ticking():
            while world.partitions.placement.moves:
                sent.append(send(partition, b"meanwhile"))
                await asyncio.sleep(0.001)
            await until(lambda: not world.partitions.placement.moves.under_way)
        sent.append(send(partition, b"after"))
        answers = await asyncio.wait_for(asyncio.gather(*sent), 20)
        assert [answer.base_offset for answer in answers] == list(range(len(sent)))
        assert not [answer.error for answer in answers if answer.error is not None]
        assert partition.leader is leader  # It was a slow disk, and nothing else.
        assert leader.high_watermark == len(sent)
        assert world.partitions.get(there).log.log_end_offset == len(sent)
        assert world.partitions.placement.media_of(there) is Media.HDD
        assert not world.failures
        world.ended = len(sent)
    (trash,) = world.names(0)
    assert trash.endswith(".deleted")
    assert world.names(1) == [str(there)]
    for disk, at in zip(world.disks, (0, 1), strict=True):
        directory = open_directory(disk, f"/{at}")
        assert directory.was_clean
        assert directory.found == ([there] if at else [])
    log = directory.open_partition(there, LogConfig(), WallMs(0))
    assert log.log_end_offset == world.ended


async def test_what_is_sent_while_a_log_is_switched_waits_and_is_written_to_the_new_one() -> None:
    world, there = mixed()

    async with world.running():
        await world.learn()
        partition = world.partitions.get(there)
        await send(partition, b"before")
        world.disks[1].going_on = threading.Event()
        world.alter_media(there.topic_id, "hdd")
        async with world.ticking():
            await until(lambda: isinstance(partition.appender, HeldAppends))
            waiting = [send(partition, b"%d" % number) for number in range(3)]
            positions = partition.appender.call(lambda: partition.log.log_dir)
            await asyncio.sleep(0.05)
            assert not any(each.done() for each in waiting)
            world.disks[1].going_on.set()
            assert [(await each).base_offset for each in waiting] == [1, 2, 3]
            assert await positions == "/1"
            await until(lambda: not world.partitions.placement.moves.under_way)


async def test_a_leader_knows_where_a_log_that_has_moved_begins() -> None:
    world, there = mixed()

    async with world.running():
        await world.learn()
        partition = world.partitions.get(there)
        for value in (b"1", b"2", b"3"):
            await send(partition, value)
        # Retention whose end the leader has not heard of.
        await partition.appender.call(partition.log.retention.advance_log_start, Offset(2))
        world.alter_media(there.topic_id, "hdd")
        async with world.ticking():
            await until(lambda: not world.partitions.placement.moves)
            await until(lambda: not world.partitions.placement.moves.under_way)
        assert partition.log.log_dir == "/1"
        assert partition.leader.log_start_offset == partition.log.log_start_offset == 2


@pytest.mark.parametrize("what", ["deleted", "moved away", "media"])
async def test_what_is_not_wanted_any_more_while_it_moves_is_not_moved_or_goes(what: str) -> None:
    world = World(media=[Media.SSD, Media.HDD], brokers=4)
    for broker in range(4):
        world.cluster.give_media(broker, Media.SSD, Media.HDD)
    there = TopicPartition(world.create(replicas=3, media="ssd"), 0)

    async with world.running():
        await world.learn()
        partition = world.partitions.get(there)
        world.disks[1].going_on = threading.Event()
        world.alter_media(there.topic_id, "hdd")
        async with world.ticking():
            await until(lambda: isinstance(partition.appender, HeldAppends))
            if what == "deleted":
                topics = [TopicRef(topic_id=there.topic_id)]
                world.cluster.ask_each(DeleteTopics(deleted_at=WallMs(1), topics=topics))
                world.partitions.on_image(world.image)
                world.cluster.ask_each(PurgeTopics(topics=topics))
                world.partitions.on_image(world.image)
            elif what == "moved away":
                world.move(there, 1, 2, 3)
                world.partitions.on_image(world.image)
            else:
                world.alter_media(there.topic_id, "ssd")
            world.disks[1].going_on.set()
            await until(lambda: not world.partitions.placement.moves.under_way)
            if what == "media":  # It was too late to stop: it moves back.
                await until(lambda: not world.partitions.placement.moves)
                await until(lambda: not world.partitions.placement.moves.under_way)
                assert world.partitions.placement.media_of(there) is Media.SSD
            else:
                directories = world.partitions.directories
                await until(
                    lambda: all(there not in directory.replicas for directory in directories)
                )
            assert not world.failures
    names = world.names(0) + world.names(1)
    assert [name for name in names if not name.endswith(".deleted")] == (
        [str(there)] if what == "media" else []
    )


async def test_a_disk_that_refuses_a_copy_leaves_the_replica_where_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, there = mixed()

    async with world.running():
        await world.learn()
        partition = world.partitions.get(there)
        await send(partition, b"before")
        world.disks[1].is_full = True
        world.alter_media(there.topic_id, "hdd")
        async with world.ticking():
            await until(lambda: "a replica was not moved" in caplog.text)
            await until(lambda: not world.partitions.placement.moves.under_way)
            assert (await send(partition, b"after")).error is None
        assert list(world.partitions.placement.moves) == [there]  # Until it is tried again.
        assert world.partitions.placement.media_of(there) is Media.SSD
    assert world.names(0) == [str(there)]
    assert world.names(1) == []


@pytest.mark.parametrize("which", [0, 1], ids=["old", "new"])
async def test_a_log_directory_that_fails_while_a_log_is_switched(which: int) -> None:
    """The replica goes on where it was, or is offline; none of its records is on neither disk."""
    world, there = mixed()

    async with world.running():
        await world.learn()
        partition = world.partitions.get(there)
        await send(partition, b"before")
        world.disks[which].going_on = threading.Event()
        world.alter_media(there.topic_id, "hdd")
        async with world.ticking():
            await until(lambda: isinstance(partition.appender, HeldAppends))
            waiting = send(partition, b"waiting")
            disk = world.disks[which]
            assert disk.going_on is not None
            await asyncio.sleep(0.05)
            disk.fail_flush_at = disk.flushes + 1
            disk.going_on.set()
            await until(lambda: world.partitions.directories[which].failure is not None)
            await until(lambda: not world.partitions.placement.moves.under_way)
            answer = await asyncio.wait_for(waiting, 20)
            if which == 1:
                assert answer.error is None
                assert world.partitions.placement.media_of(there) is Media.SSD
            else:
                assert isinstance(answer.error, LogDirFailedError)
                assert list(world.partitions.replicas.unopened.errors) == [there]
    for disk in world.disks:
        disk.restart()
    both = [open_directory(disk, f"/{at}") for at, disk in enumerate(world.disks)]
    settle_moves([side.moves for side in both])
    (holder,) = [side for side in both if there in side.found]
    end = holder.open_partition(there, LogConfig(), WallMs(0)).log_end_offset
    assert end == (2 if which == 1 else 1)


async def test_a_broker_that_stops_while_a_replica_moves_leaves_one_log_in_order() -> None:
    world, there = mixed()

    async with world.running():
        await world.learn()
        partition = world.partitions.get(there)
        await send(partition, b"before")
        disk = world.disks[1]
        disk.going_on = threading.Event()
        world.alter_media(there.topic_id, "hdd")
        async with world.ticking():
            await until(lambda: isinstance(partition.appender, HeldAppends))
        threading.Timer(0.1, disk.going_on.set).start()
    both = [open_directory(disk, f"/{at}") for at, disk in enumerate(world.disks)]
    assert [side.closed_by for side in both] == [7, 7]
    settle_moves([side.moves for side in both])
    (holder,) = [side for side in both if there in side.found]
    assert holder.open_partition(there, LogConfig(), WallMs(0)).log_end_offset == 1
    assert not [name for name in world.names(1) if name.endswith(".moving")]
