"""The identity of a log directory, and the notes of its broker in it.

A life of the broker stores its epoch before it does anything, so that a directory restored from a
backup is recognised by its older epoch. The ids of the broker's other directories, its
*companions*, are stored likewise, and stay: replicas of a directory that is no longer in use,
because it was left out or replaced by an empty one, must not begin empty on another.
"""

from collections.abc import Collection
from functools import partial
from typing import Final, NamedTuple

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.log_directory.ballast import Ballast
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed
from millrace.core.errors import LogDirFailedError
from millrace.core.ids import NO_BROKER, BrokerEpoch, BrokerId, parse_topic_partition
from millrace.core.metadata.objects.store_versions import NOTHING_SEEN, StoreVersions

_IDENTITY: Final = "identity"
_BROKER_EPOCH: Final = "broker-epoch"
_COMPANIONS: Final = "companions"
_CONTROLLER_EPOCH: Final = "controller-epoch"


class Identity(NamedTuple):
    """Broker and cluster of a directory. `directory_id` is random and never given twice."""

    cluster_id: str
    broker_id: BrokerId
    directory_id: str


class Ownership:
    """The files that say whose the directory is. They are read when it is made.

    Attributes:
        identity: its broker and cluster.
        used_by: the latest life that used it; None when it is unknown.
        companions: ids of the broker's other directories; None when they are unknown.
    """

    def __init__(self, files: FileSystem, path: str, ballast: Ballast, identity: Identity) -> None:
        self._files = files
        self._path = path
        self._ballast = ballast
        self.identity = identity
        self.used_by = self._read_broker_epoch()
        self.companions = self._read_companions()

    def begin_life(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, companions: Collection[str]
    ) -> None:
        """Store which life of which broker uses the directory from now on.

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        assert self.identity.broker_id in (NO_BROKER, broker_id)
        try:
            if self.companions != frozenset(companions):
                lines = "".join(f"{companion}\n" for companion in sorted(companions))
                self._write(_COMPANIONS, lines.encode())
                self.companions = frozenset(companions)
            self._write(_BROKER_EPOCH, f"{broker_epoch}\n".encode())
            self.used_by = broker_epoch
            # Last: a directory of a broker must name the life.
            if self.identity.broker_id != broker_id:
                identity = self.identity._replace(broker_id=broker_id)
                self._ballast.write(partial(_write_identity, self._files, self._path, identity))
                self.identity = identity
        except OSError as error:
            raise refusal(error, f"writing down whose {self._path} is") from error

    def keep_seen(self, seen: StoreVersions) -> None:
        """Store the versions seen of the metadata's store (P39).

        Raises:
            LogDirFailedError, StorageFullError: the disk refused.
        """
        try:
            self._write(_CONTROLLER_EPOCH, f"{seen}\n".encode())
        except OSError as error:
            raise refusal(error, f"writing {self._path}/{_CONTROLLER_EPOCH}") from error

    def _write(self, name: str, payload: bytes) -> None:
        path = f"{self._path}/{name}"
        self._ballast.write(partial(write_sealed, self._files, path, name, payload))

    def _read_broker_epoch(self) -> BrokerEpoch | None:
        try:
            payload = read_sealed(self._files, f"{self._path}/{_BROKER_EPOCH}", _BROKER_EPOCH)
            return BrokerEpoch(int(payload))
        except (FileNotFoundError, DamagedFileError, ValueError):
            return None

    def _read_companions(self) -> frozenset[str] | None:
        try:
            payload = read_sealed(self._files, f"{self._path}/{_COMPANIONS}", _COMPANIONS)
            return frozenset(payload.decode().splitlines())
        except FileNotFoundError:
            return frozenset()
        except (DamagedFileError, ValueError):
            return None


def identify(files: FileSystem, path: str, wanted: Identity) -> Identity:
    """Return the identity of directory `path`; an empty one becomes the wanted broker's.

    Args:
        files: where.
        path: the directory.
        wanted: the broker that wants to use it, and an id for a directory that has none.

    Raises:
        LogDirFailedError: it is another broker's, or has partitions without an identity.
        OSError: the disk refused.
    """
    try:
        found = read_identity(files, path)
    except FileNotFoundError:
        if any(parse_topic_partition(name) for name in files.list(path)):
            raise LogDirFailedError(
                f"{path} has partitions, but no identity file: it is not known whose they are. "
                "Restore the file, or use another directory"
            ) from None
        _write_identity(files, path, wanted)
        return wanted
    except DamagedFileError as error:
        raise LogDirFailedError(
            f"{error}: it is not known whose the partitions in {path} are. Restore the file"
        ) from None
    ids = {found.broker_id, wanted.broker_id} - {NO_BROKER}
    if found.cluster_id != wanted.cluster_id or len(ids) > 1:
        raise LogDirFailedError(
            f"{path} belongs to broker {found.broker_id} of cluster {found.cluster_id}, not to "
            f"broker {wanted.broker_id} of cluster {wanted.cluster_id}: check log_dirs"
        )
    return found


def is_log_directory(files: FileSystem, path: str) -> bool:
    """Return whether `path` is a log directory, by its identity file."""
    return files.exists(f"{path}/{_IDENTITY}")


def read_identity(files: FileSystem, path: str) -> Identity:
    """Return the identity of directory `path`.

    Raises:
        FileNotFoundError, DamagedFileError: it is not readable.
    """
    payload = read_sealed(files, f"{path}/{_IDENTITY}", _IDENTITY)
    try:
        cluster_id, broker_id, directory_id = payload.decode().splitlines()
        return Identity(cluster_id, BrokerId(int(broker_id)), directory_id)
    except ValueError:
        raise DamagedFileError(f"{path}/{_IDENTITY} does not hold three lines") from None


def read_seen(files: FileSystem, path: str) -> StoreVersions:
    """Return the versions that `keep_seen` stored in the directory `path`, if any.

    Raises:
        DamagedFileError: it cannot be read.
    """
    try:
        payload = read_sealed(files, f"{path}/{_CONTROLLER_EPOCH}", _CONTROLLER_EPOCH)
        return StoreVersions.parse(payload.decode())
    except FileNotFoundError:
        return NOTHING_SEEN
    except ValueError:
        raise DamagedFileError(f"{path}/{_CONTROLLER_EPOCH} does not hold numbers") from None


def _write_identity(files: FileSystem, path: str, identity: Identity) -> None:
    payload = "".join(f"{field}\n" for field in identity).encode()
    write_sealed(files, f"{path}/{_IDENTITY}", _IDENTITY, payload)
