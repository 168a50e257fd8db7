"""All log directories of a broker: their identity, opening them, and closing them in order.

A broker knows its identity only from them: the cluster, its own id, the life that was shut down
cleanly (P27) and the last one, and the versions that it has seen of the metadata's store (P39).
Cluster and versions can be read before they are opened. A directory that cannot be read or opened
keeps the broker from starting: its partitions are not known, and a new replica elsewhere would hide
the loss. If it is left out, or replaced, partitions that no other broker has stay offline
(`misses_some`).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial, reduce

from millrace.broker import events
from millrace.broker.replica.reader import LogReader
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.log_directory import (
    DirectoryConfig,
    Identity,
    LogDirectory,
    connect,
    read_identity,
    read_seen,
    settle_moves,
)
from millrace.broker.storage.sealed_file import DamagedFileError
from millrace.core.broker_config import LogDirConfig, StorageConfig
from millrace.core.errors import LogDirFailedError, StorageError
from millrace.core.ids import NO_BROKER, BrokerEpoch, BrokerId, TopicPartition
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.objects.store_versions import (
    NOTHING_SEEN,
    RememberedVersions,
    StoreVersions,
)
from millrace.runtime import host

_log = logging.getLogger(__name__)


class LogDirectories:
    """The log directories of the configuration.

    Args:
        reader: has the threads that touch the files.
        on_failure: called when one could not be closed.

    Attributes:
        opened: those that are open.
        misses_some: whether this broker may have had a directory that is missing here: one is new,
            and may have replaced it, or the open ones name it.
    """

    def __init__(
        self,
        files: FileSystem,
        configured: Sequence[LogDirConfig],
        config: StorageConfig,
        reader: LogReader,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.opened: list[LogDirectory] = []
        self.misses_some = False
        self._files = files
        self._configured = configured
        self._paths = [log_dir.path for log_dir in configured]
        self._config = config
        self._reader = reader
        self._on_failure = on_failure
        self._to_keep = RememberedVersions()
        self._writing_seen = asyncio.Lock()  # One write after the other: the last one stays.

    @property
    def cluster_id(self) -> str | None:
        """The cluster that they belong to, opened or not; None when all are new.

        Raises:
            LogDirFailedError: it cannot be read.
        """
        identities = [self._identity_at(path) for path in self._paths]
        return next((identity.cluster_id for identity in identities if identity is not None), None)

    @property
    def seen(self) -> StoreVersions:
        """All stored versions, in opened directories or not.

        Raises:
            LogDirFailedError: it cannot be read.
        """
        return reduce(StoreVersions.merged, map(self._seen_at, self._paths), NOTHING_SEEN)

    @property
    def broker_id(self) -> BrokerId | None:
        """This broker's id by the open ones; None while it has no id."""
        ids = (directory.identity.broker_id for directory in self.opened)
        return next((broker_id for broker_id in ids if broker_id != NO_BROKER), None)

    @property
    def closed_by(self) -> BrokerEpoch | None:
        """The life that was shut down cleanly by the markers of all open ones (P27)."""
        found = {directory.closed_by for directory in self.opened}
        return found.pop() if len(found) == 1 else None

    @property
    def used_by(self) -> BrokerEpoch | None:
        """The latest life that used all open ones, except for new ones."""
        found = [
            directory.used_by
            for directory in self.opened
            if directory.identity.broker_id != NO_BROKER
        ]
        known = [epoch for epoch in found if epoch is not None]
        return min(known) if known and len(known) == len(found) else None

    async def open(self, cluster_id: str) -> None:
        """Open all: lock them, and recover them after a crash.

        Raises:
            StorageError: one cannot be opened.
        """
        for path, media in self._configured:
            found = self._identity_at(path)
            directory = await self._reader.call(
                path,
                partial(
                    LogDirectory.open,
                    self._files,
                    path,
                    DirectoryConfig(
                        media=media,
                        ballast_bytes=self._config.ballast_bytes,
                        file_delete_delay_ms=self._config.trash_delay_ms,
                        damaged_logs_max=self._config.damaged_logs_max,
                    ),
                    cluster_id=cluster_id,
                    broker_id=NO_BROKER if found is None else found.broker_id,
                    new_directory_id=host.current.random_bytes(16).hex(),
                ),
            )
            self.opened.append(directory)
            self.misses_some |= found is None or directory.companions is None
        connect([directory.moves for directory in self.opened])
        if self.opened:
            await self._reader.call(
                self.opened[0].path, settle_moves, [directory.moves for directory in self.opened]
            )
        here = {directory.identity.directory_id for directory in self.opened}
        if missing := self._ever_used() - here:
            self.misses_some = True
            events.LOG_DIR_MISSING.log(_log, directory_ids=sorted(missing), log_dirs=self._paths)

    def _ever_used(self) -> set[str]:
        """Return the ids of all known directories of this broker."""
        return {
            directory_id
            for directory in self.opened
            for directory_id in (directory.identity.directory_id, *(directory.companions or ()))
        }

    async def keep_seen(self, seen: StoreVersions) -> None:
        """Store the versions that this broker has seen in every open directory (P39)."""
        self._to_keep.on_seen(seen)
        await asyncio.shield(self._write_seen())

    async def keep_seen_elsewhere(self, seen: StoreVersions) -> None:
        """Store the versions that another broker has seen, and this one's controller has not."""
        self._to_keep.on_seen_elsewhere(seen)
        await asyncio.shield(self._write_seen())

    async def _write_seen(self) -> None:
        """Write it. Never cancelled: a thread would go on writing, and the lock guards that."""
        async with self._writing_seen:
            seen = self._to_keep.seen
            for directory in self.opened:
                try:
                    await self._reader.call(directory.path, directory.keep_seen, seen)
                except StorageError as error:
                    events.SEEN_NOT_KEPT.log(_log, log_dir=directory.path, error=error.message)

    async def begin_life(self, life: BrokerLife) -> None:
        """Store this broker's id and life.

        Raises:
            StorageError: a disk refused.
        """
        known = self._ever_used()
        for directory in self.opened:
            companions = known - {directory.identity.directory_id}
            await self._reader.call(directory.path, directory.begin_life, *life, companions)

    async def close(
        self,
        *,
        in_order: Collection[LogDirectory],
        broker_epoch: BrokerEpoch | None,
        others: Collection[TopicPartition] = (),
    ) -> None:
        """Close all; there are no more appends.

        Args:
            in_order: those that get the marker of a clean shutdown; the others' files are closed as
                they are.
            broker_epoch: the life that ends with this; None when it had not begun.
            others: partitions there of which this broker has no replica.
        """
        for directory in self.opened:
            try:
                await asyncio.to_thread(
                    directory.close,
                    clean=directory in in_order,
                    broker_epoch=broker_epoch,
                    others=others,
                )
            except StorageError as error:  # The others are closed in order.
                self._on_failure(error)
        self.opened = []

    def _identity_at(self, path: str) -> Identity | None:
        try:
            return read_identity(self._files, path)
        except FileNotFoundError:
            return None
        except (DamagedFileError, OSError) as error:
            raise LogDirFailedError(
                f"{path}: it cannot be told whose log directory this is: {error}. Restore its "
                "identity file, or leave it out of log_dirs"
            ) from error

    def _seen_at(self, path: str) -> StoreVersions:
        try:
            return read_seen(self._files, path)
        except (DamagedFileError, OSError) as error:
            raise LogDirFailedError(
                f"{path}: what was seen of the metadata cannot be read: {error}. Restore it, or "
                "leave the directory out of log_dirs"
            ) from error
