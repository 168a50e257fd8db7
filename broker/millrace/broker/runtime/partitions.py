"""All partitions of this broker: made, changed and removed as the metadata says.

The metadata is applied one image after another by one task; whatever touches files is done by the
append thread of the partition's log directory. A log on disk that no image names is left alone:
data is deleted only on a deletion that the metadata states (P39, P70).

A log directory that fails takes its partitions offline, and only those (P63). The last one takes
the process with it: `on_all_failed`.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from millrace.broker.controller import ControllerShell
from millrace.broker.runtime.appender import Appender
from millrace.broker.runtime.clock import wall_now
from millrace.broker.runtime.mailbox import Mailbox
from millrace.broker.runtime.partition import Partition
from millrace.broker.runtime.reader import LogReader
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import LogDirectory
from millrace.core.errors import (
    Appended,
    CorruptLogError,
    LogDirFailedError,
    MillraceError,
    NotControllerError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import NO_BROKER, BrokerId, TopicPartition
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import Topic
from millrace.core.metadata.topic_config import Durability, TopicConfig

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class OpenDirectory:
    """A log directory in use."""

    directory: LogDirectory
    appender: Appender
    known: set[TopicPartition]
    """Partitions that it has, or is to get."""
    failure: LogDirFailedError | None = None


class Partitions:
    """See the module. Iterates over the partitions that are led here."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        directories: Sequence[LogDirectory],
        controller: ControllerShell,
        mailbox: Mailbox,
        log_config: Callable[[TopicConfig], LogConfig],
        inflated_bytes_max: int,
        on_deleted_topic: Callable[[str], None],
        on_all_failed: Callable[[LogDirFailedError], None],
        reader: LogReader,
        has_new_directory: bool,
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._log_config = log_config
        self._inflated_bytes_max = inflated_bytes_max
        self._on_deleted_topic = on_deleted_topic
        self._on_all_failed = on_all_failed
        self._reader = reader
        self._has_new_directory = has_new_directory
        self._led: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, MillraceError] = {}
        self._image: MetadataImage | None = None
        self._has_news = asyncio.Event()
        self._applied = asyncio.Condition()
        self.directories = [self._open(each, mailbox) for each in directories]

    def _open(self, directory: LogDirectory, mailbox: Mailbox) -> OpenDirectory:
        opened: OpenDirectory

        def on_failed(error: LogDirFailedError) -> None:
            self._on_directory_failed(opened, error)

        appender = Appender(directory.path, mailbox, directory.checkpoint, on_failed)
        opened = OpenDirectory(directory, appender, set(directory.found))
        return opened

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._led)

    def __len__(self) -> int:
        return len(self._led)

    def all(self) -> list[Partition]:
        """Return every partition that is led here."""
        return list(self._led.values())

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        """Return a partition that is led here; from any thread."""
        return self._led.get(topic_partition)

    def get(self, topic_partition: TopicPartition) -> Partition:
        """Return a partition that is led here; from any thread.

        Raises:
            UnknownTopicOrPartitionError: this broker has no such partition.
            LogDirFailedError, CorruptLogError: it has, but its log is offline.
        """
        partition = self._led.get(topic_partition)
        if partition is not None:
            return partition
        error = self._offline.get(topic_partition)
        if error is not None:  # Anew, and for this request: nothing of it was appended.
            raise type(error)(error.message, appended=Appended.NO)
        raise UnknownTopicOrPartitionError(
            f"this broker has no partition {topic_partition}: refresh the metadata, the topic may "
            "have been deleted"
        )

    def in_words(self, error: MillraceError, topic_partition: TopicPartition) -> MillraceError:
        """Return an error about a partition as people should read it: with its topic's name.

        Machines and logs know topics by their ids alone. From any thread.
        """
        topic = None if self._image is None else self._image.topics_by_id.get(topic_partition[0])
        if topic is None:
            return error
        # But not where the id is the name of a directory.
        message = re.sub(
            rf"(?<!/){re.escape(str(topic_partition))}\b",
            f"{topic.name}-{topic_partition.partition}",
            error.message,
        )
        return error if message == error.message else type(error)(message, appended=error.appended)

    async def follow_metadata(self) -> None:
        """Apply every image from now on; runs for as long as the broker does."""
        self._controller.subscribe(lambda old, new: self._has_news.set())
        self._has_news.set()
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            image = self._controller.metadata
            await self._apply(image)
            async with self._applied:
                self._image = image
                self._applied.notify_all()

    async def settled(self) -> None:
        """Return once the metadata of this moment is applied."""
        epoch = self._controller.metadata.epoch
        async with self._applied:
            await self._applied.wait_for(
                lambda: self._image is not None and self._image.epoch >= epoch
            )

    async def _apply(self, image: MetadataImage) -> None:
        if self._image is None:
            topics = list(image.topics_by_id.values())
        else:
            changes = image.changes_since(self._image)
            topics = [*changes.created, *(topic for _, topic in changes.altered)]
            for topic in changes.deleted:
                await self._remove(topic)
        await asyncio.gather(*(self._ensure(topic) for topic in topics))
        deleted = image.deletions_of(self._broker_id)
        if deleted:
            try:
                for topic_id in deleted:
                    await self._delete_files(
                        [each for each in self._on_disk() if each.topic_id == topic_id]
                    )
                await self._controller.confirm_deletions(self._broker_id, deleted)
            except (StorageError, NotControllerError) as error:
                # The tombstones stay: the next image brings them again.
                _log.warning("a deletion is not done yet", extra={"error": error.message})

    def _on_disk(self) -> list[TopicPartition]:
        return [each for opened in self.directories for each in opened.known]

    async def _ensure(self, topic: Topic) -> None:
        """Bring all partitions of a topic that this broker holds to what the topic says."""
        await asyncio.gather(
            *(
                self._ensure_partition(topic, number)
                for number, state in enumerate(topic.partitions)
                if self._broker_id in state.replicas
            )
        )

    async def _ensure_partition(self, topic: Topic, number: int) -> None:
        topic_partition = TopicPartition(topic.topic_id, number)
        state = topic.partitions[number]
        config = topic.config
        known = self._led.get(topic_partition)
        if known is not None:
            becomes_durable = (
                config.durability is Durability.FSYNC and not known.is_flushed_before_ack
            )
            known.log.config = self._log_config(config)
            known.configure(config)
            if becomes_durable:
                with suppress(StorageError):  # The appender takes the consequences.
                    await known.flush()
            return
        if state.leader == NO_BROKER or topic_partition in self._offline:
            return
        opened = self._directory_of(topic_partition)
        try:
            if self._is_lost(topic_partition):
                raise CorruptLogError(
                    f"{topic_partition} was on a log directory that is not here any more: an empty "
                    "one stands in its place. Bring the old one back, or delete the topic"
                )
            log = await self._reader.call(
                _open_log,
                opened.directory,
                topic_partition,
                self._log_config(config),
                config.durability,
            )
        except StorageError as error:
            self._go_offline(topic_partition, error)
            if isinstance(error, LogDirFailedError):
                opened.appender.fail(error)
            return
        self._led[topic_partition] = Partition(
            topic=str(topic.name),
            topic_partition=topic_partition,
            config=config,
            leader_epoch=state.leader_epoch,
            log=log,
            appender=opened.appender,
            inflated_bytes_max=self._inflated_bytes_max,
            on_corrupt=self.take_offline,
        )

    def _is_lost(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition from before this start is on none of the directories.

        A broker that crashed between a topic's creation and the making of its directory has not
        lost anything: nothing was ever acknowledged. But where a directory is new, it took the
        place of one that may have held the partition, and beginning anew would hide the loss.
        """
        return (
            self._image is None
            and self._has_new_directory
            and not any(topic_partition in each.directory.found for each in self.directories)
        )

    def _directory_of(self, topic_partition: TopicPartition) -> OpenDirectory:
        """Return the directory that has the partition, or the one with the fewest."""
        for opened in self.directories:
            if topic_partition in opened.known:
                return opened
        usable = [opened for opened in self.directories if opened.failure is None]
        chosen = min(usable, key=lambda opened: len(opened.known))
        chosen.known.add(topic_partition)
        return chosen

    async def _remove(self, topic: Topic) -> None:
        error = UnknownTopicOrPartitionError(f"the topic {topic.name} was deleted")
        for number in range(len(topic.partitions)):
            topic_partition = TopicPartition(topic.topic_id, number)
            self._offline.pop(topic_partition, None)
            partition = self._led.pop(topic_partition, None)
            if partition is not None:
                partition.resign(error)
        self._on_deleted_topic(str(topic.name))

    async def _delete_files(self, topic_partitions: Sequence[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            opened = self._directory_of(topic_partition)
            if opened.failure is None:
                await opened.appender.call(
                    opened.directory.delete_partition, topic_partition, wall_now()
                )
                opened.known.discard(topic_partition)

    def _on_directory_failed(self, opened: OpenDirectory, error: LogDirFailedError) -> None:
        if opened.failure is not None:
            return
        _log.error(
            "log directory failed", extra={"log_dir": opened.directory.path, "error": error.message}
        )
        opened.failure = error
        for topic_partition, partition in list(self._led.items()):
            if partition.appender is opened.appender:
                del self._led[topic_partition]
                self._offline[topic_partition] = error
                partition.resign(error)
        if all(each.failure is not None for each in self.directories):
            self._on_all_failed(error)

    def take_offline(self, topic_partition: TopicPartition, error: MillraceError) -> None:
        """Stop serving one partition whose log is damaged; its files are left as they are (P65)."""
        partition = self._led.pop(topic_partition, None)
        if partition is not None:
            self._go_offline(topic_partition, error)
            # Of what is under way nobody knows whether it was written.
            partition.resign(type(error)(error.message, appended=Appended.MAYBE))

    def _go_offline(self, topic_partition: TopicPartition, error: MillraceError) -> None:
        _log.error(
            "partition is offline",
            extra={"partition": str(topic_partition), "error": error.message},
        )
        self._offline[topic_partition] = error


def _open_log(
    directory: LogDirectory,
    topic_partition: TopicPartition,
    config: LogConfig,
    durability: Durability,
) -> PartitionLog:
    log = directory.open_partition(topic_partition, config, wall_now())
    if durability is Durability.FSYNC:
        log.flush()  # What recovery kept is committed, so it must be as durable as the rest.
    return log
