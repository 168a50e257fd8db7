"""Names of topics from a data directory, with or without the broker that uses it.

Partition directories carry topic ids, so that a topic made again never meets old files. The names
are in the metadata beside them, which is read here without a lock and without changing it.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from millrace.core.ids import TopicId

DATABASE = "coordination.sqlite"


def topic_names(directory: Path) -> "dict[TopicId, str]":
    """Return the names of the topics, by id, that the metadata in or above a directory knows.

    Empty when there is no metadata, or none that can be read: the logs can be examined without it.
    """
    from millrace.core.errors import MillraceError
    from millrace.core.ids import ControllerEpoch
    from millrace.core.metadata.model import SHARD_KEYS
    from millrace.core.metadata.objects.encoding import decode_shard
    from millrace.core.metadata.objects.stored_object import StoredObject

    names: dict[TopicId, str] = {}
    for path in (directory / DATABASE, directory.parent / DATABASE):
        if not path.is_file():
            continue
        # Without a write-ahead log no process has the database open, and SQLite would make one to
        # read.
        mode = "mode=ro" if path.with_name(f"{DATABASE}-wal").exists() else "immutable=1"
        address = f"file:{quote(str(path.absolute()))}?{mode}"
        try:
            with closing(sqlite3.connect(address, uri=True)) as database:
                rows = database.execute(
                    "SELECT key, value, version, controller_epoch FROM objects"
                ).fetchall()
            objects = {key: StoredObject(v, n, ControllerEpoch(e)) for key, v, n, e in rows}
            for number, key in enumerate(SHARD_KEYS):
                if key in objects:
                    shard = decode_shard(number, objects[key])
                    deleted = (deleted_topic.topic for deleted_topic in shard.deleted.values())
                    names |= {
                        topic.topic_id: str(topic.name)
                        for topic in (*shard.topics.values(), *deleted)
                    }
        except (sqlite3.Error, MillraceError):
            continue
    return names
