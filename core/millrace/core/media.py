"""What disks are made of: the media of a log directory, and which one a topic asks for.

A broker tells the controller of which media it has log directories that work. New replicas of a
topic go to brokers that have its media, and there into a directory of it. A replica that lies
elsewhere, since the topic asked for something else before, works as well; it is only misplaced, and
moves where its broker has the media (`replication/replica_moves.py`).

HDFS and ClickHouse name volumes by what they are made of in the same way.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final


class Media(StrEnum):
    """What a log directory lies on."""

    SSD = "ssd"
    HDD = "hdd"


DEFAULT_MEDIA: Final = Media.SSD
"""Of a log directory for which nobody said it."""


class TopicMedia(StrEnum):
    """Where the replicas of a topic are to lie."""

    ANY = "any"
    SSD = "ssd"
    HDD = "hdd"

    def is_among(self, there: Collection[Media]) -> bool:
        """Whether a broker that has directories of these media can hold a replica as it should.

        A broker of an earlier release names none.
        """
        return self is TopicMedia.ANY or self.value in there
