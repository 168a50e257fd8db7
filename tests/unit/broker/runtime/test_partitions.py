"""The shell around a broker's replicas, on disks in memory: which logs it opens, and where."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.fakes.cluster import Cluster
from tests.fakes.disk import Disk
from tests.fakes.stamped_batches import stamped_batch

from millrace.broker.runtime import partitions as shell
from millrace.broker.runtime.mailbox import Mailbox
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig, LogDirectory
from millrace.core.errors import (
    LogDirFailedError,
    MillraceError,
    StorageBusyError,
    StorageFullError,
)
from millrace.core.ids import BrokerEpoch, BrokerId, TopicId, TopicPartition, WallMs
from millrace.core.media import DEFAULT_MEDIA, Media
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.requests import (
    ConfirmDeletions,
    DeleteTopics,
    Reassignment,
    ReassignPartitions,
    TopicRef,
)
from millrace.core.replication.rules import ReplicationConfig

HERE = BrokerId(0)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_PAUSE_SECONDS", 0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        # Nobody signals what a test looks at.
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class CrowdedDisk(Disk):
    """May have no room for another directory, or refuse to move one."""

    is_full = False
    is_busy = False
    refused = 0

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


class World:
    """One broker of a cluster, on one disk for each of its log directories."""

    def __init__(self, directories: int = 1, brokers: int = 1, media: Sequence[Media] = ()) -> None:
        self.cluster = Cluster(brokers)
        self.media = media or [DEFAULT_MEDIA] * directories
        self.disks = [CrowdedDisk(number) for number in range(len(self.media))]
        self.failures: list[BaseException] = []
        self.confirmed: list[TopicId] = []
        self.partitions: Partitions
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

    def write(self, topic_partition: TopicPartition, at: int = 0) -> None:
        """Leave a log with one batch, as an earlier process that was killed."""
        directory = open_directory(self.disks[at], f"/{at}")
        log = directory.open_partition(topic_partition, LogConfig(), WallMs(0))
        log.append([stamped_batch(0, topic_partition=topic_partition)], WallMs(0))
        log.flush()
        directory.close(clean=False)

    def run(
        self, story: Callable[[], Awaitable[None]], *, misses_a_directory: bool = False
    ) -> None:
        """Run a story while the partitions are open; close the directories in order then."""

        async def main() -> None:
            mailbox = Mailbox(asyncio.get_running_loop())
            reader = LogReader(mailbox, threads=2, buffer_bytes=1 << 16)
            self.opened = [
                open_directory(disk, f"/{number}", self.media[number])
                for number, disk in enumerate(self.disks)
            ]
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
                on_all_failed=self.failures.append,
                on_failure=self.failures.append,
                reader=reader,
                misses_a_directory=misses_a_directory,
            )
            try:
                await story()
            finally:
                await self.partitions.stop()
                for each in self.partitions.directories:
                    await asyncio.to_thread(each.appender.close)
                    each.directory.close(
                        clean=each.failure is None,
                        broker_epoch=BrokerEpoch(7),
                        others=self.partitions.not_ours(),
                    )
                reader.close()

        asyncio.run(main())

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


def test_a_replica_that_was_moved_away_while_its_broker_was_down_goes_to_the_trash() -> None:
    world = World(brokers=4)
    topic_id = world.create(replicas=3)
    moved = TopicPartition(topic_id, 0)
    world.write(moved)
    world.move(moved, 1, 2, 3)

    async def story() -> None:
        await world.learn()
        await until(lambda: moved not in world.opened[0].found)

    world.run(story)
    (name,) = world.names()
    assert name.startswith(f"{moved}.")
    assert name.endswith(".deleted")
    assert open_directory(world.disks[0], "/0").closed_by == 7


def test_what_no_image_names_stays_and_its_broker_stops_in_order_all_the_same() -> None:
    """Else it counted as one that crashed, with each start (P27)."""
    world = World()
    orphan = TopicPartition(TopicId(b"o" * 16), 0)
    world.write(orphan)
    (segment,) = [path for path in world.disks[0].files() if path.endswith(".log")]
    world.disks[0].write(segment, world.disks[0].contents(segment) + b"torn")
    ours = TopicPartition(world.create(), 0)

    world.run(world.learn)
    assert sorted(world.names()) == sorted([str(orphan), str(ours)])
    directory = open_directory(world.disks[0], "/0")
    assert directory.closed_by == 7
    log = directory.open_partition(orphan, LogConfig(), WallMs(0))
    assert log.log_end_offset == 1  # The tail is cut: nobody said that this log was in order.


def test_nothing_is_kept_of_a_replica_that_was_moved_away() -> None:
    world = World(brokers=4)
    moved = TopicPartition(world.create(replicas=3), 0)

    async def story() -> None:
        await world.learn()
        assert world.partitions.find(moved) is not None
        world.move(moved, 1, 2, 3)
        world.partitions.on_image(world.image)
        assert list(world.partitions._dropping) == [moved]
        await until(lambda: moved not in world.opened[0].logs)
        await until(lambda: not world.partitions._dropping)

    world.run(story)


# Logs that cannot be opened.


@pytest.mark.parametrize("what", ["room", "descriptors"])
def test_a_log_that_cannot_be_opened_yet_is_offline_until_it_can(what: str) -> None:
    world = World()
    partition = TopicPartition(world.create(), 0)
    disk = world.disks[0]

    def lack(it: bool) -> None:
        if what == "room":
            disk.is_full = it
        else:
            disk.lack = errno.EMFILE if it else None

    async def story() -> None:
        lack(True)
        await world.learn()  # Nobody waits for what may take for ever.
        await asyncio.sleep(0.2)
        assert world.partitions.replicas.failed == [partition]
        with pytest.raises(StorageFullError if what == "room" else StorageBusyError):
            world.partitions.get(partition)
        lack(False)
        await until(lambda: world.partitions.find(partition) is not None)
        assert world.partitions.get(partition).replica.leads
        assert world.partitions.replicas.failed == []
        assert not world.failures

    world.run(story)
    assert open_directory(disk, "/0").closed_by == 7


def test_a_log_that_cannot_be_opened_yet_and_is_given_up_is_not_tried_again() -> None:
    world = World()
    topic_id = world.create()
    partition = TopicPartition(topic_id, 0)

    async def story() -> None:
        world.disks[0].lack = errno.EMFILE
        await world.learn()
        world.cluster.ask_each(DeleteTopics(topics=[TopicRef(topic_id=topic_id)]))
        world.partitions.on_image(world.image)
        world.disks[0].lack = None
        await asyncio.sleep(0.1)
        assert world.partitions.find(partition) is None
        assert world.partitions.replicas.failed == []

    world.run(story)


def test_a_deletion_that_is_refused_is_tried_again_though_no_metadata_changes() -> None:
    world = World()
    topic_id = world.create()

    async def story() -> None:
        await world.learn()
        disk = world.disks[0]
        disk.is_busy = True
        world.cluster.ask_each(DeleteTopics(topics=[TopicRef(topic_id=topic_id)]))
        await world.learn()
        assert world.names() == [f"{topic_id.hex()}-0"]
        disk.is_busy = False
        ticking = asyncio.create_task(world.partitions.tick())
        await until(lambda: bool(world.confirmed))
        ticking.cancel()
        assert world.names()[0].endswith(".deleted")
        assert world.confirmed == [topic_id]

    world.run(story)


def test_files_of_a_replica_that_was_moved_away_go_as_soon_as_the_disk_lets_them() -> None:
    world = World(brokers=4)
    moved = TopicPartition(world.create(replicas=3), 0)

    async def story() -> None:
        await world.learn()
        disk = world.disks[0]
        disk.is_busy = True
        world.move(moved, 1, 2, 3)
        world.partitions.on_image(world.image)
        await until(lambda: disk.refused > 2)
        disk.is_busy = False
        await until(lambda: world.names()[0].endswith(".deleted"))

    world.run(story)


def test_a_log_that_opens_after_its_directory_failed_is_not_served() -> None:
    """It would lead, refuse every write, and tell nobody (P63)."""
    world = World(directories=2)
    topic_id = world.create(partitions=2)
    first, second = TopicPartition(topic_id, 0), TopicPartition(topic_id, 1)
    world.write(first, at=0)
    world.write(second, at=1)

    async def story() -> None:
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

    world.run(story)


def test_what_lies_on_a_directory_that_has_failed_is_not_begun_anew_on_another() -> None:
    world = World(directories=2, brokers=4)
    ours, moved = (TopicPartition(world.create(name, replicas=3), 0) for name in "tu")
    world.write(moved, at=1)

    async def story() -> None:
        world.partitions.directories[1].appender.fail(LogDirFailedError("it is gone"))
        await until(lambda: world.partitions.directories[1].failure is not None)
        calls = world.disks[1].calls
        await world.learn()
        assert world.partitions.replicas.failed == [moved]
        assert world.partitions.find(ours) is not None
        assert world.disks[1].calls == calls  # Nobody asks a disk that has failed.

    world.run(story)
    assert world.names(0) == [str(ours)]


# What directories lie on.


def test_new_replicas_go_to_the_directory_of_their_topics_media_with_the_fewest() -> None:
    world = World(media=[Media.SSD, Media.HDD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    large = world.create("large", partitions=4, media="hdd")
    fast = world.create("fast", partitions=3, media="ssd")

    async def story() -> None:
        await world.learn()
        assert [len(world.names(at)) for at in (0, 1, 2)] == [3, 2, 2]
        for topic_id, media in ((large, Media.HDD), (fast, Media.SSD)):
            found = [each for each in world.partitions if each.topic_id == topic_id]
            assert {world.partitions.media_of(each) for each in found} == {media}
        world.create("any", partitions=2)
        await world.learn()
        assert [len(world.names(at)) for at in (0, 1, 2)] == [3, 3, 3]

    world.run(story)


def test_what_lies_on_another_media_than_its_topic_asks_for_is_served_there() -> None:
    world = World(media=[Media.SSD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    there = TopicPartition(world.create(media="hdd"), 0)
    world.write(there, at=0)

    async def story() -> None:
        await world.learn()
        assert world.partitions.get(there).log.log_end_offset == 1
        assert world.partitions.media_of(there) is Media.SSD
        assert world.names(1) == []

    world.run(story)


def test_a_media_whose_directories_failed_is_said_no_more_and_others_take_what_is_wanted() -> None:
    world = World(media=[Media.SSD, Media.HDD, Media.HDD])
    world.cluster.give_media(HERE, Media.SSD, Media.HDD)
    wanted = TopicPartition(world.create(media="hdd"), 0)

    async def story() -> None:
        assert world.partitions.working_media() == (Media.SSD, Media.HDD)
        _, first, second = world.partitions.directories
        first.appender.fail(LogDirFailedError("first"))
        await until(lambda: first.failure is not None)
        assert world.partitions.working_media() == (Media.SSD, Media.HDD)
        second.appender.fail(LogDirFailedError("second"))
        await until(lambda: second.failure is not None)
        assert world.partitions.working_media() == (Media.SSD,)
        await world.learn()
        assert world.partitions.media_of(wanted) is Media.SSD

    world.run(story)
