"""One of a broker's log directories: its identity, its last shutdown, and its partitions.

    <log directory>/
        lock                   held while a broker uses it
        identity               cluster id, broker id, and the directory's own random id
        recovery-checkpoint    see recovery_checkpoint.py
        clean-shutdown         written last when everything was closed in order
        companions             ids of the broker's other log directories, also of those that it
                               misses
        broker-epoch           the latest life of the broker that used it
        controller-epoch       the highest that the broker has taken metadata of, and the versions
                               of the metadata's objects then or later (`StoreVersions`)
        ballast                space kept for all files above when the disk is full (P64)
        <topic id>-<number>/   a partition, see `log`
        <topic id>-<number>.<ms UTC>.deleted/   one that was deleted, until it is removed
        <topic id>-<number>.<ms UTC>.damaged/   a damaged log in whose place a new one was begun
        <topic id>-<number>.moving/    what is copied of a log that lies in another directory
        <topic id>-<number>.tier/      the oldest segments of a log that lies elsewhere, tier.py

`LogDirectory` is what the broker uses. Imports go down this table:

| module           | what                                                                          |
|------------------|-------------------------------------------------------------------------------|
| `directory`      | the directory as the broker sees it: opening, checkpoints, scrubbing, closing |
| `log_moves`      | how a log moves to another directory of the broker, with `log_copy`           |
| `retired`        | logs that were deleted, or set aside as damaged                               |
| `partitions`     | the logs that are open, and the directories of all that are there             |
| `clean_shutdown` | the marker that says that everything was closed in order                      |
| `ownership`      | whose the directory is, and what that broker wrote down in it                 |
| `ballast`        | space for small files when the disk is full                                   |

Opening happens in two parts, so that the shell may recover partitions in as many threads as it
likes, and report progress: `LogDirectory.open`, then `open_partition` for each of `found`.
Partitions that cannot be opened are in `corrupt`, and the rest is served.
"""

from millrace.broker.storage.log_directory.directory import DirectoryConfig, LogDirectory
from millrace.broker.storage.log_directory.log_moves import connect, settle_moves
from millrace.broker.storage.log_directory.ownership import (
    Identity,
    is_log_directory,
    read_identity,
    read_seen,
)

__all__ = [
    "DirectoryConfig",
    "Identity",
    "LogDirectory",
    "connect",
    "is_log_directory",
    "read_identity",
    "read_seen",
    "settle_moves",
]
